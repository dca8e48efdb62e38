"""Base classes of logits processors; `onmt_lite.search.logits` has the processors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onmt_lite.search.context import StepContext
from onmt_lite.search.spec import NO_TOKEN
from onmt_lite.search.topk import TokenScores

NO_TOKENS, NO_ROWS = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)


class LogitsProcessor:
    """A rule that masks or changes the scores of the next token.

    reason         why tokens are masked, printed by -dump_beam; "" if the rule masks none
    needs_history  True if the rule reads the tokens of the rows
    """

    reason = ""
    needs_history = False

    def applies(self, context: StepContext) -> bool:
        """Return True if the rule affects any row at this step."""
        return True

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        """Return new scores.

        Args:
            token_scores: scores (R, V); only a `Mask` may write into the logits.
            context: history, coverage and forced tokens of the rows.
        """
        raise NotImplementedError


class Mask(LogitsProcessor):
    """A rule that sets logits to -inf, in place.

    Forced tokens are exempt from all masks.
    """

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        forced = context.forced
        if forced is None:
            self.forbid(token_scores, context)
            return token_scores
        before = token_scores.logits.gather(1, forced.columns)  # (R, 1)
        self.forbid(token_scores, context)
        after = token_scores.logits.gather(1, forced.columns)  # (R, 1)
        kept = before.where(forced.tokens != NO_TOKEN, after)  # (R, 1)
        token_scores.logits.scatter_(1, forced.columns, kept)
        return token_scores

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        """Set entries of `token_scores.logits` (R, V) to -inf."""
        raise NotImplementedError


class TokenMask(Mask):
    """A rule that forbids the same tokens in all rows, or in some.

    Args:
        ids: the tokens (N,).
        device: the model's device.
    """

    def __init__(self, ids: Sequence[int], device: torch.device):
        self.tokens = tuple(ids)
        self.ids = torch.tensor(self.tokens, dtype=torch.long, device=device)  # (N,)

    def find_rows(self, context: StepContext) -> Tensor | None:
        """Return a mask (B, 1) of the sentences whose rows must not take the tokens; None: all."""
        return None

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        rows = self.find_rows(context)
        if rows is None:
            token_scores.logits.index_fill_(1, self.ids, -math.inf)
            return
        is_forbidden = context.rows.expand_to_rows(rows)  # (R,)
        for token in self.tokens:
            token_scores.logits[:, token].masked_fill_(is_forbidden, -math.inf)


def collect_token_masks(
    processors: Sequence[LogitsProcessor], context: StepContext
) -> tuple[Tensor, Tensor] | None:
    """Return what all processors that apply at this step forbid, if each is a `TokenMask`.

    Returns:
        Tokens (M,) and a mask (B, K, M) of the rows that must not take them; None if there are
        other processors.
    """
    tokens, rows = [], []
    for processor in processors:
        if not processor.applies(context):
            continue
        if not isinstance(processor, TokenMask):
            return None
        found, n = processor.find_rows(context), len(processor.ids)
        mask = torch.ones_like(context.scores, dtype=torch.bool)  # (B, K)
        mask = mask if found is None else mask & found  # (B, K)
        tokens.append(processor.ids)
        rows.append(mask[:, :, None].expand(-1, -1, n))  # (B, K, N)
    if not tokens:
        return NO_TOKENS, NO_ROWS
    return torch.cat(tokens), torch.cat(rows, 2)


def mask_columns(logits: Tensor, columns: Tensor, forbidden: Tensor) -> None:
    """Set entries of the logits to -inf, in place.

    Args:
        logits: (R, V) logits.
        columns: (R, N) token IDs of each row, duplicates allowed.
        forbidden: (R, N) True for the entries of `columns` to mask.
    """
    values = torch.zeros_like(columns, dtype=logits.dtype)  # (R, N)
    values = values.masked_fill_(forbidden, -math.inf).masked_fill_(~forbidden, math.inf)
    logits.scatter_reduce_(1, columns, values, "amin")
