"""Base classes of all architectures: encoded batch, output layers, decoder state and model.

Shapes: B sentences of K hypotheses, R = B * K rows, S source tokens, T target tokens (in
step-by-step decoding: the K hypotheses), D width of hidden states, V vocabulary size, X source
words outside the vocabulary.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import HeadSelection, LogitStats, Selection, choose_block_width
from onmt_lite.models.cuda_graphs import GraphBuffers, StepGraphs, round_up
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import CKernel, Linear

Score = Literal["dot", "general", "mlp", "none"]
Normalizer = Literal["softmax", "sparsemax"]
T = TypeVar("T", bound="BatchTensors")
M = TypeVar("M", bound="Memory")
S = TypeVar("S", bound="DecoderState[Any]")

# ---- An encoded batch ----


@dataclass
class BatchTensors:
    """Tensors with a batch dimension (B, ...), lists of such tensors, and sizes.

    No two fields may share a tensor, because `select` works in place.
    """

    def view_first(self: T, n: int) -> T:
        """Return a view of the first n sentences."""
        view = copy.copy(self)
        for name, value in vars(self).items():
            setattr(view, name, _view_first(value, n))
        return view

    def select(self, selection: Selection, fresh: Any) -> None:
        """Move, drop and add sentences; `fresh` holds the tensors of new sentences, or is None."""
        for name, value in vars(self).items():
            setattr(self, name, _select(name, value, getattr(fresh, name, None), selection))


def _view_first(value: Any, n: int) -> Any:
    """Return a view of the first n sentences of a field of `BatchTensors`."""
    if isinstance(value, list):
        return [_view_first(x, n) for x in value]
    if isinstance(value, BatchTensors):
        return value.view_first(n)
    return value[:n] if isinstance(value, Tensor) else value


def _select(name: str, value: Any, fresh: Any, selection: Selection) -> Any:
    """Apply a selection to a field of `BatchTensors`.

    Args:
        name: name of the field; "mask" is padded with -inf
        value: its value
        fresh: its value for new sentences, or None
        selection: the sentences that continue

    Returns:
        The new value of the field.
    """
    if isinstance(value, Tensor):
        return selection.gather_sentences(value, fresh, fill=-math.inf if name == "mask" else 0.0)
    if isinstance(value, list):
        fresh_items = fresh or [None] * len(value)
        return [_select(name, x, new, selection) for x, new in zip(value, fresh_items)]
    if isinstance(value, BatchTensors):
        value.select(selection, fresh)
    return max(value, fresh or value) if isinstance(value, int) else value


@dataclass
class Memory(BatchTensors):
    """An encoded batch."""

    bank: Tensor  # (B, S, D): encoder states
    mask: Tensor  # (B, 1, S) float32: 0 on tokens, -inf on padding; added to attention scores
    copy_inputs: BatchTensors | None = field(default=None, kw_only=True)  # for the copy mechanism


def make_padding_mask(src_lengths: Tensor, n: int) -> Tensor:
    """Return the mask (B, 1, n), float32, of a `Memory` for lengths (B,), int64, of at most n."""
    is_padding = torch.arange(n, device=src_lengths.device) >= src_lengths[:, None]  # (B, n)
    mask = torch.zeros(is_padding.shape, device=src_lengths.device)
    return mask.masked_fill_(is_padding, -math.inf)[:, None]


# ---- Output layers ----


class OutputLayer(Linear):
    """Output layer: hidden states to logits of the vocabulary."""

    has_copy_mechanism = False

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        """Compute logits.

        Args:
            hidden: hidden states (B, T, D)
            attn: ignored
            memory: ignored

        Returns:
            Logits (B, T, V).
        """
        return super().forward(hidden)

    def prepare(self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None) -> None:
        """Do nothing: this layer does not depend on the source; see `CopyGenerator.prepare`."""

    def map_to_vocab(self, tokens: Tensor) -> Tensor:
        """Return the tokens (B, T), int64, unchanged."""
        return tokens


class AttentionScorer(nn.Module):
    """Global attention of Luong et al. 2015, section 3.1; `mlp` is from Bahdanau et al. 2015.

    Used by recurrent decoders, and as the copy attention of any architecture.  As in OpenNMT-py,
    scores are not scaled.
    """

    def __init__(self, d: int, score: Score, normalizer: Normalizer = "softmax"):
        """Initialize the attention.

        Args:
            d: width of hidden states
            score: the score function
            normalizer: the function from scores to weights
        """
        super().__init__()
        self.score, self.normalizer = score, normalizer
        if score in ("general", "mlp"):
            self.query = nn.Linear(d, d, bias=score == "mlp")
        if score == "mlp":
            self.key = nn.Linear(d, d, bias=False)
            self.energy = nn.Linear(d, 1, bias=False)

    def project_keys(self, bank: Tensor) -> Tensor | None:
        """Compute the keys of a bank (B, S, D), of the same shape; None: the bank itself."""
        return self.key(bank) if self.score == "mlp" else None

    def compute_weights(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Compute attention weights.

        Args:
            query: queries (B, T, D)
            keys: keys (B, S, D)
            mask: added to the scores (B, 1, S), float32

        Returns:
            Weights (B, T, S), in the dtype of the queries.
        """
        if self.score == "mlp":
            sums = self.query(query)[:, :, None] + keys[:, None]  # (B, T, S, D)
            scores = self.energy(sums.tanh()).squeeze(-1)
        else:
            projected = self.query(query) if self.score == "general" else query
            scores = projected @ keys.transpose(1, 2)  # (B, T, S)
        scores = scores.float() + mask
        weights = sparsemax(scores) if self.normalizer == "sparsemax" else scores.softmax(-1)
        return weights.to(query.dtype)


