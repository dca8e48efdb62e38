"""Typing noise on the source side; the target stays the translation of the intended text.

Words that occur on both sides are not changed: names, numbers and addresses must be copied.
"""

import re
from collections.abc import Callable
from random import Random

from onmt_lite.train.data import Pair
from recipes.de_en.words import WORD, find_shared_words

# A German keyboard; each row is half a key to the right of the row above
ROWS = ("qwertzuiopü", "asdfghjklöä", "yxcvbnm")
TWO_LETTERS = {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss"}
WITHOUT_DOTS = {umlaut: two[0] for umlaut, two in TWO_LETTERS.items()} | {"ß": "ss"}
ADDRESS = re.compile(r"\S*(?:[@/\\_]|\w\.\w|\d)\S*")


def list_adjacent_keys(letter: str) -> str:
    """Return the letters whose keys touch the key of a lowercase letter."""
    adjacent = ""
    for r, row in enumerate(ROWS):
        i = row.find(letter)
        if i >= 0:
            adjacent = row[max(i - 1, 0) : i] + row[i + 1 : i + 2]
            adjacent += ROWS[r - 1][i : i + 2] if r else ""
            adjacent += ROWS[r + 1][max(i - 1, 0) : i + 1] if r + 1 < len(ROWS) else ""
    return adjacent


# Each function returns the word with a typing mistake at position i


def _swap(word: str, i: int, rng: Random) -> str:
    i = min(i, len(word) - 2)
    return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def _drop(word: str, i: int, rng: Random) -> str:
    return word[:i] + word[i + 1 :]


def _double(word: str, i: int, rng: Random) -> str:
    return word[: i + 1] + word[i].lower() + word[i + 1 :]


def _hit_adjacent_key(word: str, i: int, rng: Random) -> str:
    adjacent = list_adjacent_keys(word[i].lower())
    if not adjacent:
        return word
    typed = rng.choice(adjacent)
    return word[:i] + (typed.upper() if word[i].isupper() else typed) + word[i + 1 :]


MISTAKES: tuple[Callable[[str, int, Random], str], ...] = (_swap, _drop, _double, _hit_adjacent_key)


def add_typos(pair: Pair, rng: Random) -> Pair:
    """Misspell one to three words of the source, at most a third of its words.

    Only words of three or more letters are misspelled.
    """
    src, tgt = pair
    words = [m for m in _find_source_words(src, tgt) if len(m.group()) >= 3]
    n = min(rng.choice((1, 1, 2, 3)), len(words) // 3)
    for match in sorted(rng.sample(words, n), key=lambda m: -m.start()):
        word = match.group()
        misspelled = rng.choice(MISTAKES)(word, rng.randrange(len(word)), rng)
        src = src[: match.start()] + misspelled + src[match.end() :]
    return src, tgt


def replace_umlauts(pair: Pair, rng: Random) -> Pair:
    """Replace umlauts in the source with two letters or the base letter, and ß with ss."""
    spelling = str.maketrans(rng.choice((TWO_LETTERS, TWO_LETTERS, WITHOUT_DOTS)))
    src, tgt = pair
    for match in reversed(_find_source_words(src, tgt)):
        src = src[: match.start()] + match.group().translate(spelling) + src[match.end() :]
    return src, tgt


def drop_commas(pair: Pair) -> Pair:
    """Remove all commas from the source, except inside numbers."""
    return re.sub(r",(?!\d)", "", pair[0]), pair[1]


def drop_final_marks(sentence: str) -> str:
    """Remove the final punctuation of a sentence, unless nothing would be left."""
    return sentence.rstrip(".!?").rstrip() or sentence


def _find_source_words(src: str, tgt: str) -> list[re.Match[str]]:
    """Return the words of the source that are neither in the target nor in an address."""
    shared = find_shared_words(src, tgt)
    addresses = [m.span() for m in ADDRESS.finditer(src)]
    return [
        m
        for m in WORD.finditer(src)
        if m.group() not in shared and not any(a <= m.start() < b for a, b in addresses)
    ]
