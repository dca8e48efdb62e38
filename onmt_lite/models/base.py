"""The interface between search and models, implemented by every architecture.

Shapes: B sentences, K hypotheses (rows) per sentence, R = B * K rows (row = b * K + k), S source
tokens, T target tokens, V target vocabulary size, X source words outside the vocabulary (maximum
over the sentences).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

M = TypeVar("M")  # an encoded batch; each architecture has its own class
IndexPairs = tuple[Tensor, Tensor]  # (n,) int64 each, on the device: destination, source


@dataclass(frozen=True)
class Selection:
    """The rows and sentences that continue after a step, and their order.

    Built once per step.  Tensors with an entry per row are re-indexed by `gather_rows`, tensors
    with an entry per sentence by `gather_sentences`.  Neither synchronizes with the device.
    """

    rows: Tensor  # (B', K') int64: the old row that each new row continues; new rows start at R
    slots: tuple[int, ...] | None = None  # the old sentence in each slot; None: unchanged
    moves: IndexPairs | None = None  # new and old slots of sentences that change slots
    additions: IndexPairs | None = None  # slots of new sentences, and their numbers from 0
    n_slots: int | None = None  # allocated slots; None: as many as sentences

    @classmethod
    def build(
        cls, rows: Tensor, n_sentences: int, slots: Sequence[int] | None = None
    ) -> "Selection":
        """Build a selection.

        Args:
            rows: the old row that each new row continues (B', K'), int64
            n_sentences: number of sentences in the old batch, B
            slots: the old sentence in each of the B' slots; new sentences are numbered from B
        """
        if slots is None:
            return cls(rows)
        moves = [(to, old) for to, old in enumerate(slots) if to != old < n_sentences]
        additions = [(to, old - n_sentences) for to, old in enumerate(slots) if old >= n_sentences]
        pairs = torch.tensor([*moves, *additions], dtype=torch.long).view(-1, 2).T  # (2, n)
        if moves or additions:
            pairs = upload(pairs.contiguous(), rows.device)
        n = len(moves)
        move_pairs = (pairs[0, :n], pairs[1, :n]) if moves else None
        addition_pairs = (pairs[0, n:], pairs[1, n:]) if additions else None
        return cls(rows, tuple(slots), move_pairs, addition_pairs)

    def gather_rows(self, x: Tensor, fresh: Tensor | None = None, dim: int = 0) -> Tensor:
        """Re-index a tensor with an entry per row.

        Args:
            x: tensor (.., R, ..), any dtype
            fresh: the same tensor for new rows; other dimensions are padded with zeros to the
                larger size
            dim: the dimension of the rows

        Returns:
            A copy (.., B' * K', ..).
        """
        if fresh is not None:
            x = torch.cat(_pad_to_common_size(x, fresh, dim, 0.0), dim)
        return x.index_select(dim, self.rows.reshape(-1))

    def gather_sentences(
        self, x: Tensor, fresh: Tensor | None = None, dim: int = 0, fill: float = 0.0
    ) -> Tensor:
        """Re-index a tensor with an entry per sentence, in place.

        Sentences that keep their slots are not copied.  This uses indexing because `index_select`
        would first copy all of a tensor that is a slice of a larger tensor.  On a CPU, sentences
        are copied one by one, which is four times as fast.

        Args:
            x: tensor (.., B, ..), any dtype
            fresh: the same tensor for new sentences; other dimensions are padded to the larger size
            dim: the dimension of the sentences
            fill: the padding value

        Returns:
            A tensor with an entry per slot along `dim`.
        """
        if self.slots is None:
            return x
        if fresh is not None:
            x, fresh = _pad_to_common_size(x, fresh, dim, fill)
        n_slots = self.n_slots or len(self.slots)
        x = pad_to_size(x, dim, n_slots)
        by_sentence = x.movedim(dim, 0)
        if self.moves is not None:
            to, old = self.moves
            if x.is_cpu:
                targets, sources = to.tolist(), old.tolist()
                sentences = [by_sentence[i] for i in sources]
                if not set(targets).isdisjoint(sources):
                    sentences = [sentence.clone() for sentence in sentences]
                for target, sentence in zip(targets, sentences):
                    by_sentence[target] = sentence
            else:
                by_sentence[to] = by_sentence[old]
        if self.additions is not None and fresh is not None:
            to, new = self.additions
            by_sentence[to] = fresh.movedim(dim, 0)[new]
        return x if x.size(dim) == n_slots else x.narrow(dim, 0, n_slots)


def upload(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of any shape and dtype to the device without waiting for it."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def pad_to_size(x: Tensor, dim: int, n: int) -> Tensor:
    """Pad a tensor with zeros to at least n entries along `dim`.

    Args:
        x: tensor (..), any dtype
        dim: the dimension to pad
        n: the minimum size

    Returns:
        The tensor itself if it is large enough, otherwise a padded copy.
    """
    n_missing = n - x.size(dim)
    if n_missing <= 0:
        return x
    zeros = x.new_zeros([n_missing if i == dim else size for i, size in enumerate(x.shape)])
    return torch.cat([x, zeros], dim)


def _pad_to_common_size(a: Tensor, b: Tensor, dim: int, fill: float) -> tuple[Tensor, Tensor]:
    """Pad both tensors at the end to the larger size along every dimension except `dim`.

    Args:
        a: tensor (..), any dtype
        b: tensor with the same number of dimensions
        dim: the dimension to leave unchanged
        fill: the padding value

    Returns:
        Both tensors; they share memory with a and b where no padding was needed.
    """
    sizes = [max(pair) for pair in zip(a.shape, b.shape)]

    def pad(x: Tensor) -> Tensor:
        missing = [0 if i == dim else sizes[i] - n for i, n in enumerate(x.shape)]
        if not any(missing):
            return x
        return F.pad(x, [m for n in reversed(missing) for m in (0, n)], value=fill)

    return pad(a), pad(b)


class LazyLogits(Protocol):
    """Logits (R, V) that are computed only if they are read, see `models.output.KernelLogits`."""

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the logits (R, V), to be overwritten, and their log-sum-exp (R,)."""
        ...


