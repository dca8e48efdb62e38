"""What the sentences of a corpus tell about their words."""

import re
from collections import Counter
from collections.abc import Iterable

from onmt_lite.training.data import Pair

WORD = re.compile(r"\w+")


class Truecase:
    """The form words have inside sentences, for a first word that moves inside."""

    def __init__(self, sentences: Iterable[str]):
        inside: Counter[str] = Counter()
        for sentence in sentences:
            inside.update(sentence.split()[1:])
        self.inside = inside

    def lower_first(self, sentence: str) -> str:
        word, space, rest = sentence.partition(" ")
        lowered = word[:1].lower() + word[1:]
        return (lowered if self.inside[lowered] > self.inside[word] else word) + space + rest


def with_rare_words(pairs: list[Pair], at_most: int) -> list[Pair]:
    """Those whose source has a word that is in at most so many sources; case does not count."""
    words = [set(WORD.findall(src.casefold())) for src, _ in pairs]
    counts = Counter(word for found in words for word in found)
    return [p for p, found in zip(pairs, words) if any(counts[w] <= at_most for w in found)]


def names_of(pairs: list[Pair]) -> list[str]:
    """Words that both sides of a pair share and that are written large inside sentences too."""
    inside = Counter(word for _, tgt in pairs for word in WORD.findall(tgt)[1:])
    shared = {word for src, tgt in pairs for word in shared_words(src, tgt) if word[0].isupper()}
    return sorted(w for w in shared if w[1:].islower() and inside[w] > inside[w.lower()])


def shared_words(src: str, tgt: str) -> set[str]:
    return set(WORD.findall(src)) & set(WORD.findall(tgt))
