"""What rows have read so far: their tokens, and the attention that source tokens have received."""

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import Selection
from onmt_lite.search.spec import NO_TOKEN, SearchSpec

TINY = torch.finfo(torch.float32).tiny


class TokenHistory:
    """The tokens of each row (R, T), newest last, NO_TOKEN before the first."""

    def __init__(self, device: torch.device):
        self.tokens = torch.empty(0, 0, dtype=torch.long, device=device)

    def append(self, tokens: Tensor) -> None:
        """Add the newest token of each row (R,)."""
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)

    def start(self, n_sentences: int) -> None:
        """Begin with sentences of one row each."""
        self.tokens = self.tokens.new_empty(n_sentences, 0)

    def select(self, selection: Selection, n_joining: int, longest: int) -> None:
        """Follow the rows; keep the last `longest` tokens, the most that a running row has read."""
        fresh = None
        if n_joining:
            fresh = self.tokens.new_full((n_joining, self.tokens.size(1)), NO_TOKEN)
        tokens = selection.of_rows(self.tokens, fresh)
        self.tokens = tokens[:, max(0, tokens.size(1) - longest) :]


class Coverage:
    """The attention that each source token has received, summed over the steps of a row (R, S)."""

    def __init__(self, spec: SearchSpec, device: torch.device):
        self.spec, self.total = spec, torch.empty(0, 0, device=device)

    def start(self, n_sentences: int) -> None:
        """Begin with sentences of one row each."""
        self.total = self.total.new_empty(n_sentences, 0)

    def add(self, attn: Tensor) -> None:
        """Add a step's attention (R, S)."""
        n = attn.size(1)
        total = self.total[:, :n]
        self.total = F.pad(total, (0, n - total.size(1))) + attn.float()  # (R, S)

    def select(self, selection: Selection, n_joining: int) -> None:
        """Follow the rows."""
        fresh = self.total.new_zeros(n_joining, self.total.size(1)) if n_joining else None
        self.total = selection.of_rows(self.total, fresh)

    def penalty(self, src_length: Tensor) -> Tensor:
        """Return the penalty of each row (R,) for sources of src_length (R, 1) tokens.

        `wu` is the coverage penalty of Wu et al. 2016, `summary` that of Gehrmann et al. 2018.  A
        token that received no attention at all costs a large finite amount instead of an infinite
        one, or nothing under CTranslate2.
        """
        spec, total = self.spec, self.total
        inside = torch.arange(total.size(1), device=total.device) < src_length  # (R, S)
        if spec.coverage_penalty == "wu":
            per_token = -total.clamp(TINY, 1.0).log()  # (R, S)
            if spec.policy.skips_unattended:
                per_token = per_token * (total > 0)
        else:
            per_token = total.clamp(min=1.0) - 1.0  # (R, S)
        return spec.beta * (per_token * inside.float()).sum(1)


def most_attended(attn: Tensor, src_length: Tensor, margins: tuple[int, int]) -> Tensor:
    """Return the source token that each row attends to most (R,), special tokens aside.

    Args:
        attn: (R, S).
        src_length: (R, 1).
        margins: the number of special tokens before and after the source's own.
    """
    before, after = margins
    place = torch.arange(attn.size(1), device=attn.device)  # (S,)
    outside = (place < before) | (place >= src_length - after)  # (R, S)
    return attn.masked_fill(outside, -1.0).argmax(1)