def compute_logits(logits: Tensor | LazyLogits) -> Tensor:
    """Return the logits that `EncoderDecoder.step` returned as a tensor (R, V)."""
    return logits if isinstance(logits, Tensor) else logits.compute()[0]


class State(Protocol):
    """Decoder state of R rows between steps."""

    positions: Tensor  # (B,) int64: number of tokens decoded so far

    def select(self: "S", selection: Selection, fresh: "S | None" = None) -> "S":
        """Tile, reorder, drop and add rows.  Nothing else changes the rows of a state.

        Args:
            selection: the rows and sentences that continue
            fresh: state of newly encoded sentences, with one row each; `selection` numbers these
                rows from R and these sentences from B

        Returns:
            The new state.  Do not use this state any more, because both may share memory.
        """
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class HeadSelection:
    """Decoder attention heads to average; None means the model's own default."""

    layer: int | None = None  # decoder layer from 0; -1 is the last
    n_heads: int | None = None  # the first n heads of the layer; 0: all


LAST_LAYER = HeadSelection(-1, 1)


class EncoderDecoder(Protocol[M, S]):
    """A sequence-to-sequence model, as used by search.

    A model with a copy mechanism returns logits (R, V + X): the ids from V on are source words
    outside the vocabulary, numbered separately in each sentence.
    """

    vocab_size: int  # V
    max_positions: int  # maximum length of source and target, in tokens

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        ...

    @property
    def has_copy_mechanism(self) -> bool:
        """True if the model can copy source words outside the vocabulary."""
        ...

    @property
    def has_attention(self) -> bool:
        """False if the attention that the model returns is uniform."""
        ...

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> M:
        """Encode source sentences.

        Args:
            src: padded source ids (B, S), int64
            src_lengths: lengths in tokens (B,), int64
            ids: with a copy mechanism, ids of the source tokens in the extended vocabulary
                (B, S), int64; any id on padding
            width: V + X; if None, the host waits for the largest id

        Returns:
            The encoded batch, in a class of the architecture.
        """
        ...

    def init_state(self, memory: M) -> S:
        """Return the initial state, with one row per sentence.  Takes ownership of the memory."""
        ...

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor | LazyLogits, Tensor]:
        """Decode one step and update the state in place.

        Args:
            tokens: the last token of each row (R,), int64
            state: the decoder state

        Returns:
            Next-token logits (R, V) or (R, V + X), and attention to the source (R, S).
        """
        ...

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        """Compute the logits of all target positions.

        Args:
            memory: the encoded batch
            tgt: decoder input with the start token first (B, T), int64

        Returns:
            Logits (B, T, V) or (B, T, V + X).
        """
        ...

    def has_heads(self, heads: HeadSelection) -> bool:
        """Return True if the model has this layer, or has only one attention."""
        ...

    def compute_attention(self, memory: M, tgt: Tensor, heads: HeadSelection) -> Tensor:
        """Compute the attention used to predict the token after each position.

        Args:
            memory: the encoded batch
            tgt: decoder input with the start token first (B, T), int64
            heads: the heads to average

        Returns:
            Attention (B, T, S), float32.
        """
        ...


AnyModel: TypeAlias = EncoderDecoder[Any, Any]  # a model of any architecture


class Constant:
    """A tensor that is not in weight files, moved to a device at first use.

    Not a buffer, because buffers are converted to half precision together with the weights.
    """

    def __init__(self, values: Tensor):
        self.values = values

    def to(self, device: torch.device) -> Tensor:
        """Return the tensor on the device."""
        if self.values.device != device:
            self.values = self.values.to(device)
        return self.values
