"""An encoded batch: the memory that decoders attend to.

Shapes: B sentences, S source tokens, D width of hidden states.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from onmt_lite.models.base import Selection

T = TypeVar("T", bound="BatchTensors")


@dataclass
class BatchTensors:
    """Tensors with a batch dimension (B, ...), lists of such tensors, and sizes.

    No two fields may share a tensor, because `select` works in place.
    """

    def view_first(self: T, n: int) -> T:
        """Return a view of the first n sentences."""
        view = copy.copy(self)
        for name, value in vars(self).items():
            setattr(view, name, _view_first(value, n))
        return view

    def select(self, selection: Selection, fresh: Any) -> None:
        """Move, drop and add sentences; `fresh` holds the tensors of new sentences, or is None."""
        for name, value in vars(self).items():
            setattr(self, name, _select(name, value, getattr(fresh, name, None), selection))


def _view_first(value: Any, n: int) -> Any:
    """Return a view of the first n sentences of a field of `BatchTensors`."""
    if isinstance(value, list):
        return [_view_first(x, n) for x in value]
    if isinstance(value, BatchTensors):
        return value.view_first(n)
    return value[:n] if isinstance(value, Tensor) else value


def _select(name: str, value: Any, fresh: Any, selection: Selection) -> Any:
    """Apply a selection to a field of `BatchTensors`.

    Args:
        name: name of the field; "mask" is padded with -inf
        value: its value
        fresh: its value for new sentences, or None
        selection: the sentences that continue

    Returns:
        The new value of the field.
    """
    if isinstance(value, Tensor):
        return selection.gather_sentences(value, fresh, fill=-math.inf if name == "mask" else 0.0)
    if isinstance(value, list):
        fresh_items = fresh or [None] * len(value)
        return [_select(name, x, new, selection) for x, new in zip(value, fresh_items)]
    if isinstance(value, BatchTensors):
        value.select(selection, fresh)
    return max(value, fresh or value) if isinstance(value, int) else value


@dataclass
class Memory(BatchTensors):
    """An encoded batch."""

    bank: Tensor  # (B, S, D): encoder states
    mask: Tensor  # (B, 1, S) float32: 0 on tokens, -inf on padding; added to attention scores
    copy_inputs: BatchTensors | None = field(default=None, kw_only=True)  # for the copy mechanism


def make_padding_mask(src_lengths: Tensor, n: int) -> Tensor:
    """Return the mask (B, 1, n), float32, of a `Memory` for lengths (B,), int64, of at most n."""
    is_padding = torch.arange(n, device=src_lengths.device) >= src_lengths[:, None]  # (B, n)
    mask = torch.zeros(is_padding.shape, device=src_lengths.device)
    return mask.masked_fill_(is_padding, -math.inf)[:, None]
