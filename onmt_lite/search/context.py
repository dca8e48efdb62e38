"""What the rules of one step look at, and what concerns which row."""

import functools
from dataclasses import dataclass

from torch import Tensor

from onmt_lite.search.constraints import Constraints, PhraseMask
from onmt_lite.search.slots import Rows
from onmt_lite.search.spec import NO_TOKEN


@dataclass(frozen=True)
class ForcedTokens:
    """The only token that a row may take: a forced one, or EOS at the last step."""

    tokens: Tensor  # (R, 1); NO_TOKEN: the row is free to choose
    is_free: Tensor  # (R,): the token costs nothing, unless the model itself forbids it

    @property
    def columns(self) -> Tensor:
        """Columns of the tokens (R, 1); any column for rows that may choose."""
        return self.tokens.clamp(min=0)


@dataclass
class StepContext:
    """What rules look at in one step; None if it concerns no row."""

    rows: Rows
    n_steps: int  # of the batch, this one included
    scores: Tensor  # (B, K): of the rows, -inf if there is no such row
    history: Tensor | None = None  # (R, T): tokens of the rows, see `TokenHistory`
    too_early: Tensor | None = None  # (R,): EOS may not follow yet
    forced: ForcedTokens | None = None
    phrases: PhraseMask | None = None

    @functools.cached_property
    def steps(self) -> Tensor:
        """The own step of each sentence (B, 1), from 1; 0 and less take start tokens."""
        return self.n_steps - self.rows.table.started


def step_context(
    rows: Rows, n_steps: int, penalties: Tensor | None, constraints: Constraints | None
) -> StepContext:
    """Collect what the rules of a step look at; the host knows which concern any row.

    Args:
        rows: Rows of the batch.
        n_steps: int, steps of the batch, this one included.
        penalties: (B, K), coverage penalties of the rows, if there are any.
        constraints: Constraints, if any sentence has phrases.
    """
    context = StepContext(rows, n_steps, rows.table.scores)
    if penalties is not None and rows.spec.stepwise_penalty:
        context.scores = context.scores - penalties
    if rows.history is not None:
        rows.history.append(_history_tokens(rows, context).flatten())
        context.history = rows.history.tokens
    if n_steps < max(slot.eos_from for slot in rows.slots):
        context.too_early = rows.per_row(context.steps < rows.table.min_eos_step)  # (R,)
    context.forced = _forced_tokens(rows, context)
    if constraints is not None:
        context.phrases = constraints.mask(rows.slots, n_steps)
    return context


def _history_tokens(rows: Rows, context: StepContext) -> Tensor:
    """Return the newest tokens (B, K), NO_TOKEN for start tokens that the history leaves out."""
    tokens, spec = rows.table.tokens, rows.spec
    if context.n_steps > 1 + rows.forced_until:
        return tokens
    place = context.steps + (spec.n_forced_start - 1)  # (B, 1)
    return tokens.where(rows.in_history[place.clamp(max=spec.n_forced_start + 1)], NO_TOKEN)


def _forced_tokens(rows: Rows, context: StepContext) -> ForcedTokens | None:
    """Return the start and prefix tokens that rows take now, and EOS at the last step."""
    spec, table, n_steps = rows.spec, rows.table, context.n_steps
    must_end = spec.force_eos != "no" and any(s.limit_step <= n_steps for s in rows.slots)
    if not must_end and n_steps > rows.forced_until:
        return None
    steps = context.steps  # (B, 1)
    is_forced = steps <= table.n_prefix  # (B, 1)
    place = (steps + spec.n_forced_start).clamp(max=table.forced.size(1) - 1)  # (B, 1)
    tokens = table.forced.gather(1, place).masked_fill(~is_forced, NO_TOKEN)  # (B, 1)
    is_free = is_forced if spec.prefix_counts != "all" else steps <= 0  # (B, 1)
    if must_end:
        last = (steps >= table.max_steps) & ~is_forced
        tokens = tokens.masked_fill(last, spec.eos_id)
        is_free = is_free | last if spec.force_eos == "free" else is_free
    return ForcedTokens(rows.per_row(tokens)[:, None], rows.per_row(is_free))
