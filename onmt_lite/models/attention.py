"""Attention: to the sequence itself and to the memory bank.

N sequences, T queries, S keys, H heads of the width d, G heads of keys and values, D model width.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from onmt_lite.models.cache import KeyValueCache
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import AnyNorm, Linear
from onmt_lite.models.positions import RELATIVE_POSITIONS


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention of queries (N, H, T, d) to keys (N, G, d, S) and values
    (N, G, S, d): the context (N, H, T, d) and the weights (N, H, T, S), in the queries' type.

    Each of the G serves H/G neighbouring heads.  `mask` is added to the scores.  Products are
    computed in the type of keys and values, the softmax in float32.  Not torch's fused kernel:
    on a CPU its bfloat16 backward pass is several times slower.
    """
    n, heads, t, d = q.shape
    grouped = q.reshape(n, k.size(1), -1, d).to(k.dtype)  # (N, G, H/G * T, d)
    scores = (grouped @ k).float().view(n, heads, t, -1).mul_(d**-0.5)  # (N, H, T, S)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    used = weights.to(v.dtype)
    context = used.view(n, k.size(1), grouped.size(2), -1) @ v  # (N, G, H/G * T, d)
    returned = used if v.dtype == q.dtype else weights.to(q.dtype)  # one conversion on a GPU
    return context.view(n, heads, t, d).to(q.dtype), returned


class Packing:
    """Places of the N tokens in a padded batch: layers compute these, only attention sees padding.

    12 encoder layers of 192, 64 sentences of 11 tokens padded to 16, int8 on one core of an AMD
    EPYC: 46 ms, with padding 68.
    """

    def __init__(self, mask: Tensor):
        """mask (B, 1, S): of a `Memory`."""
        self.shape = mask.size(0), mask.size(2)
        self.places = (mask.flatten() == 0).nonzero().flatten()  # (N,)
        self.has_padding = 0 < len(self.places) < mask.numel()  # there is padding, and a token

    def pack(self, x: Tensor) -> Tensor:
        """x (B, S, D) -> (1, N, D)."""
        return x.flatten(0, 1).index_select(0, self.places)[None]

    def pad(self, x: Tensor) -> Tensor:
        """x (1, N, D) -> (B, S, D), zeros on padding."""
        b, s = self.shape
        return x.new_zeros(b * s, x.size(2)).index_copy_(0, self.places, x[0]).view(b, s, -1)


