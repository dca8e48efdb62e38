"""What families have in common: an encoded batch, heads, a decoder's state, and the model itself.

Letters: B sentences of K hypotheses, R = B*K rows, S source tokens, T target tokens (step by step:
the K hypotheses), D width of hidden states, V vocabulary, X source words outside of it.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import HeadSelection, LogitStats, Selection, block_width
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
    """A record of tensors (B, ...), alone or in lists, and of sizes of the batch.

    No two fields may be the same tensor: `select` writes in place.
    """

    def view_first(self: T, n: int) -> T:
        """A view of the first n sentences."""
        view = copy.copy(self)
        for name, own in vars(self).items():
            setattr(view, name, _first(own, n))
        return view

    def select(self, selection: Selection, fresh: Any) -> None:
        """Let sentences move, leave and join; fresh: the record of those that join, or None."""
        for name, own in vars(self).items():
            setattr(self, name, _selected(name, own, getattr(fresh, name, None), selection))


def _first(own: Any, n: int) -> Any:
    if isinstance(own, list):
        return [_first(x, n) for x in own]
    if isinstance(own, BatchTensors):
        return own.view_first(n)
    return own[:n] if isinstance(own, Tensor) else own


def _selected(name: str, own: Any, fresh: Any, selection: Selection) -> Any:
    if isinstance(own, Tensor):
        return selection.gather_sentences(own, fresh, fill=-math.inf if name == "mask" else 0.0)
    if isinstance(own, list):
        joining = fresh or [None] * len(own)
        return [_selected(name, x, new, selection) for x, new in zip(own, joining)]
    if isinstance(own, BatchTensors):
        own.select(selection, fresh)
    return max(own, fresh or own) if isinstance(own, int) else own


@dataclass
class Memory(BatchTensors):
    """An encoded batch."""

    bank: Tensor  # (B, S, D), encoder states
    mask: Tensor  # (B, 1, S), 0 on tokens, -inf on padding; added to attention scores
    copy_inputs: BatchTensors | None = field(default=None, kw_only=True)  # for the copy mechanism


def padding_mask(src_lengths: Tensor, n: int) -> Tensor:
    """Lengths (B,) of sentences of at most n tokens -> the mask (B, 1, n) of a `Memory`."""
    outside = torch.arange(n, device=src_lengths.device) >= src_lengths[:, None]  # (B, n)
    mask = torch.zeros(outside.shape, device=src_lengths.device)
    return mask.masked_fill_(outside, -math.inf)[:, None]


# ---- Output layers ----


class OutputLayer(Linear):
    """One layer: the logits of the vocabulary."""

    has_copy_mechanism = False

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        """Hidden states (B, T, D) and attention to the source (B, T, S) -> logits (B, T, V)."""
        return super().forward(hidden)

    def prepare(self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None) -> None:
        """Return what the head reads of each sentence: nothing."""

    def map_to_vocab(self, tokens: Tensor) -> Tensor:
        """Tokens as the decoder can read them: as they are."""
        return tokens


class AttentionScorer(nn.Module):
    """Global attention of Luong et al. 2015, section 3.1; `mlp` is that of Bahdanau et al. 2015.

    Recurrent decoders attend by it, and any family may copy by it.  As in OpenNMT-py, scores are
    not scaled.
    """

    def __init__(self, d: int, score: Score, normalizer: Normalizer = "softmax"):
        super().__init__()
        self.score, self.normalizer = score, normalizer
        if score in ("general", "mlp"):
            self.query = nn.Linear(d, d, bias=score == "mlp")
        if score == "mlp":
            self.key = nn.Linear(d, d, bias=False)
            self.energy = nn.Linear(d, 1, bias=False)

    def keys(self, bank: Tensor) -> Tensor | None:
        """Keys of a bank (B, S, D), of the same shape; None: the bank itself."""
        return self.key(bank) if self.score == "mlp" else None

    def weights(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """query (B, T, D), keys (B, S, D), mask (B, 1, S) added to scores -> weights (B, T, S)."""
        if self.score == "mlp":
            both = self.query(query)[:, :, None] + keys[:, None]  # (B, T, S, D)
            scores = self.energy(both.tanh()).squeeze(-1)
        else:
            projected = self.query(query) if self.score == "general" else query
            scores = projected @ keys.transpose(1, 2)  # (B, T, S)
        scores = scores.float() + mask
        weights = sparsemax(scores) if self.normalizer == "sparsemax" else scores.softmax(-1)
        return weights.to(query.dtype)


def sparsemax(scores: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1, over the last dimension: far lower scores become 0."""
    scores = scores - scores.amax(-1, keepdim=True)
    ordered = scores.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    counts = torch.arange(1, scores.size(-1) + 1, device=scores.device)
    n = (counts * ordered > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, n - 1) / n).clamp(min=0)


