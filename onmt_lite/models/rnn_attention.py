"""Attention of a recurrent decoder to the source, and the context gate.

Letters: B sentences, S source tokens, T queries of a sentence (the positions of a target, or the K
hypotheses of a beam), R = B*K rows, D model width.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Score = Literal["dot", "general", "mlp", "none"]
Normaliser = Literal["softmax", "sparsemax"]
Gate = Literal["none", "source", "target", "both"]


class AttentionWeights(nn.Module):
    """Global attention of Luong et al. 2015, section 3.1; `mlp` is that of Bahdanau et al. 2015.

    As in OpenNMT-py, scores are not scaled.
    """

    def __init__(self, d: int, score: Score, normaliser: Normaliser = "softmax"):
        super().__init__()
        self.score, self.normaliser = score, normaliser
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
        weights = sparsemax(scores) if self.normaliser == "sparsemax" else scores.softmax(-1)
        return weights.to(query.dtype)


def sparsemax(scores: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1, over the last dimension: far lower scores become 0."""
    scores = scores - scores.amax(-1, keepdim=True)
    ordered = scores.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    counts = torch.arange(1, scores.size(-1) + 1, device=scores.device)
    n = (counts * ordered > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, n - 1) / n).clamp(min=0)


class GlobalAttention(AttentionWeights):
    """Attention with one more layer over query and context, whose output is the attentional vector.

    It ends in a tanh unless the attention is `mlp` (OpenNMT-py's rule).
    """

    def __init__(self, d: int, score: Score, normaliser: Normaliser = "softmax"):
        super().__init__(d, score, normaliser)
        self.out = nn.Linear(2 * d, d, bias=score == "mlp")

    def forward(
        self, query: Tensor, keys: Tensor, bank: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """-> attentional vectors (B, T, D) and weights (B, T, S)."""
        weights = self.weights(query, keys, mask)
        attended = self.out(torch.cat([weights @ bank, query], -1))
        return (attended if self.score == "mlp" else attended.tanh()), weights


class NoAttention(nn.Module):
    """For decoders that know the source by their first state alone: even weights."""

    def keys(self, bank: Tensor) -> None:
        return None

    def forward(
        self, query: Tensor, keys: Tensor, bank: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `GlobalAttention.forward`; returns the queries themselves."""
        return query, mask.softmax(-1).to(query.dtype).expand(-1, query.size(1), -1)


class ContextGate(nn.Module):
    """Context gate of Tu et al. 2017, "Context Gates for Neural Machine Translation", section 3.2.

    Weighs the target so far (decoder input of width `d_input`, decoder output) against the source
    (the attentional vector).
    """

    def __init__(self, d_input: int, d: int, kind: Gate):
        super().__init__()
        self.kind = kind
        self.gate = nn.Linear(d_input + 2 * d, d)
        self.source = nn.Linear(d, d)
        self.target = nn.Linear(d_input + d, d)

    def forward(self, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
        """Decoder input (R, d_input), its output and attentional vector (R, D) -> (R, D)."""
        z = self.gate(torch.cat([x, output, attended], -1)).sigmoid()  # (R, D)
        source, target = self.source(attended), self.target(torch.cat([x, output], -1))
        if self.kind in ("source", "both"):
            source = z * source
        if self.kind == "target":
            target = z * target
        elif self.kind == "both":
            target = (1 - z) * target
        return (source + target).tanh()
