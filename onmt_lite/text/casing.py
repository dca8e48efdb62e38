"""Words in uppercase inside a line: ACHTUNG: Der Boden ist nass.

A model with cased subwords reads such words letter by letter and rarely translates them.  So it
reads them in lowercase, or with a first capital if that takes fewer subwords, and the words that
translate them become uppercase again.  Acronyms stay as they are: in lowercase they take about as
many subwords, or abbreviations.yaml lists them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from onmt_lite.text.placeholders import MaskedLine
from onmt_lite.text.sentence_splitter import load_abbreviations
from onmt_lite.text.tag_projection import AlignedText, count_nonspace, token_texts

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
SENTENCE_START = re.compile(r"[.!?…:]\W*$")
Encode = Callable[[str], list[str]]
Spans = tuple[tuple[int, int], ...]


class Respelled(NamedTuple):
    """A word in uppercase as the model may read it."""

    start: int
    end: int
    text: str
    is_common: bool  # it is a word of the language for certain
    may_be_common: bool  # it is one next to such words


def respelled(text: str, start: int, end: int, encode: Encode) -> Respelled:
    """Return a word of a text as the model may read it; a sentence starts with a capital if that
    takes no more subwords."""
    word = text[start:end]
    lower = "".join(char.lower() if len(char.lower()) == 1 else char for char in word)
    n_upper, n_lower, n_first = (len(encode(w)) for w in (word, lower, word[0] + lower[1:]))
    n, n_letters = min(n_lower, n_first), len(word)
    starts = SENTENCE_START.search(text[max(0, start - 9) : start]) is not None or start == 0
    is_lower = n_lower < n_first or n_lower == n_first and not starts
    spelling = lower if is_lower else word[0] + lower[1:]
    if n >= n_upper or n_letters < 2:
        return Respelled(start, end, word, False, False)
    if word in load_abbreviations().acronyms:  # MIT may be the institute or the preposition
        return Respelled(start, end, spelling, False, n_lower == 1)
    # Subwords of a word have more letters than those of an acronym
    is_common = n_letters > 2 and (n == 1 or n_letters >= (2.5 if n_letters < 5 else 1.6) * n)
    may_be = n_lower == 1 if n_letters == 2 else n_letters > 4 or n_letters >= 1.5 * n
    return Respelled(start, end, spelling, is_common, may_be)


def lower_uppercase_words(text: str, encode: Encode) -> tuple[str, Spans]:
    """Lowercase the words in uppercase, but not acronyms; return the text, of equal length, and
    the spans of these words."""
    runs: list[list[Respelled]] = [[]]
    for match in WORD.finditer(text):
        word = match[0]
        if any(map(str.islower, word.replace("ß", ""))):  # ß is rarely written in uppercase
            runs.append([])
        elif word.isalpha() and word != "ß":
            runs[-1].append(respelled(text, *match.span(), encode))
    found = [each for run in runs if any(w.is_common for w in run) for each in run]
    words = [each for each in found if each.is_common or each.may_be_common]
    for each in words:
        text = text[: each.start] + each.text + text[each.end :]
    return text, tuple((each.start, each.end) for each in words)


def lower_masked_line(masked_line: MaskedLine, encode: Encode) -> tuple[MaskedLine, Spans]:
    """Lowercase the words of a line around its stand-ins; return the line, and the places of the
    words as numbers of characters without spaces."""
    text, spans = lower_uppercase_words(masked_line.text, encode)
    parts, at = list[str](), 0
    for part, name in zip(
        masked_line.parts, [*(item.placeholder for item in masked_line.items), ""]
    ):
        parts.append(text[at : at + len(part)])
        at += len(part) + len(name)

    def place(index: int) -> int:
        return count_nonspace("".join(token_texts(encode(text[:index]))))

    return replace(masked_line, parts=tuple(parts)), tuple((place(a), place(b)) for a, b in spans)


def restore_uppercase(text: str, aligned: AlignedText, uppercase_spans: Spans) -> str:
    """Uppercase the words of a translation that translate words in uppercase.

    Args:
        text: the translation.
        aligned: the units of the source as the model read it, and of the translation.
        loud: places of the words in uppercase in the source.
    """
    source, target = aligned.source, aligned.target
    units = {u for a, b in uppercase_spans for u in range(source.at(a), source.at(b - 1) + 1)}
    chars, places = list(text), [i for i, char in enumerate(text) if not char.isspace()]
    is_loud, stops = False, {*target.stops}
    for j, (start, end, vote) in enumerate(zip(target.starts, target.ends, aligned.votes)):
        # A word without a vote is like the word before it in its sentence
        n_loud = sum(n for u, n in vote.items() if u in units and u not in source.stops)
        n_other = sum(n for u, n in vote.items() if u not in units and u not in source.stops)
        is_loud = n_loud >= n_other if n_loud + n_other else is_loud and j - 1 not in stops
        for i in places[start:end] if is_loud else ():
            chars[i] = chars[i].upper() if len(chars[i].upper()) == 1 else chars[i]
    return "".join(chars)
