"""The best of what may follow, per sentence: tensors in, tensors out.

B sentences of k rows, V tokens.  Equal scores are ordered by row, then by token.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_lite.policy import Policy


@dataclass(frozen=True)
class Ranked:
    """Candidates of each sentence, best first: each (B, N)."""

    score: Tensor
    row: Tensor
    token: Tensor

    def take(self, index: Tensor) -> "Ranked":
        return Ranked(*(part.gather(1, index) for part in vars(self).values()))

    def first(self, n: int) -> "Ranked":
        return Ranked(*(part[:, :n] for part in vars(self).values()))


def top(values: Tensor, norm: Tensor, rows: Tensor, n: int) -> Ranked:
    """The n best of what tokens count, values (B, k, V) less norm (B, k), plus rows (B, k).

    Which ones of equals at the cut are among them is left to the device.
    """
    b, k, v = values.shape
    width = min(n, v)
    best, tokens = values.topk(width, dim=2)
    totals = (best - norm[:, :, None] + rows[:, :, None]).view(b, k * width)
    score, index = totals.topk(min(n, k * width), dim=1)
    row = index.div(width, rounding_mode="floor")
    found = Ranked(score, row, tokens.reshape(b, k * width).gather(1, index))
    # topk leaves equals in any order
    found = found.take((found.row * v + found.token).argsort(1))
    return found.take(found.score.argsort(dim=1, descending=True, stable=True))


def top_exactly(values: Tensor, norm: Tensor, rows: Tensor, n: int) -> Ranked:
    """The same, equals at the cut in order too: slower, by a stable sort of everything."""
    b, k, v = values.shape
    totals = (values - norm[:, :, None] + rows[:, :, None]).view(b, k * v)
    score, index = totals.sort(dim=1, descending=True, stable=True)
    score, index = score[:, :n], index[:, :n]
    return Ranked(score, index.div(v, rounding_mode="floor"), index % v)


def without_the_worst(found: Ranked, n_rows: int, vocab_size: int) -> Ranked:
    """fairseq never takes the last of all candidates that n_rows have."""
    limit = n_rows * vocab_size - 1
    if found.score.size(1) <= limit:
        return found
    score = found.score.clone()
    score[:, limit:] = -math.inf
    return Ranked(score, found.row, found.token)


def diverse(
    values: Tensor,
    norm: Tensor,
    rows: Tensor,
    n_groups: int,
    rate: float,
    policy: Policy,
    eos: int,
    first: bool,
    slope: Tensor | None = None,
) -> Ranked:
    """Diverse beam search (Vijayakumar et al. 2018): group after group ranks its own rows, and
    pays `rate` for each time that earlier groups have a token at this step.

    What they have is what they go on with, where groups finish apart (transformers), and all
    their candidates where they are interleaved (fairseq 0.12.2).  `slope` (B, k, V) is the share
    of the penalty that tokens pay.
    """
    b, k, v = values.shape
    width, apart = k // n_groups, policy.groups == "apart"
    taken = values.new_zeros(b, v)
    groups = []
    for g in range(n_groups):
        own = slice(g * width, (g + 1) * width) if apart else slice(g, None, n_groups)
        penalty = rate * taken[:, None]
        if slope is not None:
            penalty = penalty * slope[:, own]
        n = min(policy.candidates * width, width * v)
        found = top_exactly(values[:, own] - penalty, norm[:, own], rows[:, own], n)
        if policy.spares_one:
            found = without_the_worst(found, 1 if first else width, v)
        counted = found.score > -math.inf
        if apart:
            counted &= found.token != eos
            counted &= counted.cumsum(1) <= width
        taken.scatter_add_(1, found.token, counted.to(taken.dtype))
        row = found.row + g * width if apart else found.row * n_groups + g
        groups.append(Ranked(found.score, row, found.token))
    parts = zip(*(vars(group).values() for group in groups))
    if apart:
        return Ranked(*(torch.cat(part, 1) for part in parts))
    return Ranked(*(torch.stack(part, 2).flatten(1) for part in parts))
