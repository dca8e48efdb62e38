"""Words and their translations, found in pairs of sentences.

A small model learns a word from many sentences; a pair of words as a line is a shorter way.  Single
words are also what people try first.
"""

import re
from array import array
from collections.abc import Iterator

import torch
from torch import Tensor

from onmt_lite.train.data import Pair
from recipes.de_en.words import Truecase

WORD = re.compile(r"\w+(?:['’-]\w+)*")
ITERATIONS = 10
MIN_PROB = 0.15
MIN_COUNT = 1.5


def word_pairs(pairs: list[Pair]) -> list[Pair]:
    """Find pairs (word, translation) by IBM Model 1 (Brown et al. 1993).

    Each word of a pair translates the other with a probability of at least MIN_PROB, and at least
    MIN_COUNT links between them are expected in all pairs of sentences.
    """
    srcs, src_words = _number(src for src, _ in pairs)
    tgts, tgt_words = _number(tgt for _, tgt in pairs)
    keys, forward, count = _align(srcs, tgts, len(src_words), len(tgt_words))
    back_keys, backward, _ = _align(tgts, srcs, len(tgt_words), len(src_words))
    src, tgt = keys.div(len(tgt_words), rounding_mode="floor"), keys % len(tgt_words)
    # Both directions have the same pairs of words, in different orders
    backward = backward[torch.searchsorted(back_keys, tgt * len(src_words) + src)]
    sure = (forward >= MIN_PROB) & (backward >= MIN_PROB) & (count >= MIN_COUNT)
    ids = zip(src[sure].tolist(), tgt[sure].tolist())
    return [(src_words[s], tgt_words[t]) for s, t in ids]


def _number(sentences: Iterator[str]) -> tuple[list[list[int]], list[str]]:
    """Ids of the words of each sentence, and the words, in the form they have inside sentences."""
    texts = list(sentences)
    case, ids = Truecase(texts), dict[str, int]()
    lines = [WORD.findall(case.lower_first(text)) for text in texts]
    return [[ids.setdefault(word, len(ids)) for word in line] for line in lines], list(ids)


def _links(froms: list[list[int]], tos: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """List all possible links: each word of a line with each word of its translation.

    Returns the first word, the second word, and the index of the latter in all of `tos`.
    """
    word, other, place = array("q"), array("q"), array("q")
    n = 0
    for these, those in zip(froms, tos):
        for to in those:
            word.extend(these)
            other.extend([to] * len(these))
            place.extend([n] * len(these))
            n += 1
    start, end, index = (torch.tensor(part, dtype=torch.long) for part in (word, other, place))
    return start, end, index


def _align(
    froms: list[list[int]], tos: list[list[int]], n_from: int, n_to: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Align words that share a line.

    Returns keys from * n_to + to, in order, and for each the probability of `to` as a translation
    of `from` and the expected number of links between them.
    """
    start, end, place = _links(froms, tos)
    keys, of_link = torch.unique(start * n_to + end, return_inverse=True)
    of_key, n_places = keys.div(n_to, rounding_mode="floor"), sum(map(len, tos))
    prob = count = torch.ones(len(keys))
    for _ in range(ITERATIONS):
        share = prob[of_link]
        share /= torch.zeros(n_places).index_add_(0, place, share)[place]
        count = torch.zeros(len(keys)).index_add_(0, of_link, share)
        prob = count / torch.zeros(n_from).index_add_(0, of_key, count)[of_key]
    return keys, prob, count
