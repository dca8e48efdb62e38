"""The best continuations of each sentence, by a total order, or drawn: tensors in, tensors out.

B sentences of k rows, W columns of values: V tokens and spare columns of -inf.  Higher totals come
first; of equal ones the lower flat index, row * W + token.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import block_of
from onmt_lite.search.spec import Plan

MASK32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Scored:
    """What the tokens of each row count: values less norm; -inf: may not follow.

    W is V, plus a spare column of -inf if tokens are scattered.
    """

    values: Tensor  # (R, W)
    norm: Tensor  # (R,)
    slope: Tensor | None = None  # (R, W): share of a diversity penalty that is paid; None: all
    # See `Sums`: of the values, as a kernel made them, but for the columns of `Masks.columns`
    maxima: Tensor | None = None


@dataclass(frozen=True)
class Ranked:
    """Candidates of each sentence, best first."""

    score: Tensor  # (B, N)
    row: Tensor  # (B, N), of the batch: b * k + the sentence's own
    token: Tensor  # (B, N)
    log_prob: Tensor  # (B, N): value less norm, before the row's score is added

    def take(self, index: Tensor) -> "Ranked":
        return Ranked(*(part.gather(1, index) for part in vars(self).values()))


class Ranker:
    """Ranks in two stages, so that only the maxima of blocks of columns read all of (R, W).

    The n best of a sentence lie in its n best blocks, ranked by their maxima in the same order: a
    block that is left out has n blocks before it, each with an element that comes before all of
    its own.  Totals are added up in the originals' order, (value - norm) + score, so that they
    round alike.

    A block is about as wide as there are blocks in a row, and the last one may be narrower.
    """

    def __init__(
        self,
        plan: Plan,
        vocab_size: int,
        n_slots: int,
        device: torch.device,
        columns: Sequence[int] = (),
    ):
        """n_slots: the most sentences that are ranked at once; columns: those whose values may be
        others than the ones of given maxima."""
        self.plan, self.vocab_size, self.device = plan, vocab_size, device
        self.block = block_of(vocab_size)
        self.renewed = sorted({column // self.block for column in columns})  # blocks
        self.sentences = torch.arange(n_slots, device=device)[:, None, None]  # (B, 1, 1)
        self.own_places = torch.arange(self.block, device=device)  # (block,)
        self.places: dict[int, Tensor] = {}
        self.orders: dict[int, tuple[Tensor, Tensor]] = {}

    def rank(
        self,
        values: Tensor,
        norm: Tensor,
        scores: Tensor,
        slope: Tensor | None = None,
        first: Tensor | None = None,
        maxima: Tensor | None = None,
    ) -> Ranked:
        """Rank values (B, K, W) less norm (B, K), plus scores (B, K).

        slope (B, K, W): the share of a diversity penalty that tokens pay; None: all of it.
        first (B,): sentences at their first step, for fairseq alone.
        maxima (B, K, blocks): of the values, before some columns changed; overwritten.
        """
        if self.plan.beam_groups > 1:
            return self._diverse(values, norm, scores, slope, first)
        n = min(self.plan.n_candidates, values.size(1) * self.vocab_size)
        best = self._top(values, norm, scores, n, maxima)
        return self._without_worst(best, values.size(1), first)

    def _top(
        self, values: Tensor, norm: Tensor, scores: Tensor, n: int, maxima: Tensor | None = None
    ) -> Ranked:
        """The n best of values (B, k, W) less norm (B, k), plus scores (B, k)."""
        b, _, w = values.shape
        if maxima is None:
            maxima = self._maxima(values)
        else:
            for i in self.renewed:
                own = values[:, :, i * self.block : (i + 1) * self.block]  # (B, k, block)
                torch.amax(own, 2, out=maxima[:, :, i])
        totals = (maxima - norm[:, :, None] + scores[:, :, None]).flatten(1)  # (B, k*blocks)
        blocks = self._first(totals, min(n, totals.size(1))).sort(1).values  # (B, N)
        own_row = blocks.div(maxima.size(2), rounding_mode="floor")  # (B, N)
        places, beyond = self._places(blocks, own_row, values.size(1), w)  # (B, N, block)
        found = values.flatten().index_select(0, places.flatten()).view_as(places)
        if beyond is not None:
            found.masked_fill_(beyond, -math.inf)
        both = norm.new_empty(2, *places.shape)  # log-probabilities and totals
        torch.sub(found, norm.gather(1, own_row)[:, :, None], out=both[0])
        torch.add(both[0], scores.gather(1, own_row)[:, :, None], out=both[1])
        both = both.flatten(2)
        best = self._first(both[1], n)  # (B, n)
        log_prob, score = both.gather(2, best.expand(2, b, n))
        place = places.flatten(1).gather(1, best)
        row = place.div(w, rounding_mode="floor")
        token = torch.sub(place, row, alpha=w)
        if w > self.vocab_size:  # a spare column, where there is no candidate
            token = token.clamp(max=self.vocab_size - 1)
        return Ranked(score, row, token, log_prob)

    def _maxima(self, values: Tensor) -> Tensor:
        """The largest value of each block of values (B, k, W): (B, k, blocks)."""
        (b, k, w), n_whole = values.shape, values.size(2) // self.block
        whole = values[:, :, : n_whole * self.block].view(b, k, n_whole, self.block)
        if n_whole * self.block == w:
            return whole.amax(3)
        maxima = values.new_empty(b, k, n_whole + 1)
        torch.amax(whole, 3, out=maxima[:, :, :-1])
        torch.amax(values[:, :, n_whole * self.block :], 2, out=maxima[:, :, -1])
        return maxima

    def _places(
        self, blocks: Tensor, own_row: Tensor, k: int, w: int
    ) -> tuple[Tensor, Tensor | None]:
        """Flat indices of the elements of blocks (B, N) in values (B, k, W): (B, N, block), and
        which of them are beyond the end of a row."""
        if k * w not in self.places:
            self.places[k * w] = self.sentences * (k * w) + self.own_places
        places = torch.add(self.places[k * w][: len(blocks)], blocks[:, :, None], alpha=self.block)
        missing = -w % self.block
        if not missing:
            return places, None
        places = torch.sub(places, own_row[:, :, None], alpha=missing)
        row = self.sentences[: len(blocks)] * k + own_row[:, :, None]
        beyond = places >= (row + 1) * w
        firsts = self.places[k * w][: len(blocks), :, :1]  # of their own sentences
        return torch.where(beyond, firsts, places), beyond

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

        topk returns equals in any order, and a stable sort takes twenty times longer.  So totals go
        to float64, in which float32 leaves 29 bits free, and each is lowered by its column: in
        proportion to its size, and 0 by next to nothing.  Sums of log-probabilities are negative,
        so that one product does it.
        """
        m = totals.size(1)
        if m not in self.orders:
            column = torch.arange(1, m + 1, dtype=torch.float64, device=self.device)
            self.orders[m] = -1e-200 * column, 1 + 2.0**-51 * column
        lowered, factor = self.orders[m]
        keys = torch.addcmul(lowered, totals, factor)
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

        If groups finish apart (transformers), only the tokens that earlier groups continue with
        count; if they are interleaved (fairseq 0.12.2), all their candidates count.
        """
        (b, k, w), plan, n_groups = values.shape, self.plan, self.plan.beam_groups
        width, apart = k // n_groups, plan.policy.groups == "apart"
        taken = values.new_zeros(b, w)  # how many earlier groups have each token
        of_batch = torch.arange(b * k, device=self.device).view(b, k)  # rows
        groups = []
        for g in range(n_groups):
            rows = slice(g * width, (g + 1) * width) if apart else slice(g, None, n_groups)
            penalty = plan.diversity_rate * taken[:, None]  # (B, 1, W)
            if slope is not None:
                penalty = penalty * slope[:, rows]
            n = min(plan.n_candidates // n_groups, width * self.vocab_size)
            best = self._top(values[:, rows] - penalty, norm[:, rows], scores[:, rows], n)
            best = self._without_worst(best, width, first)
            counted = best.score > -math.inf
            if apart:
                counted &= best.token != plan.eos_id
                counted &= counted.cumsum(1) <= width
            taken.scatter_add_(1, best.token, counted.to(taken.dtype))
            groups.append(replace(best, row=of_batch[:, rows].flatten()[best.row]))
        parts = zip(*(vars(group).values() for group in groups))
        if apart:
            return Ranked(*(torch.cat(part, 1) for part in parts))
        return Ranked(*(torch.stack(part, 2).flatten(1) for part in parts))


def open_places(plan: Plan, score: Tensor, ended: Tensor) -> Tensor:
    """Ranks of the candidates that become rows (B, K) if ended ones (B, N) make room.

    refill   the best that did not end, in whatever order they were drawn
    in_slot  the first K, each that ended replaced by the next one further down that did not

    Ended ones fill up if there are too few others.
    """
    k, (b, n) = plan.beam_size, score.shape
    if plan.policy.ended == "in_slot":
        first = torch.arange(k, device=score.device).expand(b, -1)
        if n == k:
            return first
        spare = k + ended[:, k:].byte().argsort(dim=1, stable=True)  # (B, N-K)
        nth = ended[:, :k].cumsum(1).sub(1).clamp(min=0)  # (B, K)
        return torch.where(ended[:, :k], spare.gather(1, nth), first)
    g, width = plan.n_pools, plan.width
    if plan.sampling is not None and plan.sampling.ranked_by == "draw":  # in no order of scores
        score = score.masked_fill(ended, -math.inf).view(b * g, -1)
        order = score.argsort(dim=1, descending=True, stable=True)
    else:
        order = ended.view(b * g, -1).byte().argsort(dim=1, stable=True)
    order = order[:, :width].view(b, g, width)
    return (order + (n // g) * torch.arange(g, device=score.device)[:, None]).flatten(1)


def line_seed(seed: int, line_id: int) -> int:
    """The seed of a line's draws: depends on the job's seed and the line's number alone."""
    digest = hashlib.blake2b(f"{seed} {line_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits into an int64


def gumbel(seeds: Tensor, steps: Tensor, n: int) -> Tensor:
    """n samples of the Gumbel distribution for each of `seeds` (B,) at its step (B,): (B, n).

    The largest of log-probabilities plus such noise is a draw from the distribution, and the C
    largest are C draws without replacement (Vieira 2014; Kool et al. 2019).  Each number is a
    hash of its seed, step and place, the same on every device and in every batch.
    """
    low, high = (seeds & MASK32)[:, None], (seeds >> 32)[:, None]  # (B, 1)
    place = torch.arange(n, device=seeds.device)[None]  # (1, n)
    bits = _mix(_mix(_mix(place ^ low) ^ high) + steps[:, None])  # (B, n)
    uniform = (bits.double() + 0.5) / 2**32
    return -(-uniform.log()).log()


def draw(
    scored: Scored,
    scores: Tensor,
    seeds: Tensor,
    steps: Tensor,
    n_tokens: int,
    n_words: int,
    plan: Plan,
) -> Ranked:
    """Draw candidates: one per row, or those of a sentence together.

    scored: of R rows; scores (B, K); seeds, steps (B,); n_tokens: V; n_words: V + X.
    """
    sampling, (b, k) = plan.sampling, scores.shape
    assert sampling is not None
    values, v = scored.values, scored.values.size(1)
    for name, limit in plan.filters:
        values = KEEP[name](values, limit, sampling.keep)
    norm = values.logsumexp(1) if plan.renormalizes else scored.norm  # (R,)
    # That of the tokens does not depend on how many words others copy
    noise = gumbel(seeds, steps, k * v)  # (B, K*W)
    of_tokens, of_words = noise[:, : k * n_tokens], noise[:, k * n_tokens :]
    parts = of_tokens.view(b, k, n_tokens), of_words.view(b, v - n_tokens, k).transpose(1, 2)
    noise = torch.cat(parts, 2).flatten(1)
    log_probs = (scored.values - norm[:, None]).view(b, k, v)  # (B, K, W)
    totals = (log_probs + scores[:, :, None]).flatten(1)  # (B, K*W)
    if sampling.draws == "rows":
        token = (values.double() + noise.view(-1, v)).argmax(1).view(b, k)  # (B, K)
        row = torch.arange(b * k, device=token.device).view(b, k)  # (B, K)
        index = row * v + token
        return Ranked(totals.take(index), row, token, log_probs.take(index))
    totals = totals.masked_fill(values.view(b, k * v) == -math.inf, -math.inf)
    n = min(plan.n_candidates, k * v)
    index = (totals.double() + noise).topk(n, dim=1).indices  # (B, N)
    row = index.div(v, rounding_mode="floor")
    log_prob = log_probs.flatten(1).gather(1, index)
    token = (index - row * v).clamp(max=n_words - 1)  # a spare column is no candidate
    row = row + k * torch.arange(b, device=row.device)[:, None]
    drawn = Ranked(totals.gather(1, index), row, token, log_prob)
    if sampling.ranked_by == "draw":
        return drawn
    return drawn.take(drawn.score.argsort(dim=1, descending=True, stable=True))


def _mix(x: Tensor) -> Tensor:
    """Mix 32 bits: the finaliser of MurmurHash3, in int64."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK32
    return x ^ (x >> 16)


def keep_top_k(values: Tensor, k: int, keep: int) -> Tensor:
    """Set all but the k best of each row (R, W), and at least `keep`, to -inf; ties with the last
    stay.  A k of -1 sets no limit."""
    if k < 0:
        return values
    k = min(max(k, keep), values.size(1))
    worst = values.topk(k, dim=1).values[:, -1:]
    return values.masked_fill(values < worst, -math.inf)


def keep_top_p(values: Tensor, p: float, keep: int) -> Tensor:
    """Set all but the best of each row (R, W) that together have the probability p, and at least
    `keep`, to -inf (Holtzman et al. 2020)."""
    if p == 1:  # of which rounding errors may lack some
        return values
    ordered, index = values.sort(dim=1, descending=True, stable=True)
    probabilities = ordered.softmax(1)
    before = probabilities.cumsum(1) - probabilities
    beyond = before >= p
    beyond[:, :keep] = False
    return values.masked_fill(beyond.scatter(1, index, beyond), -math.inf)


# By the options of `onmt_lite.search.policy.FILTERS`
KEEP: dict[str, Callable[[Tensor, Any, int], Tensor]] = {
    "random_sampling_topk": keep_top_k,
    "random_sampling_topp": keep_top_p,
}
