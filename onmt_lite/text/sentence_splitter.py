"""Sentence splitting by punctuation, capitalization and the lists in abbreviations.yaml."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import yaml

from onmt_lite.text.markup import find_indices_inside_spans, find_line_head

DATA_FILE = Path(__file__).with_name("abbreviations.yaml")
FIRST_WORD = re.compile(r"[^\W_]+")
VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûœæ]", re.IGNORECASE)
ENDS_WORD = re.compile(r"\w[/'’][^\W\d_]$")  # km/h, geht's
ROMAN = re.compile("[IVXLC]{2,}")
YEAR = re.compile(r"(?!.000)1[1-9]\d\d|20[0-4]\d")
DOTTED = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)+")  # U.S.A, web.de
WORD = re.compile(r"\S+")
OPENING, CLOSING = "\"'„“‚‘«»‹›([¿¡", "\"'“”‘’«»‹›)]"
MARKS = ".!?…"
NO_WORD = re.compile(r"[^\w.]")  # may precede a word without a space, e.g. a tag


def split_sentences(text: str) -> list[str]:
    """Split a line into at least one sentence; an empty line becomes [""].

    The sentences joined with spaces equal the line, except for white space around and between them.
    A list mark at the start keeps the space before it.
    """
    words, one_case = list(WORD.finditer(text)), text in (text.lower(), text.upper())
    inside = find_indices_inside_spans(text)  # no sentence ends inside a tag, a variable or code
    starts = [
        i
        for i in range(1, len(words))
        if starts_sentence([w[0] for w in words[max(0, i - 2) : i + 1]], one_case)
        and words[i].start() - 1 not in inside
    ]
    bounds = zip([0, *starts], [*starts, len(words)])
    sentences = [text[words[i].start() : words[j - 1].end()] for i, j in bounds if i < j] or [""]
    head = find_line_head(text)
    return [head[: len(head) - len(head.lstrip())] + sentences[0], *sentences[1:]]


def starts_sentence(words: Sequence[str], one_case: bool) -> bool:
    """Return True if the last of these words starts a sentence.

    Args:
        words: the word and the one or two words before it.
        one_case: the whole line is in one case, so capitalization is not informative.
    """
    *earlier, before, word = words
    closed, word = before.strip(OPENING + CLOSING), word.lstrip(OPENING)
    last = closed.rstrip(MARKS)
    marks, first = closed[len(last) :], word[:1]
    if not marks or not first.isalnum() or (first.islower() and not one_case):
        return False
    last = "" if ENDS_WORD.search(last) else NO_WORD.split(last)[-1]
    return marks != "." or not last or not is_abbreviation(last, "".join(earlier), word, one_case)


# -- abbreviations ---------------------------------------------------------------------------------


class Abbreviations(NamedTuple):
    """The lists of abbreviations.yaml."""

    types: dict[str, str]  # abbreviation to list name: never, last or number
    lowercase: dict[str, str]  # the same for lines in one case
    starts: frozenset[str]
    suffixes: tuple[str, ...]
    acronyms: frozenset[str]


@lru_cache
def load_abbreviations() -> Abbreviations:
    """Load abbreviations.yaml."""
    data = yaml.safe_load(DATA_FILE.read_bytes())
    words = {name: " ".join(data[name].values()).split() for name in ("number", "last", "never")}
    pairs = [(word, name) for name, listed in words.items() for word in listed]
    types = {word[:1].upper() + word[1:]: name for word, name in pairs} | dict(pairs)
    return Abbreviations(
        types,
        {word.lower(): name for word, name in pairs},
        frozenset(chain(*(words.split() for words in data["starts"].values()))),
        tuple(data["suffixes"].split()),
        frozenset(data["acronyms"].split()),
    )


def is_abbreviation(word: str, before: str, following: str, one_case: bool) -> bool:
    """Return True if the period after a word does not end a sentence: Dr., z. B., 3., usw.

    Args:
        word: the word without its period and without opening punctuation.
        before: the previous word, with its period.
        following: the next word, without opening punctuation.
        one_case: the whole line is in one case, so the case of `following` is not informative.
    """
    type_ = _list_of(f"{before}{word}", one_case) if before[-1:] == "." else ""
    type_ = type_ or _list_of(word, one_case) or _guess_list(word, before)
    if type_ == "number":
        is_first = word[:1].isupper() and (not before or before[-1] in MARKS)  # Max. Tempo: 50
        return following[:1].isdigit() or is_first and not _only_starts_sentences(following)
    return (
        type_ == "never" or type_ == "last" and (one_case or not _only_starts_sentences(following))
    )


def _list_of(word: str, one_case: bool) -> str:
    """Return the name of the list that contains a word, or ""."""
    known = load_abbreviations()
    if one_case or word.isupper() and len(word) > 1 and word not in known.types:
        return known.lowercase.get(word.lower(), "")
    return known.types.get(word, "")


def _guess_list(word: str, before: str) -> str:
    """Guess the list of a word that abbreviations.yaml lacks; "" if it is not an abbreviation."""
    if word.isdigit() and not _starts_item(before):  # am 3. Mai; im Jahr 1987.
        return "" if YEAR.fullmatch(word) else "last"
    if DOTTED.fullmatch(word):
        return "never" if word.islower() and word[1] == "." else "last"
    if len(word) == 1 and word.isupper():  # J. Meier; Plan B.
        return "last"
    if not word.isalpha() or len(word) == 1:
        return "never"
    if len(word) <= 4 and word.isupper() and not ROMAN.fullmatch(word):  # DDR, CD
        return ""
    is_short = len(word) <= 4 and not VOWEL.search(word)
    is_last = word.lower().endswith(load_abbreviations().suffixes) or ROMAN.fullmatch(word)
    return "last" if is_short or is_last else ""


def _starts_item(before: str) -> bool:
    """Return True if a number after this word may be the mark of a list item: 1. Die Tür öffnen."""
    last = before.strip(OPENING + CLOSING).rstrip(MARKS)
    ends_sentence = before[-1:] in MARKS and len(last) > 1 and not _list_of(last, False)
    return not last or ends_sentence


def _only_starts_sentences(word: str) -> bool:
    """Return True if a word in this casing occurs only at the start of sentences."""
    first = FIRST_WORD.match(word)
    if first is None:
        return False
    is_upper = first[0].isupper() and len(first[0]) > 1
    return (first[0].capitalize() if is_upper else first[0]) in load_abbreviations().starts
