"""Words and their translations, found in pairs of sentences.

What a word means can be read off the sentences that have it, but only a model that sees many of
them will.  As lines of their own, words are also what people try first.
"""

import re
from array import array
from collections.abc import Iterator

import torch
from torch import Tensor

from onmt_lite.training.data import Pair
from recipes.de_en.words import Truecase

WORD = re.compile(r"\w+(?:['’-]\w+)*")
ITERATIONS = 10
MIN_PROB = 0.15
MIN_COUNT = 1.5


def word_pairs(pairs: list[Pair]) -> list[Pair]:
    """(word, translation), each sure of the other: at least MIN_PROB in both directions of IBM
    Model 1 (Brown et al. 1993), and MIN_COUNT links between them expected in all the pairs."""
    srcs, src_words = _number(src for src, _ in pairs)
    tgts, tgt_words = _number(tgt for _, tgt in pairs)
    keys, forward, count = _align(srcs, tgts, len(src_words), len(tgt_words))
    back_keys, backward, _ = _align(tgts, srcs, len(tgt_words), len(src_words))
    src, tgt = keys.div(len(tgt_words), rounding_mode="floor"), keys % len(tgt_words)
    # Both have the same pairs of words, in another order
    backward = backward[torch.searchsorted(back_keys, tgt * len(src_words) + src)]
    sure = (forward >= MIN_PROB) & (backward >= MIN_PROB) & (count >= MIN_COUNT)
    found = zip(src[sure].tolist(), tgt[sure].tolist())
    return [(src_words[s], tgt_words[t]) for s, t in found]


def _number(sentences: Iterator[str]) -> tuple[list[list[int]], list[str]]:
    """Ids of each sentence's words, in the form they have inside sentences; the words."""
    texts = list(sentences)
    case, ids = Truecase(texts), dict[str, int]()
    lines = [WORD.findall(case.lower_first(text)) for text in texts]
    return [[ids.setdefault(word, len(ids)) for word in line] for line in lines], list(ids)


def _links(froms: list[list[int]], tos: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """All that may be linked: every word of a line with every word of its translation.  Which
    words these are, and in which place of all of `tos` the second one stands."""
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
    """Pairs of words that share a line, as from * n_to + to, in order; of each, how probable `to`
    is as a translation of `from`, and how many links between the two are expected."""
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
