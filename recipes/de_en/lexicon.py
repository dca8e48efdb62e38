"""A bilingual lexicon from sentence pairs, by word alignment.

A small model needs many sentences to learn a word, and far fewer word pairs.  Users also often try
a new model with single words first.
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


def find_word_pairs(pairs: list[Pair]) -> list[Pair]:
    """Return (word, translation) pairs found by IBM Model 1 (Brown et al. 1993).

    A pair is kept if the translation probability is at least MIN_PROB in both directions and the
    expected number of links between the words in the corpus is at least MIN_COUNT.
    """
    srcs, src_words = _to_ids(src for src, _ in pairs)
    tgts, tgt_words = _to_ids(tgt for _, tgt in pairs)
    keys, forward, count = _align(srcs, tgts, len(src_words), len(tgt_words))
    back_keys, backward, _ = _align(tgts, srcs, len(tgt_words), len(src_words))
    src, tgt = keys.div(len(tgt_words), rounding_mode="floor"), keys % len(tgt_words)
    # Both directions have the same word pairs, in different orders
    backward = backward[torch.searchsorted(back_keys, tgt * len(src_words) + src)]
    is_kept = (forward >= MIN_PROB) & (backward >= MIN_PROB) & (count >= MIN_COUNT)
    ids = zip(src[is_kept].tolist(), tgt[is_kept].tolist())
    return [(src_words[s], tgt_words[t]) for s, t in ids]


def _to_ids(sentences: Iterator[str]) -> tuple[list[list[int]], list[str]]:
    """Return the word IDs of each sentence and the list of (truecased) words."""
    texts = list(sentences)
    case, ids = Truecase(texts), dict[str, int]()
    lines = [WORD.findall(case.lower_first(text)) for text in texts]
    return [[ids.setdefault(word, len(ids)) for word in line] for line in lines], list(ids)


def _list_links(froms: list[list[int]], tos: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """List all possible links: each word of a line with each word of its translation.

    Returns:
        Three tensors of shape (links,): the ID of the first word, the ID of the second word, and
        the position of the second word in all of `tos`.
    """
    starts, ends, positions = array("q"), array("q"), array("q")
    position = 0
    for from_ids, to_ids in zip(froms, tos):
        for to in to_ids:
            starts.extend(from_ids)
            ends.extend([to] * len(from_ids))
            positions.extend([position] * len(from_ids))
            position += 1
    start, end, index = (torch.tensor(a, dtype=torch.long) for a in (starts, ends, positions))
    return start, end, index


def _align(
    froms: list[list[int]], tos: list[list[int]], n_from: int, n_to: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Align words that share a line with expectation maximization.

    Args:
        froms: word IDs of each source line
        tos: word IDs of each target line
        n_from: size of the source vocabulary
        n_to: size of the target vocabulary

    Returns:
        Three tensors of shape (word pairs,): sorted keys `from * n_to + to`, the probability of
        `to` as a translation of `from`, and the expected number of links between them.
    """
    start, end, position = _list_links(froms, tos)
    keys, link_key = torch.unique(start * n_to + end, return_inverse=True)
    key_from, n_positions = keys.div(n_to, rounding_mode="floor"), sum(map(len, tos))
    prob = count = torch.ones(len(keys))
    for _ in range(ITERATIONS):
        share = prob[link_key]
        share /= torch.zeros(n_positions).index_add_(0, position, share)[position]
        count = torch.zeros(len(keys)).index_add_(0, link_key, share)
        prob = count / torch.zeros(n_from).index_add_(0, key_from, count)[key_from]
    return keys, prob, count
