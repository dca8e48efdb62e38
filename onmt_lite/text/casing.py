"""Casing of uppercase words inside a line: ACHTUNG: Der Boden ist nass.

A model with cased subwords splits such words into letters and rarely translates them. They are
therefore lowercased, or capitalized if that takes fewer subwords, and the words aligned to them in
the translation are uppercased. Acronyms are not changed: they take about as many subwords in
lowercase, or abbreviations.yaml lists them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from onmt_lite.text.masked_line import MaskedLine
from onmt_lite.text.sentence_splitter import load_abbreviations
from onmt_lite.text.tag_projection import AlignedText, count_nonspace, get_token_texts

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
SENTENCE_START = re.compile(r"[.!?…:]\W*$")
Encode = Callable[[str], list[str]]
Spans = tuple[tuple[int, int], ...]


class CaseVariant(NamedTuple):
    """An uppercase word in the casing that the model should read."""

    start: int
    end: int
    text: str
    is_common: bool  # certainly an ordinary word, not an acronym
    is_common_in_context: bool  # an ordinary word if its neighbors are


def choose_casing(text: str, start: int, end: int, encode: Encode) -> CaseVariant:
    """Choose the casing of the uppercase word text[start:end] for the model.

    At the start of a sentence, the capitalized form is preferred unless it takes more subwords.

    Args:
        text: the line.
        start: index of the first character of the word.
        end: index after its last character.
        encode: tokenizes text into subwords.
    """
    word = text[start:end]
    lower = "".join(char.lower() if len(char.lower()) == 1 else char for char in word)
    n_upper, n_lower, n_capitalized = (len(encode(w)) for w in (word, lower, word[0] + lower[1:]))
    n, n_letters = min(n_lower, n_capitalized), len(word)
    starts_sentence = (
        SENTENCE_START.search(text[max(0, start - 9) : start]) is not None or start == 0
    )
    is_lower = n_lower < n_capitalized or n_lower == n_capitalized and not starts_sentence
    spelling = lower if is_lower else word[0] + lower[1:]
    if n >= n_upper or n_letters < 2:
        return CaseVariant(start, end, word, False, False)
    if word in load_abbreviations().acronyms:  # MIT may be the institute or the preposition
        return CaseVariant(start, end, spelling, False, n_lower == 1)
    # Subwords of a word have more letters than those of an acronym
    is_common = n_letters > 2 and (n == 1 or n_letters >= (2.5 if n_letters < 5 else 1.6) * n)
    is_common_here = n_lower == 1 if n_letters == 2 else n_letters > 4 or n_letters >= 1.5 * n
    return CaseVariant(start, end, spelling, is_common, is_common_here)


def lower_uppercase_words(text: str, encode: Encode) -> tuple[str, Spans]:
    """Lowercase uppercase words, except acronyms.

    Args:
        text: the line.
        encode: tokenizes text into subwords.

    Returns:
        The line, with the same number of characters, and the spans of the changed words.
    """
    runs: list[list[CaseVariant]] = [[]]
    for match in WORD.finditer(text):
        word = match[0]
        # ß is rarely written in uppercase
        if word[-1:] != "ß" and word[-1:].islower() or any(map(str.islower, word.replace("ß", ""))):
            runs.append([])
        elif word.isalpha() and word != "ß":
            runs[-1].append(choose_casing(text, *match.span(), encode))
    candidates = [
        variant for run in runs if any(variant.is_common for variant in run) for variant in run
    ]
    changed = [
        variant for variant in candidates if variant.is_common or variant.is_common_in_context
    ]
    for variant in changed:
        text = text[: variant.start] + variant.text + text[variant.end :]
    return text, tuple((variant.start, variant.end) for variant in changed)


def lower_masked_line(masked_line: MaskedLine, encode: Encode) -> tuple[MaskedLine, Spans]:
    """Lowercase uppercase words of a line, except in placeholders.

    Args:
        masked_line: the line without its masked spans.
        encode: tokenizes text into subwords.

    Returns:
        The line, and the spans of the changed words, counted in characters without spaces.
    """
    text, spans = lower_uppercase_words(masked_line.text, encode)
    parts, position = list[str](), 0
    for part, placeholder_text in zip(
        masked_line.parts, [*(span.placeholder for span in masked_line.spans), ""]
    ):
        parts.append(text[position : position + len(part)])
        position += len(part) + len(placeholder_text)

    def count_before(index: int) -> int:
        return count_nonspace("".join(get_token_texts(encode(text[:index]))))

    return replace(masked_line, parts=tuple(parts)), tuple(
        (count_before(start), count_before(end)) for start, end in spans
    )


def restore_uppercase(text: str, aligned: AlignedText, spans: Spans) -> str:
    """Uppercase the target words that translate uppercase source words.

    Args:
        text: the translation.
        aligned: the words of the source as the model read it, and of the translation.
        spans: spans of the uppercase words in the source, in characters without spaces.
    """
    source, target = aligned.source, aligned.target
    units = {
        unit
        for first, last in spans
        for unit in range(source.find_unit_at(first), source.find_unit_at(last - 1) + 1)
    }
    chars, positions = list(text), [i for i, char in enumerate(text) if not char.isspace()]
    is_upper, stops = False, {*target.stops}
    for j, (start, end, vote) in enumerate(zip(target.starts, target.ends, aligned.votes)):
        # A word without alignment votes takes the case of the previous word in its sentence
        n_upper = sum(n for unit, n in vote.items() if unit in units and unit not in source.stops)
        n_other = sum(
            n for unit, n in vote.items() if unit not in units and unit not in source.stops
        )
        is_upper = n_upper >= n_other if n_upper + n_other else is_upper and j - 1 not in stops
        for i in positions[start:end] if is_upper else ():
            chars[i] = chars[i].upper() if len(chars[i].upper()) == 1 else chars[i]
    return "".join(chars)
