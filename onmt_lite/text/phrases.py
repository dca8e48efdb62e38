"""Phrases in a text: whole words, as they are spelt.

A word begins and ends where no other letter, digit or underscore stands beside it: "cat" is in
"The cat." and in "cat's", not in "category".  Scripts that are written without spaces between
words have no such borders: there a phrase may stand anywhere.
"""

import re
import unicodedata
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


def ended(text: str, phrase: str, alone: bool = False) -> bool:
    """Whether a phrase stands after the first character of a text, whatever follows the text.

    alone: no letter stands beside it, even if it begins or ends with a mark.
    """
    start = text.find(phrase, 1)
    while start > 0:
        before, after = text[start - 1], text[start + len(phrase) :][:1] or UNREADABLE
        if borders(before, phrase[0]) and borders(phrase[-1], after):
            if not (alone and (is_word(before) or is_word(after))):
                return True
        start = text.find(phrase, start + 1)
    return False


def occurs(text: str, phrase: str, alone: bool = False) -> bool:
    """Whether a phrase stands in a whole text; see `ended`."""
    return ended(f" {text} ", phrase, alone)


def ends_with(text: str, words: str) -> bool:
    """Whether a text ends with words that begin after its first character."""
    n = len(words)
    return len(text) > n and text.endswith(words) and borders(text[-n - 1], words[0])


def parse_phrases(line: str) -> tuple[str, ...]:
    """The phrases of a line of -force_words or -ban_words, TAB between them; each of them once."""
    phrases = (single_spaced(part).strip() for part in line.split("\t"))
    return tuple(dict.fromkeys(filter(None, phrases)))


def single_spaced(text: str) -> str:
    return SPACES.sub(" ", text)
