"""Decoder cache for the C kernels: self-attention keys and values of all sentences in one pool.

Shapes: B sentences, K hypotheses per sentence, R rows, T steps, G key/value heads, d head width.
An entry is the key and value of one row at one step.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import Selection
from onmt_lite.models.kernels import bindings as kernels

ENTRIES_PER_ROW = 3  # first capacity
GROWTH = 1.5  # of the capacity


@dataclass(frozen=True)
class DistinctRows:
    """The rows that a step computes: all hypotheses, except for copies of another one."""

    starts: Tensor  # (B + 1,) int64: first row of each sentence, and the number of rows
    index: Tensor  # (B * K,) int32: row of each hypothesis
    kept: Tensor | None  # (rows,) int64: hypothesis of each row; None: all

    def select(self, x: Tensor) -> Tensor:
        """Return the entries of x (B, K), any dtype, for the rows (rows,)."""
        return x.flatten() if self.kept is None else x.flatten()[self.kept]


class KernelCache:
    """Self-attention keys and values for the C kernels, (capacity, 2, G, d) for each layer.

    Each hypothesis has a list of the entries of its past.  A selection only changes the lists, and
    a step writes to entries that are in no list.  Nothing is moved when hypotheses are reordered or
    sentences finish, and a batch needs as many entries as it has distinct prefixes.

    `KeyValueCache`, whose sentences all have as many entries as one of them needs, took at most 37
    MiB for 1,000 lines with the shipped model and beam 5; this cache takes 13 MiB.
    """

    def __init__(self, memory_keys: list[Tensor]):
        """Create an empty cache for the sentences and heads of the memory.

        Args:
            memory_keys: cross-attention keys of each layer, (B, G, d, S) each, float32
        """
        b, groups, width, _ = memory_keys[0].shape
        self.layers = [keys.new_empty(0, 2, groups, width) for keys in memory_keys]
        none = torch.empty(b, 0, dtype=torch.int32)
        self.past = kernels.Past(none, torch.zeros(b, dtype=torch.int32), none[0])
        self.parents = torch.arange(b)  # (B * K,) int64: the row of `past` of each hypothesis
        self.has_new_sentences = True

    def make_room(self) -> None:
        """Do nothing: `begin_step` makes room."""

    def begin_step(self, tokens: Tensor) -> DistinctRows:
        """Find the rows of a step, and choose an entry for each.

        Args:
            tokens: the last token of each hypothesis (B, K), int64
        """
        rows, capacity = self._find_distinct_rows(tokens), len(self.layers[0])
        self.past = kernels.advance_past(self.past, self.parents, rows.starts, capacity)
        self.parents, self.has_new_sentences = torch.arange(tokens.numel()), False
        needed = int(self.past.new_entries[-1]) + 1
        if needed > capacity:
            n = max(needed, int(GROWTH * capacity), ENTRIES_PER_ROW * tokens.numel())
            for i, layer in enumerate(self.layers):
                self.layers[i] = layer.new_empty(n, *layer.shape[1:])
                self.layers[i][:capacity] = layer
                del layer  # free it before the next one grows
        return rows

    def _find_distinct_rows(self, tokens: Tensor) -> DistinctRows:
        """Find the rows of a step; the hypotheses of a new sentence are equal, and share a row.

        Args:
            tokens: the last token of each hypothesis (B, K), int64
        """
        b, k = tokens.shape
        if k == 1 or not self.has_new_sentences:
            index = torch.arange(b * k, dtype=torch.int32)
            return DistinctRows(torch.arange(0, b * k + 1, k), index, None)
        is_new = self.past.counts[self.parents[::k]] == 0  # (B,)
        is_new &= (tokens == tokens[:, :1]).all(1)
        is_distinct = torch.ones_like(tokens, dtype=torch.bool)  # (B, K)
        is_distinct[:, 1:] = ~is_new[:, None]
        kept, index = is_distinct.flatten().nonzero()[:, 0], is_distinct.flatten().cumsum(0) - 1
        starts = F.pad(is_distinct.sum(1).cumsum(0), (1, 0))
        return DistinctRows(starts, index.int(), kept)

    def attend(self, layer: int, qkv: Tensor, starts: Tensor, heads: int) -> Tensor:
        """Store a step's keys and values, and attend to each row's past.

        Args:
            layer: index of the decoder layer
            qkv: queries, keys and values (1, R, (H + 2G) d), float32
            starts: first row of each sentence, and R (B + 1,), int64
            heads: number of query heads H

        Returns:
            Context (1, R, H d), float32.
        """
        return kernels.attend_cached(qkv, starts, self.layers[layer], self.past, heads)

    def select(self, selection: Selection, fresh: "KernelCache | None") -> None:
        """Apply a selection; `fresh` is the empty cache of new sentences."""
        parents = self.parents
        if fresh is not None:
            (entries, counts, new_entries), n = self.past, len(fresh.parents)
            self.past = kernels.Past(
                F.pad(entries, (0, 0, 0, n)), F.pad(counts, (0, n)), new_entries
            )
            parents = torch.cat([parents, fresh.parents + len(counts)])
            self.has_new_sentences = True
        self.parents = parents[selection.rows.flatten()]
