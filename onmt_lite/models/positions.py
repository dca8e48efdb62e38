"""Positions of a Transformer: position embeddings, or relative positions in self-attention.

Shapes: N sequences, H heads, T queries, S keys, D model width, d head width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from onmt_lite.models.base import Constant
from onmt_lite.models.config import TransformerConfig


def make_sinusoids(n: int, d: int, layout: str) -> Tensor:
    """Build the sinusoidal position table of Vaswani et al. 2017, section 3.5.

    Args:
        n: number of positions
        d: number of dimensions
        layout: `interleaved` alternates sines and cosines (OpenNMT-py); `concat` puts all sines
            first (Marian in transformers); `fairseq` does too, with frequencies down to exactly
            1/10000 (as in tensor2tensor)

    Returns:
        The table (n, d), float32.
    """
    # On the CPU, because a model may be built on the device "meta", without memory for weights
    options: dict[str, Any] = dict(dtype=torch.float64, device="cpu")
    fractions = torch.arange(0, d, 2, **options) / d
    if layout == "fairseq":
        fractions = torch.arange(d // 2, **options) / max(1, d // 2 - 1)
    frequencies = torch.exp(fractions * -math.log(10000.0))
    angles = torch.arange(n, **options)[:, None] * frequencies  # (n, d/2)
    halves = [angles.sin(), angles.cos()]
    table = torch.stack(halves, 2).flatten(1) if layout == "interleaved" else torch.cat(halves, 1)
    return table.float()


class Embedding(nn.Module):
    """Token embeddings, optionally with learned or computed position embeddings."""

    position: Tensor | None

    def __init__(self, vocab_size: int, d: int, scaled: bool, table: Tensor | None, offset: int):
        """Initialize the embeddings.

        Args:
            vocab_size: number of tokens
            d: number of dimensions, D
            scaled: multiply token embeddings by sqrt(D)
            table: position embeddings (positions, D), learned if they are a parameter; or None
            offset: row of the first position
        """
        super().__init__()
        self.token = nn.Embedding(vocab_size, d)
        self.scale, self.offset = d**0.5 if scaled else 1.0, offset
        if isinstance(table, nn.Parameter):
            self.position = table
        else:
            self.register_buffer("position", table, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embed tokens.

        Args:
            ids: token ids (N, T), int64
            positions: position of the T tokens of a sentence (N,), int64, in step-by-step decoding
                (default: positions 0 to T-1)

        Returns:
            Embeddings (N, T, D).
        """
        x = self.token(ids) * self.scale
        if self.position is None:
            return x
        if positions is None:
            return x + self.position[self.offset : self.offset + ids.size(1)]
        return x + self.position[self.offset :][positions][:, None]


class RelativePositions(nn.Module):
    """Relative positions of queries and keys in self-attention; this base class has no effect.

    `prepare` computes a value that all layers share.  The other methods apply it to queries and
    keys, scores or context.
    """

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__()

    def prepare(self, queries: Tensor, keys: Any) -> Any:
        """Compute the value that all layers share.

        Args:
            queries: positions of queries (N, T), int64; N or T is 1 if all are equal
            keys: positions of keys (N, S), int64; None if this class does not need them
        """
        return None

    def rotate(self, x: Tensor, prepared: Any) -> Tensor:
        """Rotate queries or keys (N, H, T, d) at the positions of the queries."""
        return x

    def compute_bias(self, q: Tensor, prepared: Any) -> Tensor | None:
        """Return a bias for the scaled scores, broadcast to (N, H, T, S).

        Args:
            q: queries (N, H, T, d)
            prepared: the result of `prepare`
        """
        return None

    def compute_context(self, weights: Tensor, prepared: Any) -> Tensor | None:
        """Return a term to add to the context (N, H, T, d).

        Args:
            weights: attention weights (N, H, T, S)
            prepared: the result of `prepare`
        """
        return None


