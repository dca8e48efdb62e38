"""How a recurrent decoder looks at the source: global attention and the context gate.

Letters: B sentences, S source tokens, T queries of one sentence (the positions of a target, or
the K hypotheses of a beam), D model width.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Score = Literal["dot", "general", "mlp"]
Gate = Literal["none", "source", "target", "both"]


class AttentionWeights(nn.Module):
    """Global attention of Luong et al. 2015, section 3.1, `mlp` being that of Bahdanau et al. 2015.

    As in OpenNMT-py, scores are not scaled.
    """

    def __init__(self, d: int, score: Score):
        super().__init__()
        self.score = score
        if score != "dot":
            self.query = nn.Linear(d, d, bias=score == "mlp")
        if score == "mlp":
            self.key = nn.Linear(d, d, bias=False)
            self.energy = nn.Linear(d, 1, bias=False)

    def keys(self, bank: Tensor) -> Tensor:
        """What queries are compared with, made once per sentence: (B, S, D) -> (B, S, D)."""
        return self.key(bank) if self.score == "mlp" else bank

    def weights(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """query (B, T, D), keys (B, S, D), mask (B, 1, S) added to scores -> weights (B, T, S)."""
        if self.score == "mlp":
            both = self.query(query)[:, :, None] + keys[:, None]  # (B, T, S, D)
            scores = self.energy(both.tanh()).squeeze(-1)
        else:
            asked = self.query(query) if self.score == "general" else query
            scores = asked @ keys.transpose(1, 2)
        return (scores.float() + mask).softmax(-1).to(query.dtype)


class GlobalAttention(AttentionWeights):
    """With the attentional vector: query and context through one more layer, which ends in a
    tanh unless the attention is `mlp` (OpenNMT-py's rule)."""

    def __init__(self, d: int, score: Score):
        super().__init__(d, score)
        self.out = nn.Linear(2 * d, d, bias=score == "mlp")

    def forward(
        self, query: Tensor, keys: Tensor, bank: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """-> attentional vectors (B, T, D) and weights (B, T, S)."""
        weights = self.weights(query, keys, mask)
        attended = self.out(torch.cat([weights @ bank, query], -1))
        return (attended if self.score == "mlp" else attended.tanh()), weights


class ContextGate(nn.Module):
    """Context gate of Tu et al. 2017, "Context Gates for Neural Machine Translation", section 3.2.

    Balances what the target so far says (decoder input of width `d_input`, decoder output)
    against what the source says (the attentional vector).
    """

    def __init__(self, d_input: int, d: int, kind: Gate):
        super().__init__()
        self.kind = kind
        self.gate = nn.Linear(d_input + 2 * d, d)
        self.source = nn.Linear(d, d)
        self.target = nn.Linear(d_input + d, d)

    def forward(self, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
        """Decoder input (R, d_input), its output and attentional vector (R, D) -> (R, D)."""
        z = self.gate(torch.cat([x, output, attended], -1)).sigmoid()
        source, target = self.source(attended), self.target(torch.cat([x, output], -1))
        if self.kind in ("source", "both"):
            source = z * source
        if self.kind == "target":
            target = z * target
        elif self.kind == "both":
            target = (1 - z) * target
        return (source + target).tanh()
