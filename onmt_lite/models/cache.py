"""What a Transformer decoder remembers between steps, and how its rows are selected."""

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection

FIRST_CAPACITY = 32


class KeyValueCache:
    """Self-attention keys and values of all layers: (2, L, R, H, capacity, d).

    Written in place; when full, the capacity doubles, so n steps copy O(n) positions.
    """

    def __init__(self, n_layers: int, n_rows: int):
        self.n_layers, self.n_rows = n_layers, n_rows
        self.length = 0  # positions already decoded
        self.data: Tensor | None = None

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store a position's k and v (R, H, 1, d); all so far are returned, (R, H, length+1, d)."""
        data = self._room_for(k)
        data[0, layer, :, :, self.length] = k[:, :, 0]
        data[1, layer, :, :, self.length] = v[:, :, 0]
        return data[0, layer, :, :, : self.length + 1], data[1, layer, :, :, : self.length + 1]

    def select(self, rows: Tensor) -> None:
        """Keep `rows` (R',) of the current rows, in that order; a row may be taken twice."""
        self.n_rows = rows.numel()
        if self.data is None:  # nothing decoded yet: only the number of rows is known
            return
        # index_select copies first, so the write below never reads a row it has overwritten
        kept = self.data[:, :, :, :, : self.length].index_select(2, rows)
        if self.n_rows > self.data.size(2):
            self.data = self._empty_like(kept, self.data.size(4))
        self.data = self.data[:, :, : self.n_rows]
        self.data[:, :, :, :, : self.length] = kept

    def _room_for(self, k: Tensor) -> Tensor:
        if self.data is None:
            shape = (2, self.n_layers, self.n_rows, k.size(1), FIRST_CAPACITY, k.size(3))
            self.data = k.new_empty(shape)
        elif self.length == self.data.size(4):
            grown = self._empty_like(self.data, 2 * self.length)
            grown[:, :, :, :, : self.length] = self.data
            self.data = grown
        return self.data

    def _empty_like(self, data: Tensor, capacity: int) -> Tensor:
        return data.new_empty((*data.shape[:4], capacity, data.size(5)))


class DecoderState:
    """A Transformer decoder's state: per hypothesis the cache, per sentence the rest.

    `cross` holds each layer's memory keys and values (B, H, S, d).  They belong to the
    sentence: its K hypotheses share them, and only dropping a sentence copies them.
    """

    def __init__(
        self, cache: KeyValueCache, cross: list[tuple[Tensor, Tensor]], memory_mask: Tensor
    ):
        self.cache, self.cross, self.memory_mask = cache, cross, memory_mask
        n = memory_mask.size(0)
        self.positions = torch.zeros(n, dtype=torch.long, device=memory_mask.device)

    def select(self, selection: Selection, fresh: "DecoderState | None" = None) -> "DecoderState":
        """See `onmt_lite.models.base.State.select`."""
        if fresh is not None:
            raise NotImplementedError
        kept = selection.of_sentences
        self.cache.select(selection.rows.reshape(-1))
        self.positions = kept(self.positions)
        self.memory_mask = kept(self.memory_mask)
        self.cross = [(kept(k), kept(v)) for k, v in self.cross]
        return self
