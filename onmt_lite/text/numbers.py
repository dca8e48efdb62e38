"""Numbers: whether a line and its translation say the same ones.

Each side becomes a list of numbers with their readings: "1.234" is 1234, or 1.234 with just these
decimals.  Numbers with a reading in common cancel out; those that are left differ.  Words count in
the languages of numbers.yaml; in others they may say any small number.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

DATA = Path(__file__).with_name("numbers.yaml")
SPACES = " \u00a0\u2009\u202f"
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
MYRIADS = dict.fromkeys("万萬만", "0000") | dict.fromkeys("億亿억", "00000000")  # after digits
ONES = ["", *"I II III IV V VI VII VIII IX".split()]
ROMAN = {"X" * tens + one: str(10 * tens + i) for tens in range(4) for i, one in enumerate(ONES)}
DECADE = re.compile("'?s|er")  # after its first year
NUMBERED_ENTITY = re.compile(r"&#\w+;")  # a character: &#8222;
CLOCK = re.compile(r"\buhr\b|\bo.?clock\b|\b[ap]\.? ?m\b|\d:\d\d\b", re.IGNORECASE)
MINUS = re.compile(r"(?<!\S)(?<!\d )[-−]\d+")
NEGATIVE = re.compile(r"[-−–] ?\d|\b(?:minus|below|unter|negativ)", re.IGNORECASE)
MAX_NUMBER_LENGTH = 20  # characters of a number, and words in one, that are computed with
SMALL = 20  # up to this, numbers are often words


Kind = Literal["digits", "fraction", "hint", "weak", "word", "scale"]  # numbers.yaml has the last
KINDS: tuple[Kind, ...] = ("hint", "weak", "word", "scale")


class Number(NamedTuple):
    """What a place in a text says."""

    text: str
    values: tuple[str, ...]  # readings
    kind: Kind = "digits"
    parts: tuple["Number", ...] = ()  # if it is not one number
    start: int = 0
    end: int = 0


# -- words -----------------------------------------------------------------------------------------


class Words(NamedTuple):
    """The words of one language, or of all."""

    known: Mapping[str, Number]
    stem: re.Pattern[str]  # a part of a word that says a number
    ending: re.Pattern[str]  # of such a word
    gaps: frozenset[str]  # between the words of a number
    earlier: re.Pattern[str]
    decimal: str


@lru_cache
def data() -> Any:
    return yaml.safe_load(DATA.read_bytes())


@lru_cache
def words_of(code: str) -> Words:
    """Words of the language that a model calls so, of all for ""; none if they are not known."""
    name = "".join(re.findall("[a-z]+", code.lower())[:1])
    tables = [t for t in data()["languages"].values() if not code or name in t["codes"].split()]
    known, stems = dict[str, Number](), set[str]()
    for table in tables:
        for month, word in enumerate(table["months"].split(), 1):
            known[word] = Number(word, (str(month),), "hint")
        for kind in KINDS:
            pairs = ((value, word) for value in table[kind] for word in table[kind][value].split())
            for value, word in pairs:
                others = known[word].values if kind == "hint" and word in known else ()
                known[word] = Number(word, (str(value), *others), kind if value != 1 else "hint")
                if "ending" in table and kind != "hint":
                    stems |= {word, table["link"]}

    def any_of(words: Iterable[str]) -> re.Pattern[str]:
        return re.compile("|".join(sorted(words, key=len, reverse=True)) or "(?!)")

    return Words(
        known,
        any_of(stems),
        any_of(table["ending"] for table in tables if "ending" in table),
        frozenset([" ", "-", *(f" {table['link']} " for table in tables)]),
        any_of(rf"\b(?:{table['earlier']}) $" for table in tables),
        next((table["decimal"] for table in tables), ","),
    )


@lru_cache
def likely() -> re.Pattern[str]:
    """Finds what may say a number in a text in small letters; in most texts there is nothing."""
    words = words_of("").known.items()
    begin = [word for word, number in words if number.kind != "hint"]
    begin += [f"ein{stem}" for stem in ("und", "hundert", "tausend")]
    return re.compile(rf"\d|[¼-¾⅐-⅞]|\b(?:[ivx]{{2,}}\b|{'|'.join(begin)})")


def shown(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0")


@lru_cache(1 << 12)
def parse_word(text: str, code: str) -> tuple[Number, ...]:
    """The number that a word says, or may say, in a language."""
    word, words = text.lower(), words_of(code)
    if word in words.known:
        return (words.known[word]._replace(text=text),)
    stems, end = list[Number](), 0
    while len(stems) < MAX_NUMBER_LENGTH and (stem := words.stem.match(word, end)):
        stems += [words.known[stem[0]]] if stem[0] in words.known else []
        end = stem.end()
    found = sums(stems, glued=True)
    if len(found) != 1:
        return ()
    ((value, _),) = found
    says = value > 1 and (end == len(word) or words.ending.fullmatch(word, end))
    return (Number(text, (shown(value),), "word" if says else "hint"),)


def sums(words: Sequence[Number], glued: bool = False) -> list[tuple[Fraction, int]]:
    """The numbers that words in a row say, and how many words say each.  `glued`: ones may precede
    tens, as they do in German."""
    found: list[tuple[Fraction, int]] = []
    end = 0
    while end < len(words):
        begin, small, scale = end, Fraction(1), Fraction(1)
        if words[end].kind != "scale":
            small, end = Fraction(words[end].values[0]), end + 1
        while end < len(words) and words[end].kind == "scale":
            scale, end = scale * Fraction(words[end].values[0]), end + 1
        last, n_words = found.pop() if found else (Fraction(0), 0)
        fits = small < room(last) or glued and last % 100 < 10 <= small < 100
        if not last or small * scale < room(last) or fits and scale == 1:
            last += small * scale
        elif fits and last < scale:
            last = (last + small) * scale
        elif 10 <= last <= 20 and 10 <= small < 100 and scale == 1:  # nineteen eighty-four
            last = last * 100 + small
        else:
            found.append((last, n_words))
            last, n_words = small * scale, 0
        found.append((last, n_words + end - begin))
    return found


def room(value: Fraction) -> int:
    """What is added to a number is below this: 100 for 500, 10 for 20, 1 for 7."""
    powers = (10**n for n in (12, 9, 6, 3, 2) if value % 10**n == 0)
    return next(powers, 10 if value % 10 == 0 and value % 100 > 10 else int(value % 1 == 0))


# -- reading ---------------------------------------------------------------------------------------


def numbers_of(text: str, code: str, free: bool) -> list[Number]:
    """The numbers of a text in a language, in order.  `free`: see `of_digits`."""
    found, run, words = list[Number](), list[Number](), words_of(code)
    for match in TOKEN.finditer(text):
        is_word = match.lastgroup == "word"
        said = parse_word(match[0], code) if is_word else of_mark(match, words.decimal, free)
        if not said:
            continue
        start, end = match.span()
        new = [number._replace(start=start, end=end) for number in said]
        if words.earlier.search(text[max(0, start - 14) : start].lower()):
            hours = (str((int(v) - 2) % 12 + 1) for v in new[0].values if is_hour(v))
            new[0] = new[0]._replace(values=tuple(hours) or new[0].values)
        for number in new:
            if not (run and goes_on(run, number, text[run[-1].end : start], words)):
                found += spelled(run, text)
                run = []
            run.append(number)
    return [*found, *spelled(run, text)]


def of_mark(match: re.Match[str], decimal: str, free: bool) -> Sequence[Number]:
    """The numbers that a token says which is no word."""
    kind, text = match.lastgroup, match[0]
    if kind == "digits":
        plain = text.translate(PLAIN)
        if not plain.isascii():
            plain = "".join(str(unicodedata.decimal(char, char)) for char in plain)
        after = match.string[match.end() : match.end() + 2]
        return of_digits(plain, decimal, free, after)
    if kind == "roman":
        return [Number(text, (ROMAN.get(text, text),))]
    value = Fraction(unicodedata.numeric(text) if len(text) == 1 else 0.5)
    return [Number(text, (shown(value),), "hint" if kind == "hint" else "fraction")]


def of_digits(text: str, mark: str, free: bool, after: str = "") -> tuple[Number, ...]:
    """The numbers that digits say, with marks between them.

    mark   what stands before decimals
    free   three decimals may lose zeros, so that 1,500 may become 1.5; of 899,00, however, no
           translation makes 899,000, which reads as thousands
    after  the characters that follow
    """
    pieces = re.split("[:/]", text)
    if len(pieces) > 1:
        parts = tuple(chain(*(of_digits(piece, mark, free) for piece in pieces)))
        if ":" in text:
            return tuple(p._replace(kind="hint") if p.text == "00" else p for p in parts)
        if re.fullmatch(r"\d\d?/\d\d?", text) and int(pieces[0]) < int(pieces[1]):
            value = Fraction(int(pieces[0]), int(pieces[1]))
            return (Number(text, (shown(value),), "fraction", parts),)
        return parts
    *before, last = groups = re.split("[.,' ]", text)
    marks = [char for char in text if char in ".,' "]
    # A zero in front counts, but for that of 08
    parts = tuple(Number(g, (g[1:] if len(g) == 2 and g[0] == "0" else g,)) for g in groups)
    if not before:
        if len(text) == 4 and DECADE.match(after):
            return (Number(text, (text,), parts=(Number(text[2:], (text[2:],)),)),)
        return (Number(text, (parts[0].values[0] + MYRIADS.get(after[:1], ""),)),)
    values = list[str]()
    grouped = text[0] != "0" and len(groups[0]) < 4 and all(1 < len(g) < 4 for g in before[1:])
    if grouped and len(last) == 3 and len(set(marks)) == 1:
        values = ["".join(groups)]
        free = free and marks[0] == mark
    *others, point = marks
    if not others and point in ".," or grouped and len({*others}) == 1 and point not in others:
        exact = f"{''.join(before)}.{last}"
        values += [exact, exact.rstrip("0").rstrip(".")] if free or len(last) < 3 else [exact]
    # 10 000 may be two numbers, 15.30 a time, and 1.5. a date
    dotted = marks == ["."] and len(groups[0]) < 3 and (len(last) == 2 or after[:1] == ".")
    whole = Number(text, tuple(values), parts=parts if dotted or " " in marks else ())
    return (whole,) if values else parts


def goes_on(run: Sequence[Number], new: Number, gap: str, words: Words) -> bool:
    """Whether a word or fraction goes on with the number before it."""
    old = run[-1]
    is_number = old.kind != "hint" and old.values[0][0].isdigit() or old.values == ("1",)
    if len(run) == MAX_NUMBER_LENGTH or not is_number:
        return False
    if new.kind == "fraction":
        return gap in ("", " ") and old.values[0].isdigit()
    # twenty-one, twenty-second; but not "5 million Einwohner"
    ends = new.text.lower() in words.known and new.values in (("1",), ("2",) * (gap == "-"))
    adds = new.kind in ("word", "weak") or ends
    return gap in words.gaps and (new.kind == "scale" or adds and old.kind != "digits")


def spelled(run: Sequence[Number], text: str) -> Iterator[Number]:
    """Words in a row, or digits and words, as the numbers that they say."""
    if len(run) < 2 or len(run[0].values[0]) > MAX_NUMBER_LENGTH:
        yield from run
        return
    rest = iter(run)
    for value, n_words in sums(run):
        parts = tuple(islice(rest, n_words))
        start, end = parts[0].start, parts[-1].end
        whole = Number(text[start:end], (shown(value),), "word", parts, start, end)
        yield whole if n_words > 1 else parts[0]


def joined(text: str) -> str:
    """A line of tokens as text, as far as it matters here."""
    if "▁" in text:
        text = text.replace(" ", "").replace("▁", " ")
    return text.replace("@@ ", "").replace(" ￭", "").replace("￭ ", "")


# -- comparing -------------------------------------------------------------------------------------

Sides = tuple[list[Number], list[Number]]  # of the line and of its translation


def find_number_mismatch(
    source: str, translation: str, src_lang: str = "", tgt_lang: str = ""
) -> str:
    """What only one side says, such as "899,00 → 899,000"; "" if both say the same.  A language is
    what the model calls it, and "" if nobody knows."""
    source, translation = NUMBERED_ENTITY.sub(" ", source), NUMBERED_ENTITY.sub(" ", translation)
    texts = joined(source), joined(translation)
    if not any(likely().search(text.lower()) for text in texts):
        return ""
    numbers = numbers_of(texts[0], src_lang, True), numbers_of(texts[1], tgt_lang, False)
    one, other = left_over(numbers, any(map(CLOCK.search, texts)))
    one, other = without_copies(one, texts[1]), without_copies(other, texts[0])
    if one and other:
        digits = ["".join(n.text for n in side).replace(" ", "") for side in (one, other)]
        differ = digits[0] != digits[1] or len(digits[0]) < 6  # else a telephone number's groups
    elif one:
        differ = any(is_missed(number, texts[1], tgt_lang) for number in one)
    else:
        differ = any(is_missed(number, texts[0], src_lang) for number in other)
    if differ:
        return " → ".join(", ".join(n.text for n in side) for side in (one, other))
    sign = lost_sign(*texts) if words_of(tgt_lang).known else ""
    return f"{sign} → " if sign else ""


def left_over(said: Sides, is_clock: bool) -> Sides:
    """The numbers that the other side does not say.  `is_clock`: hours may go to 12 or to 24."""
    hints = [[n for n in side if n.kind == "hint"] for side in said]
    first = said = cancelled(*([n for n in side if n.kind != "hint"] for side in said))
    if not any(said):
        return said
    for choice in ((False, False), (True, False), (False, True)):
        sides = [[*parted(side)] if parts else side for side, parts in zip(said, choice)]
        rests = cancelled(*([n for n in side if n.kind != "hint"] for side in sides))
        mays = [[n for n in side if n.kind == "hint"] + own for side, own in zip(sides, hints)]
        rests = cancelled(rests[0], mays[1])[0], cancelled(rests[1], mays[0])[0]
        if is_clock:
            rests = cancelled(as_hours(rests[0]), as_hours(rests[1]))
            mays = [*map(as_hours, mays)]
            rests = cancelled(rests[0], mays[1])[0], cancelled(rests[1], mays[0])[0]
        if not any(rests):
            return rests
        if not any(choice):
            first = rests
    return first


def cancelled(one: Sequence[Number], other: Sequence[Number]) -> Sides:
    """Both without the pairs that have a reading in common."""
    waiting = defaultdict[str, list[int]](list)
    for i, number in enumerate(other):
        for value in number.values:
            waiting[value].append(i)
    gone, rest = set[int](), list[Number]()
    for number in one:
        for value in number.values:
            places = waiting.get(value, [])
            while places and places[-1] in gone:
                places.pop()
            if places:
                gone.add(places.pop())
                break
        else:
            rest.append(number)
    return rest, [number for i, number in enumerate(other) if i not in gone]


def parted(numbers: Iterable[Number]) -> Iterator[Number]:
    for number in numbers:
        yield from parted(number.parts) if number.parts else (number,)


def is_hour(value: str) -> bool:
    return value.isdigit() and len(value) < 3 and int(value) <= 24


def as_hours(numbers: Iterable[Number]) -> list[Number]:
    """As hours that go to 12, where they may be."""
    hours = ((n, tuple({str(int(v) % 12) for v in n.values if is_hour(v)})) for n in numbers)
    return [number._replace(values=values or number.values) for number, values in hours]


def without_copies(numbers: Iterable[Number], other: str) -> list[Number]:
    """Without the words that the other side has as they are, such as names."""
    if not any(number.kind in KINDS for number in numbers):
        return [*numbers]
    words = {word.lower() for word in WORD.findall(other)}
    return [n for n in numbers if n.kind not in KINDS or n.text.lower() not in words]


def is_missed(number: Number, other: str, code: str) -> bool:
    """Whether a number is missing on the other side, in the language `code`, where no other number
    takes its place."""
    if number.kind == "weak":
        return False
    if code and words_of(code).known:
        return True
    # The other side may say it in a word that is not known
    value = number.values[0]
    small = value.isdigit() and len(value) < 3 and int(value) <= SMALL
    return number.kind not in KINDS and not (small and (code or not re.search(r"\d", other)))


@lru_cache
def signs() -> re.Pattern[str]:
    """Find a number with the sign of a unit, which is the group `unit`."""
    return re.compile(rf"\d[{SPACES}]?(?P<unit>{'|'.join(data()['units'])})(?!\w)")


@lru_cache
def symbols() -> re.Pattern[str]:
    """Find a unit that is copied to the letter; its prefix and base are groups."""
    table = data()["symbols"]
    prefixes, prefixed, plain = (
        "|".join(table[name]) for name in ("prefixes", "prefixed", "plain")
    )
    known = "|".join(data()["units"])
    return re.compile(
        rf"(?!(?:{known})(?![\w/]))(?:(?P<prefix>{prefixes})?(?P<base>{prefixed})|(?P<plain>{plain}))"
        rf"(?:/\w+[²³]?)?(?!\w)"
    )


@lru_cache
def amount_pattern() -> re.Pattern[str]:
    """Find a number with such a unit, which is the group `unit`; 60s are no seconds."""
    unit = re.sub(r"\?P<(?:prefix|base|plain)>", "?:", symbols().pattern)
    return re.compile(
        rf"(?<![\w.,:−–-])[−-]?\d+(?:[.,–-]\d+)*(?:[{SPACES}](?=\S)|(?![a-z](?!\w)))(?P<unit>{unit})"
    )


@lru_cache(1 << 8)
def unit_forms(unit: str) -> re.Pattern[str]:
    """Find a unit: its sign or symbol, or its words in any case."""
    table = data()["symbols"]

    def words_for(symbol: str, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        return ((sign, said) for sign, said in words.items() if re.fullmatch(sign, symbol))

    sign, said = next(words_for(unit, data()["units"]), ("", ""))
    if not sign:
        found = symbols().match(unit)
        assert found is not None
        prefix = "".join(said for _, said in words_for(found["prefix"] or "", table["prefixes"]))
        bases = words_for(found["base"] or found["plain"], {**table["prefixed"], **table["plain"]})
        sign, said = re.escape(unit), f"{prefix}[ -]?(?:{next(bases)[1]})"
    return re.compile(rf"(?<![^\W\d_])(?:{sign}|(?i:{said}))(?![^\W\d_])")


def lost_sign(source: str, translation: str) -> str:
    """The first minus, or sign of a unit, that has no form in the translation."""
    if (minus := MINUS.search(source)) and not NEGATIVE.search(translation):
        return minus[0]
    found = (
        match["unit"] for each in (signs(), amount_pattern()) for match in each.finditer(source)
    )
    return next((u for u in dict.fromkeys(found) if not unit_forms(u).search(translation)), "")
