"""The interface between searches and models, which every family implements.

Letters: B sentences, K rows of each, R = B*K rows (row = b*K + k), S source tokens, T target
tokens, V target vocabulary, X source words outside the vocabulary (the most in a sentence).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

M = TypeVar("M")  # an encoded batch: each family has a class of its own
IndexPairs = tuple[Tensor, Tensor]  # (n,) each, on the device: where to, where from


@dataclass(frozen=True)
class Selection:
    """The rows and sentences of a batch that go on, and their order; made once a step.

    Tensors with an entry per row follow it through `gather_rows`, tensors with an entry per
    sentence through `gather_sentences`.  No call waits for the device.
    """

    rows: Tensor  # (B', K'), the old row that each new row continues; from R on, rows that join
    slots: tuple[int, ...] | None = None  # the old sentence in each place; None: all stay
    moved: IndexPairs | None = None  # sentences that change their place
    joined: IndexPairs | None = None  # sentences that join, numbered from 0, and their places
    n_slots: int | None = None  # sentences that tensors have room for; None: those that run

    @classmethod
    def build(
        cls, rows: Tensor, n_sentences: int, slots: Sequence[int] | None = None
    ) -> "Selection":
        """n_sentences: B of the old batch.  slots: the old sentence that each line of `rows`
        continues; from B on, sentences that join."""
        if slots is None:
            return cls(rows)
        moved = [(to, old) for to, old in enumerate(slots) if to != old < n_sentences]
        joined = [(to, old - n_sentences) for to, old in enumerate(slots) if old >= n_sentences]
        places = torch.tensor([*moved, *joined], dtype=torch.long).view(-1, 2).T  # (2, n)
        if moved or joined:
            places = upload(places.contiguous(), rows.device)
        n = len(moved)
        of_moved = (places[0, :n], places[1, :n]) if moved else None
        of_joined = (places[0, n:], places[1, n:]) if joined else None
        return cls(rows, tuple(slots), of_moved, of_joined)

    def gather_rows(self, x: Tensor, fresh: Tensor | None = None, dim: int = 0) -> Tensor:
        """Select x, rows along `dim`, as a copy: what belongs to a row is small.

        fresh: the same of rows that join; the smaller tensor is padded with zeros.
        """
        if fresh is not None:
            x = torch.cat(_padded_alike(x, fresh, dim, 0.0), dim)
        return x.index_select(dim, self.rows.reshape(-1))

    def gather_sentences(
        self, x: Tensor, fresh: Tensor | None = None, dim: int = 0, fill: float = 0.0
    ) -> Tensor:
        """Select x, sentences along `dim`; `fresh` as in `gather_rows`, padded with `fill`.

        Writes in place: a sentence that keeps its place costs nothing.  By indexing, since
        index_select first copies all of a tensor that is a part of a larger one; on a CPU one
        sentence after the other, which is four times as fast.
        """
        if self.slots is None:
            return x
        if fresh is not None:
            x, fresh = _padded_alike(x, fresh, dim, fill)
        n_slots = self.n_slots or len(self.slots)
        x = pad_to_size(x, dim, n_slots)
        by_sentence = x.movedim(dim, 0)
        if self.moved is not None:
            to, old = self.moved
            if x.is_cpu:
                places, sources = to.tolist(), old.tolist()
                taken = [by_sentence[i] for i in sources]
                if not set(places).isdisjoint(sources):
                    taken = [sentence.clone() for sentence in taken]
                for place, sentence in zip(places, taken):
                    by_sentence[place] = sentence
            else:
                by_sentence[to] = by_sentence[old]
        if self.joined is not None and fresh is not None:
            to, new = self.joined
            by_sentence[to] = fresh.movedim(dim, 0)[new]
        return x if x.size(dim) == n_slots else x.narrow(dim, 0, n_slots)


def upload(x: Tensor, device: torch.device) -> Tensor:
    """Send x to the device without waiting for it."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def pad_to_size(x: Tensor, dim: int, n: int) -> Tensor:
    """Return x with n entries along `dim` at least, zeros where it had none."""
    n_more = n - x.size(dim)
    if n_more <= 0:
        return x
    more = x.new_zeros([n_more if i == dim else size for i, size in enumerate(x.shape)])
    return torch.cat([x, more], dim)


