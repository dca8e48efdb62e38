"""What all models of weights have in common: a family makes hidden states, a head logits."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from onmt_lite.models.base import Heads
from onmt_lite.models.heads import CopyHead, Head
from onmt_lite.models.memory import Memory
from onmt_lite.models.selection import Selection

M = TypeVar("M", bound=Memory)
S = TypeVar("S", bound="DecoderState[Any]")


class DecoderState(Generic[M]):
    """An `onmt_lite.models.base.State`; what rows have of their own, each family adds.

    memory           of the sentences, as `init_state` took it over
    positions (B,)   how many tokens the rows of each have read
    """

    def __init__(self, memory: M):
        self.memory, mask = memory, memory.mask
        self.positions = torch.zeros(mask.size(0), dtype=torch.long, device=mask.device)

    def select(self: S, selection: Selection, fresh: S | None = None) -> S:
        """See `onmt_lite.models.base.State.select`."""
        self.select_rows(selection, fresh)
        self.memory.select(selection, fresh.memory if fresh else None)
        joining = fresh.positions if fresh else None
        self.positions = selection.of_sentences(self.positions, joining)
        return self

    def make_room(self) -> None:
        """The host's part of a step: nothing, unless tensors are full."""

    def select_rows(self: S, selection: Selection, fresh: S | None) -> None:
        """The same for what rows have of their own."""
        raise NotImplementedError


class Family(nn.Module, Generic[M, S]):
    """An `onmt_lite.models.base.EncoderDecoder` out of an encoder, a decoder and a head.

    B sentences, K hypotheses of each, R = B*K rows, S source tokens, T target tokens, D width of
    hidden states, V target vocabulary, X words that only a source of the batch has.
    """

    cfg: Any
    vocab_size: int
    max_positions: int
    output: Head | CopyHead
    attends = True  # whether the attention says anything

    @property
    def copies(self) -> bool:
        return self.output.copies

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(
        self,
        src: Tensor,
        src_lengths: Tensor,
        ids: Tensor | None = None,
        width: int | None = None,
    ) -> M:
        """src (B, S) padded ids, src_lengths (B,) -> what decoding reads of the sentences.

        For a head that copies: ids (B, S), the token of the extended vocabulary that each source
        token is, any id on padding, see `onmt_lite.text.copying`; width, V + X, which is read off
        the ids where it is None.
        """
        memory = self.read(src, src_lengths)
        memory.of_head = self.output.read(src, memory, ids, width)
        return memory

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> next-token logits (R, V or V + X), attention
        (R, S).

        Advances `state` in place.  The hypotheses of a sentence are decoded together.
        """
        state.make_room()
        hidden, attn = self.advance(tokens, state)
        return self.output(hidden, attn, state.memory).flatten(0, 1), attn.flatten(0, 1)

    def advance(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The device's part of a step without the head, to which the host tells nothing: tokens
        (R,) -> hidden states (B, K, D), attention (B, K, S)."""
        by_sentence = self.output.known(tokens).view(len(state.positions), -1)  # (B, K)
        hidden, attn = self.decode(by_sentence, state)
        state.positions += 1
        return hidden, attn

    def prefill(
        self, tokens: Tensor, lengths: Tensor, state: S, first: int, at_once: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """See `onmt_lite.models.base.EncoderDecoder.prefill`."""
        hidden, attn = self.decode_given(self.output.known(tokens), lengths, state)
        state.positions = state.positions + lengths
        parts = zip(hidden[:, first:].split(at_once, 1), attn[:, first:].split(at_once, 1))
        return attn, (self.output(*part, state.memory) for part in parts)

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> logits of what follows each (B, T, V)."""
        hidden, attn = self.decode_all(self.output.known(tgt), memory)
        return self.output(hidden, attn, memory)

    def has(self, heads: Heads) -> bool:
        """See `onmt_lite.models.base.EncoderDecoder.has`."""
        return True

    def attention(self, memory: M, tgt: Tensor, heads: Heads) -> Tensor:
        """Decoder input tgt (B, T), start token first -> weights on the source (B, T, S)."""
        return self.decode_all(self.output.known(tgt), memory)[1].float()

    def read(self, src: Tensor, src_lengths: Tensor) -> M:
        """As `encode`, without what copying reads."""
        raise NotImplementedError

    def init_state(self, memory: M) -> S:
        """One row per sentence, nothing decoded yet; takes the memory over."""
        raise NotImplementedError

    def decode(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The newest tokens (B, K) -> hidden states (B, K, D), attention (B, K, S)."""
        raise NotImplementedError

    def decode_given(self, tokens: Tensor, lengths: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """Given tokens (B, T), of each sentence the first `lengths` (B,), into a new state ->
        hidden states (B, T, D), attention (B, T, S)."""
        raise NotImplementedError

    def decode_all(self, tgt: Tensor, memory: M) -> tuple[Tensor, Tensor]:
        """Decoder input (B, T) -> hidden states (B, T, D), attention (B, T, S)."""
        raise NotImplementedError
