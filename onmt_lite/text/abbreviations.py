"""Abbreviations and acronyms, from abbreviations.yaml: whether a point ends a sentence."""

import re
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import yaml

DATA = Path(__file__).with_name("abbreviations.yaml")
WORD = re.compile(r"[^\W_]+")
VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûœæ]", re.IGNORECASE)
ROMAN = re.compile("[IVXLC]{2,}")
DOTTED = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)+")  # U.S.A, web.de


class Abbreviations(NamedTuple):
    """The tables of abbreviations.yaml."""

    types: dict[str, str]  # the list of each abbreviation: never, last or number
    lowercase: dict[str, str]  # the same for text in one case
    starts: frozenset[str]
    suffixes: tuple[str, ...]
    acronyms: frozenset[str]


@lru_cache
def abbreviations() -> Abbreviations:
    data = yaml.safe_load(DATA.read_bytes())
    words = {name: " ".join(data[name].values()).split() for name in ("number", "last", "never")}
    pairs = [(word, name) for name, own in words.items() for word in own]
    types = {word[:1].upper() + word[1:]: name for word, name in pairs} | dict(pairs)
    return Abbreviations(
        types,
        {word.lower(): name for word, name in pairs},
        frozenset(chain(*(words.split() for words in data["starts"].values()))),
        tuple(data["suffixes"].split()),
        frozenset(data["acronyms"].split()),
    )


def is_abbreviation(word: str, before: str, following: str, small: bool) -> bool:
    """Return True if the point after a word does not end a sentence: Dr., z. B., 3., usw.

    Args:
        word: the word without its point, with no mark before it.
        before: the word before, with its point.
        following: the word after, with no mark before it.
        small: whether the line is in one case, so that `following` does not show a new sentence.
    """
    type_ = _type(f"{before}{word}", small) if before[-1:] == "." else ""
    type_ = type_ or _type(word, small) or _guess(word)
    if type_ == "number":
        return following[:1].isdigit()
    return type_ == "never" or type_ == "last" and (small or not _starts(following))


def _type(word: str, small: bool) -> str:
    """Return the list that has a word, "" if none has."""
    known = abbreviations()
    if small or word.isupper() and len(word) > 1 and word not in known.types:
        return known.lowercase.get(word.lower(), "")
    return known.types.get(word, "")


def _guess(word: str) -> str:
    """Return the list to which a word that is in none belongs, "" if it is no abbreviation."""
    if DOTTED.fullmatch(word):
        return "never" if word.islower() and word[1] == "." else "last"
    if not word.isalpha() or len(word) == 1:
        return "never"
    is_short = len(word) <= 4 and not VOWEL.search(word)
    is_last = word.lower().endswith(abbreviations().suffixes) or ROMAN.fullmatch(word)
    return "last" if is_short or is_last else ""


def _starts(word: str) -> bool:
    """Return True if a word with this spelling only starts sentences."""
    first = WORD.match(word)
    if first is None:
        return False
    loud = first[0].isupper() and len(first[0]) > 1
    return (first[0].capitalize() if loud else first[0]) in abbreviations().starts
