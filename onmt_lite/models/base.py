"""What a search needs from a model: the interfaces every family implements."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection

M = TypeVar("M")  # a batch of encoded sentences: each family has a class of its own


@dataclass(frozen=True)
class Heads:
    """Which of its attentions a model is asked for: the mean of some heads of a decoder layer.

    layer    from 0, or from the end, -1 being the last; None: as the model has it
    n_heads  the mean of the first so many; 0: of all; None: as the model has it
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
        """Tile, re-order and drop rows, admit sentences: the only way a state's rows change.

        fresh: sentences just encoded, with one row each, of which `selection` names rows from R
        and slots from B on.  Works in place where it can: use the returned state, not the old
        ones.
        """
        ...


S = TypeVar("S", bound=State)


class EncoderDecoder(Protocol[M, S]):
    """A sequence-to-sequence model as the search sees it.

    B sentences, R rows, S source tokens, T target tokens, V target vocabulary.

    A model that copies can say words of the source which its vocabulary lacks.  They are the ids
    from V on, of which each sentence has its own; X are the most that one has, and logits are
    (R, V + X) wide.
    """

    vocab_size: int  # V
    max_positions: int  # longest source and longest target, in tokens

    @property
    def device(self) -> torch.device: ...

    @property
    def copies(self) -> bool: ...

    @property
    def attends(self) -> bool:
        """Whether the attention that the model returns says anything."""
        ...

    def encode(
        self,
        src: Tensor,
        src_lengths: Tensor,
        ids: Tensor | None = None,
        width: int | None = None,
    ) -> M:
        """src (B, S) padded ids, src_lengths (B,) -> what decoding reads of the sentences.

        Of a model that copies: ids (B, S), what each source token is among the V + X; width,
        V + X, read off the ids where it is None, for which the host waits.
        """
        ...

    def init_state(self, memory: M) -> S:
        """A state with one row per sentence, nothing decoded yet; takes the memory over."""
        ...

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> next-token logits (R, V), attention (R, S).

        Advances `state` in place.
        """
        ...

    def prefill(
        self, tokens: Tensor, lengths: Tensor, state: S, first: int, at_once: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """Read given tokens (B, T) in one pass, of each sentence the first `lengths` (B,), which
        may be 0; padding is any id.  For a state with one row per sentence and nothing decoded yet,
        which is then as if `step` had read the tokens one by one.

        Returns the attention (B, T, S) and the logits of what follows each position from `first`
        on, `at_once` positions at a time: (B, t, V).  Those of padding mean nothing.
        """
        ...

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> logits (B, T, V) of all positions."""
        ...

    def has(self, heads: Heads) -> bool:
        """Whether there is such a layer; a model with one attention has nothing to choose."""
        ...

    def attention(self, memory: M, tgt: Tensor, heads: Heads) -> Tensor:
        """Decoder input tgt (B, T), start token first -> the weights (B, T, S), in float32, with
        which the source is read when what follows each position is made."""
        ...


AnyModel: TypeAlias = EncoderDecoder[Any, Any]  # of whatever family