def _padded_alike(x: Tensor, other: Tensor, dim: int, fill: float) -> tuple[Tensor, Tensor]:
    """Pad both at the end to the larger size along every dimension but `dim`."""
    larger = [max(sizes) for sizes in zip(x.shape, other.shape)]

    def padded(x: Tensor) -> Tensor:
        missing = [0 if i == dim else larger[i] - n for i, n in enumerate(x.shape)]
        if not any(missing):
            return x
        return F.pad(x, [m for n in reversed(missing) for m in (0, n)], value=fill)

    return padded(x), padded(other)


@dataclass(frozen=True)
class LogitStats:
    """What the kernel of the output layer computes along with the logits (R, V).

    log_z (R,)             their log-sum-exp
    block_max (R, blocks)  maxima of blocks of `block_width(V)` columns; the last may be narrower
    """

    log_z: Tensor
    block_max: Tensor


def block_width(vocab_size: int) -> int:
    """The width of blocks of logits: about as many columns as there are blocks in a row."""
    return 1 << min(vocab_size.bit_length() // 2, 9)


class State(Protocol):
    """Everything a decoder remembers between steps, for R rows."""

    positions: Tensor  # (B,), how many tokens the rows of each sentence have read
    logit_stats: LogitStats | None  # of the newest logits, if a kernel made them

    def select(self: "S", selection: Selection, fresh: "S | None" = None) -> "S":
        """Tile, re-order and drop rows, admit sentences: the only way to change a state's rows.

        fresh: sentences just encoded, with one row each, of which `selection` names rows from R
        and slots from B on.  Works in place if it can: go on with the state that is returned.
        """
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class HeadSelection:
    """Attention heads of one decoder layer, whose mean is returned; None: as the model has it."""

    layer: int | None = None  # from 0, or from the end, -1 being the last
    n_heads: int | None = None  # from the first; 0: all


LAST_LAYER = HeadSelection(-1, 1)


class EncoderDecoder(Protocol[M, S]):
    """A sequence-to-sequence model as searches see it.

    A model that copies makes logits (R, V + X): source words that its vocabulary lacks have the ids
    from V on, and each sentence has its own.
    """

    vocab_size: int  # V
    max_positions: int  # longest source and longest target, in tokens

    @property
    def device(self) -> torch.device: ...

    @property
    def has_copy_mechanism(self) -> bool: ...

    @property
    def has_attention(self) -> bool: ...  # whether the attention that is returned says anything

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> M:
        """Encode src (B, S), padded, with src_lengths (B,).

        If it copies: ids (B, S) of the source tokens among the V + X, any id on padding; width,
        V + X.  Without width the host waits for the largest id.
        """
        ...

    def init_state(self, memory: M) -> S:
        """Return a state with one row per sentence, nothing decoded yet; takes the memory over."""
        ...

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> next-token logits (R, V), attention (R, S).

        Advances `state` in place.
        """
        ...

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> logits (B, T, V) of all positions."""
        ...

    def has_heads(self, heads: HeadSelection) -> bool:
        """Whether there is such a layer; a model with one attention has nothing to choose."""
        ...

    def compute_attention(self, memory: M, tgt: Tensor, heads: HeadSelection) -> Tensor:
        """Decoder input tgt (B, T), start token first -> the attention (B, T, S), in float32, with
        which the token after each position is made."""
        ...


AnyModel: TypeAlias = EncoderDecoder[Any, Any]  # of whatever family


class Constant:
    """Numbers that are not in weight files, moved to a device at first use.

    Not a buffer, which would be rounded with the weights.
    """

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    def to(self, device: torch.device) -> Tensor:
        if self.numbers.device != device:
            self.numbers = self.numbers.to(device)
        return self.numbers
