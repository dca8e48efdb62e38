"""Caches of a Transformer decoder, of its own tokens.

B sentences, K hypotheses of each, R = B*K rows, D model width, H heads of keys and values, d width
of a head, L layers, N entries: keys and values of one hypothesis at one step.
"""

import copy
import math

import torch
from torch import Tensor

from onmt_lite.models.base import Selection, pad_to_size
from onmt_lite.models.kernels import bindings as kernels

FIRST_CAPACITY = 12  # steps
STEPS_PER_GROWTH = 64  # steps after which each round has FIRST_CAPACITY more
SYNC_FREE_DEVICES = ("cpu",)  # devices whose numbers the host reads without waiting


class KeyValueCache:
    """Self-attention keys and values, both (L, B, H, capacity, d): of all layers in one buffer on a
    GPU, and of each in its own on a CPU, where no more than one has two while buffers grow.

    Each step writes K entries per sentence, which stay where they are: when hypotheses change
    places, only the mask changes, which says whose past an entry is.  The K queries of a sentence
    attend to its N entries in one product.  When the buffers are full, entries that are in nobody's
    past any more are cleared away.

    On a CPU a step attends to the N entries; on a GPU to the whole capacity, of which the mask
    hides the rest, and the capacity is a power of two in steps: until entries are cleared away no
    shape or address changes, and the host tells a step nothing, as a CUDA graph needs it.

    Tried and left, on one CPU core at step 125: no clearing away, seven times as long; entries that
    move with the hypotheses, sixty times.
    """

    def __init__(self, memory_keys: list[Tensor], has_places: bool):
        """Empty, for the sentences and heads of memory_keys: L x (B, H, d, S)."""
        self.like, self.n_layers = memory_keys[0].new_empty(0), len(memory_keys)
        n, self.heads, self.width, _ = memory_keys[0].shape
        self.fixed, self.has_places = self.like.device.type not in SYNC_FREE_DEVICES, has_places
        self.n_slots, self.beam_size = n, 1
        self.length = self.capacity = 0  # N, and the largest N before buffers are full
        self.born = [0] * n  # n_written when each sentence joined
        self.n_written = 0  # entries of a sentence ever written
        self.own = self.like  # (K, K): the mask of the newest entries
        self.in_one = self.n_layers if self.fixed else 1  # layers
        self.keys = [self.like] * (self.n_layers // self.in_one)
        self.values = [*self.keys]
        # (B, 1, K, capacity): 0 on the past of a hypothesis, -inf elsewhere
        self.masks = self.like.new_empty(n, 1, 1, 0)
        # (B, capacity): the position of each entry in its sentence, if a relation needs it
        self.places: Tensor | None = None
        # On a GPU: places of the newest entries (K,); the rows whose past each row takes over at
        # the next step (R,), its own unless `turned`
        self.at: Tensor | None = None
        self.parents = self.unturned = self.like
        self.turned = False

    # ---- The host's part of a step ----

    def make_room(self) -> None:
        """Make room for K more entries of each sentence."""
        k = self.beam_size
        full = self.length + k > self.capacity
        if full:
            if self.turned:
                self._turn(len(self.born))
            self._clear_away()
        if self.fixed and (full or self.at is None or len(self.at) != k):
            self.at = torch.arange(self.length - k, self.length, device=self.like.device)
        if self.own.size(-1) != k:
            own = self.like.new_full((k, k), -math.inf, dtype=torch.float32)
            self.own = own.fill_diagonal_(0.0)
        self.length += k
        self.n_written += k
        self.turned = False

    # ---- The device's ----

    def begin_step(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Write the masks and places of a step's entries, at positions (B,) -> the mask
        (B, 1, K, N) and the places (B, N) of all that the step attends to."""
        b, k = len(positions), self.beam_size
        if self.at is not None:
            self.at += k
            if k > 1:
                self._turn(b)
        self._write(self.masks[:b], 3, self.own.expand(b, 1, k, k))
        mask = self._read(self.masks[:b], 3)
        if self.places is None:
            return mask, None
        self._write(self.places[:b], 1, positions[:, None].expand(-1, k))
        return mask, self._read(self.places[:b], 1)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v of a step (B, H, K, d) -> all keys (B, H, d, N), values (B, H, N, d)."""
        keys, values = self._of_layer(layer, len(k))
        self._write(keys, 2, k)
        self._write(values, 2, v)
        return self._read(keys, 2).transpose(-2, -1), self._read(values, 2)

    def find_past(self) -> tuple[Tensor, Tensor]:
        """Each row's own entries, the newest included; see `kernels.find_past`."""
        masks = self.masks[: len(self.born)]
        return kernels.find_past(masks.reshape(-1, masks.size(-1)), self.length)

    def attend_cached(
        self, layer: int, parts: Tensor, past: tuple[Tensor, Tensor], heads: int
    ) -> Tensor:
        """`append` and attention to a row's own past in one kernel: queries, keys and values
        (B, K, (H + 2G) d) -> context (B, K, H d)."""
        keys, values = self._of_layer(layer, len(parts))
        newest = self.length - self.beam_size
        return kernels.attend_cached(parts, keys, values, newest, past, heads)

    def _of_layer(self, layer: int, b: int) -> tuple[Tensor, Tensor]:
        """Keys and values of b sentences, both (b, H, capacity, d)."""
        i, own = divmod(layer, self.in_one)
        return self.keys[i][own, :b], self.values[i][own, :b]

    def _write(self, x: Tensor, dim: int, new: Tensor) -> None:
        """Write the newest entries of x, along `dim`."""
        if self.at is not None:
            x.index_copy_(dim, self.at, new)
        else:
            n = new.size(dim)
            x.narrow(dim, self.length - n, n).copy_(new)

    def _read(self, x: Tensor, dim: int) -> Tensor:
        """The entries of x along `dim` that a step attends to."""
        return x if self.fixed else x.narrow(dim, 0, self.length)

    # ---- Between steps ----

    def select(self, selection: Selection, fresh: "KeyValueCache | None") -> None:
        """Follow the selection; fresh: the empty cache of sentences that join."""
        n_fresh, n_before = len(fresh.born) if fresh else 0, len(self.born)
        b, k = selection.rows.shape
        if not self.n_written:
            self.born, self.n_slots, self.beam_size = [0] * b, selection.n_slots or b, k
            return
        if self.turned:
            self._turn(n_before)
        self.turned = False
        same_rows, self.beam_size = k == self.beam_size, k
        if self.fixed and selection.slots is None and same_rows:
            self.parents[: b * k] = selection.rows.flatten()
            self.turned = True
            return
        if selection.slots is not None:
            born = [*self.born, *[self.n_written] * n_fresh]
            self.born = [born[slot] for slot in selection.slots]
            self._move_sentences(selection)
        past = self.masks[:n_before].flatten(0, 2)
        joining = past.new_full((n_fresh, self.capacity), -math.inf) if n_fresh else None
        rows = selection.gather_rows(past, joining).view(b, 1, k, -1)
        if not self.fixed:
            self.masks = rows
            return
        if not same_rows or len(self.masks) < self.n_slots:
            self.masks = self._new_mask()
        self.masks[:b] = rows

    def _turn(self, b: int) -> None:
        """Let the rows of b sentences take over the pasts of their parents."""
        masks = self.masks[:b]
        rows = masks.flatten(0, 2).index_select(0, self.parents[: b * self.beam_size])
        masks.copy_(rows.view_as(masks))
        self.parents.copy_(self.unturned)

    def _move_sentences(self, selection: Selection) -> None:
        self.n_slots = selection.n_slots or len(self.born)
        if self.places is not None:
            self.places = selection.gather_sentences(self.places)
        for buffers in (self.keys, self.values):
            for i, buffer in enumerate(buffers):
                buffers[i] = pad_to_size(buffer, 1, self.n_slots)
                entries = buffers[i][..., : self.length, :]
                selection.gather_sentences(entries, dim=1)
                if selection.joined is not None:  # a sentence that left may have had NaN there
                    entries.index_fill_(1, selection.joined[0], 0.0)

    def _new_mask(self) -> Tensor:
        """Masks by which all entries so far are everybody's past."""
        shape = self.n_slots, 1, self.beam_size, self.capacity
        masks = self.like.new_full(shape, -math.inf, dtype=torch.float32)
        masks[..., : self.length] = 0.0
        if self.fixed:
            n_rows = self.n_slots * self.beam_size
            self.unturned = torch.arange(n_rows, device=self.like.device)
            self.parents = self.unturned.clone()
        return masks

    def _clear_away(self) -> None:
        """Move entries that are in some past, in their order, to buffers with room for more."""
        b, old = len(self.born), copy.copy(self)
        order = self._kept() if self.length else None  # (B, n)
        n = self.length = 0 if order is None else order.size(1)
        self.capacity = self._room_beside(n)
        sizes = self.in_one, self.n_slots, self.heads, self.capacity, self.width
        # A GPU attends to entries that nobody has written: 0 * NaN would be NaN
        new_buffer = self.like.new_zeros if self.fixed else self.like.new_empty
        self.masks = self._new_mask()
        if self.has_places:
            self.places = self.like.new_zeros(self.n_slots, self.capacity, dtype=torch.long)
        if order is None:
            self.keys = [new_buffer(sizes) for _ in self.keys]
            self.values = [new_buffer(sizes) for _ in self.values]
            return
        # Whole entries (d,) by their numbers in a layer: four times as fast as `gather` on a CPU
        firsts = old.capacity * torch.arange(b * self.heads, device=order.device)  # (B * H,)
        numbers = (firsts.view(b, -1, 1) + order[:, None]).flatten()  # (B * H * n,)
        for buffers in (self.keys, self.values):
            for i, buffer in enumerate(buffers):
                buffers[i] = new_buffer(sizes)
                for old_layer, new_layer in zip(buffer, buffers[i]):
                    entries = old_layer.view(-1, self.width).index_select(0, numbers)
                    new_layer[:b, :, :n] = entries.view(b, self.heads, n, self.width)
                    del entries  # or it lives until the next layer's are there
        by_row = order[:, None, None].expand(-1, 1, self.beam_size, -1)  # (B, 1, K, n)
        self.masks[:b, ..., :n] = old.masks[:b].gather(3, by_row)
        if self.places is not None and old.places is not None:
            self.places[:b, :n] = old.places[:b].gather(1, order)

    def _room_beside(self, n: int) -> int:
        """The capacity of new buffers for n entries."""
        k = self.beam_size
        if self.fixed:
            n_steps = -(-(n + max(FIRST_CAPACITY * k, n // 2)) // k)
            return k << (n_steps - 1).bit_length()
        return n + FIRST_CAPACITY * (1 + self.n_written // k // STEPS_PER_GROWTH) * k

    def _kept(self) -> Tensor:
        """The entries to keep of each sentence (B, n): on a CPU as many as the most that one has;
        on a GPU the host would wait for that, and takes those since the oldest sentence joined."""
        live = (self.masks[: len(self.born), 0, :, : self.length] == 0).any(1)  # (B, N)
        n = self.n_written - min(self.born)
        if not self.fixed:
            n = int(live.sum(1).max())
        return live.int().argsort(dim=1, descending=True, stable=True)[:, :n]


class RunningSums:
    """Cache of average attention: the sum of each row's inputs so far."""

    def __init__(self, zeros: Tensor):
        """zeros (L, R, D); sums are kept in float32 at least."""
        self.sums = zeros.to(torch.promote_types(zeros.dtype, torch.float32))

    def make_room(self) -> None:
        """Sums take no more room."""

    def begin_step(self, positions: Tensor) -> tuple[None, None]:
        self.counts = positions[:, None, None] + 1
        return None, None

    def add(self, layer: int, x: Tensor) -> Tensor:
        """Add x (B, K, D) to the layer's sums; return the means so far, in the shape of x."""
        total = self.sums[layer]  # (R, D)
        total += x.flatten(0, 1)
        return (total.view(x.shape) / self.counts).to(x.dtype)

    def select(self, selection: Selection, fresh: "RunningSums | None") -> None:
        self.sums = selection.gather_rows(self.sums, fresh.sums if fresh else None, 1)