def sparsemax(scores: Tensor) -> Tensor:
    """Sparsemax over the last dimension (Martins & Astudillo 2016, algorithm 1), float32."""
    scores = scores - scores.amax(-1, keepdim=True)
    ordered = scores.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    counts = torch.arange(1, scores.size(-1) + 1, device=scores.device)
    n = (counts * ordered > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, n - 1) / n).clamp(min=0)


@dataclass
class CopyInputs(BatchTensors):
    """Inputs of a `CopyGenerator` in addition to the memory."""

    ids: Tensor  # (B, S) int64: source tokens as ids of the extended vocabulary
    keys: Tensor | None  # (B, S, D): keys of the copy attention; None: the memory bank
    width: int  # V + X


class CopyGenerator(nn.Module):
    """Pointer-generator of See et al. 2017, "Get To The Point", as in OpenNMT-py.

    A gate z mixes the vocabulary distribution with the attention to the source:
    P(w) = (1 - z) P_vocab(w) + z P_attn(w).
    """

    table: Tensor
    has_copy_mechanism = True

    def __init__(
        self,
        vocabulary: OutputLayer,
        table: Tensor,
        pad_id: int,
        unk_id: int,
        attention: AttentionScorer | None = None,
    ):
        """Initialize the generator.

        Args:
            vocabulary: computes the logits of P_vocab
            table: target id of each source id (Vsrc,), int64
            pad_id: padding id; never predicted
            unk_id: unknown id
            attention: the copy attention; None: the attention of the decoder
        """
        super().__init__()
        self.vocabulary, self.attention = vocabulary, attention
        self.gate = nn.Linear(vocabulary.in_features, 1)
        self.register_buffer("table", table, persistent=False)
        self.pad_id, self.unk_id = pad_id, unk_id

    def prepare(
        self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None
    ) -> CopyInputs:
        """Prepare the inputs of the copy mechanism.

        Args:
            src: source ids (B, S), int64
            memory: the encoded batch
            ids: source tokens as ids of the extended vocabulary (B, S), int64; None: words outside
                the target vocabulary are copied as the unknown token
            width: V + X; None: the host waits for the largest id

        Returns:
            The inputs, stored in the memory as `copy_inputs`.
        """
        n = self.vocabulary.out_features
        if ids is None:
            ids, width = self.table[src], n
        elif width is None:
            width = max(n, int(ids.max()) + 1)
        keys = None if self.attention is None else self.attention.project_keys(memory.bank)
        return CopyInputs(ids.clone(), keys, width)  # `select` works in place

    def map_to_vocab(self, tokens: Tensor) -> Tensor:
        """Replace tokens (B, T), int64, outside the vocabulary by the unknown token."""
        return tokens.masked_fill(tokens >= self.vocabulary.out_features, self.unk_id)

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:
        """Compute log-probabilities.

        Args:
            hidden: hidden states (B, T, D)
            attn: attention of the decoder (B, T, S)
            memory: the encoded batch, with `CopyInputs`

        Returns:
            Log-probabilities (B, T, V + X), float32.
        """
        inputs = memory.copy_inputs
        assert isinstance(inputs, CopyInputs)
        if self.attention is not None:
            keys = memory.bank if inputs.keys is None else inputs.keys
            attn = self.attention.compute_weights(hidden, keys, memory.mask)
        z = self.gate(hidden).float().sigmoid()  # (B, T, 1)
        logits = self.vocabulary(hidden, attn, memory).float()  # (B, T, V)
        logits[:, :, self.pad_id] = -math.inf
        n_source_words = inputs.width - self.vocabulary.out_features
        probs = F.pad(logits.softmax(-1) * (1 - z), (0, n_source_words))  # (B, T, V + X)
        ids = inputs.ids[:, None].expand_as(attn)  # (B, T, S)
        return probs.scatter_add(2, ids, attn.float() * z).log()


# ---- Decoder state and model ----


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
        self.logit_stats: LogitStats | None = None  # of the last logits, if a kernel computed them
        self.logits: Tensor | None = None  # (R, V), overwritten by each step

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

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
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
        kernel, state.logit_stats = getattr(self.output, "kernel", None), None
        if isinstance(kernel, CKernel) and hidden.is_cpu:
            rows = hidden.flatten(0, 1)  # (R, D)
            if state.logits is None or len(state.logits) < len(rows):
                state.logits = rows.new_empty(len(rows), self.vocab_size)
            logits = state.logits[: len(rows)]
            block = choose_block_width(logits.size(1))
            state.logit_stats = LogitStats(
                *kernels.compute_output_logits(rows, kernel.weights, logits, block)
            )
            return logits, attn.flatten(0, 1)
        logits = self.output(hidden, attn, memory)  # (B, K, V + X)
        return logits.flatten(0, 1), attn.flatten(0, 1)

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
            Hidden states (B, K, D) and attention (B, K, S).
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
