"""Phrases in a text: whole words, as they are spelt.

A word begins and ends where no other letter, digit or underscore stands beside it: "cat" is in
"The cat." and in "cat's", not in "category".  Scripts that are written without spaces between
words have no such borders: there a phrase may stand anywhere.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

SPACES = re.compile(r"\s+")
# Thai, Lao, Burmese, Khmer, kana, Chinese characters
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
UNREADABLE = "\ufffd"  # a token that is no text by itself, such as a byte: part of a word


@lru_cache(maxsize=1 << 16)
def is_word(char: str) -> bool:
    """Whether a character is part of a word that spaces or marks must end."""
    if UNSPACED.match(char):
        return False
    return char in ("_", UNREADABLE) or char.isalnum() or unicodedata.category(char)[0] == "M"


def borders(before: str, after: str) -> bool:
    """Whether a word may end between two characters and another begin."""
    return not (is_word(before) and is_word(after))


def neighbours(text: str, phrase: str) -> Iterator[tuple[str, str]]:
    """The characters before and after a phrase, each time that it begins a word of a text.

    The first character of the text stands before all else; after its end is "".
    """
    start = text.find(phrase, 1)
    while start > 0:
        end = start + len(phrase)
        if borders(text[start - 1], phrase[0]):
            yield text[start - 1], text[end : end + 1]
        start = text.find(phrase, start + 1)


def occurs(text: str, phrase: str, alone: bool = False) -> bool:
    """Whether a phrase stands in a text as whole words.

    alone: no letter stands beside it, even if it begins or ends with a mark.
    """
    return any(
        borders(phrase[-1], after) and not (alone and (is_word(before) or is_word(after)))
        for before, after in neighbours(f" {text} ", phrase)
    )


def parse_phrases(line: str) -> tuple[str, ...]:
    """The phrases of a line of -force_words or -ban_words, TAB between them; each of them once."""
    phrases = (single_spaced(part).strip() for part in line.split("\t"))
    return tuple(dict.fromkeys(filter(None, phrases)))


def single_spaced(text: str) -> str:
    return SPACES.sub(" ", text)
