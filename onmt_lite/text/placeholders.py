"""Masking of unknown characters, markup and variables before translation.

A character without a subword in the vocabulary becomes the unknown token, and models hallucinate
words at unknown tokens. The model therefore reads the line without such characters:

1. An unknown character with a known plain equivalent is replaced: hyphens, quotation marks, unusual
   spaces, letters with combining accents, HTML entities of letters. Control and format characters
   are removed.
2. List marks at the start of the line (`- [x] `, `1. `, `## `, `> `) are its head. The rest is
   translated as if it were the whole line.
3. Other unknown characters are masked. So are, known or not, tags, escaped tags, HTML entities,
   Markdown links, emphasis and code, variables (`{name}`, `[[name]]`, `%s`), addresses, paths,
   hashes, IBANs and words such as `max_size` or `AT&T`.
   - Words with an unknown letter (several in a row count as one), formulas (`3 × 4 = 12`), dates
     (`9/4/2000`), amounts with an unknown sign (`52,42 €`), variables, code, hashes, IBANs
     and addresses are replaced by a placeholder. This is a name or a number that the model is
     known to copy.
   - All other masked spans are inline tags, and are removed.
4. Module `onmt_lite.text.tag_projection` restores the masked spans in the translation.
   - A word replaces its placeholder. If the placeholder was not copied, the word follows the
     translation of the placeholder.
   - An inline tag follows the translation of the word before it, or precedes the translation of
     the next word if it is attached to that word. At the start or end of the line it stays there.
     A pair of tags or brackets encloses the translation of its content, and pairs keep their
     nesting. Words are aligned by attention.
5. A line is copied untranslated if step 3 leaves no known letter, or if more than two thirds of its
   letters are unknown.

The rule `copy` applies all steps, `drop` applies steps 1 to 3 without placeholders, and `model`
applies none.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Literal

from onmt_lite.text.lines import is_all_uppercase
from onmt_lite.text.markup import (
    ENTITY,
    HINT,
    NEXT_CELL,
    NEXT_SPEAKER,
    PATTERNS,
    SELF_CLOSING,
    SPAN,
    TAG_NAME,
    find_indices_inside_spans,
    find_line_head,
    iter_emphases,
)
from onmt_lite.text.masked_line import MaskedLine, MaskedSpan
from onmt_lite.text.tokenizers import LANGUAGE, SPACER
from onmt_lite.text.units import make_amount_pattern

UnknownRule = Literal["copy", "drop", "model"]
BREAKS = ("Cc", "Zl", "Zp")  # categories of line ends and control characters

# -- patterns --------------------------------------------------------------------------------------

# Patterns of unknown spans in a line of character classes: a known letter, d known digit, - known
# hyphen, U unknown letter or digit, m unknown accent or joiner, o unknown operator, c unknown
# currency or degree sign, x other unknown character, _ space. Repetitions are bounded, because the
# time is quadratic in them.
NUMERAL = "(?<![adU])d+(?:[.-]d+){0,9}"
UNIT = "(?:(?:[.]-)?_?ca?|_?a{1,5}oa)"  # 3,- €, 180 °C, 120 km/h
AMOUNT = f"(?:(?<![adU])a{{1,3}})?c_?{NUMERAL}(?![adU])|(?:(?<![adU])-)?{NUMERAL}{UNIT}(?![adU])"
# A number, possibly with letters, or one letter; powers may follow
OPERAND = "(?<![adU])(?:(?=[ad]{0,9}d)[ad]+|a)(?:[.-]d+){0,9}o{0,4}(?![adU])"
FORMULA = f"{OPERAND}(?:_*o{{1,4}}_*{OPERAND})+(?:o[ad]+)*"  # 2x + 3 = y², 9/4/2000, 98/6/EG
UNKNOWN_WORD = "(?<![ad])[ad]*[Um][adUm]*(?:_+[ad]*[Um][adUm]*)*"
# Without placeholders, the number of an amount stays in the line
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
SHAPED = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")  # m² is not m2
# Text to replace by plain equivalents; the alternative SPAN comes first, to skip masked spans
ISOLATED_SIGN = re.compile(rf"{SPAN}|(?<!\S)(?:[^\w\s]|{ENTITY})(?!\S)")
TEXT_ENTITY = re.compile(f"{SPAN}|{ENTITY}")
LOOSE_ACCENTS = re.compile(f"{SPAN}|[^\\W_][\u0300-\u036f]{{1,9}}")
# Masked spans that represent a number
NUMBER = re.compile(
    r"%[^s@c]*[difu]$|[$#%]?[{[<]+\s*(?:n|num|number|count|total|anzahl|zahl)\b"
    r"|[^\w=<>{}]*[\d\u00bc-\u00be\u2150-\u218b\u2460-\u249b](?:\d|[^\w=<>{}])*"
    r"(?:°\w|\w{1,5}/\w|(?<=/)\w+)?$",
    re.IGNORECASE,
)
BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "„": "“", "“": "”", '"': '"', "<": ">"}
CLOSING = re.compile(r"[.,;:!?…)\]}»“”’\"']*$")
DASHES = "-–—―"
MASK = "\ufffc"  # object replacement character, in place of a masked span


# -- masked lines ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnknownPolicy:
    """How to handle unknown characters, from the model config."""

    rule: UnknownRule = "model"
    names: tuple[str, ...] = ()  # placeholders that the model copies, best first
    numbers: tuple[str, ...] = ()
    # Replacements of isolated signs: "und" for &
    words: Mapping[str, str] = field(default_factory=dict)
    rare: str = ""  # characters whose tokens were too rare in training


def is_one_word(text: object) -> bool:
    """Return True if the value is a non-empty string without spaces and lone surrogates."""
    if not isinstance(text, str) or not text:
        return False
    return not any(char.isspace() or unicodedata.category(char) == "Cs" for char in text)


@dataclass
class LineSpan:
    """A span to be masked, with its position in the line."""

    start: int
    end: int
    is_word: bool  # a placeholder replaces it
    glued: tuple[bool, bool] = (False, False)  # words touch it or its adjacent tags: left, right
    partner: int | None = None  # index of the span that closes this pair
    closes: bool = False  # this span closes a pair
    role: str = ""  # "opens" or "closes" a link or emphasis; "speaker": a new speaker

    def extract_text(self, line: str) -> str:
        """Return the text of the span."""
        return line[self.start : self.end]


def _sub_outside_spans(pattern: re.Pattern[str], plain: Callable[[str], str], line: str) -> str:
    """Replace the matches of a pattern, except its alternative `span`.

    Args:
        pattern: has a group `span` for text that stays.
        plain: returns the replacement of a match.
        line: the line.
    """
    return pattern.sub(lambda match: match[0] if match["span"] else plain(match[0]), line)


def _unescape(mark: str) -> str:
    """Decode an HTML entity; other text is returned unchanged."""
    return html.unescape(mark) if mark[-1] == ";" else mark


class LineMasker:
    """Masks unknown characters, markup and variables in lines."""

    def __init__(
        self,
        encode: Callable[[str], list[str]],
        lacks: Callable[[str], bool],
        unknown: UnknownPolicy,
    ):
        """
        Args:
            encode: tokenizes text.
            lacks: returns True if a token is not in the vocabulary.
            unknown: the policy and its placeholders.
        """
        self.encode, self.lacks, self.unknown = encode, lacks, unknown
        self.pattern = UNKNOWN if unknown.names or unknown.numbers else UNKNOWN_BUT_AMOUNTS
        self.is_known = lru_cache(maxsize=None)(self._is_known)

    def _is_known(self, char: str) -> bool:
        """Return True if the model knows a character; cached as `is_known`."""
        tokens = self.encode(char)
        changed = char not in "".join(tokens)
        shaped = unicodedata.decomposition(char).startswith(SHAPED)
        if any(self.lacks(token) for token in tokens if token != SPACER) or changed and shaped:
            return False
        return char not in self.unknown.rare and unicodedata.category(char) != "Cf"

    def mask(self, line: str) -> MaskedLine | None:
        """Mask a line; return None if there is nothing to mask."""
        has_words = any(map(str.isalnum, line))
        language, start = LANGUAGE.match(line), 0
        if language and not self.lacks(language[0]):
            start = language.end() if self.encode(line[:50])[:1] == [language[0]] else 0
        head = find_line_head(line, start)
        line = line[:start] + line[start + len(head) :]
        hinted = (
            head or HINT.search(line) or self.unknown.numbers and make_amount_pattern().search(line)
        )
        if has_words and all(map(self.is_known, set(line))) and not hinted:
            return None
        if not has_words and not self.encode(line):  # empty line
            return None
        line = self._normalize(line)
        spans = [span for span in self._find_spans(line, head) if span.start >= start]
        # The parts between the spans as the model reads them, and the masked spans
        placeholders = _choose_placeholders(line, spans, self.unknown)
        ends, starts = [0, *(s.end for s in spans)], [*(s.start for s in spans), len(line)]
        parts = [line[end:start] for end, start in zip(ends, starts)]
        before, after = (
            _classify_before(parts, placeholders),
            _classify_before(parts[::-1], placeholders[::-1])[::-1],
        )
        masked = [
            _make_masked_span(line, *span_args)
            for span_args in zip(spans, placeholders, before, after)
        ]
        parts = _fix_spaces(parts, masked)
        unknown = sum(char.isalpha() and not self.is_known(char) for char in line)
        known = sum(char.isalpha() for part in parts for char in part)
        is_passed_through = not has_words or bool(spans) and (known == 0 or unknown > 2 * known)
        return MaskedLine(line, tuple(parts), tuple(masked), is_passed_through, head)

    def _normalize(self, line: str) -> str:
        """Replace unknown characters by known plain equivalents, except inside inline spans."""
        words = self.unknown.words
        if words and is_all_uppercase(PATTERNS.sub("", line)):
            words = {mark: word.upper() for mark, word in words.items()}
        line = _sub_outside_spans(
            ISOLATED_SIGN, lambda mark: words.get(_unescape(mark), mark), line
        )
        line = _sub_outside_spans(TEXT_ENTITY, self._decode_entity, line)
        line = _sub_outside_spans(LOOSE_ACCENTS, self._compose, line)
        inside = find_indices_inside_spans(line)
        chars: list[str] = []
        for i, char in enumerate(line):
            is_protected = i in inside and unicodedata.category(char) not in BREAKS
            before = chars[-1][-1:] if chars else ""
            chars.append(char if is_protected else self._normalize_char(char, before))
        return "".join(chars)

    def _decode_entity(self, entity: str) -> str:
        """Return the character of an HTML entity if the model knows it."""
        char = _unescape(entity)
        if len(char) != 1 or char in "<>&":
            return entity
        plain = self._normalize_char(char, "")
        return plain if all(map(self.is_known, plain)) else entity

    def _compose(self, cluster: str) -> str:
        """Return the composed form of a letter with accents if the model knows it."""
        composed = unicodedata.normalize("NFC", cluster)
        return composed if all(map(self.is_known, composed)) else cluster

    def _normalize_char(self, char: str, before: str) -> str:
        """Return the known plain equivalent of a character, or the character.

        Args:
            char: the character.
            before: the character before it; a format character after an unknown one is part of it.
        """
        category, form = unicodedata.category(char), unicodedata.decomposition(char)
        if category in BREAKS or category == "Zs":
            return " "
        if category == "Cf" or "\ufe00" <= char <= "\ufe0f":  # part of the emoji before it
            return char if before and not self.is_known(before) else ""
        if self.is_known(char):
            return char
        plain = PLAIN.get(char, char)
        if plain == char and form.startswith(PLAIN_FORMS):
            plain = unicodedata.normalize("NFKC", char)
        return plain if all(map(self.is_known, plain)) else char

    def _find_spans(self, line: str, head: str) -> list[LineSpan]:
        """Find the spans to mask, in order.

        Args:
            line: the line without its head.
            head: list marks at its start.
        """
        spans = []
        for match in PATTERNS.finditer(line):
            group = match.lastgroup or ""
            role = group if group in ("opens", "closes") else ""
            spans.append(LineSpan(*match.span(), group in ("literal", "word"), role=role))
        if any(char in head for char in DASHES):
            speakers = NEXT_SPEAKER.finditer(line)
            spans += [LineSpan(*match.span(), False, role="speaker") for match in speakers]
        masked = list(line)
        for span in spans:
            masked[span.start : span.end] = MASK * (span.end - span.start)
        for start, end, width in iter_emphases("".join(masked), 0, len(line)):
            spans.append(LineSpan(start, start + width, False, role="opens"))
            spans.append(LineSpan(end - width, end, False, role="closes"))
        classes = list(map(self._make_char_class, line))
        for span in spans:
            classes[span.start : span.end] = "#" * (span.end - span.start)
        for match in make_amount_pattern().finditer(line) if self.unknown.numbers else ():
            if "#" not in classes[match.start() : match.end()]:  # 10 KBps
                spans.append(LineSpan(*match.span(), True))
                classes[match.start() : match.end()] = "#" * len(match[0])
        for match in self.pattern.finditer("".join(classes)):
            spans.append(LineSpan(*match.span(), match.lastgroup == "word"))
        spans.sort(key=lambda span: span.start)
        _extend_over_brackets(line, spans)
        _set_glued(line, spans)
        _find_pair_spans(line, spans)
        return spans

    def _make_char_class(self, char: str) -> str:
        """Return the character class used by the patterns UNKNOWN."""
        category = unicodedata.category(char)
        if char.isspace():
            return "_"
        if self.is_known(char):
            return "d" if char.isdigit() else "a" if char.isalnum() else "-" if char == "-" else "."
        if category[0] == "M" or category == "Cf":
            return "m"
        if category == "Sc" or char == "°":
            return "c"
        raised = unicodedata.decomposition(char).startswith(("<super>", "<sub>"))
        if category == "Sm" or char in "*/^·" or raised:
            return "o"
        return "U" if char.isalnum() else "x"


# -- masking --------------------------------------------------------------------------------------


def _extend_over_brackets(line: str, spans: list[LineSpan]) -> None:
    """Extend inline tags over brackets and quotation marks that contain nothing else."""
    ends, starts = [0] + [s.end for s in spans], [s.start for s in spans] + [len(line)]
    for span, first, last in zip(spans, ends, starts[1:]):
        while not span.is_word and first < span.start and span.end < last:
            if BRACKETS.get(line[span.start - 1]) != line[span.end]:
                break
            span.start, span.end = span.start - 1, span.end + 1


def _set_glued(line: str, spans: list[LineSpan]) -> None:
    """Set `glued` of each span; adjacent tags share the value."""
    # The first and last span are their own neighbors
    glued, before, after = False, [*spans[:1], *spans], [*spans[1:], *spans[-1:]]
    for span, last in zip(spans, before):
        if last.is_word or last.end != span.start:
            glued = last.end == span.start or line[span.start - 1 : span.start].isalnum()
        span.glued = glued, False
    for span, following in zip(reversed(spans), reversed(after)):
        if following.is_word or span.end != following.start:
            glued = span.end == following.start or line[span.end : span.end + 1].isalnum()
        span.glued = span.glued[0], glued


def _find_pair_spans(line: str, spans: list[LineSpan]) -> None:
    """Pair opening and closing tags, brackets and emphasis marks (*this*)."""
    opened: list[tuple[str, int]] = []  # text of the closing tag, index of the opening span
    for i, span in enumerate(spans):
        text, glued = span.extract_text(line), span.glued
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


def _choose_placeholders(line: str, spans: Sequence[LineSpan], unknown: UnknownPolicy) -> list[str]:
    """Choose a placeholder for each word; "" for inline tags, or if no placeholder is left.

    Placeholders that occur in the line are not used.

    Args:
        line: the line.
        spans: its spans.
        unknown: the available placeholders.
    """
    lower = line.lower()
    names = (name for name in unknown.names if name.lower() not in lower)
    numbers = chain((name for name in unknown.numbers if name not in lower), names)
    texts = [span.extract_text(line) for span in spans]
    queues = [
        numbers if NUMBER.match(t) or make_amount_pattern().fullmatch(t) else names for t in texts
    ]
    return [next(queue, "") if span.is_word else "" for queue, span in zip(queues, spans)]


def _make_masked_span(
    line: str, span: LineSpan, placeholder: str, before: int, after: int
) -> MaskedSpan:
    """Make the masked span of a span.

    Args:
        line: the line.
        span: its position.
        placeholder: word in its place, or "".
        before: class of the text before it, from `_classify_before`.
        after: class of the text after it.
    """
    text, glued, opens = span.extract_text(line), span.glued, span.partner is not None
    spaced = line[span.start - 1 : span.start].isspace(), line[span.end : span.end + 1].isspace()
    next_cell = NEXT_CELL.match(line, span.start) is not None
    tag = TAG_NAME.match(text)
    joins = all(glued) and not (span.closes or opens) or next_cell
    joins = joins and not (tag and tag[2].lower() == "wbr")
    follows_number = line[max(0, span.start - 9) : span.start].rstrip()[-1:].isdigit()
    is_tag = bool(span.role or tag)
    side = "left"
    if not before and (is_tag or not glued[1]):
        side = "start"
    elif not after and (is_tag or not glued[0]) and not follows_number:
        side = "end"
    elif opens or span.role == "speaker" or (glued[1] and not glued[0] and not span.closes):
        side = "right"
    elif after == 1 and not (any(glued) or span.closes or follows_number):
        side = "closes"
    return MaskedSpan(text, placeholder, side, spaced, joins, span.partner)


def _fix_spaces(parts: list[str], spans: Sequence[MaskedSpan]) -> list[str]:
    """Add the spaces that placeholders need and remove the ones that inline tags leave over."""
    parts, last = [*parts], ""
    for i, span in enumerate(spans):
        last = parts[i][-1:] or last
        if span.placeholder:
            parts[i] += " " * last.isalnum()
            parts[i + 1] = " " * parts[i + 1][:1].isalnum() + parts[i + 1]
            last = span.placeholder
        elif span.joins:
            parts[i + 1] = " " * bool(last and not last.isspace()) + parts[i + 1]
        elif not last or last.isspace():
            parts[i + 1] = parts[i + 1].lstrip()
            if CLOSING.match(parts[i + 1][:1]) and parts[i + 1]:
                parts[i] = parts[i].rstrip()
    return parts


def _classify_before(parts: Sequence[str], placeholders: Sequence[str]) -> list[int]:
    """Classify the text before each span: 0 empty, 1 only punctuation, 2 words."""
    level, classes = 0, []
    for part, placeholder in zip(parts, placeholders):
        level = max(level, 2 if re.search(r"\w", part) else bool(part.strip()))
        classes.append(level)
        level = 2 if placeholder else level
    return classes
