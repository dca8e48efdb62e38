"""Top-k with a total order: higher scores first, ties by the lower flat index (row * V + token)."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onmt_lite.models.output import KernelLogits
from onmt_lite.search.spec import SearchSpec


@dataclass(frozen=True)
class TokenScores:
    """Token log-probabilities as `logits - log_z`; the top-k subtracts only where needed."""

    logits: Tensor  # (R, V) float32; -inf: masked
    log_z: Tensor  # (R,) float32, log-sum-exp of the logits
    # (R, V) float32, factor of the diversity penalty per token; None: 1
    diversity_weight: Tensor | None = None


@dataclass(frozen=True)
class Candidates:
    """Candidates of each sentence, best first: a row and its next token."""

    score: Tensor  # (B, N) float32, score of the row plus log_prob; -inf: no candidate
    parent: Tensor  # (B, N) int64, back-pointer: a row of the batch
    token: Tensor  # (B, N) int64
    log_prob: Tensor  # (B, N) float32, in nats
    ended: Tensor  # (B, N) bool, True if the token is EOS

    def take(self, index: Tensor) -> "Candidates":
        """Return the candidates (B, M) at ranks `index` (B, M)."""
        return Candidates(*(column.gather(1, index) for column in vars(self).values()))

    def drop(self, dropped: Tensor) -> "Candidates":
        """Return the candidates with score -inf and without EOS where `dropped` (B, N) is True."""
        score = self.score.masked_fill(dropped, -math.inf)  # (B, N)
        return replace(self, score=score, ended=self.ended.masked_fill(dropped, False))

    def with_model_log_probs(self, model_scores: TokenScores) -> "Candidates":
        """Return the candidates with the model's log-probabilities, before penalties.

        Args:
            model_scores: scores (R, V) from the model.
        """
        v = model_scores.logits.size(1)
        logits = model_scores.logits.take(self.parent * v + self.token)  # (B, N)
        return replace(self, log_prob=logits - model_scores.log_z.take(self.parent))


class TopK:
    """Two-stage top-k; only the first stage, the block maxima, reads all of (R, V).

    The logits of a row are split into blocks.  The n best elements of a sentence are in its n best
    blocks, ranked by block maximum in the same total order: a block that is left out comes after n
    blocks, each with an element that comes before all of its elements.  Scores are computed in the
    order of the original systems, (logit - log_z) + score, for the same rounding.

    A row has about as many blocks as a block has columns; the last block may be narrower.

    Args:
        spec: the search spec.
        vocab_size: V.
        n_slots: maximum number of sentences that are ranked at once.
        device: the model's device.
    """

    def __init__(
        self,
        spec: SearchSpec,
        vocab_size: int,
        n_slots: int,
        device: torch.device,
    ):
        self.spec, self.vocab_size, self.device = spec, vocab_size, device
        self.block = 1 << min(vocab_size.bit_length() // 2, 9)
        self.eos_ids = torch.tensor(spec.eos_ids)  # (E,)
        self.sentences = torch.arange(n_slots, device=device)[:, None, None]  # (B, 1, 1)
        self.offsets = torch.arange(self.block, device=device)  # (block,)
        self.index_cache: dict[int, Tensor] = {}
        self.tie_breakers: dict[int, tuple[Tensor, Tensor]] = {}

    def select(
        self,
        token_scores: TokenScores,
        scores: Tensor,
        is_first_step: Tensor | None = None,
    ) -> Candidates:
        """Return the N best continuations of each sentence.

        Args:
            token_scores: scores of the next tokens of R rows.
            scores: (B, K) scores of the rows.
            is_first_step: (B,) True for sentences at their first step; only for
                `Policy.drop_last_candidate`.
        """
        b, k = scores.shape
        logits = token_scores.logits.view(b, k, -1)  # (B, K, V)
        log_z = token_scores.log_z.view(b, k)  # (B, K)
        if self.spec.beam_groups > 1:
            return self._select_diverse(token_scores, logits, log_z, scores, is_first_step)
        n = min(self.spec.n_candidates, k * self.vocab_size)
        best = self._select_top(logits, log_z, scores, n)
        return self.drop_last(best, k, is_first_step)

    def select_in_kernel(
        self,
        logits: KernelLogits,
        masked: tuple[Tensor, Tensor],
        scores: Tensor,
        is_first_step: Tensor | None = None,
    ) -> Candidates:
        """Return what `select` returns, without computing all logits.

        Args:
            logits: logits (R, V) of the next tokens.
            masked: tokens that some rows must not take (M,), and a mask (B, K, M) of these rows.
            scores: (B, K) scores of the rows.
            is_first_step: see `select`.
        """
        k = scores.size(1)
        n = min(self.spec.n_candidates, k * self.vocab_size)
        best = Candidates(*logits.rank(scores, n, masked, self.eos_ids))
        return self.drop_last(best, k, is_first_step)

    def _select_top(
        self,
        logits: Tensor,
        log_z: Tensor,
        scores: Tensor,
        n: int,
    ) -> Candidates:
        """Return the n best continuations of each sentence.

        Args:
            logits: (B, k, V) for k of the K rows of each sentence.
            log_z: (B, k) log-sum-exp of the logits.
            scores: (B, k) scores of the rows.
            n: number of candidates.
        """
        b, k, v = logits.shape
        block_max = self._compute_block_max(logits)  # (B, k, blocks)
        block_scores = block_max - log_z[:, :, None] + scores[:, :, None]  # (B, k, blocks)
        block_scores = block_scores.flatten(1)  # (B, k*blocks)
        blocks = self._select_stable_topk(block_scores, min(n, block_scores.size(1)))  # (B, N)
        blocks = blocks.sort(1).values  # (B, N) in flat order, for ties
        block_row = blocks.div(block_max.size(2), rounding_mode="floor")  # (B, N)
        flat_index, beyond = self._locate(blocks, block_row, k, v)  # (B, N, block)
        block_logits = logits.flatten().index_select(0, flat_index.flatten())
        block_logits = block_logits.view_as(flat_index)  # (B, N, block)
        if beyond is not None:
            block_logits.masked_fill_(beyond, -math.inf)
        # Log-probabilities and scores in one tensor, so that one gather reads both
        both = log_z.new_empty(2, *flat_index.shape)  # (2, B, N, block)
        torch.sub(block_logits, log_z.gather(1, block_row)[:, :, None], out=both[0])
        torch.add(both[0], scores.gather(1, block_row)[:, :, None], out=both[1])
        both = both.flatten(2)  # (2, B, N*block)
        best = self._select_stable_topk(both[1], n)  # (B, n)
        log_prob, score = both.gather(2, best.expand(2, b, n))  # (B, n)
        best_index = flat_index.flatten(1).gather(1, best)  # (B, n)
        row = best_index.div(v, rounding_mode="floor")  # (B, n)
        token = torch.sub(best_index, row, alpha=v)  # (B, n)
        return Candidates(score, row, token, log_prob, is_eos(self.spec, token))

    def _compute_block_max(self, logits: Tensor) -> Tensor:
        """Return the block maxima (B, k, blocks) of logits (B, k, V)."""
        (b, k, v), n_whole = logits.shape, logits.size(2) // self.block
        whole = logits[:, :, : n_whole * self.block]
        whole = whole.view(b, k, n_whole, self.block)  # (B, k, blocks, block)
        if n_whole * self.block == v:
            return whole.amax(3)
        block_max = logits.new_empty(b, k, n_whole + 1)  # (B, k, blocks)
        torch.amax(whole, 3, out=block_max[:, :, :-1])
        torch.amax(logits[:, :, n_whole * self.block :], 2, out=block_max[:, :, -1])
        return block_max

    def _locate(
        self, blocks: Tensor, block_row: Tensor, k: int, v: int
    ) -> tuple[Tensor, Tensor | None]:
        """Find the elements of blocks in the flattened logits.

        Args:
            blocks: (B, N) blocks, numbered through the k rows of a sentence.
            block_row: (B, N) the row of each block, 0 to k-1.
            k: rows per sentence.
            v: columns per row.

        Returns:
            Flat indices (B, N, block) into logits (B, k, V), and a mask (B, N, block) of the
            elements beyond the end of a row, or None if there are none.
        """
        if k * v not in self.index_cache:
            self.index_cache[k * v] = self.sentences * (k * v) + self.offsets
        flat_index = torch.add(
            self.index_cache[k * v][: len(blocks)], blocks[:, :, None], alpha=self.block
        )
        missing = -v % self.block
        if not missing:
            return flat_index, None
        # Blocks after the first row start earlier by the columns that its last block lacks
        flat_index = torch.sub(flat_index, block_row[:, :, None], alpha=missing)
        row = self.sentences[: len(blocks)] * k + block_row[:, :, None]  # (B, N, 1)
        beyond = flat_index >= (row + 1) * v  # (B, N, block)
        firsts = self.index_cache[k * v][: len(blocks), :, :1]  # a valid index of the same sentence
        return torch.where(beyond, firsts, flat_index), beyond

    def drop_last(self, best: Candidates, n_rows: int, is_first_step: Tensor | None) -> Candidates:
        """Drop the last of all continuations if it is a candidate (fairseq).

        fairseq ranks `min(2 * k, size - 1)` candidates, where size is V at the first step and k*V
        after it.

        Args:
            best: candidates (B, N).
            n_rows: rows per sentence.
            is_first_step: (B,) True at a sentence's first step; None: keep all.
        """
        n, v = best.score.size(1), self.vocab_size
        if is_first_step is None or n < v:
            return best
        limit = torch.where(is_first_step, v - 1, n_rows * v - 1)[:, None]  # (B, 1)
        last = torch.arange(n, device=self.device) >= limit  # (B, N)
        return replace(best, score=best.score.masked_fill(last, -math.inf))

    def _select_stable_topk(self, scores: Tensor, n: int) -> Tensor:
        """Return the columns (B, n) of the n largest scores (B, M); ties by the lower column.

        torch.topk returns ties in any order, and a stable sort takes twenty times longer.  So
        scores are converted to float64 (29 more bits than float32), and each one is lowered
        slightly in proportion to its size and its column (zeros by a tiny constant).  Sums of
        log-probabilities are negative, so one product does this; scores above 0 are possible only
        with a bias and need another factor.
        """
        m = scores.size(1)
        if m not in self.tie_breakers:
            column = torch.arange(1, m + 1, dtype=torch.float64, device=self.device)  # (M,)
            self.tie_breakers[m] = -1e-200 * column, 1 + 2.0**-51 * column
        (lowered, factor), rules = self.tie_breakers[m], self.spec.token_rules  # (M,)
        if rules.sequence_bias or rules.exponential_decay_length_penalty:  # scores may be positive
            factor = torch.where(scores > 0, 2 - factor, factor)  # (B, M)
        keys = torch.addcmul(lowered, scores, factor)  # (B, M) float64
        return keys.topk(n, dim=1).indices

    def _select_diverse(
        self,
        token_scores: TokenScores,
        logits: Tensor,
        log_z: Tensor,
        scores: Tensor,
        is_first_step: Tensor | None,
    ) -> Candidates:
        """Rank the rows group by group: diverse beam search (Vijayakumar et al. 2018).

        A token costs `diversity_rate` for each time that an earlier group has it at this step.  If
        groups finish apart (transformers), only tokens of new rows count; if they are interleaved
        (fairseq 0.12.2), tokens of all candidates count.

        Args:
            token_scores: scores of the next tokens of R rows.
            logits: (B, K, V) the same logits by sentence.
            log_z: (B, K) log-sum-exp of the logits.
            scores: (B, K) scores of the rows.
            is_first_step: (B,) True at a sentence's first step, or None.

        Returns:
            Candidates (B, N), by group if groups finish apart, else one of each group in turn.
        """
        (b, k, v), spec, n_groups = logits.shape, self.spec, self.spec.beam_groups
        size, apart = k // n_groups, spec.policy.groups == "apart"
        weight = token_scores.diversity_weight
        taken = logits.new_zeros(b, v)  # (B, V) number of times that earlier groups have each token
        batch_rows = torch.arange(b * k, device=self.device).view(b, k)  # (B, K)
        candidates_by_group = []
        for g in range(n_groups):
            rows = slice(g * size, (g + 1) * size) if apart else slice(g, None, n_groups)
            penalty = spec.diversity_rate * taken[:, None]  # (B, 1, V)
            if weight is not None:
                penalty = penalty * weight.view_as(logits)[:, rows]
            n = min(spec.n_candidates // n_groups, size * self.vocab_size)
            best = self._select_top(logits[:, rows] - penalty, log_z[:, rows], scores[:, rows], n)
            best = self.drop_last(best, size, is_first_step)
            counted = best.score > -math.inf  # (B, n)
            if apart:
                counted &= ~best.ended
                counted &= counted.cumsum(1) <= size  # (B, n)
            taken.scatter_add_(1, best.token, counted.to(taken.dtype))
            parent = batch_rows[:, rows].flatten()[best.parent]  # (B, n)
            candidates_by_group.append(replace(best, parent=parent))
        columns = zip(*(vars(group).values() for group in candidates_by_group))
        if apart:
            return Candidates(*(torch.cat(column, 1) for column in columns))
        return Candidates(*(torch.stack(column, 2).flatten(1) for column in columns))


def is_eos(spec: SearchSpec, tokens: Tensor) -> Tensor:
    """Return a mask of the tokens (any shape) that end a hypothesis."""
    ended = tokens == spec.eos_id
    for eos_id in spec.eos_ids[1:]:
        ended |= tokens == eos_id
    return ended


def choose_continuing_ranks(spec: SearchSpec, candidates: Candidates) -> Tensor:
    """Return the ranks (B, K) of the candidates that become rows, most of them without EOS.

    refill    the best K candidates without EOS, by score even if they were sampled
    in_place  the first K; each one with EOS is replaced by the next candidate without EOS from rank
              K on (CTranslate2)

    If there are too few candidates without EOS, candidates with EOS fill the rest.
    """
    score, ended = candidates.score, candidates.ended
    k, (b, n) = spec.beam_size, score.shape
    if spec.policy.ended == "in_place":
        first = torch.arange(k, device=score.device).expand(b, -1)  # (B, K)
        if n == k:
            return first
        spare = k + ended[:, k:].byte().argsort(dim=1, stable=True)  # (B, N-K)
        nth = ended[:, :k].cumsum(1).sub(1).clamp(min=0)  # (B, K)
        return torch.where(ended[:, :k], spare.gather(1, nth), first)
    g, size = spec.n_pools, spec.group_size
    if spec.sampling is not None and spec.sampling.ranked_by == "draw":  # not sorted by score
        score = score.masked_fill(ended, -math.inf).view(b * g, -1)  # (B*G, N/G)
        order = score.argsort(dim=1, descending=True, stable=True)  # (B*G, N/G)
    else:
        order = ended.view(b * g, -1).byte().argsort(dim=1, stable=True)  # (B*G, N/G)
    order = order[:, :size].view(b, g, size)  # (B, G, K/G)
    return (order + (n // g) * torch.arange(g, device=score.device)[:, None]).flatten(1)
