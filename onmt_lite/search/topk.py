"""The best continuations of each sentence, by a total order: tensors in, tensors out.

Letters: B sentences of K rows, R = B*K, V tokens, N candidates.  Higher scores come first; of equal
ones the lower flat index, row * V + token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onmt_lite.models.base import block_width
from onmt_lite.search.spec import SearchSpec


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of the next tokens as `logits - log_z`, not yet subtracted."""

    logits: Tensor  # (R, V); -inf: may not follow
    log_z: Tensor  # (R,)
    # (R, V): share of a diversity penalty that a token pays; None: all of it
    diversity_weight: Tensor | None = None


@dataclass(frozen=True)
class Candidates:
    """Rows with a token that may follow, best first for each sentence."""

    score: Tensor  # (B, N): of the row, plus log_prob; -inf: no candidate
    parent: Tensor  # (B, N): the row of the batch that it continues
    token: Tensor  # (B, N)
    log_prob: Tensor  # (B, N)
    ended: Tensor  # (B, N): the token is an end token

    def take(self, index: Tensor) -> "Candidates":
        return Candidates(*(column.gather(1, index) for column in vars(self).values()))

    def drop(self, dropped: Tensor) -> "Candidates":
        """Return the candidates with no score, and not ended, where `dropped` (B, N) is True."""
        score = self.score.masked_fill(dropped, -math.inf)
        return replace(self, score=score, ended=self.ended.masked_fill(dropped, False))

    def with_model_log_probs(self, model: TokenScores) -> "Candidates":
        """Return the candidates with the model's own log-probabilities."""
        v = model.logits.size(1)
        logits = model.logits.take(self.parent * v + self.token)  # (B, N)
        return replace(self, log_prob=logits - model.log_z.take(self.parent))


