"""The best continuations of each sentence, by a total order: tensors in, tensors out.

B sentences of k rows, W columns of values: V tokens and spare columns of -inf.  Higher totals come
first; of equal ones the lower flat index, row * W + token.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan


@dataclass(frozen=True)
class Ranked:
    """Candidates of each sentence, best first: each (B, N).

    log_prob  value less norm, before the row's score is added
    """

    score: Tensor
    row: Tensor
    token: Tensor
    log_prob: Tensor

    def take(self, index: Tensor) -> "Ranked":
        return Ranked(*(part.gather(1, index) for part in vars(self).values()))


class Ranker:
    """Ranks in two stages, so that only the maxima of blocks of columns pass over all of (R, W).

    The n best of a sentence lie in its n best blocks, ranked by their maxima in the same order: a
    block that is left out has n blocks before it, each with an element that comes before all of
    its own.  What passes for a candidate is computed from its logit in the originals' order of
    additions, (value - norm) + score, so that totals round as theirs do.
    """

    def __init__(self, plan: Plan, vocab_size: int, block: int, device: torch.device):
        self.plan, self.vocab_size, self.block, self.device = plan, vocab_size, block, device
        self.offsets = torch.arange(block, device=device)
        self.nudge = torch.tensor([-1e-200], dtype=torch.float64, device=device)
        self.places: dict[int, Tensor] = {}

    def rank(
        self,
        values: Tensor,
        norm: Tensor,
        scores: Tensor,
        slope: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Ranked:
        """The plan's candidates from values (B, K, W) less norm (B, K), plus scores (B, K).

        slope (B, K, W): the share of a diversity penalty that tokens pay; None: all of it.
        first (B,): sentences at their first step, which matters to fairseq alone.
        """
        if self.plan.beam_groups > 1:
            return self._diverse(values, norm, scores, slope, first)
        n = min(self.plan.n_candidates, values.size(1) * self.vocab_size)
        return self._without_worst(self._top(values, norm, scores, n), values.size(1), first)

    def _top(self, values: Tensor, norm: Tensor, scores: Tensor, n: int) -> Ranked:
        """The n best of values (B, k, W) less norm (B, k), plus scores (B, k)."""
        b, k, w = values.shape
        maxima = values.view(b, k, -1, self.block).amax(3)  # (B, k, W / block)
        totals = (maxima - norm[:, :, None] + scores[:, :, None]).flatten(1)
        blocks = self._first(totals, min(n, totals.size(1))).sort(1).values
        row = blocks.div(w // self.block, rounding_mode="floor")
        places = (blocks[:, :, None] * self.block + self.offsets).flatten(1)
        of_blocks = values.flatten(1).gather(1, places).view(b, -1, self.block)
        log_probs = of_blocks - norm.gather(1, row)[:, :, None]
        totals = (log_probs + scores.gather(1, row)[:, :, None]).flatten(1)
        best = self._first(totals, n)
        place = places.gather(1, best)
        row = place.div(w, rounding_mode="floor")
        log_prob = log_probs.flatten(1).gather(1, best)
        token = place - row * w
        if w > self.vocab_size:  # a spare column, where there is no candidate
            token = token.clamp(max=self.vocab_size - 1)
        return Ranked(totals.gather(1, best), row, token, log_prob)

    def _without_worst(self, ranked: Ranked, n_rows: int, first: Tensor | None) -> Ranked:
        """fairseq never takes the last of all candidates, of which a first step has V."""
        n, v = ranked.score.size(1), self.vocab_size
        if first is None or not self.plan.policy.spares_one or n < v:
            return ranked
        limit = torch.where(first, v - 1, n_rows * v - 1)[:, None]
        worst = torch.arange(n, device=self.device) >= limit
        return replace(ranked, score=ranked.score.masked_fill(worst, -math.inf))

    def _first(self, totals: Tensor, n: int) -> Tensor:
        """Columns of the n largest of totals (B, M), of equal ones the first: (B, n).

        topk leaves equals in any order, and a stable sort takes twenty times longer.  So totals go
        to float64, where float32 leaves 29 bits free, and each is lowered by its column.  The
        nudge does the same to a total of 0.
        """
        if totals.size(1) not in self.places:
            place = torch.arange(1, totals.size(1) + 1, dtype=torch.float64, device=self.device)
            self.places[totals.size(1)] = place
        exact = totals + self.nudge
        keys = exact.addcmul(exact.abs(), self.places[totals.size(1)], value=-(2.0**-51))
        return keys.topk(n, dim=1).indices

    def _diverse(
        self,
        values: Tensor,
        norm: Tensor,
        scores: Tensor,
        slope: Tensor | None,
        first: Tensor | None,
    ) -> Ranked:
        """Diverse beam search (Vijayakumar et al. 2018): group after group ranks its rows, and
        pays the rate for each time that earlier groups have a token at this step.

        Counted are the tokens that earlier groups go on with, where groups finish one by one
        (transformers), and all their candidates where groups are interleaved (fairseq 0.12.2).
        """
        (b, k, w), plan, n_groups = values.shape, self.plan, self.plan.beam_groups
        width, one_by_one = k // n_groups, plan.policy.groups == "apart"
        taken = values.new_zeros(b, w)
        groups = []
        for g in range(n_groups):
            rows = slice(g * width, (g + 1) * width) if one_by_one else slice(g, None, n_groups)
            penalty = plan.diversity_rate * taken[:, None]
            if slope is not None:
                penalty = penalty * slope[:, rows]
            n = min(plan.n_candidates // n_groups, width * self.vocab_size)
            best = self._top(values[:, rows] - penalty, norm[:, rows], scores[:, rows], n)
            best = self._without_worst(best, width, first)
            counted = best.score > -math.inf
            if one_by_one:
                counted &= best.token != plan.eos_id
                counted &= counted.cumsum(1) <= width
            taken.scatter_add_(1, best.token, counted.to(taken.dtype))
            row = best.row + g * width if one_by_one else best.row * n_groups + g
            groups.append(replace(best, row=row))
        parts = zip(*(vars(group).values() for group in groups))
        if one_by_one:
            return Ranked(*(torch.cat(part, 1) for part in parts))
        return Ranked(*(torch.stack(part, 2).flatten(1) for part in parts))


def open_places(plan: Plan, score: Tensor, ended: Tensor) -> Tensor:
    """Which candidates become rows (B, K), where those that ended (B, N) make room.

    refill   the best that did not end, whatever the order they were drawn in
    in_slot  the first ones, each that ended replaced by the next one further down that did not

    Where there are too few, ended ones fill up.
    """
    k, (b, n) = plan.beam_size, score.shape
    if plan.policy.ended == "in_slot":
        first = torch.arange(k, device=score.device).expand(b, -1)
        if n == k:
            return first
        spare = k + ended[:, k:].byte().argsort(dim=1, stable=True)
        nth = ended[:, :k].cumsum(1).sub(1).clamp(min=0)
        return torch.where(ended[:, :k], spare.gather(1, nth), first)
    g, width = plan.n_pools, plan.width
    if plan.unordered:
        score = score.masked_fill(ended, -math.inf).view(b * g, -1)
        order = score.argsort(dim=1, descending=True, stable=True)
    else:
        order = ended.view(b * g, -1).byte().argsort(dim=1, stable=True)
    order = order[:, :width].view(b, g, width)
    return (order + (n // g) * torch.arange(g, device=score.device)[:, None]).flatten(1)