@dataclass
class CopyInputs(BatchTensors):
    """Input of a `CopyGenerator` beside the memory."""

    ids: Tensor  # (B, S), each source token as a token of the extended vocabulary
    keys: Tensor | None  # (B, S, D), of the copy attention; None: the memory's bank
    width: int  # V + X


class CopyGenerator(nn.Module):
    """The pointer-generator of See et al. 2017, "Get To The Point", as OpenNMT-py has it.

    A gate z weighs the vocabulary's distribution against the attention to the source:
    P(w) = (1 - z) P_vocab(w) + z P_attn(w).

    vocabulary  makes the logits of P_vocab
    table       the target token of each source token, by id (Vsrc,)
    attention   the copy attention; None: the model's own attention copies
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
        super().__init__()
        self.vocabulary, self.attention = vocabulary, attention
        self.gate = nn.Linear(vocabulary.in_features, 1)
        self.register_buffer("table", table, persistent=False)
        self.pad_id, self.unk_id = pad_id, unk_id

    def prepare(
        self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None
    ) -> CopyInputs:
        """Prepare copying from src (B, S); ids and width as in `EncoderDecoder.encode`.  Without
        ids, words outside the target vocabulary are copied as the unknown word."""
        n = self.vocabulary.out_features
        if ids is None:
            ids, width = self.table[src], n
        elif width is None:
            width = max(n, int(ids.max()) + 1)
        keys = None if self.attention is None else self.attention.keys(memory.bank)
        return CopyInputs(ids.clone(), keys, width)  # sentences that move write into their tensors

    def map_to_vocab(self, tokens: Tensor) -> Tensor:
        """Words outside the vocabulary become the unknown word."""
        return tokens.masked_fill(tokens >= self.vocabulary.out_features, self.unk_id)

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:
        """Log-probabilities (B, T, V + X)."""
        copied = memory.copy_inputs
        assert isinstance(copied, CopyInputs)
        if self.attention is not None:
            keys = memory.bank if copied.keys is None else copied.keys
            attn = self.attention.weights(hidden, keys, memory.mask)
        z = self.gate(hidden).float().sigmoid()  # (B, T, 1)
        logits = self.vocabulary(hidden, attn, memory).float()  # (B, T, V)
        logits[:, :, self.pad_id] = -math.inf
        n_own = copied.width - self.vocabulary.out_features
        probs = F.pad(logits.softmax(-1) * (1 - z), (0, n_own))  # (B, T, V + X)
        ids = copied.ids[:, None].expand_as(attn)  # (B, T, S)
        return probs.scatter_add(2, ids, attn.float() * z).log()


# ---- A decoder's state, and the model ----


class DecoderState(Generic[M]):
    """An `onmt_lite.models.base.State`; each family adds what rows have of their own.

    recorded  whether steps are replayed as CUDA graphs: tensors then have `n_slots`, for more
              sentences than the `n_sentences` that run, so that shapes seldom change
    """

    def __init__(self, memory: M, uses_cuda_graphs: bool = False):
        self.memory, mask = memory, memory.mask
        self.positions = torch.zeros(mask.size(0), dtype=torch.long, device=mask.device)  # (B,)
        self.n_sentences, self.n_slots = len(self.positions), 0
        self.uses_cuda_graphs = uses_cuda_graphs
        self.graph_buffers: GraphBuffers | None = None  # holds the tensors of a recorded state
        self.logit_stats: LogitStats | None = None  # of the newest logits, if a kernel made them
        self.logits: Tensor | None = None  # their memory, which each step writes to (R, V)

    def select(self: S, selection: Selection, fresh: S | None = None) -> S:
        n, slots = len(selection.rows), selection.slots
        if self.uses_cuda_graphs:
            if n > self.n_slots:
                self.n_slots, slots = round_up(n), slots or tuple(range(n))
            selection = replace(selection, slots=slots, n_slots=self.n_slots)
        self.select_rows(selection, fresh)
        self.memory.select(selection, fresh.memory if fresh else None)
        joining = fresh.positions if fresh else None
        self.positions = selection.gather_sentences(self.positions, joining)
        if slots is not None and n < len(self.positions):
            self.positions[n:] = 0  # or they would grow beyond the tables of positions
        self.n_sentences = n
        return self

    def view_first(self: S, n: int) -> S:
        """A view of the first n sentences; keys and values look at the number of queries."""
        view = copy.copy(self)
        view.memory, view.positions = self.memory.view_first(n), self.positions[:n]
        return view

    def make_room(self) -> None:
        """The host's part of a step: nothing, unless tensors are full."""

    def select_rows(self: S, selection: Selection, fresh: S | None) -> None:
        """`select` for what rows have of their own."""
        raise NotImplementedError


