"""What a search needs from a model: the interfaces every family implements."""

from typing import Any, Protocol, cast

import torch
from torch import Tensor


class State(Protocol):
    """Everything a decoder remembers between steps, for R = B*K rows, row = b*K + k."""

    def select(self, rows: Tensor) -> "State":
        """Tile, re-order and drop rows: the only way a state's rows ever change.

        rows (B', K') on the CPU: the old row that each new row continues.  Line b' must
        name rows of one old sentence.  What belongs to a sentence follows the first
        column and is not copied while the sentences stay as they are.  Works in place
        where it can: use the returned state, not the old one.
        """
        ...


class EncoderDecoder(Protocol):
    """A sequence-to-sequence model as the search sees it.

    B sentences, R rows, S source tokens, T target tokens, V target vocabulary.
    """

    vocab_size: int  # V
    max_positions: int  # longest source and longest target, in tokens

    @property
    def device(self) -> torch.device: ...

    def encode(self, src: Tensor, src_lengths: Tensor) -> Any:
        """src (B, S) padded ids, src_lengths (B,) -> a memory, whatever this family keeps in it."""
        ...

    def init_state(self, memory: Any) -> Any:
        """A `State` with one row per sentence, nothing decoded yet."""
        ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> next-token logits (R, V), attention (R, S).

        Advances `state` in place.
        """
        ...

    def forward(self, memory: Any, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> logits (B, T, V) of all positions."""
        ...


class CopyingModel(EncoderDecoder, Protocol):
    """A model that can say words of the source which its vocabulary lacks.

    They are the ids from V on, of which each sentence has its own; X are the most that one has.
    Logits are (R, V + X) wide, and the memory's `width` says how wide.
    """

    def encode(self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None) -> Any:
        """As ever; ids (B, S): what each source token is among the V + X."""
        ...


def encode(
    model: EncoderDecoder, src: Tensor, src_lengths: Tensor, ids: Tensor | None
) -> tuple[Any, int]:
    """The memory, and how wide the logits will be; with `ids`, of a model that copies."""
    if ids is None:
        return model.encode(src, src_lengths), model.vocab_size
    memory = cast(CopyingModel, model).encode(src, src_lengths, ids)
    return memory, memory.width
