"""Inputs of the logits processors for one step: history, coverage, forced tokens, phrases."""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.search.constraints import Constraints, PhraseMask
from onmt_lite.search.slots import Rows
from onmt_lite.search.spec import NO_TOKEN, SearchSpec

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class ForcedTokens:
    """The only token that each row may take: a forced token, or EOS at the last step."""

    tokens: Tensor  # (R, 1) int64; NO_TOKEN: the row may take any token
    is_free: Tensor  # (R,) bool, True: adds 0 to the score, unless its probability is 0

    @property
    def columns(self) -> Tensor:
        """Columns (R, 1) of the forced tokens in the logits; 0 for rows without one."""
        return self.tokens.clamp(min=0)


@dataclass
class StepContext:
    """Inputs of the logits processors; fields that no row needs at this step are None."""

    rows: Rows
    n_steps: int  # steps of the batch, this one included
    scores: Tensor  # (B, K) float32, scores of the rows; -inf: no such row
    penalties: Tensor | None = None  # (B, K) float32, coverage penalties of the rows
    forced: ForcedTokens | None = None
    phrases: PhraseMask | None = None

    @functools.cached_property
    def sentence_steps(self) -> Tensor:
        """Step number of each sentence (B, 1), from 1; at steps <= 0 it takes start tokens."""
        return self.n_steps - self.rows.table.start_step

    @property
    def history(self) -> Tensor:
        """Tokens of the rows (R, T), for processors with `needs_history`."""
        assert self.rows.history is not None
        return self.rows.history


def make_step_context(
    rows: Rows, n_steps: int, attn: Tensor, constraints: Constraints | None
) -> StepContext:
    """Update history and coverage of the rows, and collect the processors' inputs.

    Args:
        rows: rows of the batch; the newest tokens are appended to the history and `attn` is added
            to the coverage, in place.
        n_steps: steps of the batch, this one included.
        attn: (R, S) attention of this step.
        constraints: phrase constraints, if any sentence has them.
    """
    context = StepContext(rows, n_steps, rows.table.scores)
    scores, penalties = rows.table.scores, None
    if rows.coverage is not None:
        covered = rows.coverage[:, : attn.size(1)]
        rows.coverage = F.pad(covered, (0, attn.size(1) - covered.size(1))) + attn.float()  # (R, S)
        penalties = compute_coverage_penalty(rows.spec, rows.coverage, rows.src_length)  # (R,)
        penalties = penalties.view_as(scores)  # (B, K)
        if rows.spec.stepwise_penalty:
            scores = scores - penalties  # (B, K)
    if rows.history is not None:
        newest = _get_history_tokens(context).view(-1, 1)  # (R, 1)
        rows.history = torch.cat([rows.history, newest], 1)  # (R, T)
    context.scores, context.penalties = scores, penalties
    context.forced = _get_forced_tokens(context)
    if constraints is not None:
        context.phrases = constraints.make_mask(rows.slots, n_steps)
    return context


def _get_history_tokens(context: StepContext) -> Tensor:
    """Return the newest tokens (B, K), with NO_TOKEN for start tokens outside the history."""
    rows, spec = context.rows, context.rows.spec
    tokens = rows.table.tokens
    if context.n_steps > 1 + rows.last_forced_step:
        return tokens
    # Index of the newest token, counted from the first start token
    position = context.sentence_steps + (spec.n_forced_start - 1)  # (B, 1)
    return tokens.where(rows.in_history[position.clamp(max=spec.n_forced_start + 1)], NO_TOKEN)


def _get_forced_tokens(context: StepContext) -> ForcedTokens | None:
    """Return the start, prefix and final EOS tokens that rows must take at this step."""
    rows, spec, table = context.rows, context.rows.spec, context.rows.table
    n_steps = context.n_steps
    must_end = spec.force_eos != "no" and any(s.limit_step <= n_steps for s in rows.slots)
    if not must_end and n_steps > rows.last_forced_step:
        return None
    steps = context.sentence_steps  # (B, 1)
    is_forced = steps <= table.n_prefix  # (B, 1)
    # Index of this step's token in `table.forced`
    position = (steps + spec.n_forced_start).clamp(max=table.forced.size(1) - 1)  # (B, 1)
    tokens = table.forced.gather(1, position).masked_fill(~is_forced, NO_TOKEN)  # (B, 1)
    is_free = is_forced if spec.prefix_in_score != "all" else steps <= 0  # (B, 1)
    if must_end:
        is_last = (steps >= table.max_steps) & ~is_forced  # (B, 1)
        tokens = tokens.masked_fill(is_last, spec.eos_id)  # (B, 1)
        is_free = is_free | is_last if spec.force_eos == "free" else is_free
    return ForcedTokens(rows.expand_to_rows(tokens)[:, None], rows.expand_to_rows(is_free))


def compute_coverage_penalty(spec: SearchSpec, coverage: Tensor, src_length: Tensor) -> Tensor:
    """Return the coverage penalty of each row (R,), in nats.

    `wu` is equation 14 of Wu et al. 2016, `summary` is from Gehrmann et al. 2018.  With `wu`, a
    source token without any attention costs a large finite amount instead of infinity, or nothing
    in CTranslate2.

    Args:
        spec: the search spec.
        coverage: (R, S) sum of attention that each source token has received.
        src_length: (R, 1) number of source tokens.
    """
    inside = torch.arange(coverage.size(1), device=coverage.device) < src_length  # (R, S)
    if spec.coverage_penalty == "wu":
        per_token = -coverage.clamp(TINY, 1.0).log()  # (R, S)
        if spec.policy.skips_unattended:
            per_token = per_token * (coverage > 0)
    else:
        per_token = coverage.clamp(min=1.0) - 1.0  # (R, S)
    return spec.beta * (per_token * inside.float()).sum(1)


def find_most_attended(attn: Tensor, src_length: Tensor, margins: tuple[int, int]) -> Tensor:
    """Return the source token that each row attends to most (R,), special tokens excluded.

    Args:
        attn: (R, S) attention.
        src_length: (R, 1) number of source tokens.
        margins: number of special tokens before and after the source.
    """
    before, after = margins
    position = torch.arange(attn.size(1), device=attn.device)  # (S,)
    outside = (position < before) | (position >= src_length - after)  # (R, S)
    return attn.masked_fill(outside, -1.0).argmax(1)
