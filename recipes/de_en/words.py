"""Words of a corpus: names, rare words, and the form of first words inside sentences."""

import re
from collections import Counter
from collections.abc import Iterable

from onmt_lite.train.data import Pair

WORD = re.compile(r"\w+")


class Truecase:
    """Lowers the first word of a sentence where the word is mostly lower case inside sentences."""

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
    """Pairs with a source word that is in at most `at_most` sources; case is ignored."""
    words = [set(WORD.findall(src.casefold())) for src, _ in pairs]
    counts = Counter(word for line in words for word in line)
    return [p for p, line in zip(pairs, words) if any(counts[w] <= at_most for w in line)]


def names_of(pairs: list[Pair]) -> list[str]:
    """Words that both sides of a pair share, with a capital inside sentences too."""
    inside = Counter(word for _, tgt in pairs for word in WORD.findall(tgt)[1:])
    shared = {word for src, tgt in pairs for word in shared_words(src, tgt) if word[0].isupper()}
    return sorted(w for w in shared if w[1:].islower() and inside[w] > inside[w.lower()])


def shared_words(src: str, tgt: str) -> set[str]:
    return set(WORD.findall(src)) & set(WORD.findall(tgt))
