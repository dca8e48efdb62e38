"""The interface between searches and models, which every family implements."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection

M = TypeVar("M")  # an encoded batch: each family has a class of its own


@dataclass(frozen=True)
class Heads:
    """Attention heads of one decoder layer, whose mean is returned.

    layer    from 0, or from the end, -1 being the last; None: as the model has it
    n_heads  number of heads, from the first; 0: all; None: as the model has it
    """

    layer: int | None = None
    n_heads: int | None = None


LAST_LAYER = Heads(-1, 1)


class State(Protocol):
    """Everything a decoder remembers between steps, for R = B*K rows, row = b*K + k.

    positions (B,): how many tokens the rows of each sentence have read.
    """

    positions: Tensor

    def select(self: "S", selection: Selection, fresh: "S | None" = None) -> "S":
        """Tile, re-order and drop rows, admit sentences: the only way to change a state's rows.

        fresh: sentences just encoded, with one row each, of which `selection` names rows from R
        and slots from B on.  Works in place if it can: go on with the state that is returned.
        """
        ...


S = TypeVar("S", bound=State)


class EncoderDecoder(Protocol[M, S]):
    """A sequence-to-sequence model as searches see it.

    B sentences, R rows, S source tokens, T target tokens, V target vocabulary.

    A model that copies can produce source words that its vocabulary lacks.  They have the ids from
    V on, and each sentence has its own; X is the largest number of them in a sentence, and logits
    are (R, V + X).
    """

    vocab_size: int  # V
    max_positions: int  # longest source and longest target, in tokens

    @property
    def device(self) -> torch.device: ...

    @property
    def copies(self) -> bool: ...

    @property
    def attends(self) -> bool:
        """Whether the attention that is returned says anything."""
        ...

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> M:
        """Encode src (B, S), padded, with src_lengths (B,).

        For a model that copies: ids (B, S), what each source token is among the V + X, any id on
        padding; width, V + X.  Without width the host waits for the largest id.
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

    def has(self, heads: Heads) -> bool:
        """Whether there is such a layer; a model with one attention has nothing to choose."""
        ...

    def attention(self, memory: M, tgt: Tensor, heads: Heads) -> Tensor:
        """Decoder input tgt (B, T), start token first -> the attention (B, T, S), in float32, with
        which the token after each position is made."""
        ...


AnyModel: TypeAlias = EncoderDecoder[Any, Any]  # of whatever family
