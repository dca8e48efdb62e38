"""Selection: how the tensors of a running batch follow its rows and its sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Places = tuple[Tensor, Tensor]  # (n,) each, on the device: where to, where from


@dataclass(frozen=True)
class Selection:
    """The rows and sentences of a batch that go on, and their order; made once a step, with `of`.

    Tensors with an entry per row follow it through `of_rows`, tensors with an entry per sentence
    through `of_sentences`.  No call waits for the device.

    rows (B', K')  the old row that each new row continues, row = b*K + k; from R on, rows of the
                   sentences that join
    slots          the old sentence in each place, on the host; None: all stay where they are
    moved          the sentences that change their place; None: there are none
    joined         the sentences that join, numbered from 0, and their places
    n_places       number of sentences that tensors have room for; None: only those that run
    """

    rows: Tensor
    slots: tuple[int, ...] | None = None
    moved: Places | None = None
    joined: Places | None = None
    n_places: int | None = None

    @classmethod
    def of(cls, rows: Tensor, n_sentences: int, slots: Sequence[int] | None = None) -> "Selection":
        """rows (B', K'), long, on the device of the batch; n_sentences: B of the old batch.

        slots: the old sentence that each line of `rows` continues; from B on, sentences that join.
        """
        if slots is None:
            return cls(rows)
        moved = [(to, old) for to, old in enumerate(slots) if to != old < n_sentences]
        joined = [(to, old - n_sentences) for to, old in enumerate(slots) if old >= n_sentences]
        places = torch.tensor([*moved, *joined], dtype=torch.long).view(-1, 2).T  # (2, n)
        if moved or joined:
            places = sent(places.contiguous(), rows.device)
        n = len(moved)
        return cls(
            rows,
            tuple(slots),
            (places[0, :n], places[1, :n]) if moved else None,
            (places[0, n:], places[1, n:]) if joined else None,
        )

    def of_rows(self, x: Tensor, fresh: Tensor | None = None, dim: int = 0) -> Tensor:
        """Select x, rows along `dim`; `fresh`: the same of rows that join.

        Copies, as what belongs to a row is small.  If other sizes differ, the smaller tensor is
        padded with zeros.
        """
        if fresh is not None:
            x = torch.cat(padded_alike(x, fresh, dim, 0.0), dim)
        return x.index_select(dim, self.rows.reshape(-1))

    def of_sentences(
        self, x: Tensor, fresh: Tensor | None = None, dim: int = 0, fill: float = 0.0
    ) -> Tensor:
        """Select x, sentences along `dim`; `fresh` as in `of_rows`, padded with `fill`.

        Writes in place: a sentence that keeps its place costs nothing.  By indexing, since
        index_select first copies all of a tensor that is a part of a larger one.
        """
        if self.slots is None:
            return x
        if fresh is not None:
            x, fresh = padded_alike(x, fresh, dim, fill)
        n_places = self.n_places or len(self.slots)
        n_more = n_places - x.size(dim)
        if n_more > 0:
            x = torch.cat([x, x.new_zeros(resized(x, dim, n_more))], dim)
        by_sentence = x.movedim(dim, 0)
        if self.moved is not None:
            to, old = self.moved
            by_sentence[to] = by_sentence[old]
        if self.joined is not None and fresh is not None:
            to, new = self.joined
            by_sentence[to] = fresh.movedim(dim, 0)[new]
        return x if x.size(dim) == n_places else x.narrow(dim, 0, n_places)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """Send x to the device without waiting for it."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def resized(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of x with another size along `dim`."""
    return [size if i == dim else n for i, n in enumerate(x.shape)]


def padded_alike(x: Tensor, other: Tensor, dim: int, fill: float) -> tuple[Tensor, Tensor]:
    """Pad both at the end to the larger size along every dimension but `dim`."""
    larger = [max(sizes) for sizes in zip(x.shape, other.shape)]
    return _padded(x, larger, dim, fill), _padded(other, larger, dim, fill)


def _padded(x: Tensor, sizes: list[int], dim: int, fill: float) -> Tensor:
    missing = [0 if i == dim else sizes[i] - n for i, n in enumerate(x.shape)]
    if not any(missing):
        return x
    return F.pad(x, [m for n in reversed(missing) for m in (0, n)], value=fill)
