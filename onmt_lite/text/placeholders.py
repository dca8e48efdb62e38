"""Unknown characters, markup and placeholders: taken out of a line before it is translated.

A character without a piece in the vocabulary becomes the unknown token, at which a model invents
words.  So the model reads the line without such characters:

1. An unknown character with a known plain equivalent is replaced: hyphens, quotation marks, odd
   spaces, letters with combining accents, HTML entities of letters.  Control and format characters
   are removed.
2. Marks at the start of the line (`- [x] `, `1. `, `## `, `> `) are its head.  The rest is
   translated as if it were the whole line.
3. Other unknown characters are taken out, and, known or not, tags, escaped tags, HTML entities,
   Markdown's links, emphasis and code, placeholders (`{name}`, `[[name]]`, `%s`), addresses, paths
   and words such as `max_size` or `AT&T`.
   - Words with an unknown letter, several in a row counting as one, formulas (`3 × 4 = 12`), dates
     (`9/4/2000`), amounts with an unknown sign (`52,42 €`), placeholders, code and addresses are
     replaced by a stand-in that the model is known to copy: a name or a number.
   - All other items are marks, and removed.
4. Module `onmt_lite.text.tag_projection` puts the items back into the translation.
   - A word replaces its stand-in, or follows the translation of that if it is not a copy.
   - A mark follows the translation of the word before it; one that is glued to the next word
     precedes its translation; one at the start or end of the line stays there.  A pair of tags or
     brackets encloses the translation of its content, and pairs are nested as they were.
     Attention aligns the words.
5. A line is copied untranslated if step 3 leaves no known letter, or if more than two thirds of its
   letters are unknown.

The rule `copy` does all of this, `drop` steps 1 to 3 without stand-ins, `model` nothing.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Literal

from onmt_lite.text.lines import is_all_uppercase
from onmt_lite.text.markup import (
    ENTITY,
    HINT,
    ITEM,
    NEXT_CELL,
    NEXT_SPEAKER,
    PATTERNS,
    SELF_CLOSING,
    TAG_NAME,
    emphases,
    head_of,
    inside_items,
)
from onmt_lite.text.numbers import amount_pattern
from onmt_lite.text.tokenizers import LANGUAGE, SPACER

UnknownRule = Literal["copy", "drop", "model"]
BREAKS = ("Cc", "Zl", "Zp")  # characters that may end a line, or are no text

# -- patterns --------------------------------------------------------------------------------------

# Patterns of unknown items in a line given as classes of characters: a known letters, d known
# digits, - a known hyphen, U unknown letters and digits, m unknown accents and joiners, o unknown
# operators, c unknown currencies and degrees, x other unknown characters, _ spaces.  Repetitions
# are bounded, as time would grow with the square.
NUMERAL = "(?<![adU])d+(?:[.-]d+){0,9}"
UNIT = "(?:(?:[.]-)?_?ca?|_?a{1,5}oa)"  # 3,- €, 180 °C, 120 km/h
AMOUNT = f"(?:(?<![adU])a{{1,3}})?c_?{NUMERAL}(?![adU])|(?:(?<![adU])-)?{NUMERAL}{UNIT}(?![adU])"
# A number, also with letters, or one letter; powers may follow it
OPERAND = "(?<![adU])(?:(?=[ad]{0,9}d)[ad]+|a)(?:[.-]d+){0,9}o{0,4}(?![adU])"
FORMULA = f"{OPERAND}(?:_*o{{1,4}}_*{OPERAND})+(?:o[ad]+)*"  # 2x + 3 = y², 9/4/2000, 98/6/EG
UNKNOWN_WORD = "(?<![ad])[ad]*[Um][adUm]*(?:_+[ad]*[Um][adUm]*)*"
# Without stand-ins the number of an amount stays
UNKNOWN, UNKNOWN_BUT_AMOUNTS = (
    re.compile(f"(?P<word>{amount}{FORMULA}|{UNKNOWN_WORD})|(?P<mark>[xoc][xocm]*)")
    for amount in (f"{AMOUNT}|", "")
)

PLAIN = {
    **dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63\uff0d–—―", "-"),
    **dict.fromkeys("„“”‟«»″〝〞", '"'),
    **dict.fromkeys("‚‘’‛‹›′ʼ´", "'"),
    "…": "...",
    "ẞ": "ß",
}
PLAIN_FORMS = ("<wide>", "<narrow>", "<noBreak>", "<compat>", "<font>", "<small>", "<vertical>")
SHAPED = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")  # m² is no m2
# Spans to replace by plain text, except inside items, which come first
MARK_ALONE = re.compile(rf"{ITEM}|(?<!\S)(?:[^\w\s]|{ENTITY})(?!\S)")
ENTITY_OF_TEXT = re.compile(f"{ITEM}|{ENTITY}")
LOOSE_ACCENTS = re.compile(f"{ITEM}|[^\\W_][\u0300-\u036f]{{1,9}}")
# Items that stand for a number
NUMBER = re.compile(
    r"%[^s@c]*[difu]$|[$#%]?[{[<]+\s*(?:n|num|number|count|total|anzahl|zahl)\b"
    r"|[^\w=<>{}]*[\d\u00bc-\u00be\u2150-\u218b\u2460-\u249b](?:\d|[^\w=<>{}])*"
    r"(?:°\w|\w{1,5}/\w|(?<=/)\w+)?$",
    re.IGNORECASE,
)
BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "„": "“", "“": "”", '"': '"', "<": ">"}
CLOSING = re.compile(r"[.,;:!?…)\]}»“”’\"']*$")
DASHES = "-–—―"
MASK = "\ufffc"  # the character for an object, in place of an item


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnknownPolicy:
    """Handling of unknown characters, from the description of a model."""

    rule: UnknownRule = "model"
    names: tuple[str, ...] = ()  # stand-ins that the model copies, the best first
    numbers: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)  # for marks alone: "und" for &
    rare: str = ""  # characters with tokens that were too rare in training to be learned


def is_one_word(text: object) -> bool:
    """Whether it may stand in for something: a string, not empty, that has no spaces and no
    halves of characters, which UTF-8 cannot encode."""
    if not isinstance(text, str) or not text:
        return False
    return not any(char.isspace() or unicodedata.category(char) == "Cs" for char in text)


@dataclass(frozen=True)
class MaskedSpan:
    """An item that was taken out of a line."""

    text: str
    placeholder: str  # a word that the model reads in its place; "" for a mark
    # "left": it follows the translation of the word before it; "right": it precedes that of the
    # word after it; or it stays at the "start" or the "end" of the line, or before the marks with
    # which the line "closes"
    side: str
    spaced: tuple[bool, bool]  # whether a space stood before it, and after it
    joins: bool = False  # it stood between two words without a space
    partner: int | None = None  # the number of the item that closes the pair which this one opens


@dataclass(frozen=True)
class MaskedLine:
    """A line as the model reads it: `parts` of text and, between each two of them, an item."""

    plain: str  # the line before anything was taken out
    parts: tuple[str, ...]
    items: tuple[MaskedSpan, ...] = ()
    passes: bool = False  # it is not to be translated but passed through
    head: str = ""  # marks at the start of the line, which are not in `plain` and `parts`

    @property
    def text(self) -> str:
        stand_ins = [item.placeholder for item in self.items]
        return "".join(part + name for part, name in zip(self.parts, [*stand_ins, ""]))

    def of_target(self, text: str) -> str:
        """A translation as it would be without the items: a reference, or its beginning."""
        text = text.removeprefix(self.head)
        for item in self.items:
            text = text.replace(item.text, item.placeholder or " " * item.joins, 1)
        return text

    def lower(self) -> "MaskedLine":
        """In small letters, but for the stand-ins."""
        return replace(self, parts=tuple(part.lower() for part in self.parts))

    def capitalized(self, text: str) -> str:
        """Capitalize the first letter of a translation if the text after the head has a capital."""
        first = next(filter(str.isalnum, self.text), "")
        if not self.head or not first.isupper() or text[1:2].isupper():  # iPhone
            return text
        return text[:1].upper() + text[1:]

    def encloses_text(self, i: int) -> bool:
        """Return True if item i opens a pair around words."""
        stop = self.items[i].partner or i
        has_stand_in = any(item.placeholder for item in self.items[i:stop])
        return has_stand_in or any(map(str.isalnum, "".join(self.parts[i + 1 : stop + 1])))


@dataclass
class Span:
    """Span of an item in a line."""

    start: int
    end: int
    is_word: bool  # a stand-in takes the place of the item
    glued: tuple[bool, bool] = (False, False)  # whether words touch it, or all adjacent marks
    partner: int | None = None  # index of the span that closes the pair opened by this one
    closes: bool = False  # this span closes a pair
    role: str = ""  # "opens" or "closes" a link or emphasis, or a "speaker" begins

    def of(self, line: str) -> str:
        return line[self.start : self.end]


def _replaced(pattern: re.Pattern[str], plain: Callable[[str], str], line: str) -> str:
    """Replace all that the pattern finds beside its items by plain equivalents."""
    return pattern.sub(lambda found: found[0] if found["item"] else plain(found[0]), line)


def _unescaped(mark: str) -> str:
    return html.unescape(mark) if mark[-1] == ";" else mark


class LineMasker:
    """Takes unknown characters, markup and placeholders out of lines."""

    def __init__(
        self,
        encode: Callable[[str], list[str]],
        lacks: Callable[[str], bool],
        unknown: UnknownPolicy,
    ):
        """encode cuts text into tokens; lacks says whether the model does not know a token."""
        self.encode, self.lacks, self.unknown = encode, lacks, unknown
        self.pattern = UNKNOWN if unknown.names or unknown.numbers else UNKNOWN_BUT_AMOUNTS
        self.knows = lru_cache(maxsize=None)(self._knows)

    def _knows(self, char: str) -> bool:
        tokens = self.encode(char)
        changed = char not in "".join(tokens)
        shaped = unicodedata.decomposition(char).startswith(SHAPED)
        if any(self.lacks(token) for token in tokens if token != SPACER) or changed and shaped:
            return False
        return char not in self.unknown.rare and unicodedata.category(char) != "Cf"

    def extract(self, line: str) -> MaskedLine | None:
        """Take the items out of a line; None for a line without items."""
        has_words = any(map(str.isalnum, line))
        language, start = LANGUAGE.match(line), 0
        if language and not self.lacks(language[0]):
            start = language.end() if self.encode(line[:50])[:1] == [language[0]] else 0
        head = head_of(line, start)
        line = line[:start] + line[start + len(head) :]
        hinted = head or HINT.search(line) or self.unknown.numbers and amount_pattern().search(line)
        if has_words and all(map(self.knows, set(line))) and not hinted:
            return None
        if not has_words and not self.encode(line):  # blank
            return None
        line = self._plain(line)
        spans = [span for span in self._spans(line, head) if span.start >= start]
        # The parts between the spans, as the model reads them, and the items
        names = _stand_ins(line, spans, self.unknown)
        ends, starts = [0, *(s.end for s in spans)], [*(s.start for s in spans), len(line)]
        parts = [line[end:start] for end, start in zip(ends, starts)]
        before, after = _fillings(parts, names), _fillings(parts[::-1], names[::-1])[::-1]
        items = [_item(line, *each) for each in zip(spans, names, before, after)]
        parts = _respaced(parts, items)
        unknown = sum(char.isalpha() and not self.knows(char) for char in line)
        known = sum(char.isalpha() for part in parts for char in part)
        passes = not has_words or bool(spans) and (known == 0 or unknown > 2 * known)
        return MaskedLine(line, tuple(parts), tuple(items), passes, head)

    def _plain(self, line: str) -> str:
        """Replace unknown characters by known plain equivalents, but inside items."""
        words = self.unknown.words
        if words and is_all_uppercase(PATTERNS.sub("", line)):
            words = {mark: word.upper() for mark, word in words.items()}
        line = _replaced(MARK_ALONE, lambda mark: words.get(_unescaped(mark), mark), line)
        line = _replaced(ENTITY_OF_TEXT, self._character, line)
        line = _replaced(LOOSE_ACCENTS, self._composed, line)
        inside = inside_items(line)
        chars: list[str] = []
        for i, char in enumerate(line):
            whole = i in inside and unicodedata.category(char) not in BREAKS
            before = chars[-1][-1:] if chars else ""
            chars.append(char if whole else self._plain_char(char, before))
        return "".join(chars)

    def _character(self, entity: str) -> str:
        char = _unescaped(entity)
        if len(char) != 1 or char in "<>&":
            return entity
        plain = self._plain_char(char, "")
        return plain if all(map(self.knows, plain)) else entity

    def _composed(self, cluster: str) -> str:
        composed = unicodedata.normalize("NFC", cluster)
        return composed if all(map(self.knows, composed)) else cluster

    def _plain_char(self, char: str, before: str) -> str:
        category, form = unicodedata.category(char), unicodedata.decomposition(char)
        if category in BREAKS or category == "Zs":
            return " "
        if category == "Cf" or "\ufe00" <= char <= "\ufe0f":  # part of the emoji before it
            return char if before and not self.knows(before) else ""
        if self.knows(char):
            return char
        plain = PLAIN.get(char, char)
        if plain == char and form.startswith(PLAIN_FORMS):
            plain = unicodedata.normalize("NFKC", char)
        return plain if all(map(self.knows, plain)) else char

    def _spans(self, line: str, head: str) -> list[Span]:
        """Find the items of a line without its head, in order."""
        spans = []
        for match in PATTERNS.finditer(line):
            kind = match.lastgroup or ""
            role = kind if kind in ("opens", "closes") else ""
            spans.append(Span(*match.span(), kind in ("literal", "word"), role=role))
        if any(char in head for char in DASHES):
            found = NEXT_SPEAKER.finditer(line)
            spans += [Span(*match.span(), False, role="speaker") for match in found]
        masked = list(line)
        for span in spans:
            masked[span.start : span.end] = MASK * (span.end - span.start)
        for start, end, width in emphases("".join(masked), 0, len(line)):
            spans.append(Span(start, start + width, False, role="opens"))
            spans.append(Span(end - width, end, False, role="closes"))
        classes = list(map(self._class, line))
        for span in spans:
            classes[span.start : span.end] = "#" * (span.end - span.start)
        for match in amount_pattern().finditer(line) if self.unknown.numbers else ():
            if "#" not in classes[match.start() : match.end()]:  # 10 KBps
                spans.append(Span(*match.span(), True))
                classes[match.start() : match.end()] = "#" * len(match[0])
        for match in self.pattern.finditer("".join(classes)):
            spans.append(Span(*match.span(), match.lastgroup == "word"))
        spans.sort(key=lambda span: span.start)
        _take_brackets(line, spans)
        _look_around(line, spans)
        _pair(line, spans)
        return spans

    def _class(self, char: str) -> str:
        category = unicodedata.category(char)
        if char.isspace():
            return "_"
        if self.knows(char):
            return "d" if char.isdigit() else "a" if char.isalnum() else "-" if char == "-" else "."
        if category[0] == "M" or category == "Cf":
            return "m"
        if category == "Sc" or char == "°":
            return "c"
        raised = unicodedata.decomposition(char).startswith(("<super>", "<sub>"))
        if category == "Sm" or char in "*/^·" or raised:
            return "o"
        return "U" if char.isalnum() else "x"


# -- taking out -----------------------------------------------------------------------------------


def _take_brackets(line: str, spans: list[Span]) -> None:
    """Extend spans of marks by brackets and quotation marks that hold nothing else."""
    ends, starts = [0] + [s.end for s in spans], [s.start for s in spans] + [len(line)]
    for span, first, last in zip(spans, ends, starts[1:]):
        while not span.is_word and first < span.start and span.end < last:
            if BRACKETS.get(line[span.start - 1]) != line[span.end]:
                break
            span.start, span.end = span.start - 1, span.end + 1


def _look_around(line: str, spans: list[Span]) -> None:
    """Set `glued` of each span; marks that touch each other have the same."""
    # The first and the last stand for their missing neighbours
    glued, before, after = False, [*spans[:1], *spans], [*spans[1:], *spans[-1:]]
    for span, last in zip(spans, before):
        if last.is_word or last.end != span.start:
            glued = last.end == span.start or line[span.start - 1 : span.start].isalnum()
        span.glued = glued, False
    for span, following in zip(reversed(spans), reversed(after)):
        if following.is_word or span.end != following.start:
            glued = span.end == following.start or line[span.end : span.end + 1].isalnum()
        span.glued = span.glued[0], glued


def _pair(line: str, spans: list[Span]) -> None:
    """Pair opening and closing tags, brackets, and marks as in *this*."""
    opened: list[tuple[str, int]] = []  # text of the closing mark, index of the opening span
    for i, span in enumerate(spans):
        text, glued = span.of(line), span.glued
        tag = TAG_NAME.match(text)
        closing = "".join(BRACKETS.get(char, char) for char in reversed(text))
        opens, closes = glued == (False, True), glued == (True, False)
        if span.role in ("opens", "closes"):
            opens, closes = span.role == "opens", span.role == "closes"
            closing = "](" if text[0] in "![]" else text
        elif tag is not None:
            opens, closes = not tag[1] and not SELF_CLOSING.search(text), bool(tag[1])
            closing = tag[2].lower()
        elif text in BRACKETS.values():
            closing = text
        if span.is_word:
            continue
        if closes and any(closing == mark for mark, _ in opened[-8:]):
            while opened[-1][0] != closing:
                opened.pop()
            spans[opened.pop()[1]].partner, span.closes = i, True
        elif opens:
            opened.append((closing, i))


def _stand_ins(line: str, spans: Sequence[Span], unknown: UnknownPolicy) -> list[str]:
    """A stand-in for each word, while there are some that the line does not hold; "" for others."""
    lower = line.lower()
    names = (name for name in unknown.names if name.lower() not in lower)
    numbers = chain((name for name in unknown.numbers if name not in lower), names)
    texts = [span.of(line) for span in spans]
    free = [numbers if NUMBER.match(t) or amount_pattern().fullmatch(t) else names for t in texts]
    return [next(left, "") if span.is_word else "" for left, span in zip(free, spans)]


def _item(line: str, span: Span, placeholder: str, before: int, after: int) -> MaskedSpan:
    """Make the item of a span; before, after: classes of `_fillings` on either side."""
    text, glued, opens = span.of(line), span.glued, span.partner is not None
    spaced = line[span.start - 1 : span.start].isspace(), line[span.end : span.end + 1].isspace()
    next_cell = NEXT_CELL.match(line, span.start) is not None
    tag = TAG_NAME.match(text)
    joins = all(glued) and not (span.closes or opens) or next_cell
    joins = joins and not (tag and tag[2].lower() == "wbr")
    follows_number = line[max(0, span.start - 9) : span.start].rstrip()[-1:].isdigit()
    of_tag = bool(span.role or tag)
    side = "left"
    if not before and (of_tag or not glued[1]):
        side = "start"
    elif not after and (of_tag or not glued[0]) and not follows_number:
        side = "end"
    elif opens or span.role == "speaker" or (glued[1] and not glued[0] and not span.closes):
        side = "right"
    elif after == 1 and not (any(glued) or span.closes or follows_number):
        side = "closes"
    return MaskedSpan(text, placeholder, side, spaced, joins, span.partner)


def _respaced(parts: list[str], items: Sequence[MaskedSpan]) -> list[str]:
    """Parts with the spaces that stand-ins need, without spaces that marks leave over."""
    parts, last = [*parts], ""
    for i, item in enumerate(items):
        last = parts[i][-1:] or last
        if item.placeholder:
            parts[i] += " " * last.isalnum()
            parts[i + 1] = " " * parts[i + 1][:1].isalnum() + parts[i + 1]
            last = item.placeholder
        elif item.joins:
            parts[i + 1] = " " * bool(last and not last.isspace()) + parts[i + 1]
        elif not last or last.isspace():
            parts[i + 1] = parts[i + 1].lstrip()
            if CLOSING.match(parts[i + 1][:1]) and parts[i + 1]:
                parts[i] = parts[i].rstrip()
    return parts


def _fillings(parts: Sequence[str], names: Sequence[str]) -> list[int]:
    """Classify the text up to each item: 0 empty, 1 only punctuation marks, 2 words."""
    most, classes = 0, []
    for part, name in zip(parts, names):
        most = max(most, 2 if re.search(r"\w", part) else bool(part.strip()))
        classes.append(most)
        most = 2 if name else most
    return classes
