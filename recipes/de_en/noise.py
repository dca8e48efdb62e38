"""Mistakes and shortcuts of people who type, on the source side: the translation is of what they
meant.

Words that the target has too stay: they are names, numbers and addresses, to be copied.
"""

import re
from collections.abc import Callable
from random import Random

from onmt_lite.train.data import Pair
from recipes.de_en.words import WORD, shared_words

# Of a German keyboard, each half a key to the right of the one above
ROWS = ("qwertzuiopü", "asdfghjklöä", "yxcvbnm")
TWO_LETTERS = {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss"}
BARE = {spelled: two[0] for spelled, two in TWO_LETTERS.items()} | {"ß": "ss"}
ADDRESS = re.compile(r"\S*(?:[@/\\_]|\w\.\w|\d)\S*")


def neighbours(letter: str) -> str:
    """Letters whose keys touch that of a small letter."""
    near = ""
    for r, row in enumerate(ROWS):
        place = row.find(letter)
        if place >= 0:
            near = row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
            near += ROWS[r - 1][place : place + 2] if r else ""
            near += ROWS[r + 1][max(place - 1, 0) : place + 1] if r + 1 < len(ROWS) else ""
    return near


def _swap(word: str, i: int, rng: Random) -> str:
    i = min(i, len(word) - 2)
    return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def _drop(word: str, i: int, rng: Random) -> str:
    return word[:i] + word[i + 1 :]


def _double(word: str, i: int, rng: Random) -> str:
    return word[: i + 1] + word[i].lower() + word[i + 1 :]


def _neighbour(word: str, i: int, rng: Random) -> str:
    near = neighbours(word[i].lower())
    if not near:
        return word
    typed = rng.choice(near)
    return word[:i] + (typed.upper() if word[i].isupper() else typed) + word[i + 1 :]


SLIPS: tuple[Callable[[str, int, Random], str], ...] = (_swap, _drop, _double, _neighbour)


def typos(pair: Pair, rng: Random) -> Pair:
    """Make one to three slips, each in another word of three letters or more, at most one in three
    words of the line."""
    src, tgt = pair
    words = [m for m in _own_words(src, tgt) if len(m.group()) >= 3]
    n = min(rng.choice((1, 1, 2, 3)), len(words) // 3)
    for match in sorted(rng.sample(words, n), key=lambda m: -m.start()):
        word = match.group()
        slipped = rng.choice(SLIPS)(word, rng.randrange(len(word)), rng)
        src = src[: match.start()] + slipped + src[match.end() :]
    return src, tgt


def plain_letters(pair: Pair, rng: Random) -> Pair:
    """Spell umlauts with two letters, or without their dots, and ß as ss."""
    spelled = str.maketrans(rng.choice((TWO_LETTERS, TWO_LETTERS, BARE)))
    src, tgt = pair
    for match in reversed(_own_words(src, tgt)):
        src = src[: match.start()] + match.group().translate(spelled) + src[match.end() :]
    return src, tgt


def no_commas(pair: Pair) -> Pair:
    """Take commas away, but for those inside numbers."""
    return re.sub(r",(?!\d)", "", pair[0]), pair[1]


def no_mark(sentence: str) -> str:
    """Take the mark at the end away."""
    return sentence.rstrip(".!?").rstrip() or sentence


def _own_words(src: str, tgt: str) -> list[re.Match[str]]:
    shared = shared_words(src, tgt)
    addresses = [m.span() for m in ADDRESS.finditer(src)]
    return [
        m
        for m in WORD.finditer(src)
        if m.group() not in shared and not any(a <= m.start() < b for a, b in addresses)
    ]
