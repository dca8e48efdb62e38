"""Number checking: do a line and its translation contain the same numbers?

Each side becomes a list of numbers with possible readings: "1.234" is 1234, or 1.234 with exactly
these decimals. Numbers with a common reading cancel out; the remaining numbers are mismatches.
Number words are recognized in the languages of numbers.yaml. In other languages, any word might be
a small number.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from typing import Literal, NamedTuple

from onmt_lite.text.units import SPACES, find_lost_sign, load_data

TOKEN = re.compile(
    rf"(?P<digits>(?<!\d)\d{{1,3}}(?:[{SPACES}]\d{{3}}(?!\d))+(?:[.,]\d+)?"
    r"|\d+(?:[.,:/'’\u066b\u066c]\d+)*)"
    r"|(?P<fraction>[¼-¾⅐-⅞]|\band a half\b)"
    r"|(?P<hint>[²³₀-₉])"  # m² may become m2
    r"|(?P<roman>\b[IVX]{2,}\b)"
    r"|(?P<word>[^\W\d_²³¼-¾⅐-⅞₀-₉]+)"
)
WORD = re.compile(r"[^\W\d_]+")
PLAIN = str.maketrans({**dict.fromkeys(SPACES, " "), "’": "'", "\u066b": ".", "\u066c": "'"})
# Zeros that a character directly after digits adds
MYRIADS = dict.fromkeys("万萬만", "0000") | dict.fromkeys("億亿억", "00000000")
ONES = ["", *"I II III IV V VI VII VIII IX".split()]
ROMAN = {"X" * tens + one: str(10 * tens + i) for tens in range(4) for i, one in enumerate(ONES)}
DECADE = re.compile("'?s|er")  # suffix of a decade: 1980s
NUMBERED_ENTITY = re.compile(r"&#\w+;")  # a numeric character reference: &#8222;
CLOCK = re.compile(r"\buhr\b|\bo.?clock\b|\b[ap]\.? ?m\b|\d:\d\d\b", re.IGNORECASE)
MAX_NUMBER_LENGTH = 20  # limit for characters of a number, and for words in a number
MAX_WORD_NUMBER = 20  # numbers up to this are often spelled as words


# The last four are in numbers.yaml
NumberType = Literal["digits", "fraction", "hint", "weak", "word", "scale"]
WORD_TYPES: tuple[NumberType, ...] = ("hint", "weak", "word", "scale")


class Number(NamedTuple):
    """A number in a text."""

    text: str
    values: tuple[str, ...]  # possible readings
    type: NumberType = "digits"
    parts: tuple["Number", ...] = ()  # alternative: several numbers
    start: int = 0
    end: int = 0


# -- words -----------------------------------------------------------------------------------------


class NumberWords(NamedTuple):
    """The number words of one language, or of all languages."""

    known: Mapping[str, Number]
    stem: re.Pattern[str]  # part of a compound number word
    ending: re.Pattern[str]  # inflection of a compound number word
    gaps: frozenset[str]  # separators between the words of a number
    hour_before: re.Pattern[str]
    decimal: str  # decimal mark


@lru_cache
def load_words(code: str) -> NumberWords:
    """Return the number words of a language, by its code in a model; "" selects all languages.

    An unknown language has no words.
    """
    name = "".join(re.findall("[a-z]+", code.lower())[:1])
    languages = [
        language
        for language in load_data()["languages"].values()
        if not code or name in language["codes"].split()
    ]
    known, stems = dict[str, Number](), set[str]()
    for language in languages:
        for month, word in enumerate(language["months"].split(), 1):
            known[word] = Number(word, (str(month),), "hint")
        for word_type in WORD_TYPES:
            pairs = (
                (value, word)
                for value in language[word_type]
                for word in language[word_type][value].split()
            )
            for value, word in pairs:
                other_values = known[word].values if word_type == "hint" and word in known else ()
                known[word] = Number(
                    word, (str(value), *other_values), word_type if value != 1 else "hint"
                )
                if "ending" in language and word_type != "hint":
                    stems |= {word, language["link"]}

    def join_alternatives(words: Iterable[str]) -> re.Pattern[str]:
        return re.compile("|".join(sorted(words, key=len, reverse=True)) or "(?!)")

    return NumberWords(
        known,
        join_alternatives(stems),
        join_alternatives(language["ending"] for language in languages if "ending" in language),
        frozenset([" ", "-", *(f" {language['link']} " for language in languages)]),
        join_alternatives(rf"\b(?:{language['earlier']}) $" for language in languages),
        next((language["decimal"] for language in languages), ","),
    )


@lru_cache
def make_prefilter_pattern() -> re.Pattern[str]:
    """Return a pattern that finds possible numbers in lowercase text. Most texts have none."""
    words = load_words("").known.items()
    begin = [word for word, number in words if number.type != "hint"]
    begin += [f"ein{stem}" for stem in ("und", "hundert", "tausend")]
    return re.compile(rf"\d|[¼-¾⅐-⅞]|\b(?:[ivx]{{2,}}\b|{'|'.join(begin)})")


def format_value(value: Fraction) -> str:
    """Return a value as a string, with at most four decimals."""
    return str(value) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0")


@lru_cache(1 << 12)
def parse_word(text: str, code: str) -> tuple[Number, ...]:
    """Return the number, or possible number, that a word represents in a language."""
    word, words = text.lower(), load_words(code)
    if word in words.known:
        return (words.known[word]._replace(text=text),)
    stems, end = list[Number](), 0
    while len(stems) < MAX_NUMBER_LENGTH and (stem := words.stem.match(word, end)):
        stems += [words.known[stem[0]]] if stem[0] in words.known else []
        end = stem.end()
    totals = add_up(stems, glued=True)
    if len(totals) != 1:
        return ()
    ((value, _),) = totals
    is_certain = value > 1 and (end == len(word) or words.ending.fullmatch(word, end))
    return (Number(text, (format_value(value),), "word" if is_certain else "hint"),)


def add_up(words: Sequence[Number], glued: bool = False) -> list[tuple[Fraction, int]]:
    """Combine consecutive number words into numbers.

    Args:
        words: the words, in order.
        glued: ones may precede tens, as in German compounds.

    Returns:
        (value, number of words) of each number.
    """
    totals: list[tuple[Fraction, int]] = []
    end = 0
    while end < len(words):
        begin, small, scale = end, Fraction(1), Fraction(1)
        if words[end].type != "scale":
            small, end = Fraction(words[end].values[0]), end + 1
        while end < len(words) and words[end].type == "scale":
            scale, end = scale * Fraction(words[end].values[0]), end + 1
        last, n_words = totals.pop() if totals else (Fraction(0), 0)
        fits = small < get_addend_limit(last) or glued and last % 100 < 10 <= small < 100
        if not last or small * scale < get_addend_limit(last) or fits and scale == 1:
            last += small * scale
        elif fits and last < scale:
            last = (last + small) * scale
        elif 10 <= last <= 20 and 10 <= small < 100 and scale == 1:  # nineteen eighty-four
            last = last * 100 + small
        else:
            totals.append((last, n_words))
            last, n_words = small * scale, 0
        totals.append((last, n_words + end - begin))
    return totals


def get_addend_limit(value: Fraction) -> int:
    """Return the value below which a number can be added: 100 for 500, 10 for 20, 1 for 7."""
    powers = (10**n for n in (12, 9, 6, 3, 2) if value % 10**n == 0)
    return next(powers, 10 if value % 10 == 0 and value % 100 > 10 else int(value % 1 == 0))


# -- parsing ---------------------------------------------------------------------------------------


def find_numbers(text: str, code: str, free: bool) -> list[Number]:
    """Return the numbers of a text, in order.

    Args:
        text: the text.
        code: its language.
        free: see `parse_digits`.
    """
    merged, run, words = list[Number](), list[Number](), load_words(code)
    mark = words.decimal
    for match in TOKEN.finditer(text):
        is_word = match.lastgroup == "word"
        numbers = parse_word(match[0], code) if is_word else parse_symbol(match, mark, free)
        if not numbers:
            continue
        start, end = match.span()
        parsed = [Number(*number[:4], start, end) for number in numbers]
        is_long = end - start > 2 and len(numbers) == 1 and match[0].isdigit()  # not an hour
        hours = () if is_long else [v for v in parsed[0].values if is_hour(v)]
        if hours and words.hour_before.search(text[max(0, start - 14) : start].lower()):
            parsed[0] = parsed[0]._replace(values=tuple(str((int(v) - 2) % 12 + 1) for v in hours))
        for number in parsed:
            if not (run and continues_number(run, number, text[run[-1].end : start], words)):
                merged += run if len(run) == 1 else merge_run(run, text)
                run = []
            run.append(number)
    return [*merged, *merge_run(run, text)]


def parse_symbol(match: re.Match[str], decimal: str, free: bool) -> Sequence[Number]:
    """Return the numbers of a match of TOKEN that is not a word.

    Args:
        match: match of TOKEN.
        decimal: decimal mark of the language.
        free: see `parse_digits`.
    """
    group, text = match.lastgroup, match[0]
    if group == "digits":
        plain = text.translate(PLAIN)
        if not plain.isascii():
            plain = "".join(str(unicodedata.decimal(char, char)) for char in plain)
        after = match.string[match.end() : match.end() + 2]
        return parse_digits(plain, decimal, free, after)
    if group == "roman":
        return [Number(text, (ROMAN.get(text, text),))]
    value = Fraction(unicodedata.numeric(text) if len(text) == 1 else 0.5)
    return [Number(text, (format_value(value),), "hint" if group == "hint" else "fraction")]


def parse_digits(text: str, mark: str, free: bool, after: str = "") -> tuple[Number, ...]:
    """Return the numbers of digits with separators.

    Args:
        text: digits and separators.
        mark: decimal mark of the language.
        free: three decimals may lose zeros, so that 1,500 may become 1.5. They may not gain zeros:
            899,000 reads as thousands, and is not a translation of 899,00.
        after: the two characters that follow.
    """
    if text.isdigit():
        # A leading zero counts, except in two digits (08)
        reading = text[1:] if len(text) == 2 and text[0] == "0" else text
        if len(text) == 4 and DECADE.match(after):
            return (Number(text, (text,), parts=(Number(text[2:], (text[2:],)),)),)
        return (Number(text, (reading + MYRIADS.get(after[:1], ""),)),)
    fields = re.split("[:/]", text)
    if len(fields) > 1:
        parts = tuple(chain(*(parse_digits(field, mark, free) for field in fields)))
        if ":" in text:
            return tuple(p._replace(type="hint") if p.text == "00" else p for p in parts)
        if re.fullmatch(r"\d\d?/\d\d?", text) and int(fields[0]) < int(fields[1]):
            value = Fraction(int(fields[0]), int(fields[1]))
            return (Number(text, (format_value(value),), "fraction", parts),)
        return parts
    *before, last = groups = re.split("[.,' ]", text)
    marks = [char for char in text if char in ".,' "]
    parts = tuple(chain(*(parse_digits(group, mark, free) for group in groups)))
    values = list[str]()
    grouped = text[0] != "0" and len(groups[0]) < 4 and all(1 < len(g) < 4 for g in before[1:])
    if grouped and len(last) == 3 and len(set(marks)) == 1:
        values = ["".join(groups)]
        free = free and marks[0] == mark
    *separators, last_separator = marks
    if (
        not separators
        and last_separator in ".,"
        or grouped
        and len({*separators}) == 1
        and last_separator not in separators
    ):
        exact = f"{''.join(before)}.{last}"
        values += [exact, exact.rstrip("0").rstrip(".")] if free or len(last) < 3 else [exact]
    # 10 000 may be two numbers, 15.30 a time, and 1.5. a date
    dotted = marks == ["."] and len(groups[0]) < 3 and (len(last) == 2 or after[:1] == ".")
    whole = Number(text, tuple(values), parts=parts if dotted or " " in marks else ())
    return (whole,) if values else parts


def continues_number(run: Sequence[Number], new: Number, gap: str, words: NumberWords) -> bool:
    """Return True if a word or fraction belongs to the number before it.

    Args:
        run: the number words so far.
        new: the next number.
        gap: text between them.
        words: number words of the language.
    """
    old = run[-1]
    is_number = old.type != "hint" and old.values[0][0].isdigit() or old.values == ("1",)
    if len(run) == MAX_NUMBER_LENGTH or not is_number:
        return False
    if new.type == "fraction":
        return gap in ("", " ") and old.values[0].isdigit()
    # twenty-one, twenty-second; but not "5 million Einwohner"
    ends = new.text.lower() in words.known and new.values in (("1",), ("2",) * (gap == "-"))
    adds = new.type in ("word", "weak") or ends
    return gap in words.gaps and (new.type == "scale" or adds and old.type != "digits")


def merge_run(run: Sequence[Number], text: str) -> Iterator[Number]:
    """Yield the numbers that consecutive number words, or digits and words, represent."""
    if len(run) < 2 or len(run[0].values[0]) > MAX_NUMBER_LENGTH:
        yield from run
        return
    rest = iter(run)
    for value, n_words in add_up(run):
        parts = tuple(islice(rest, n_words))
        start, end = parts[0].start, parts[-1].end
        whole = Number(text[start:end], (format_value(value),), "word", parts, start, end)
        yield whole if n_words > 1 else parts[0]


def detokenize_line(text: str) -> str:
    """Detokenize a line of subwords, as far as numbers are concerned."""
    if "▁" in text:
        text = text.replace(" ", "").replace("▁", " ")
    return text.replace("@@ ", "").replace(" ￭", "").replace("￭ ", "")


# -- comparing -------------------------------------------------------------------------------------

Sides = tuple[list[Number], list[Number]]  # numbers of the line and of its translation


def find_number_mismatch(
    source: str, translation: str, src_lang: str = "", tgt_lang: str = ""
) -> str:
    """Return the numbers that only one side contains, such as "899,00 → 899,000", or "".

    Args:
        source: the line.
        translation: its translation.
        src_lang: language code in the model, "" if unknown.
        tgt_lang: language code in the model, "" if unknown.
    """
    source, translation = NUMBERED_ENTITY.sub(" ", source), NUMBERED_ENTITY.sub(" ", translation)
    texts = detokenize_line(source), detokenize_line(translation)
    if not any(make_prefilter_pattern().search(text.lower()) for text in texts):
        return ""
    numbers = find_numbers(texts[0], src_lang, True), find_numbers(texts[1], tgt_lang, False)
    only_source, only_target = find_unmatched(numbers, any(map(CLOCK.search, texts)))
    only_source, only_target = (
        drop_copied_words(only_source, texts[1]),
        drop_copied_words(only_target, texts[0]),
    )
    if only_source and only_target:
        digits = [
            "".join(n.text for n in side).replace(" ", "") for side in (only_source, only_target)
        ]
        # Equal digits of this length are a phone number with other groups
        differ = digits[0] != digits[1] or len(digits[0]) < 6
    elif only_source:
        differ = any(is_missed(number, texts[1], tgt_lang) for number in only_source)
    else:
        differ = any(is_missed(number, texts[0], src_lang) for number in only_target)
    if differ:
        return " → ".join(", ".join(n.text for n in side) for side in (only_source, only_target))
    sign = find_lost_sign(*texts) if load_words(tgt_lang).known else ""
    return f"{sign} → " if sign else ""


def find_unmatched(sides: Sides, is_clock: bool) -> Sides:
    """Return the numbers without a match on the other side.

    Args:
        sides: numbers of both sides.
        is_clock: the text has times of day, so hours may count to 12 or to 24.
    """
    hints = [[n for n in side if n.type == "hint"] for side in sides]
    first = sides = cancel_common(*([n for n in side if n.type != "hint"] for side in sides))
    has_other_readings = is_clock or any(hints) or any(n.parts for side in sides for n in side)
    if not any(sides) or not has_other_readings:
        return sides
    for choice in ((False, False), (True, False), (False, True)):
        split = [[*iter_parts(side)] if parts else side for side, parts in zip(sides, choice)]
        rests = cancel_common(*([n for n in side if n.type != "hint"] for side in split))
        possible = [
            [n for n in side if n.type == "hint"] + more for side, more in zip(split, hints)
        ]
        rests = cancel_common(rests[0], possible[1])[0], cancel_common(rests[1], possible[0])[0]
        if is_clock:
            rests = cancel_common(parse_hours(rests[0]), parse_hours(rests[1]))
            possible = [*map(parse_hours, possible)]
            rests = cancel_common(rests[0], possible[1])[0], cancel_common(rests[1], possible[0])[0]
        if not any(rests):
            return rests
        if not any(choice):
            first = rests
    return first


def cancel_common(source: Sequence[Number], target: Sequence[Number]) -> Sides:
    """Return both sides without the pairs that have a common reading."""
    waiting = defaultdict[str, list[int]](list)
    for i, number in enumerate(target):
        for value in number.values:
            waiting[value].append(i)
    matched, unmatched = set[int](), list[Number]()
    for number in source:
        for value in number.values:
            candidates = waiting.get(value, [])
            while candidates and candidates[-1] in matched:
                candidates.pop()
            if candidates:
                matched.add(candidates.pop())
                break
        else:
            unmatched.append(number)
    return unmatched, [number for i, number in enumerate(target) if i not in matched]


def iter_parts(numbers: Iterable[Number]) -> Iterator[Number]:
    """Yield the parts of each number, or the number itself."""
    for number in numbers:
        yield from iter_parts(number.parts) if number.parts else (number,)


def is_hour(value: str) -> bool:
    """Return True if a value can be an hour."""
    return value.isdigit() and len(value) < 3 and int(value) <= 24


def parse_hours(numbers: Iterable[Number]) -> list[Number]:
    """Reduce values that can be hours to the 12-hour clock."""
    hours = ((n, tuple({str(int(v) % 12) for v in n.values if is_hour(v)})) for n in numbers)
    return [number._replace(values=values or number.values) for number, values in hours]


def drop_copied_words(numbers: Iterable[Number], other: str) -> list[Number]:
    """Drop number words that the other side contains unchanged, such as names."""
    if not any(number.type in WORD_TYPES for number in numbers):
        return [*numbers]
    words = {word.lower() for word in WORD.findall(other)}
    return [n for n in numbers if n.type not in WORD_TYPES or n.text.lower() not in words]


def is_missed(number: Number, other: str, code: str) -> bool:
    """Return True if a number is missing on the other side, which has no unmatched numbers.

    Args:
        number: the unmatched number.
        other: text of the other side.
        code: language of the other side, "" if unknown.
    """
    if number.type == "weak":
        return False
    if code and load_words(code).known:
        return True
    # The other side may have an unknown number word
    value = number.values[0]
    small = value.isdigit() and len(value) < 3 and int(value) <= MAX_WORD_NUMBER
    return number.type not in WORD_TYPES and not (small and (code or not re.search(r"\d", other)))
