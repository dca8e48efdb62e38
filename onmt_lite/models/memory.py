"""Encoded sentences, and constants that models read beside their weights."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection

T = TypeVar("T", bound="Sentences")


class Constant:
    """Numbers that are not in weight files, moved to a device at first use.

    Not a buffer, which would be rounded with the weights.
    """

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    def on(self, device: torch.device) -> Tensor:
        if self.numbers.device != device:
            self.numbers = self.numbers.to(device)
        return self.numbers


@dataclass
class Sentences:
    """A record of tensors (B, ...), alone or in lists, and of sizes of the batch.

    No two fields may be the same tensor: `select` writes in place.
    """

    def first(self: T, n: int) -> T:
        """A view of the first n sentences."""
        view = copy.copy(self)
        for name, own in vars(self).items():
            setattr(view, name, _first(own, n))
        return view

    def select(self, selection: Selection, fresh: Any) -> None:
        """Let sentences move, leave and join; fresh: the record of those that join, or None."""
        for name, own in vars(self).items():
            setattr(self, name, _selected(name, own, getattr(fresh, name, None), selection))


def _first(own: Any, n: int) -> Any:
    if isinstance(own, list):
        return [_first(x, n) for x in own]
    if isinstance(own, Sentences):
        return own.first(n)
    return own[:n] if isinstance(own, Tensor) else own


def _selected(name: str, own: Any, fresh: Any, selection: Selection) -> Any:
    if isinstance(own, Tensor):
        return selection.of_sentences(own, fresh, fill=-math.inf if name == "mask" else 0.0)
    if isinstance(own, list):
        joining = fresh or [None] * len(own)
        return [_selected(name, x, new, selection) for x, new in zip(own, joining)]
    if isinstance(own, Sentences):
        own.select(selection, fresh)
    return max(own, fresh or own) if isinstance(own, int) else own


@dataclass
class Memory(Sentences):
    """An encoded batch.

    bank (B, S, D)  encoder states
    mask (B, 1, S)  0 on tokens, -inf on padding; added to attention scores
    of_head         what the head reads of each sentence, if anything
    """

    bank: Tensor
    mask: Tensor
    of_head: Sentences | None = field(default=None, kw_only=True)


def padding_mask(src_lengths: Tensor, n: int) -> Tensor:
    """Lengths (B,) of sentences of at most n tokens -> the mask (B, 1, n) of a `Memory`."""
    outside = torch.arange(n, device=src_lengths.device) >= src_lengths[:, None]  # (B, n)
    mask = torch.zeros(outside.shape, device=src_lengths.device)
    return mask.masked_fill_(outside, -math.inf)[:, None]