class TopK:
    """Select the best candidates in two stages, so that only block maxima read all of (R, V).

    The n best of a sentence lie in its n best blocks, ranked by their maxima in the same order: a
    block that is left out has n blocks before it, each with an element that comes before all of
    its own.  Scores are added up in the originals' order, (logit - log_z) + score, so that they
    round alike.

    A block is about as wide as the number of blocks in a row, and the last one may be narrower.

    Args:
        spec: SearchSpec.
        vocab_size: int, V.
        n_slots: int, the most sentences that are ranked at once.
        columns: list of int, tokens whose logits may differ from those that `block_max` saw.
    """

    def __init__(
        self,
        spec: SearchSpec,
        vocab_size: int,
        n_slots: int,
        device: torch.device,
        columns: Sequence[int] = (),
    ):
        self.spec, self.vocab_size, self.device = spec, vocab_size, device
        self.block = block_width(vocab_size)
        self.renewed = sorted({column // self.block for column in columns})  # blocks
        self.sentences = torch.arange(n_slots, device=device)[:, None, None]  # (B, 1, 1)
        self.own_places = torch.arange(self.block, device=device)  # (block,)
        self.places: dict[int, Tensor] = {}
        self.orders: dict[int, tuple[Tensor, Tensor]] = {}

    def select(
        self,
        token_scores: TokenScores,
        scores: Tensor,
        is_first_step: Tensor | None = None,
        block_max: Tensor | None = None,
    ) -> Candidates:
        """Rank the continuations of rows.

        Args:
            token_scores: TokenScores of R rows.
            scores: (B, K), of the rows.
            is_first_step: (B,), whether a sentence is at its first step; for fairseq only.
            block_max: (R, blocks), maxima of the logits before some `columns` changed; overwritten.
        """
        b, k = scores.shape
        logits, log_z = token_scores.logits.view(b, k, -1), token_scores.log_z.view(b, k)
        if self.spec.beam_groups > 1:
            return self._select_diverse(token_scores, logits, log_z, scores, is_first_step)
        n = min(self.spec.n_candidates, k * self.vocab_size)
        if block_max is not None:
            block_max = block_max.view(b, k, -1)
        best = self._top(logits, log_z, scores, n, block_max)
        return self._without_last(best, k, is_first_step)

    def _top(
        self,
        logits: Tensor,
        log_z: Tensor,
        scores: Tensor,
        n: int,
        block_max: Tensor | None = None,
    ) -> Candidates:
        """The n best of logits (B, k, V) less log_z (B, k), plus scores (B, k)."""
        b, k, v = logits.shape
        if block_max is None:
            block_max = self._block_max(logits)
        else:
            for i in self.renewed:
                own = logits[:, :, i * self.block : (i + 1) * self.block]  # (B, k, block)
                torch.amax(own, 2, out=block_max[:, :, i])
        totals = (block_max - log_z[:, :, None] + scores[:, :, None]).flatten(1)  # (B, k*blocks)
        blocks = self._first(totals, min(n, totals.size(1))).sort(1).values  # (B, N)
        own_row = blocks.div(block_max.size(2), rounding_mode="floor")  # (B, N)
        places, beyond = self._places(blocks, own_row, k, v)  # (B, N, block)
        found = logits.flatten().index_select(0, places.flatten()).view_as(places)
        if beyond is not None:
            found.masked_fill_(beyond, -math.inf)
        both = log_z.new_empty(2, *places.shape)  # log-probabilities and totals
        torch.sub(found, log_z.gather(1, own_row)[:, :, None], out=both[0])
        torch.add(both[0], scores.gather(1, own_row)[:, :, None], out=both[1])
        both = both.flatten(2)
        best = self._first(both[1], n)  # (B, n)
        log_prob, score = both.gather(2, best.expand(2, b, n))
        place = places.flatten(1).gather(1, best)
        row = place.div(v, rounding_mode="floor")
        token = torch.sub(place, row, alpha=v)
        return Candidates(score, row, token, log_prob, is_eos(self.spec, token))

    def _block_max(self, logits: Tensor) -> Tensor:
        """The largest of each block of logits (B, k, V): (B, k, blocks)."""
        (b, k, v), n_whole = logits.shape, logits.size(2) // self.block
        whole = logits[:, :, : n_whole * self.block].view(b, k, n_whole, self.block)
        if n_whole * self.block == v:
            return whole.amax(3)
        block_max = logits.new_empty(b, k, n_whole + 1)
        torch.amax(whole, 3, out=block_max[:, :, :-1])
        torch.amax(logits[:, :, n_whole * self.block :], 2, out=block_max[:, :, -1])
        return block_max

    def _places(
        self, blocks: Tensor, own_row: Tensor, k: int, v: int
    ) -> tuple[Tensor, Tensor | None]:
        """Flat indices of the elements of blocks (B, N) in logits (B, k, V): (B, N, block), and
        which of them are beyond the end of a row."""
        if k * v not in self.places:
            self.places[k * v] = self.sentences * (k * v) + self.own_places
        places = torch.add(self.places[k * v][: len(blocks)], blocks[:, :, None], alpha=self.block)
        missing = -v % self.block
        if not missing:
            return places, None
        places = torch.sub(places, own_row[:, :, None], alpha=missing)
        row = self.sentences[: len(blocks)] * k + own_row[:, :, None]
        beyond = places >= (row + 1) * v
        firsts = self.places[k * v][: len(blocks), :, :1]  # of their own sentences
        return torch.where(beyond, firsts, places), beyond

    def _without_last(
        self, best: Candidates, n_rows: int, is_first_step: Tensor | None
    ) -> Candidates:
        """fairseq never takes the last of all candidates, of which a first step has V."""
        n, v = best.score.size(1), self.vocab_size
        if is_first_step is None or n < v:
            return best
        limit = torch.where(is_first_step, v - 1, n_rows * v - 1)[:, None]
        last = torch.arange(n, device=self.device) >= limit
        return replace(best, score=best.score.masked_fill(last, -math.inf))

    def _first(self, totals: Tensor, n: int) -> Tensor:
        """Columns of the n largest of totals (B, M), of equal ones the first: (B, n).

        topk returns equals in any order, and a stable sort takes twenty times longer.  So totals go
        to float64, in which float32 leaves 29 bits free, and each is lowered by its column: in
        proportion to its size, and 0 by next to nothing.  Sums of log-probabilities are negative,
        so that one product does it, unless a rule has raised some above 0.
        """
        m = totals.size(1)
        if m not in self.orders:
            column = torch.arange(1, m + 1, dtype=torch.float64, device=self.device)
            self.orders[m] = -1e-200 * column, 1 + 2.0**-51 * column
        lowered, factor = self.orders[m]
        if (
            self.spec.token_rules.sequence_bias
            or self.spec.token_rules.exponential_decay_length_penalty
        ):
            factor = torch.where(totals > 0, 2 - factor, factor)
        keys = torch.addcmul(lowered, totals, factor)
        return keys.topk(n, dim=1).indices

    def _select_diverse(
        self,
        token_scores: TokenScores,
        logits: Tensor,
        log_z: Tensor,
        scores: Tensor,
        is_first_step: Tensor | None,
    ) -> Candidates:
        """Diverse beam search (Vijayakumar et al. 2018): group after group ranks its rows, and
        pays the rate for each time that earlier groups have a token at this step.

        If groups finish apart (transformers), only the tokens that earlier groups continue with
        count; if they are interleaved (fairseq 0.12.2), all their candidates count.
        """
        (b, k, v), spec, n_groups = logits.shape, self.spec, self.spec.beam_groups
        size, apart = k // n_groups, spec.policy.groups == "apart"
        weight = token_scores.diversity_weight
        taken = logits.new_zeros(b, v)  # how many earlier groups have each token
        of_batch = torch.arange(b * k, device=self.device).view(b, k)  # rows
        groups = []
        for g in range(n_groups):
            rows = slice(g * size, (g + 1) * size) if apart else slice(g, None, n_groups)
            penalty = spec.diversity_rate * taken[:, None]  # (B, 1, V)
            if weight is not None:
                penalty = penalty * weight.view_as(logits)[:, rows]
            n = min(spec.n_candidates // n_groups, size * self.vocab_size)
            best = self._top(logits[:, rows] - penalty, log_z[:, rows], scores[:, rows], n)
            best = self._without_last(best, size, is_first_step)
            counted = best.score > -math.inf
            if apart:
                counted &= ~best.ended
                counted &= counted.cumsum(1) <= size
            taken.scatter_add_(1, best.token, counted.to(taken.dtype))
            groups.append(replace(best, parent=of_batch[:, rows].flatten()[best.parent]))
        columns = zip(*(vars(group).values() for group in groups))
        if apart:
            return Candidates(*(torch.cat(column, 1) for column in columns))
        return Candidates(*(torch.stack(column, 2).flatten(1) for column in columns))


def is_eos(spec: SearchSpec, tokens: Tensor) -> Tensor:
    """Return which tokens end a hypothesis, as a tensor of the same shape."""
    ended = tokens == spec.eos_id
    for other in spec.eos_ids[1:]:
        ended |= tokens == other
    return ended


def choose_continuing_ranks(spec: SearchSpec, candidates: Candidates) -> Tensor:
    """Return the ranks (B, K) of the candidates that become rows if ended ones make room.

    refill   the best that did not end, in whatever order they were drawn
    in_slot  the first K, each that ended replaced by the next one further down that did not

    Ended ones fill up if there are too few others.
    """
    score, ended = candidates.score, candidates.ended
    k, (b, n) = spec.beam_size, score.shape
    if spec.policy.ended == "in_slot":
        first = torch.arange(k, device=score.device).expand(b, -1)
        if n == k:
            return first
        spare = k + ended[:, k:].byte().argsort(dim=1, stable=True)  # (B, N-K)
        nth = ended[:, :k].cumsum(1).sub(1).clamp(min=0)  # (B, K)
        return torch.where(ended[:, :k], spare.gather(1, nth), first)
    g, size = spec.n_pools, spec.group_size
    if spec.sampling is not None and spec.sampling.ranked_by == "draw":  # in no order of scores
        score = score.masked_fill(ended, -math.inf).view(b * g, -1)
        order = score.argsort(dim=1, descending=True, stable=True)
    else:
        order = ended.view(b * g, -1).byte().argsort(dim=1, stable=True)
    order = order[:, :size].view(b, g, size)
    return (order + (n // g) * torch.arange(g, device=score.device)[:, None]).flatten(1)
