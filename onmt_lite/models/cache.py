"""What a Transformer decoder remembers of its own tokens.

B sentences, K hypotheses of each, R = B*K rows, D model width, H heads, d = D/H, L layers,
N entries: the keys and values that were made for one hypothesis at one step.
"""

import math

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection, resized

FIRST_CAPACITY = 16  # steps
WAITLESS = ("cpu",)  # devices whose numbers the host can read at once


class KeyValueCache:
    """Self-attention keys (L, B, H, d, capacity) and values (L, B, H, capacity, d) of all layers.

    Each step writes K entries per sentence, and there they stay: when hypotheses change places
    only the mask does, which says whose past an entry is.  The K queries of a sentence ask its N
    entries in one product.  When the room is used up, entries that no hypothesis comes from any
    more are cleared away, and there is room for half as many again as are left.

    Measured on one CPU core, 64 sentences of 5 hypotheses, 8 heads of 64, step 125 of a layer:
    4 ms, against 7 with keys as (capacity, d), 9 with PyTorch's fused kernel, 29 where nothing is
    cleared away, and 240 where the entries move with the hypotheses.

    mask (B, 1, K, N)  0 on the past of a hypothesis, -inf elsewhere; None: all of it is
    places (B, N)      the position of each entry in its sentence, where a relation asks
    """

    def __init__(self, n_layers: int, memory_mask: Tensor, has_places: bool):
        """Of nothing yet, for as many sentences as the mask has."""
        n = memory_mask.size(0)
        self.n_layers, self.beam_size = n_layers, 1
        self.length = self.capacity = 0  # N, and how many there is room for
        self.born = [0] * n  # how many entries had ever been written when each sentence joined
        self.n_written = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.mask: Tensor | None = None
        self.none = memory_mask.new_zeros(n, 1, 1, 0)
        self.places = memory_mask.new_zeros(n, 0, dtype=torch.long) if has_places else None
        self.own = self.none

    def begin_step(self, positions: Tensor) -> None:
        """Make room for K entries of each sentence, at its position (B,)."""
        b, k = len(positions), self.beam_size
        if self.keys is not None and self.values is not None and self.length + k > self.capacity:
            self._clear_away(self.keys, self.values)
        if self.mask is not None or k > 1:
            if self.own.size(-1) != k:
                self.own = self.none.new_full((k, k), -math.inf).fill_diagonal_(0.0)
            self.mask = torch.cat([self._mask_so_far(), self.own.expand(b, 1, k, k)], 3)
        if self.places is not None:
            self.places = torch.cat([self.places, positions[:, None].expand(-1, k)], 1)
        self.length += k
        self.n_written += k

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a step's k (B, H, d, K) and v (B, H, K, d); returned are all N so far."""
        b, heads, n_new, width = v.shape
        if self.keys is None or self.values is None:
            self.capacity = FIRST_CAPACITY * n_new
            # Zeros: a sentence that joins later never wrote these, and 0 * NaN would be NaN
            self.keys = k.new_zeros(self.n_layers, b, heads, width, self.capacity)
            self.values = v.new_zeros(self.n_layers, b, heads, self.capacity, width)
        keys = self.keys[layer, :b, :, :, : self.length]
        values = self.values[layer, :b, :, : self.length]
        keys[..., -n_new:], values[:, :, -n_new:] = k, v
        return keys, values

    def select(self, selection: Selection, n_fresh: int) -> None:
        """Follow the selection; n_fresh: sentences that may join, which have no entries yet."""
        if self.mask is not None or n_fresh and self.length:
            past = self._mask_so_far().flatten(0, 2)
            joining = past.new_zeros(n_fresh, 0) if n_fresh else None
            rows = selection.of_rows(past, joining, fill=-math.inf)
            self.mask = rows.view(len(selection.rows), 1, -1, self.length)
        self.beam_size = selection.rows.size(1)
        if selection.slots is None:
            return
        born = [*self.born, *[self.n_written] * n_fresh]
        self.born = [born[slot] for slot in selection.slots]
        if self.places is not None:
            self.places = selection.of_sentences(self.places)
        if self.keys is not None and self.values is not None:
            self.keys = _with_room(self.keys, len(self.born))
            self.values = _with_room(self.values, len(self.born))
            keys, values = self.keys[..., : self.length], self.values[..., : self.length, :]
            selection.of_sentences(keys, dim=1)
            selection.of_sentences(values, dim=1)
            if selection.joined is not None:  # where a sentence that left may have had NaN
                keys.index_fill_(1, selection.joined[0], 0.0)
                values.index_fill_(1, selection.joined[0], 0.0)

    def _mask_so_far(self) -> Tensor:
        """Where there was no need for a mask, all entries are everybody's past."""
        if self.mask is not None:
            return self.mask
        return self.none.new_zeros(len(self.born), 1, self.beam_size, self.length)

    def _clear_away(self, keys: Tensor, values: Tensor) -> None:
        """Move what is some hypothesis's past, in its order, into a buffer with room for more."""
        _, _, heads, width, _ = keys.shape
        b = len(self.born)
        order = None
        if self.mask is not None:
            live = (self.mask == 0).any(2).flatten(1)  # (B, N)
            self.length = self._n_kept(live)
            order = live.int().argsort(dim=1, descending=True, stable=True)[:, : self.length]
            self.mask = self.mask.gather(3, order[:, None, None].expand(-1, 1, self.beam_size, -1))
            if self.places is not None:
                self.places = self.places.gather(1, order)
        self.capacity = self.length + max(FIRST_CAPACITY * self.beam_size, self.length // 2)
        self.keys = keys.new_zeros(self.n_layers, b, heads, width, self.capacity)
        self.values = values.new_zeros(self.n_layers, b, heads, self.capacity, width)
        for old, new in zip(keys, self.keys):
            new[..., : self.length] = _taken(old[:b], order, 3)[..., : self.length]
        for old, new in zip(values, self.values):
            new[:, :, : self.length] = _taken(old[:b], order, 2)[:, :, : self.length]

    def _n_kept(self, live: Tensor) -> int:
        """On a CPU the most entries that are live in a sentence; elsewhere the host would wait
        for that number, and takes those written since the oldest sentence joined."""
        if live.device.type in WAITLESS:
            return int(live.sum(1).max())
        return min(self.length, self.n_written - min(self.born))


def _with_room(x: Tensor, n_sentences: int) -> Tensor:
    """x (L, B, ...) for more sentences, if there are."""
    n_more = n_sentences - x.size(1)
    return x if n_more <= 0 else torch.cat([x, x.new_zeros(resized(x, 1, n_more))], 1)


def _taken(x: Tensor, order: Tensor | None, dim: int) -> Tensor:
    """Of x (B, H, ...) along `dim` the entries order (B, n), None: all."""
    if order is None:
        return x
    index = order.view(len(order), 1, -1, 1) if dim == 2 else order[:, None, None]
    return x.gather(dim, index.expand(resized(x, dim, order.size(1))))


class RunningSums:
    """Of average attention: the inputs of each row so far added up, sums (L, R, D)."""

    mask = places = None

    def __init__(self, sums: Tensor):
        """sums: of nothing yet, kept in float32 at least."""
        self.sums = sums.to(torch.promote_types(sums.dtype, torch.float32))

    def begin_step(self, positions: Tensor) -> None:
        self.counts = positions[:, None, None] + 1

    def add(self, layer: int, x: Tensor) -> Tensor:
        """Add x (B, K, D) to the layer's sums; the means so far are returned."""
        total = self.sums[layer]
        total += x.flatten(0, 1)
        return (total.view(x.shape) / self.counts).to(x.dtype)

    def select(self, selection: Selection, n_fresh: int) -> None:
        layers, _, d = self.sums.shape
        self.sums = selection.of_rows(self.sums, self.sums.new_zeros(layers, n_fresh, d), 1)