def compute_distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Return key position minus query position: (N, T) and (N, S) -> (N, T, S), int64."""
    return keys[:, None] - queries[:, :, None]


class ShawPositions(RelativePositions):
    """A learned vector per distance, added to keys and values (Shaw et al. 2018)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.limit = cfg.relative_limit
        shape = 2 * self.limit + 1, cfg.head_dim
        self.weight = nn.Parameter(torch.zeros(shape))
        self.values = nn.Parameter(torch.zeros(shape)) if cfg.relative_values else None

    def prepare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the index of the vector of each pair (N, T, S), int64."""
        return compute_distances(queries, keys).clamp(-self.limit, self.limit) + self.limit

    def compute_bias(self, q: Tensor, prepared: Tensor) -> Tensor:
        """Return the products of queries and key vectors (N, H, T, S)."""
        products = torch.einsum("nhtd,ntsd->nhts", q, self.weight[prepared])  # (N, H, T, S)
        return products * q.size(-1) ** -0.5

    def compute_context(self, weights: Tensor, prepared: Tensor) -> Tensor:
        """Return the weighted sum of value vectors (N, H, T, d)."""
        vectors = (self.weight if self.values is None else self.values)[prepared]  # (N, T, S, d)
        return torch.einsum("nhts,ntsd->nhtd", weights, vectors)


class BucketPositions(RelativePositions):
    """A learned bias per head and bucket of distances (T5; Raffel et al. 2020)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.limit, self.causal = cfg.relative_limit, causal
        self.weight = nn.Parameter(torch.zeros(cfg.relative_buckets, cfg.heads))

    def prepare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bucket of each pair (N, T, S), int64.

        Small distances have their own buckets; larger distances share buckets of logarithmic size.
        """
        steps, n = compute_distances(queries, keys), self.weight.size(0)  # (N, T, S)
        after = torch.zeros_like(steps)
        if self.causal:
            steps = -steps.clamp(max=0)
        else:  # half of the buckets are for keys after the query
            n //= 2
            after, steps = (steps > 0) * n, steps.abs()
        n_exact = n // 2
        ratio = torch.log(steps.clamp(min=1).float() / n_exact) / math.log(self.limit / n_exact)
        shared = n_exact + (ratio * (n - n_exact)).long()
        return after + torch.where(steps < n_exact, steps, shared.clamp(max=n - 1))

    def compute_bias(self, q: Tensor, prepared: Tensor) -> Tensor:
        """Return the bias of each bucket (N, H, T, S)."""
        return self.weight[prepared].permute(0, 3, 1, 2)  # (N, H, T, S)


class RotaryPositions(RelativePositions):
    """Rotary embeddings: pairs of dimensions rotated by position (RoPE; Su et al. 2021)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.dim = cfg.rotary_dim or cfg.head_dim
        self.interleave = cfg.rotary_interleave
        fractions = torch.arange(0, self.dim, 2, device="cpu").float() / self.dim
        self.wavelengths = Constant(cfg.rotary_theta**fractions)

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles (N, 1, T, dim/2), float32 for large angles."""
        angles = queries[:, None, :, None] / self.wavelengths.to(queries.device)
        return angles.cos(), angles.sin()

    def rotate(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries or keys (N, H, T, d)."""
        cos, sin = prepared
        rotary = x[..., : self.dim].float()  # (N, H, T, dim)
        if self.interleave:
            a, b = rotary[..., 0::2], rotary[..., 1::2]
            rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = rotary.chunk(2, -1)
            rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([rotated.to(x.dtype), x[..., self.dim :]], -1)


class AlibiPositions(RelativePositions):
    """ALiBi: distance times a slope per head, subtracted from scores (Press et al. 2022)."""

    def __init__(self, cfg: TransformerConfig, causal: bool = True):
        super().__init__(cfg)
        self.slopes = Constant(
            torch.tensor(compute_alibi_slopes(cfg.heads), device="cpu")[:, None, None]
        )

    def prepare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias of each head and pair (N, H, T, S), float32."""
        steps = compute_distances(queries, keys).abs()
        return -steps[:, None] * self.slopes.to(steps.device)

    def compute_bias(self, q: Tensor, prepared: Tensor) -> Tensor:
        """Return the prepared bias (N, H, T, S)."""
        return prepared


def compute_alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8/H), 2^(-16/H), ... if H is a power of two.

    Otherwise, return the slopes for the next lower power of two, followed by every other slope for
    the next higher power.
    """
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
