"""Positions of a Transformer: position vectors, or relations in attention.

Letters: N sequences, H heads, T queries, S keys, D model width, d width of a head.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from onmt_lite.models.base import Constant
from onmt_lite.models.config import TransformerConfig


def make_sinusoids(n: int, d: int, layout: str) -> Tensor:
    """Position table (n, d) of Vaswani et al. 2017, section 3.5.

    `interleaved` alternates sines and cosines (OpenNMT-py), `concat` puts all sines first (Marian
    as read by transformers), `fairseq` does so with frequencies that reach 1/10000 itself (as
    tensor2tensor's).
    """
    # On the CPU even if a model is made on the device "meta", without memory for its weights
    kind: dict[str, Any] = dict(dtype=torch.float64, device="cpu")
    fractions = torch.arange(0, d, 2, **kind) / d
    if layout == "fairseq":
        fractions = torch.arange(d // 2, **kind) / max(1, d // 2 - 1)
    frequencies = torch.exp(fractions * -math.log(10000.0))
    angles = torch.arange(n, **kind)[:, None] * frequencies  # (n, d/2)
    parts = [angles.sin(), angles.cos()]
    table = torch.stack(parts, 2).flatten(1) if layout == "interleaved" else torch.cat(parts, 1)
    return table.float()


class Embedding(nn.Module):
    """Token vectors, plus position vectors if there is a table of them, learned or computed."""

    position: Tensor | None

    def __init__(self, vocab_size: int, d: int, scaled: bool, table: Tensor | None, offset: int):
        """scaled: multiply token vectors by sqrt(D); offset: row of the first position."""
        super().__init__()
        self.token = nn.Embedding(vocab_size, d)
        self.scale, self.offset = d**0.5 if scaled else 1.0, offset
        if isinstance(table, nn.Parameter):
            self.position = table
        else:
            self.register_buffer("position", table, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """ids (N, T) -> (N, T, D).  positions (N,): of all T, step by step; None: 0 to T-1."""
        x = self.token(ids) * self.scale
        if self.position is None:
            return x
        if positions is None:
            return x + self.position[self.offset : self.offset + ids.size(1)]
        return x + self.position[self.offset :][positions][:, None]


class RelativePositions(nn.Module):
    """Positions of queries and keys in self-attention; this class ignores them.

    `prepare` makes what all layers share, which enters attention at one or two of three places.
    """

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__()

    def prepare(self, queries: Tensor, keys: Any) -> Any:
        """Positions of queries (N, T) and keys (N, S); N or T is 1 if all are alike."""
        return None

    def rotate(self, x: Tensor, prepared: Any) -> Tensor:
        """Queries or keys (N, H, T, d) at the positions of the queries, before their product."""
        return x

    def compute_bias(self, q: Tensor, prepared: Any) -> Tensor | None:
        """q (N, H, T, d) -> a term of the scaled scores, broadcast to (N, H, T, S)."""
        return None

    def compute_context(self, weights: Tensor, prepared: Any) -> Tensor | None:
        """weights (N, H, T, S) -> a term of the context (N, H, T, d)."""
        return None


def compute_distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Positions (N, T) and (N, S) -> (N, T, S): the key's minus the query's."""
    return keys[:, None] - queries[:, :, None]


class ShawPositions(RelativePositions):
    """A vector per distance, added to keys and values (Shaw et al. 2018)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.limit = cfg.relative_limit
        shape = 2 * self.limit + 1, cfg.head_dim
        self.weight = nn.Parameter(torch.zeros(shape))
        self.values = nn.Parameter(torch.zeros(shape)) if cfg.relative_values else None

    def prepare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The number of each pair's vector (N, T, S)."""
        return compute_distances(queries, keys).clamp(-self.limit, self.limit) + self.limit

    def compute_bias(self, q: Tensor, prepared: Tensor) -> Tensor:
        products = torch.einsum("nhtd,ntsd->nhts", q, self.weight[prepared])  # (N, H, T, S)
        return products * q.size(-1) ** -0.5

    def compute_context(self, weights: Tensor, prepared: Tensor) -> Tensor:
        vectors = (self.weight if self.values is None else self.values)[prepared]  # (N, T, S, d)
        return torch.einsum("nhts,ntsd->nhtd", weights, vectors)


class BucketPositions(RelativePositions):
    """A number per head and group of distances, added to the scores (Raffel et al. 2020)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.limit, self.causal = cfg.relative_limit, causal
        self.weight = nn.Parameter(torch.zeros(cfg.relative_buckets, cfg.heads))

    def prepare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The group of each pair (N, T, S): one for each near distance, logarithmic beyond."""
        steps, n = compute_distances(queries, keys), self.weight.size(0)  # (N, T, S)
        after = torch.zeros_like(steps)
        if self.causal:
            steps = -steps.clamp(max=0)
        else:  # half of the groups are for keys after the query
            n //= 2
            after, steps = (steps > 0) * n, steps.abs()
        alone = n // 2
        ratio = torch.log(steps.clamp(min=1).float() / alone) / math.log(self.limit / alone)
        grouped = alone + (ratio * (n - alone)).long()
        return after + torch.where(steps < alone, steps, grouped.clamp(max=n - 1))

    def compute_bias(self, q: Tensor, prepared: Tensor) -> Tensor:
        return self.weight[prepared].permute(0, 3, 1, 2)  # (N, H, T, S)


class RotaryPositions(RelativePositions):
    """Pairs of dimensions turned by an angle that grows with the position (Su et al. 2021)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.dim = cfg.rotary_dim or cfg.head_dim
        self.interleave = cfg.rotary_interleave
        fractions = torch.arange(0, self.dim, 2, device="cpu").float() / self.dim
        self.wavelengths = Constant(cfg.rotary_theta**fractions)

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles (N, 1, T, dim/2), in float32: large angles need it."""
        angles = queries[:, None, :, None] / self.wavelengths.to(queries.device)
        return angles.cos(), angles.sin()

    def rotate(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = prepared
        turning = x[..., : self.dim].float()  # (N, H, T, dim)
        if self.interleave:
            a, b = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = turning.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned.to(x.dtype), x[..., self.dim :]], -1)


class AlibiPositions(RelativePositions):
    """The distance times a slope per head, subtracted from the scores (Press et al. 2022)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.slopes = Constant(
            torch.tensor(compute_alibi_slopes(cfg.heads), device="cpu")[:, None, None]
        )

    def prepare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The bias of each pair, by head (N, H, T, S)."""
        steps = compute_distances(queries, keys).abs()
        return -steps[:, None] * self.slopes.to(steps.device)

    def compute_bias(self, q: Tensor, prepared: Tensor) -> Tensor:
        return prepared


def compute_alibi_slopes(heads: int) -> list[float]:
    """2^(-8/H), 2^(-16/H), ... for a power of two; else the slopes of the next lower power, filled
    up with every other slope of the next higher one."""
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]
    lower = 1 << (heads.bit_length() - 1)
    return compute_alibi_slopes(lower) + compute_alibi_slopes(2 * lower)[::2][: heads - lower]


RELATIVE_POSITIONS = {
    "none": RelativePositions,
    "shaw": ShawPositions,
    "buckets": BucketPositions,
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
}
