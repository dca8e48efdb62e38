"""Decoder caches: self-attention keys and values, and running sums for average attention.

Shapes: B sentences, K hypotheses per sentence, R = B * K rows, D model width, H key/value heads, d
head width, L layers, N entries.  An entry is the key and value of one hypothesis at one step.
"""

import copy
import math

import torch
from torch import Tensor

from onmt_lite.models.base import Selection, pad_to_size

FIRST_CAPACITY = 12  # steps
STEPS_PER_GROWTH = 64  # every 64 steps, the free capacity after compaction grows by FIRST_CAPACITY
SYNC_FREE_DEVICES = ("cpu",)  # the host reads tensors on these devices without waiting


class KeyValueCache:
    """Self-attention keys and values, both (L, B, H, capacity, d).

    All layers share one buffer on a GPU.  On a CPU each layer has its own buffer, so that growing
    needs at most one extra layer buffer at a time.

    Each step writes K entries per sentence.  Entries are never moved: when hypotheses are
    reordered, only the mask changes, which selects the past of each hypothesis.  The K queries of
    a sentence attend to its N entries in one product.  When the buffers are full, they are
    compacted: entries that are not in any hypothesis's past are dropped.

    A step attends to the N entries on a CPU.  On a GPU it attends to the whole capacity, and the
    mask hides unused entries; the capacity is a power of two in steps.  Shapes and addresses stay
    the same until the next compaction, and a step needs no input from the host, as CUDA graphs
    require.

    Tried and left, on one CPU core at step 125: without compaction, seven times as long; moving
    entries together with their hypotheses, sixty times.
    """

    def __init__(self, memory_keys: list[Tensor], needs_positions: bool):
        """Create an empty cache for the sentences and heads of the memory.

        Args:
            memory_keys: cross-attention keys of L layers, (B, H, d, S) each, floating point
            needs_positions: True if relative positions need the positions of entries
        """
        self.empty, self.n_layers = memory_keys[0].new_empty(0), len(memory_keys)
        n, self.heads, self.width, _ = memory_keys[0].shape
        self.has_static_shapes = self.empty.device.type not in SYNC_FREE_DEVICES
        self.needs_positions = needs_positions
        self.n_slots, self.beam_size = n, 1
        self.length = self.capacity = 0  # N, and the largest N that fits in the buffers
        self.first_entries = [0] * n  # n_written when each sentence was added to the batch
        self.n_written = 0  # total entries written per sentence
        self.step_mask = self.empty  # (K, K): mask of the newest entries
        self.layers_per_buffer = self.n_layers if self.has_static_shapes else 1
        self.keys = [self.empty] * (self.n_layers // self.layers_per_buffer)
        self.values = [*self.keys]
        # (B, 1, K, capacity) float32: 0 on the past of a hypothesis, -inf elsewhere
        self.masks = self.empty.new_empty(n, 1, 1, 0)
        # (B, capacity) int64: the position of each entry, if relative positions need it
        self.entry_positions: Tensor | None = None
        # Back-pointers (R,) to apply at the next step; on a GPU the identity if there are none
        self.parents = self.identity = self.empty
        self.has_pending_parents = False
        self.write_indices: Tensor | None = None  # (K,) of the newest entries, on a GPU only

    # ---- Host side of a step ----

    def make_room(self) -> None:
        """Make room for K more entries per sentence."""
        k = self.beam_size
        is_full = self.length + k > self.capacity
        if is_full:
            if self.has_pending_parents:
                self._apply_parents(len(self.first_entries))
            self._compact()
        if self.has_static_shapes and (
            is_full or self.write_indices is None or len(self.write_indices) != k
        ):
            first = self.length - k
            self.write_indices = torch.arange(first, self.length, device=self.empty.device)
        if self.step_mask.size(-1) != k:
            mask = self.empty.new_full((k, k), -math.inf, dtype=torch.float32)
            self.step_mask = mask.fill_diagonal_(0.0)
        self.length += k
        self.n_written += k
        if self.has_static_shapes:
            self.has_pending_parents = False  # `begin_step` applies them

    # ---- Device side of a step ----

    def begin_step(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Write the masks and positions of a step's new entries.

        Args:
            positions: target position of each sentence (B,), int64

        Returns:
            The mask (B, 1, K, N), float32, and the positions (B, N), int64, of all entries that the
            step attends to.
        """
        b, k = len(positions), self.beam_size
        if self.write_indices is not None:
            self.write_indices += k
            if k > 1:
                self._apply_parents(b)
        elif self.has_pending_parents:
            self._apply_parents(b)
        self._write(self.masks[:b], 3, self.step_mask.expand(b, 1, k, k))
        mask = self._read(self.masks[:b], 3)
        if self.entry_positions is None:
            return mask, None
        self._write(self.entry_positions[:b], 1, positions[:, None].expand(-1, k))
        return mask, self._read(self.entry_positions[:b], 1)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of a step.

        Args:
            layer: index of the decoder layer
            k: keys (B, H, K, d)
            v: values (B, H, K, d)

        Returns:
            All keys (B, H, d, N) and values (B, H, N, d).
        """
        keys, values = self._get_layer(layer, len(k))
        self._write(keys, 2, k)
        self._write(values, 2, v)
        return self._read(keys, 2).transpose(-2, -1), self._read(values, 2)

    def _get_layer(self, layer: int, b: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values for b sentences, both (b, H, capacity, d)."""
        buffer, index = divmod(layer, self.layers_per_buffer)
        return self.keys[buffer][index, :b], self.values[buffer][index, :b]

    def _write(self, x: Tensor, dim: int, new: Tensor) -> None:
        """Write the newest entries of x.

        Args:
            x: tensor with `capacity` entries along `dim`
            dim: the dimension of the entries
            new: tensor with K entries along `dim`, dtype as x
        """
        if self.write_indices is not None:
            x.index_copy_(dim, self.write_indices, new)
        else:
            n = new.size(dim)
            x.narrow(dim, self.length - n, n).copy_(new)

    def _read(self, x: Tensor, dim: int) -> Tensor:
        """Return the entries of x along `dim` that a step attends to."""
        return x if self.has_static_shapes else x.narrow(dim, 0, self.length)

    # ---- Between steps ----

    def select(self, selection: Selection, fresh: "KeyValueCache | None") -> None:
        """Apply a selection.

        Args:
            selection: the rows and sentences that continue
            fresh: the empty cache of new sentences
        """
        n_fresh, n_before = len(fresh.first_entries) if fresh else 0, len(self.first_entries)
        b, k = selection.rows.shape
        if not self.n_written:
            self.first_entries, self.n_slots = [0] * b, selection.n_slots or b
            self.beam_size = k
            return
        if self.has_pending_parents:
            self._apply_parents(n_before)
        has_same_beam, self.beam_size = k == self.beam_size, k
        if selection.slots is None and has_same_beam:
            if self.has_static_shapes:
                self.parents[: b * k] = selection.rows.flatten()
            else:
                self.parents = selection.rows.flatten()
            self.has_pending_parents = True
            return
        if selection.slots is not None:
            first_entries = [*self.first_entries, *[self.n_written] * n_fresh]
            self.first_entries = [first_entries[slot] for slot in selection.slots]
            self._move_sentences(selection)
        past = self.masks[:n_before].flatten(0, 2)
        fresh_past = past.new_full((n_fresh, self.capacity), -math.inf) if n_fresh else None
        masks = selection.gather_rows(past, fresh_past).view(b, 1, k, -1)
        if not self.has_static_shapes:
            self.masks = masks
            return
        if not has_same_beam or len(self.masks) < self.n_slots:
            self.masks = self._make_new_masks()
        self.masks[:b] = masks

    def _apply_parents(self, b: int) -> None:
        """Replace the past of each row of b sentences with its parent's past."""
        masks = self.masks[:b]
        rows = masks.flatten(0, 2).index_select(0, self.parents[: b * self.beam_size])
        masks.copy_(rows.view_as(masks))
        self.has_pending_parents = False
        if self.has_static_shapes:
            self.parents.copy_(self.identity)

    def _move_sentences(self, selection: Selection) -> None:
        """Move the entries of sentences to their new slots."""
        self.n_slots = selection.n_slots or len(self.first_entries)
        if self.entry_positions is not None:
            self.entry_positions = selection.gather_sentences(self.entry_positions)
        for buffers in (self.keys, self.values):
            for i, buffer in enumerate(buffers):
                buffers[i] = pad_to_size(buffer, 1, self.n_slots)
                entries = buffers[i][..., : self.length, :]
                selection.gather_sentences(entries, dim=1)
                if selection.additions is not None:  # the previous sentence may have left NaN
                    entries.index_fill_(1, selection.additions[0], 0.0)

    def _make_new_masks(self) -> Tensor:
        """Return masks in which every hypothesis attends to all entries so far."""
        shape = self.n_slots, 1, self.beam_size, self.capacity
        masks = self.empty.new_full(shape, -math.inf, dtype=torch.float32)
        masks[..., : self.length] = 0.0
        if self.has_static_shapes:
            n_rows = self.n_slots * self.beam_size
            self.identity = torch.arange(n_rows, device=self.empty.device)
            self.parents = self.identity.clone()
        return masks

    def _compact(self) -> None:
        """Copy the entries in use, in order, to buffers with room for more."""
        b, old = len(self.first_entries), copy.copy(self)
        order = self._find_used_entries() if self.length else None  # (B, n)
        n = self.length = 0 if order is None else order.size(1)
        self.capacity = self._compute_capacity(n)
        sizes = self.layers_per_buffer, self.n_slots, self.heads, self.capacity, self.width
        # A GPU also attends to entries that have not been written: 0 * NaN would be NaN
        new_buffer = self.empty.new_zeros if self.has_static_shapes else self.empty.new_empty
        self.masks = self._make_new_masks()
        if self.needs_positions:
            shape = self.n_slots, self.capacity
            self.entry_positions = self.empty.new_zeros(shape, dtype=torch.long)
        if order is None:
            self.keys = [new_buffer(sizes) for _ in self.keys]
            self.values = [new_buffer(sizes) for _ in self.values]
            return
        # Select whole entries (d,) by index within a layer: four times as fast as `gather` on a CPU
        offsets = old.capacity * torch.arange(b * self.heads, device=order.device)  # (B * H,)
        indices = (offsets.view(b, -1, 1) + order[:, None]).flatten()  # (B * H * n,)
        for buffers in (self.keys, self.values):
            for i, buffer in enumerate(buffers):
                buffers[i] = new_buffer(sizes)
                for old_layer, new_layer in zip(buffer, buffers[i]):
                    entries = old_layer.view(-1, self.width).index_select(0, indices)
                    new_layer[:b, :, :n] = entries.view(b, self.heads, n, self.width)
                    del entries  # free it before the next layer's entries are selected
        by_row = order[:, None, None].expand(-1, 1, self.beam_size, -1)  # (B, 1, K, n)
        self.masks[:b, ..., :n] = old.masks[:b].gather(3, by_row)
        if self.entry_positions is not None and old.entry_positions is not None:
            self.entry_positions[:b, :n] = old.entry_positions[:b].gather(1, order)

    def _compute_capacity(self, n: int) -> int:
        """Return the capacity of new buffers for n existing entries."""
        k = self.beam_size
        if self.has_static_shapes:
            n_steps = -(-(n + max(FIRST_CAPACITY * k, n // 2)) // k)
            return k << (n_steps - 1).bit_length()
        return n + FIRST_CAPACITY * (1 + self.n_written // k // STEPS_PER_GROWTH) * k

    def _find_used_entries(self) -> Tensor:
        """Return the entries to keep of each sentence (B, n), int64.

        On a CPU, n is the largest number of used entries of a sentence.  On a GPU the host would
        have to wait for that number, so n is the number of entries since the oldest sentence was
        added.
        """
        is_used = (self.masks[: len(self.first_entries), 0, :, : self.length] == 0).any(1)  # (B, N)
        n = self.n_written - min(self.first_entries)
        if not self.has_static_shapes:
            n = int(is_used.sum(1).max())
        return is_used.int().argsort(dim=1, descending=True, stable=True)[:, :n]


class RunningSums:
    """Cache of average attention: the sum of each row's inputs so far."""

    def __init__(self, zeros: Tensor):
        """Start with zeros (L, R, D), floating point; sums are kept in at least float32."""
        self.sums = zeros.to(torch.promote_types(zeros.dtype, torch.float32))

    def make_room(self) -> None:
        """Do nothing: sums do not grow."""

    def begin_step(self, positions: Tensor) -> tuple[None, None]:
        """Set the number of inputs so far from the positions (B,), int64."""
        self.counts = positions[:, None, None] + 1
        return None, None

    def add(self, layer: int, x: Tensor) -> Tensor:
        """Add a step's inputs.

        Args:
            layer: index of the decoder layer
            x: inputs (B, K, D)

        Returns:
            The means of each row's inputs so far (B, K, D), in the dtype of x.
        """
        total = self.sums[layer]  # (R, D)
        total += x.flatten(0, 1)
        return (total.view(x.shape) / self.counts).to(x.dtype)

    def select(self, selection: Selection, fresh: "RunningSums | None") -> None:
        """Apply a selection; `fresh` has the sums of new sentences."""
        self.sums = selection.gather_rows(self.sums, fresh.sums if fresh else None, 1)