class Seq2SeqModel(nn.Module, Generic[M, S]):
    """An `onmt_lite.models.base.EncoderDecoder`: an encoder, a decoder that makes hidden states,
    and a head that makes logits of them."""

    cfg: Any
    vocab_size: int
    max_positions: int
    output: OutputLayer | CopyGenerator
    has_attention = True
    supports_cuda_graphs = False  # `advance` keeps the addresses of its tensors
    graphs: StepGraphs | None = None  # replays `advance`, see `onmt_lite.models.cuda_graphs`

    @property
    def has_copy_mechanism(self) -> bool:
        return self.output.has_copy_mechanism

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> M:
        memory = self.run_encoder(src, src_lengths)
        memory.copy_inputs = self.output.prepare(src, memory, ids, width)
        return memory

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The head stays outside of the graphs, each of which would keep its own logits."""
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
            block = block_width(logits.size(1))
            state.logit_stats = LogitStats(
                *kernels.output_logits(rows, kernel.weights, logits, block)
            )
            return logits, attn.flatten(0, 1)
        logits = self.output(hidden, attn, memory)  # (B, K, V + X)
        return logits.flatten(0, 1), attn.flatten(0, 1)

    def advance(self, tokens: Tensor, state: S) -> tuple[Tensor, Tensor]:
        """The device's part of a step without the head; the host tells it nothing: tokens (R,) ->
        hidden states (B, K, D), attention (B, K, S)."""
        by_sentence = self.output.map_to_vocab(tokens).view(len(state.positions), -1)  # (B, K)
        hidden, attn = self.decode(by_sentence, state)
        state.positions += 1
        return hidden, attn

    def forward(self, memory: M, tgt: Tensor) -> Tensor:
        hidden, attn = self.decode_all(self.output.map_to_vocab(tgt), memory)
        return self.output(hidden, attn, memory)

    def has_heads(self, heads: HeadSelection) -> bool:
        return True

    def compute_attention(self, memory: M, tgt: Tensor, heads: HeadSelection) -> Tensor:
        return self.decode_all(self.output.map_to_vocab(tgt), memory)[1].float()

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> M:
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
