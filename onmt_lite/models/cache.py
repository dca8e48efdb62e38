"""What a Transformer decoder remembers between steps.

B sentences, K hypotheses of each, R = B*K rows, H heads, d the width of a head, L layers,
N entries: the keys and values that were made for one hypothesis at one step.
"""

import math

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection

FIRST_CAPACITY = 32  # steps
WAITLESS = ("cpu",)  # devices whose numbers the host can read at once


class KeyValueCache:
    """Self-attention keys and values of all layers: data (2, L, B, H, capacity, d).

    Each step writes K entries per sentence, and there they stay: when hypotheses change places
    only `mask` does, which says whose past an entry is.  The K queries of a sentence ask its N
    entries in one product.  Entries that no hypothesis comes from any more are cleared away when
    the room is used up; what is left then grows by half, so that n steps copy O(n) entries.

    mask (B, K, N)  0 on the past of a hypothesis, -inf elsewhere; None: all of it is
    places (B, N)   the position of each entry in its sentence
    """

    def __init__(self, n_layers: int, n_sentences: int, device: torch.device):
        self.n_layers, self.beam_size = n_layers, 1
        self.data: Tensor | None = None
        self.mask: Tensor | None = None
        self.places = torch.zeros(n_sentences, 0, dtype=torch.long, device=device)
        self.n_written, self.born = 0, [0] * n_sentences  # entries ever; before each sentence
        self.capacity = 0

    @property
    def length(self) -> int:
        return self.places.size(1)  # N

    def begin_step(self, positions: Tensor) -> tuple[Tensor | None, Tensor]:
        """Make room for K entries of each sentence, at its position (B,).

        Returns the mask (B, 1, K, N) and the places (B, N), the new ones at the end.
        """
        k = self.beam_size
        if self.data is not None and self.length + k > self.capacity:
            self._clear_away(self.data)
        if self.mask is not None or k > 1:
            past = self._mask_so_far()
            own = past.new_full((k, k), -math.inf).fill_diagonal_(0.0)
            self.mask = torch.cat([past, own.expand(len(positions), -1, -1)], 2)
        self.places = torch.cat([self.places, positions[:, None].expand(-1, k)], 1)
        self.n_written += k
        return None if self.mask is None else self.mask[:, None], self.places

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a step's k and v (B, H, K, d); all so far are returned, (B, H, N, d)."""
        b, heads, n_new, width = k.shape
        if self.data is None:
            self.capacity = FIRST_CAPACITY * n_new
            self.data = k.new_zeros(2, self.n_layers, b, heads, self.capacity, width)
        of_layer = self.data[:, layer, :b, :, : self.length]
        of_layer[0, :, :, -n_new:], of_layer[1, :, :, -n_new:] = k, v
        return of_layer[0], of_layer[1]

    def select(self, selection: Selection, n_fresh: int) -> None:
        """Follow the selection; n_fresh: sentences that may join, which have no entries yet."""
        if n_fresh and self.length:
            past = self._mask_so_far()
            nothing = past.new_zeros(n_fresh, 0)
            rows = selection.of_rows(past.flatten(0, 1), nothing, fill=-math.inf)
            self.mask = rows.view(*selection.rows.shape, -1)
        elif self.mask is not None:
            rows = selection.of_rows(self.mask.flatten(0, 1))
            self.mask = rows.view(*selection.rows.shape, -1)
        self.beam_size = selection.rows.size(1)
        if selection.slots is None:
            return
        born = [*self.born, *[self.n_written] * n_fresh]
        self.born = [born[slot] for slot in selection.slots]
        self.places = selection.of_sentences(self.places)
        if self.data is not None:
            if len(self.born) > self.data.size(2):
                more = self.data.new_zeros(2, self.n_layers, len(self.born), *self.data.shape[3:])
                more[:, :, : self.data.size(2)] = self.data
                self.data = more
            selection.of_sentences(self.data[:, :, :, :, : self.length], dim=2)

    def _mask_so_far(self) -> Tensor:
        """Where there was no need for a mask, all entries are everybody's past."""
        if self.mask is not None:
            return self.mask
        b, n = self.places.shape
        return torch.zeros(b, self.beam_size, n, device=self.places.device)

    def _clear_away(self, data: Tensor) -> None:
        """Keep what is some hypothesis's past, in its order, in a buffer with room for more."""
        b, n = self.places.shape
        order = None
        if self.mask is not None:
            live = (self.mask == 0).any(1)
            n = self._bound(live)
            order = live.int().argsort(dim=1, descending=True, stable=True)[:, :n]
            self.places = self.places.gather(1, order)
            self.mask = self.mask.gather(2, order[:, None].expand(-1, self.mask.size(1), -1))
        capacity = n + max(FIRST_CAPACITY * self.beam_size, n // 2)
        heads, width = data.size(3), data.size(5)
        new = data.new_zeros(2, self.n_layers, b, heads, capacity, width)
        if order is None:
            new[..., :n, :] = data[:, :, :b, :, :n]
        else:
            first = torch.arange(b * heads, device=order.device).view(b, heads, 1) * self.capacity
            flat = (first + order[:, None]).flatten()
            for kind in range(2):
                for layer in range(self.n_layers):
                    rows = data[kind, layer, :b].reshape(-1, width)
                    kept = rows.index_select(0, flat)
                    new[kind, layer, :, :, :n] = kept.view(b, heads, n, width)
        self.data, self.capacity = new, capacity

    def _bound(self, live: Tensor) -> int:
        """How many entries to keep: on a CPU the most that a sentence needs; elsewhere the host
        would wait to learn that, and takes those written since the oldest sentence joined."""
        if live.device.type in WAITLESS:
            return int(live.sum(1).max())
        return min(self.length, self.n_written - min(self.born))


class RunningSums:
    """Of average attention: the inputs of each row so far added up, sums (L, R, D)."""

    def __init__(self, sums: Tensor):
        """sums: of nothing yet, kept in float32 at least."""
        self.sums = sums.to(torch.promote_types(sums.dtype, torch.float32))

    def begin_step(self, positions: Tensor) -> tuple[None, Tensor]:
        """How many inputs there are with the next; neither mask nor places matter."""
        self.counts = positions[:, None, None] + 1
        return None, positions

    def add(self, layer: int, x: Tensor) -> Tensor:
        """Add x (B, K, D) to the layer's sums; the means so far are returned."""
        total = self.sums[layer]
        total += x.flatten(0, 1)
        return (total.view(x.shape) / self.counts).to(x.dtype)

    def select(self, selection: Selection, n_fresh: int) -> None:
        layers, _, d = self.sums.shape
        self.sums = selection.of_rows(self.sums, self.sums.new_zeros(layers, n_fresh, d), 1)
