"""Base of all models with weights: the decoder makes hidden states, a head makes logits of them."""

import copy
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from onmt_lite.models.base import Heads
from onmt_lite.models.captured import Lane, StepGraphs, rounded_up
from onmt_lite.models.heads import CopyHead, Head
from onmt_lite.models.memory import Memory
from onmt_lite.models.selection import Selection

M = TypeVar("M", bound=Memory)
S = TypeVar("S", bound="DecoderState[Any]")


class DecoderState(Generic[M]):
    """An `onmt_lite.models.base.State`; each family adds what rows have of their own.

    memory           of the sentences, as `init_state` took it over
    positions (B,)   how many tokens the rows of each sentence have read
    recorded         whether steps are replayed as CUDA graphs: tensors then have `n_places`, for
                     more sentences than the `n_sentences` that run, so that shapes seldom change
    lane             holds the tensors of a recorded state
    """

    def __init__(self, memory: M, recorded: bool = False):
        self.memory, mask = memory, memory.mask
        self.positions = torch.zeros(mask.size(0), dtype=torch.long, device=mask.device)  # (B,)
        self.n_sentences, self.n_places = len(self.positions), 0
        self.recorded = recorded
        self.lane: Lane | None = None

    def select(self: S, selection: Selection, fresh: S | None = None) -> S:
        n, slots = len(selection.rows), selection.slots
        if self.recorded:
            if n > self.n_places:
                self.n_places, slots = rounded_up(n), slots or tuple(range(n))
            selection = replace(selection, slots=slots, n_places=self.n_places)
        self.select_rows(selection, fresh)
        self.memory.select(selection, fresh.memory if fresh else None)
        joining = fresh.positions if fresh else None
        self.positions = selection.of_sentences(self.positions, joining)
        if slots is not None and n < len(self.positions):
            self.positions[n:] = 0  # or they would grow beyond the tables of positions
        self.n_sentences = n
        return self

    def first(self: S, n: int) -> S:
        """A view of the first n sentences; keys and values look at the number of queries."""
        view = copy.copy(self)
        view.memory, view.positions = self.memory.first(n), self.positions[:n]
        return view

    def make_room(self) -> None:
        """The host's part of a step: nothing, unless tensors are full."""

    def select_rows(self: S, selection: Selection, fresh: S | None) -> None:
        """`select` for what rows have of their own."""
        raise NotImplementedError


class Family(nn.Module, Generic[M, S]):
    """An `onmt_lite.models.base.EncoderDecoder` of an encoder, a decoder and a head.

    B sentences, K hypotheses of each, R = B*K rows, S source tokens, T target tokens, D width of
    hidden states, V target vocabulary, X words that only a source of the batch has.

    can_record  whether `advance` reads and writes tensors that keep their addresses
    graphs      replays `advance`, see `onmt_lite.models.captured.with_graphs`
    """

    cfg: Any
    vocab_size: int
    max_positions: int
    output: Head | CopyHead
    attends = True
    can_record = False
    graphs: StepGraphs | None = None

    @property
    def copies(self) -> bool:
        return self.output.copies

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> M:
        memory = self.read(src, src_lengths)
        memory.of_head = self.output.read(src, memory, ids, width)
        return memory

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The head stays outside of the graphs, each of which would keep its own logits."""
        state.make_room()
        memory = state.memory
        if self.graphs is None:
            hidden, attn = self.advance(tokens, state)
        else:
            hidden, attn = self.graphs.run(self.advance, tokens, state)
            memory = memory.first(len(hidden))
        logits = self.output(hidden, attn, memory)  # (B, K, V + X)
        return logits.flatten(0, 1), attn.flatten(0, 1)

    def advance(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The device's part of a step without the head; the host tells it nothing.

        tokens (R,) -> hidden states (B, K, D), attention (B, K, S).
        """
        by_sentence = self.output.known(tokens).view(len(state.positions), -1)  # (B, K)
        hidden, attn = self.decode(by_sentence, state)
        state.positions += 1
        return hidden, attn

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        hidden, attn = self.decode_all(self.output.known(tgt), memory)
        return self.output(hidden, attn, memory)

    def has(self, heads: Heads) -> bool:
        return True

    def attention(self, memory: M, tgt: Tensor, heads: Heads) -> Tensor:
        return self.decode_all(self.output.known(tgt), memory)[1].float()

    def read(self, src: Tensor, src_lengths: Tensor) -> M:
        """`encode` without the part of the head."""
        raise NotImplementedError

    def init_state(self, memory: M) -> S:
        raise NotImplementedError

    def decode(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The newest tokens (B, K) -> hidden states (B, K, D), attention (B, K, S)."""
        raise NotImplementedError

    def decode_all(self, tgt: Tensor, memory: M) -> tuple[Tensor, Tensor]:
        """Decoder input (B, T) -> hidden states (B, T, D), attention (B, T, S)."""
        raise NotImplementedError
