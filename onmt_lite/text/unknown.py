"""What a model cannot read in a line, and how it comes out again.

A character without a piece in the vocabulary becomes the unknown token, and a model that meets one
invents words.  So such a line is read without them:

1. A character that the model lacks but has a plain equivalent of is read as that: hyphens, dashes,
   quotation marks, odd spaces, letters with loose accents, HTML entities of letters.  Control and
   format characters (soft hyphen, zero width space) are left out.
2. What remains unknown is taken out.  So are, whole and whatever the model knows of them: tags,
   HTML entities, placeholders (`{name}`, `%s`), addresses, and words such as `max_size` or `AT&T`.
   - Words are runs of letters, one of which is unknown, several in a row counting as one, and
     formulas (`3 × 4 = 12`).  Words, placeholders and addresses leave a stand-in behind: a name or,
     in the place of numbers, a number that the model is known to copy.
   - Marks, which are all the rest, leave nothing.
3. What was taken out is put back into the translation.
   - A word takes the place of its stand-in.  Where the stand-in did not come out, the word follows
     what the model made of the stand-in.
   - A mark follows the translation of the word before it; one glued to the word behind it precedes
     that word's translation.  A pair of tags or brackets stands around the translation of what it
     held.  A mark at the start or end of the line stays there.  Attention tells which word became
     which.
4. A line without a known letter outside of what step 2 takes out, or with more than two thirds of
   its letters unknown, is not translated but passed through as it is.

The rule `copy` does all of this, `drop` leaves out what step 2 takes out, stand-ins too, and
`model` does nothing.  How items are put back, `onmt_lite.text.restoring` tells.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from onmt_lite.records import Item, Reading

UnknownRule = Literal["copy", "drop", "model"]
SPACER = "▁"  # what sentencepiece writes for a space

# What is taken out whole, by pattern
TAG = r"</?[A-Za-z][^<>]*>|<!--[^<>]*-->"
ENTITY = r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"
URL = r"(?<!\w)(?:(?:https?|ftp|file)://|www\.|mailto:)[^\s<>\"]*[^\s<>\".,;:!?)\]}’“”»']"
MAIL = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<![\w@.])@\w+"
BRACES = r"[$#]?\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # {x}, {{x}}, ${x}, {n, plural, one {#}}
PRINTF = (
    r"(?<![\w%])(?<!\d )%(?:\([^()%]*\))?(?:[0-9]{1,2}\$)?[-+#0]*[0-9]*(?:\.[0-9]+)?l{0,2}"
    r"[sdifuxXgec@](?!\w)"
)
VARIABLE = r"(?<!\w)%[A-Za-z_]+%(?!\w)|(?<![\w$])\$[A-Za-z_]\w*"
PATH = r"(?<![\w\\/])[A-Za-z]:\\[^\s<>\"]*\w"
CODE = (
    rf"(?<![\w@=&#\\~|])[^\W_]+(?:(?!{ENTITY})[_@=&#\\~|]+[^\W_]+)+"
    r"|(?<!\w)[A-Za-z](?:#|\+\+)(?!\w)"  # C#
)
WORD_PATTERNS = "|".join((URL, MAIL, BRACES, PRINTF, VARIABLE, PATH, CODE))
PATTERNS = re.compile(f"(?P<mark>{TAG}|{ENTITY})|(?P<word>{WORD_PATTERNS})")
HINT = re.compile(r"[<&{%$@_=#\\~|]|://|www\.|mailto:")  # no pattern is without one of these

# What is unknown, in a line given as classes of characters: of words a known, d known digits and
# U unknown, m unknown accents and joiners, o unknown operators, x unknown others, _ spaces
OPERAND = "(?<![adU])(?:d+(?:\\.d+)*|a)(?![adU])o*"
FORMULA = f"{OPERAND}(?:_*o+_*{OPERAND})+"
UNKNOWN_WORD = "(?<![ad])[ad]*[Um][adUm]*(?:_+[ad]*[Um][adUm]*)*"
UNKNOWN = re.compile(f"(?P<word>{FORMULA}|{UNKNOWN_WORD})|(?P<mark>[xo][xom]*)")

PLAIN = {
    **dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63\uff0d–—―", "-"),
    **dict.fromkeys("„“”‟«»″〝〞", '"'),
    **dict.fromkeys("‚‘’‛‹›′ʼ´", "'"),
    "…": "...",
    "ẞ": "ß",
}
PLAIN_FORMS = ("<wide>", "<narrow>", "<noBreak>", "<compat>", "<font>", "<small>", "<vertical>")
SHAPED = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")  # m² is no m2
MARK_ALONE = re.compile(rf"(?<!\S)(?:[^\w\s]|{ENTITY})(?!\S)")
LOOSE_ACCENTS = re.compile("[^\\W_][\u0300-\u036f]+")
LANGUAGE = re.compile(r">>[^<>\s]+<<")
# What stands for a number
NUMBER = re.compile(
    r"%[^s@c]*[difu]$|[$#]?\{+\s*(?:n|num|number|count|total|anzahl|zahl)\b"
    r"|[\d\u00bc-\u00be\u2150-\u218b\u2460-\u249b]+$",
    re.IGNORECASE,
)
NAME = re.compile(r"<(/?)([A-Za-z][\w:-]*)")
BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "„": "“", "“": "”", '"': '"', "<": ">"}
CLOSING = re.compile(r"[.,;:!?…)\]}»“”’\"']*$")


@dataclass
class Span:
    """What is to be taken out of a line.

    is_word  it leaves a stand-in
    touches  the characters before and behind it and all else that is taken out there
    partner  the number of the span that closes the pair which this one opens; closes: it is such
    """

    start: int
    end: int
    is_word: bool
    touches: tuple[str, str] = ("", "")
    partner: int | None = None
    closes: bool = False

    @property
    def glued(self) -> tuple[bool, bool]:
        """Whether there are words before and behind it without a space between."""
        before, after = self.touches
        return before.isalnum(), after.isalnum()


@dataclass(frozen=True)
class Unknown:
    """What a model's description says of this.

    names, numbers  that the model copies, the best first
    words           what marks that stand alone are read as: & as "und"
    rare            characters that it has tokens for and yet cannot read, for want of examples
    """

    rule: UnknownRule = "model"
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    rare: str = ""


def _unescaped(mark: str) -> str:
    return html.unescape(mark) if mark[-1] == ";" else mark


class Reader:
    """Takes out of lines what a model cannot read."""

    def __init__(
        self,
        encode: Callable[[str], list[str]],
        is_known: Callable[[str], bool],
        unknown: Unknown,
    ):
        """encode: text to tokens; is_known: of a token."""
        self.encode, self.is_known, self.unknown = encode, is_known, unknown
        self.knows = lru_cache(maxsize=None)(self._knows)

    def _knows(self, char: str) -> bool:
        tokens = self.encode(char)
        changed = char not in "".join(tokens)
        shaped = unicodedata.decomposition(char).startswith(SHAPED)
        known = all(self.is_known(token) for token in tokens if token != SPACER)
        bad = (
            char in self.unknown.rare or unicodedata.category(char) == "Cf" or (changed and shaped)
        )
        return known and not bad

    def read(self, line: str) -> Reading | None:
        """None for a line that the model can read as it stands."""
        has_words = any(map(str.isalnum, line))
        if has_words and all(map(self.knows, set(line))) and not HINT.search(line):
            return None
        if not has_words and not self.encode(line):  # blank
            return None
        line = self._plain(line)
        spans = [span for span in self._spans(line) if span.start >= self._n_of_language(line)]
        parts, items = _taken_out(line, spans, self.unknown)
        unknown = sum(char.isalpha() and not self.knows(char) for char in line)
        known = sum(char.isalpha() for part in parts for char in part)
        passes = not has_words or bool(spans) and (known == 0 or unknown > 2 * known)
        return Reading(line, tuple(parts), tuple(items), passes)

    def _plain(self, line: str) -> str:
        """The line with plain equivalents of what the model lacks, where it knows these."""
        line = MARK_ALONE.sub(
            lambda mark: self.unknown.words.get(_unescaped(mark[0]), mark[0]), line
        )
        line = LOOSE_ACCENTS.sub(self._composed, re.sub(ENTITY, self._character, line))
        chars: list[str] = []
        for char in line:
            chars.append(self._plain_char(char, chars[-1] if chars else ""))
        return "".join(chars)

    def _character(self, entity: re.Match[str]) -> str:
        char = _unescaped(entity[0])
        if len(char) != 1 or char in "<>&":
            return entity[0]
        plain = self._plain_char(char, "")
        return plain if all(map(self.knows, plain)) else entity[0]

    def _composed(self, cluster: re.Match[str]) -> str:
        composed = unicodedata.normalize("NFC", cluster[0])
        return composed if all(map(self.knows, composed)) else cluster[0]

    def _plain_char(self, char: str, before: str) -> str:
        category, form = unicodedata.category(char), unicodedata.decomposition(char)
        if category in ("Cc", "Zl", "Zp", "Zs"):
            return " "
        if self.knows(char):
            return char
        if category == "Cf":  # between the parts of an emoji it belongs to that
            return char if before and not self.knows(before) else ""
        found = PLAIN.get(char, char)
        if found == char and form.startswith(PLAIN_FORMS):
            found = unicodedata.normalize("NFKC", char)
        return found if all(map(self.knows, found)) else char

    def _n_of_language(self, line: str) -> int:
        """Length of the token that names a language at the start of the line; 0: there is none."""
        tokens = self.encode(line[:50])[:1]
        named = [t for t in tokens if LANGUAGE.fullmatch(t) and line.startswith(t)]
        return sum(len(token) for token in named if self.is_known(token))

    def _spans(self, line: str) -> list[Span]:
        """What is to be taken out of a line, in order."""
        classes, spans = list(map(self._class, line)), []
        for match in PATTERNS.finditer(line):
            spans.append(Span(*match.span(), match.lastgroup == "word"))
            classes[match.start() : match.end()] = "#" * len(match[0])
        for match in UNKNOWN.finditer("".join(classes)):
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
            return "d" if char.isdigit() else "a" if char.isalnum() else "."
        if category[0] == "M" or category == "Cf":
            return "m"
        if (
            category == "Sm"
            or char in "*/^·"
            or unicodedata.decomposition(char).startswith(("<super>", "<sub>"))
        ):
            return "o"
        return "U" if char.isalnum() else "x"


# -- taking out -----------------------------------------------------------------------------------


def _take_brackets(line: str, spans: list[Span]) -> None:
    """Brackets and quotation marks that would be left with nothing in them go along."""
    ends, starts = [0] + [s.end for s in spans], [s.start for s in spans] + [len(line)]
    for span, first, last in zip(spans, ends, starts[1:]):
        while not span.is_word and first < span.start and span.end < last:
            if BRACKETS.get(line[span.start - 1]) != line[span.end]:
                break
            span.start, span.end = span.start - 1, span.end + 1


def _look_around(line: str, spans: list[Span]) -> None:
    """See what the spans touch; those that touch each other touch the same."""
    start = 0
    befores = []
    for i, span in enumerate(spans):
        if not i or spans[i - 1].end < span.start:
            start = span.start
        befores.append(line[start - 1 : start])
    end = 0
    for i in range(len(spans) - 1, -1, -1):
        if i + 1 == len(spans) or spans[i].end < spans[i + 1].start:
            end = spans[i].end
        spans[i].touches = befores[i], line[end : end + 1]


def _pair(line: str, spans: list[Span]) -> None:
    """Find tags that open and close, and brackets, and marks such as those of *this*."""
    opened: list[tuple[str, int]] = []  # what would close it, and its number
    for i, span in enumerate(spans):
        text, glued = line[span.start : span.end], span.glued
        tag = NAME.match(text)
        closing = BRACKETS.get(text, text)
        opens, closes = glued == (False, True), glued == (True, False)
        if tag is not None:
            opens, closes = not tag[1] and not text.endswith("/>"), bool(tag[1])
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


def _taken_out(line: str, spans: list[Span], unknown: Unknown) -> tuple[list[str], list[Item]]:
    """The parts of the line between the spans, as the model reads them, and the items."""
    lower = line.lower()
    free = {
        of_number: iter([name for name in stand_ins if name.lower() not in lower])
        for of_number, stand_ins in ((False, unknown.names), (True, unknown.numbers))
    }
    of_number = [bool(NUMBER.match(line[span.start : span.end])) for span in spans]
    names = [next(free[n], "") if span.is_word else "" for n, span in zip(of_number, spans)]
    ends = [0, *(span.end for span in spans)]
    parts = [line[end : span.start] for end, span in zip(ends, spans)] + [line[ends[-1] :]]
    before, after = _fillings(parts, names), _fillings(parts[::-1], names[::-1])[::-1]
    items = []
    for span, name, *around in zip(spans, names, before, after):
        text, glued = line[span.start : span.end], span.glued
        spaced = (
            line[span.start - 1 : span.start].isspace(),
            line[span.end : span.end + 1].isspace(),
        )
        in_pair = span.closes or span.partner is not None
        joins = glued == (True, True) and not in_pair
        follows_number = line[max(0, span.start - 9) : span.start].rstrip()[-1:].isdigit()
        side = _side(text, span, follows_number, *around)
        items.append(Item(text, name, side, spaced, joins, span.partner))
    last = ""
    for i, item in enumerate(items):
        last = parts[i][-1:] or last
        if item.stand_in:
            parts[i] += " " * last.isalnum()
            parts[i + 1] = " " * parts[i + 1][:1].isalnum() + parts[i + 1]
            last = item.stand_in
        elif item.joins:
            parts[i + 1] = " " + parts[i + 1]
        elif not last or last.isspace():
            parts[i + 1] = parts[i + 1].lstrip()
            if CLOSING.match(parts[i + 1][:1]) and parts[i + 1]:
                parts[i] = parts[i].rstrip()
    return parts, items


def _fillings(parts: Sequence[str], names: Sequence[str]) -> list[int]:
    """What there is up to each item: 0 nothing, 1 only punctuation marks, 2 words."""
    most, found = 0, []
    for part, name in zip(parts, names):
        most = max(most, 2 if re.search(r"\w", part) else bool(part.strip()))
        found.append(most)
        most = 2 if name else most
    return found


def _side(text: str, span: Span, follows_number: bool, before: int, after: int) -> str:
    """See `Item`; before, after: what there is on either side, as `_fillings` counts it."""
    glued, of_tag = span.glued, NAME.match(text) is not None
    if not before and (of_tag or not glued[1]):
        return "start"
    if not after and (of_tag or not glued[0]) and not follows_number:
        return "end"
    if span.partner is not None or (glued[1] and not glued[0] and not span.closes):
        return "right"
    return "closes" if after == 1 and not (any(glued) or span.closes or follows_number) else "left"