@dataclass(frozen=True)
class SelfAttentionInputs:
    """Which keys queries see, and at which distance; the same in all layers."""

    mask: Tensor | None  # added to the scores, broadcast to (N, H, T, S); None: all are seen
    relative: Any = None  # made by `RelativePositions.prepare` of their positions
    packing: Packing | None = None  # set if layers are given tokens without padding
    # For kernels: where each sentence of these tokens begins, and the end (B + 1,)
    starts: Tensor | None = None
    past: tuple[Tensor, Tensor] | None = None  # of each row in the cache, see `kernels.find_past`


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; query, key and value in one product."""

    def __init__(self, cfg: TransformerConfig, causal: bool = False):
        super().__init__()
        self.heads, self.kv_heads = cfg.heads, cfg.kv_heads or cfg.heads
        n_parts = self.heads + 2 * self.kv_heads
        self.qkv = Linear(cfg.d_model, n_parts * cfg.head_dim, bias=cfg.attn_bias)
        self.out = Linear(cfg.heads * cfg.head_dim, cfg.d_model, bias=cfg.attn_bias)
        self.relation = RELATIVE_POSITIONS[cfg.relative](cfg, causal)

    def forward(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        cache: KeyValueCache | None = None,
        layer: int = 0,
        norm: AnyNorm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """[residual +] attention of [norm](x): (N, T, D) -> (N, T, D), or both (1, N, D) if packed.

        With a cache T counts the K hypotheses of a sentence, all at the same position.
        """
        parts = self.qkv(x, norm)  # (N, T, (H + 2G) d)
        if inputs.starts is not None:
            context = kernels.attend_self(parts[0], inputs.starts, self.heads, self.kv_heads)[None]
        elif inputs.past is not None and cache is not None:
            context = cache.attend_cached(layer, parts, inputs.past, self.heads)
        else:
            context = self._attend(parts, inputs, cache, layer)
        return self.out(context, residual=residual)

    def _attend(
        self, parts: Tensor, inputs: SelfAttentionInputs, cache: KeyValueCache | None, layer: int
    ) -> Tensor:
        """Queries, keys and values (N, T, (H + 2G) d) -> context (N, T, H d)."""
        if inputs.packing is not None:
            parts = inputs.packing.pad(parts)
        n, t, _ = parts.shape
        parts = parts.view(n, t, self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.kv_heads, self.kv_heads], 1)  # (N, H or G, T, d)
        q, k = (self.relation.rotate(part, inputs.relative) for part in (q, k))
        if cache is None:
            k = k.transpose(-2, -1)
        else:
            k, v = cache.append(layer, k, v)
        mask, bias = inputs.mask, self.relation.compute_bias(q, inputs.relative)
        if bias is not None:
            mask = bias if mask is None else bias + mask
        context, weights = attend(q, k, v, mask)  # (N, H, T, d), (N, H, T, S)
        more = self.relation.compute_context(weights, inputs.relative)
        context = context if more is None else context + more
        context = context.transpose(1, 2).reshape(n, t, -1)  # (N, T, H * d)
        return context if inputs.packing is None else inputs.packing.pack(context)


@dataclass(frozen=True)
class CrossAttentionInputs:
    """The memory bank as one layer attends to it.

    keys (B, G, d, S), values (B, G, S, d)
    mask (B, 1, 1, S)  0 on tokens, -inf on padding
    lengths (B,)       in tokens, if kernels are to be used
    needs_weights          whether somebody reads the weights
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    lengths: Tensor | None = None
    needs_weights: bool = True


class CrossAttention(nn.Module):
    """Multi-head attention to the memory bank, whose keys and values are made once."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.heads, self.kv_heads = cfg.heads, cfg.kv_heads or cfg.heads
        self.q = Linear(cfg.d_model, cfg.heads * cfg.head_dim, bias=cfg.attn_bias)
        self.kv = Linear(cfg.d_model, 2 * self.kv_heads * cfg.head_dim, bias=cfg.attn_bias)
        self.out = Linear(cfg.heads * cfg.head_dim, cfg.d_model, bias=cfg.attn_bias)

    def project(self, memory_bank: Tensor) -> tuple[Tensor, Tensor]:
        """Memory bank (B, S, D) -> keys (B, G, d, S) and values (B, G, S, d), both contiguous, or
        each product of each step would copy them first."""
        b, s, _ = memory_bank.shape
        both = self.kv(memory_bank).view(b, s, 2, self.kv_heads, -1)  # (B, S, 2, G, d)
        k, v = both.permute(2, 0, 3, 1, 4).unbind()  # (B, G, S, d)
        return k.transpose(-2, -1).contiguous(), v.contiguous()

    def forward(
        self,
        x: Tensor,
        bank: CrossAttentionInputs,
        norm: AnyNorm | None = None,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """[residual +] attention of [norm](x): (B, T, D) -> (B, T, D), and the heads' weights
        (B, H, T, S) if they are wanted.

        In step-by-step decoding T counts the hypotheses of a sentence, not positions: they attend
        to its keys in a single product, so keys are never tiled.
        """
        b, t, _ = x.shape
        q, weights = self.q(x, norm), None  # (B, T, H d)
        if bank.lengths is not None:
            pair = bank.keys, bank.values
            context, weights = kernels.attend_memory(q, *pair, bank.lengths, bank.needs_weights)
        else:
            q = q.view(b, t, self.heads, -1).transpose(1, 2)  # (B, H, T, d)
            context, weights = attend(q, bank.keys, bank.values, bank.mask)
            context = context.transpose(1, 2).reshape(b, t, -1)
        return self.out(context, residual=residual), weights
