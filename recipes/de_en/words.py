"""Word statistics of a corpus: names, rare words, and the case of sentence-initial words."""

import re
from collections import Counter
from collections.abc import Iterable

from onmt_lite.train.data import Pair

WORD = re.compile(r"\w+")


class Truecase:
    """Truecaser for first words; they are lowercased if that is their usual form in sentences."""

    def __init__(self, sentences: Iterable[str]):
        inside: Counter[str] = Counter()
        for sentence in sentences:
            inside.update(sentence.split()[1:])
        self.inside = inside

    def lower_first(self, sentence: str) -> str:
        """Lowercase the first word unless it is usually capitalized."""
        word, space, rest = sentence.partition(" ")
        lowered = word[:1].lower() + word[1:]
        return (lowered if self.inside[lowered] > self.inside[word] else word) + space + rest


def select_rare(pairs: list[Pair], max_count: int) -> list[Pair]:
    """Return the pairs with a source word that occurs in `max_count` or fewer sources.

    Case is ignored.
    """
    words = [set(WORD.findall(src.casefold())) for src, _ in pairs]
    counts = Counter(word for line in words for word in line)
    return [p for p, line in zip(pairs, words) if any(counts[w] <= max_count for w in line)]


def find_names(pairs: list[Pair]) -> list[str]:
    """Return words that occur on both sides of a pair and are usually capitalized in sentences."""
    inside = Counter(word for _, tgt in pairs for word in WORD.findall(tgt)[1:])
    shared = {
        word for src, tgt in pairs for word in find_shared_words(src, tgt) if word[0].isupper()
    }
    return sorted(w for w in shared if w[1:].islower() and inside[w] > inside[w.lower()])


def find_shared_words(src: str, tgt: str) -> set[str]:
    """Return the words that occur on both sides."""
    return set(WORD.findall(src)) & set(WORD.findall(tgt))
