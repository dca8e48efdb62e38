"""Base classes of all architectures: decoder state and model.

Shapes: B sentences of K hypotheses, R = B * K rows, S source tokens, T target tokens (in
step-by-step decoding: the K hypotheses), D width of hidden states, V vocabulary size, X source
words outside the vocabulary.
"""

import copy
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from onmt_lite.models.base import HeadSelection, Selection
from onmt_lite.models.cuda_graphs import GraphBuffers, StepGraphs, round_up
from onmt_lite.models.linear import AnyNorm, CKernel
from onmt_lite.models.memory import Memory
from onmt_lite.models.output import CopyGenerator, KernelLogits, OutputLayer

M = TypeVar("M", bound=Memory)
S = TypeVar("S", bound="DecoderState[Any]")


class DecoderState(Generic[M]):
    """Base class of `onmt_lite.models.base.State`; each architecture adds its tensors per row."""

    def __init__(self, memory: M, uses_cuda_graphs: bool = False):
        """Initialize the state.

        Args:
            memory: the encoded batch
            uses_cuda_graphs: True if steps are replayed as CUDA graphs; tensors then have `n_slots`
                slots, more than the `n_sentences` in use, so that shapes rarely change
        """
        self.memory, mask = memory, memory.mask
        self.positions = torch.zeros(mask.size(0), dtype=torch.long, device=mask.device)  # (B,)
        self.n_sentences, self.n_slots = len(self.positions), 0
        self.uses_cuda_graphs = uses_cuda_graphs
        self.graph_buffers: GraphBuffers | None = None  # static memory for CUDA graphs
        # Row of each hypothesis in the hidden states of the last step (R,), int32, if equal ones
        # share a row
        self.row_index: Tensor | None = None

    def select(self: S, selection: Selection, fresh: S | None = None) -> S:
        """Tile, reorder, drop and add rows; see `onmt_lite.models.base.State.select`."""
        n, slots = len(selection.rows), selection.slots
        if self.uses_cuda_graphs:
            if n > self.n_slots:
                self.n_slots, slots = round_up(n), slots or tuple(range(n))
            selection = replace(selection, slots=slots, n_slots=self.n_slots)
        self.select_rows(selection, fresh)
        self.memory.select(selection, fresh.memory if fresh else None)
        fresh_positions = fresh.positions if fresh else None
        self.positions = selection.gather_sentences(self.positions, fresh_positions)
        if slots is not None and n < len(self.positions):
            self.positions[n:] = 0  # positions of empty slots must not exceed the position table
        self.n_sentences = n
        return self

    def view_first(self: S, n: int) -> S:
        """Return a view of the first n sentences; caches adapt to the number of queries."""
        view = copy.copy(self)
        view.memory, view.positions = self.memory.view_first(n), self.positions[:n]
        return view

    def make_room(self) -> None:
        """Run the host side of a step: grow caches that are full."""

    def select_rows(self: S, selection: Selection, fresh: S | None) -> None:
        """Apply a selection to the tensors with an entry per row."""
        raise NotImplementedError


class Seq2SeqModel(nn.Module, Generic[M, S]):
    """Base class of `onmt_lite.models.base.EncoderDecoder`: encoder, decoder and output layer."""

    cfg: Any
    vocab_size: int
    max_positions: int
    output: OutputLayer | CopyGenerator
    output_norm: AnyNorm | None = None  # left to the output layer's kernel
    has_attention = True
    supports_cuda_graphs = False  # `advance` keeps the addresses of its tensors
    graphs: StepGraphs | None = None  # replays `advance`; see `onmt_lite.models.cuda_graphs`

    @property
    def has_copy_mechanism(self) -> bool:
        """True if the model can copy source words outside the vocabulary."""
        return self.output.has_copy_mechanism

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> M:
        """Encode source sentences; see `onmt_lite.models.base.EncoderDecoder.encode`.

        Args:
            src: padded source ids (B, S), int64
            src_lengths: lengths in tokens (B,), int64
            ids: source ids in the extended vocabulary (B, S), int64, for the copy mechanism
            width: V + X
        """
        memory = self.run_encoder(src, src_lengths)
        memory.copy_inputs = self.output.prepare(src, memory, ids, width)
        return memory

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor | KernelLogits, Tensor]:
        """Decode one step; see `onmt_lite.models.base.EncoderDecoder.step`.

        The output layer is not part of CUDA graphs, because each graph would keep its own logits.
        """
        state.make_room()
        memory = state.memory
        if self.graphs is None:
            hidden, attn = self.advance(tokens, state)
        else:
            hidden, attn = self.graphs.run(self.advance, tokens, state)
            memory = memory.view_first(len(hidden))
        kernel = self.get_output_kernel(hidden)
        if kernel is not None:
            hidden = hidden.flatten(0, 1)  # (R, D)
            rows = state.row_index
            if rows is None:
                rows = torch.arange(len(hidden), dtype=torch.int32)
            return KernelLogits(hidden, kernel, self.output_norm, rows), attn.flatten(0, 1)
        logits = self.output(hidden, attn, memory)  # (B, K, V + X)
        return logits.flatten(0, 1), attn.flatten(0, 1)

    def get_output_kernel(self, x: Tensor) -> CKernel | None:
        """Return the C kernel that computes the logits of hidden states like x, if there is one."""
        kernel = getattr(self.output, "kernel", None)
        return kernel if isinstance(kernel, CKernel) and x.is_cpu else None

    def advance(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """Run the device side of a step, without input from the host.

        Args:
            tokens: the last token of each row (R,), int64
            state: the decoder state, updated in place

        Returns:
            Hidden states (B, K, D) and attention (B, K, S).
        """
        by_sentence = self.output.map_to_vocab(tokens).view(len(state.positions), -1)  # (B, K)
        hidden, attn = self.decode_step(by_sentence, state)
        state.positions += 1
        return hidden, attn

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        """Compute all logits; see `onmt_lite.models.base.EncoderDecoder.forward`."""
        hidden, attn = self.decode_all(self.output.map_to_vocab(tgt), memory)
        return self.output(hidden, attn, memory)

    def has_heads(self, heads: HeadSelection) -> bool:
        """Return True, because these models have only one attention."""
        return True

    def compute_attention(self, memory: M, tgt: Tensor, heads: HeadSelection) -> Tensor:
        """Return attention (B, T, S), float32.

        Args:
            memory: the encoded batch
            tgt: decoder input (B, T), int64
            heads: the heads to average
        """
        return self.decode_all(self.output.map_to_vocab(tgt), memory)[1].float()

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> M:
        """Encode source sentences, except for the copy mechanism; see `encode`."""
        raise NotImplementedError

    def init_state(self, memory: M) -> S:
        """Return the initial decoder state."""
        raise NotImplementedError

    def decode_step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """Decode one step.

        Args:
            tokens: the last tokens (B, K), int64
            state: the decoder state, updated in place except for its positions

        Returns:
            Hidden states (B, K, D), without `output_norm` if the output layer has a C kernel, and
            attention (B, K, S).
        """
        raise NotImplementedError

    def decode_all(self, tgt: Tensor, memory: M) -> tuple[Tensor, Tensor]:
        """Decode all target positions at once.

        Args:
            tgt: decoder input (B, T), int64
            memory: the encoded batch

        Returns:
            Hidden states (B, T, D) and attention (B, T, S).
        """
        raise NotImplementedError
