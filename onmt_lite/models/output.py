"""Output layers: hidden states to logits, and the copy mechanism.

Shapes: B sentences, S source tokens, T target tokens (in step-by-step decoding: the K hypotheses),
D width of hidden states, V vocabulary size, X source words outside the vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import AnyNorm, CKernel, Linear
from onmt_lite.models.memory import BatchTensors, Memory

Score = Literal["dot", "general", "mlp", "none"]
Normalizer = Literal["softmax", "sparsemax"]


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


class KernelLogits:
    """The logits of the output layer's C kernel, computed only if they are read.

    The best continuations of all hypotheses are ranked without storing the logits, which would take
    as much time as a tenth of the product.
    """

    def __init__(self, hidden: Tensor, kernel: CKernel, norm: AnyNorm | None, rows: Tensor):
        """Store the inputs of the output layer.

        Args:
            hidden: hidden states of distinct rows (R', D), float32
            kernel: the output layer
            norm: applied to the hidden states first
            rows: index of each row in `hidden` (R,), int32
        """
        self.hidden, self.weights, self.rows = hidden, kernel.weights, rows
        self.norm = None if norm is None else norm.kernel_norm

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the logits (R, V), to be overwritten, and their log-sum-exp (R,)."""
        n = len(self.hidden)
        logits = self.hidden.new_empty(n, self.weights.outputs)
        log_z = kernels.compute_output_logits(self.hidden, self.weights, self.norm, logits)
        if n == len(self.rows):
            return logits, log_z
        return logits[self.rows], log_z[self.rows]

    def rank(
        self, scores: Tensor, n: int, masked: tuple[Tensor, Tensor], ends: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the n best continuations of each sentence.

        Args:
            scores: scores of the hypotheses (B, K), float32
            n: number of continuations
            masked: see `kernels.rank_continuations`
            ends: see `kernels.rank_continuations`
        """
        rows = self.rows.view_as(scores)
        return kernels.rank_continuations(
            self.hidden, self.weights, self.norm, rows, scores.contiguous(), n, masked, ends
        )


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
