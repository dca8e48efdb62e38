"""Self-attention, and cross-attention to the memory bank.

Shapes: N sequences, T queries, S keys, H query heads, G key/value heads, d head width, D model
width.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from onmt_lite.models.cache import KeyValueCache
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.kernel_cache import KernelCache
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import AnyNorm, Linear
from onmt_lite.models.positions import RELATIVE_POSITIONS


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention (Vaswani et al. 2017), with grouped queries if G < H.

    Products are computed in the dtype of keys and values, the softmax in float32.  torch's fused
    kernel is not used because its bfloat16 backward pass is several times slower on a CPU.

    Args:
        q: queries (N, H, T, d), floating point
        k: keys (N, G, d, S), floating point; each is shared by H/G adjacent query heads
        v: values (N, G, S, d), dtype as k
        mask: added to the scores, float32, broadcast to (N, H, T, S)

    Returns:
        Context (N, H, T, d) and attention weights (N, H, T, S), both in the dtype of q.
    """
    n, heads, t, d = q.shape
    grouped = q.reshape(n, k.size(1), -1, d).to(k.dtype)  # (N, G, H/G * T, d)
    scores = (grouped @ k).float().view(n, heads, t, -1).mul_(d**-0.5)  # (N, H, T, S)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    low_weights = weights.to(v.dtype)
    context = low_weights.view(n, k.size(1), grouped.size(2), -1) @ v  # (N, G, H/G * T, d)
    weights = low_weights if v.dtype == q.dtype else weights.to(q.dtype)  # avoid a second cast
    return context.view(n, heads, t, d).to(q.dtype), weights


class Packing:
    """Removes and restores the padding of a batch with N tokens.

    Layers compute the N tokens only; attention runs on the padded batch.  12 encoder layers of
    width 192 take 46 ms instead of 68 ms for 64 sentences of 11 tokens, padded to 16 (int8, one
    core of an AMD EPYC).
    """

    def __init__(self, mask: Tensor):
        """Find the tokens in the mask (B, 1, S), float32, of a `Memory`."""
        self.shape = mask.size(0), mask.size(2)
        self.indices = (mask.flatten() == 0).nonzero().flatten()  # (N,)
        self.has_padding = 0 < len(self.indices) < mask.numel()  # False if there is only padding

    def pack(self, x: Tensor) -> Tensor:
        """Remove the padding: (B, S, D) -> (1, N, D)."""
        return x.flatten(0, 1).index_select(0, self.indices)[None]

    def pad(self, x: Tensor) -> Tensor:
        """Restore the padding as zeros: (1, N, D) -> (B, S, D)."""
        b, s = self.shape
        return x.new_zeros(b * s, x.size(2)).index_copy_(0, self.indices, x[0]).view(b, s, -1)


@dataclass(frozen=True)
class SelfAttentionInputs:
    """Inputs of self-attention that all layers share: mask and relative positions."""

    mask: Tensor | None  # float32, added to the scores, broadcast to (N, H, T, S)
    relative: Any = None  # from `RelativePositions.prepare`
    packing: Packing | None = None  # set if the layers receive tokens without padding
    starts: Tensor | None = None  # (B + 1,) int64, for kernels: first row of each sentence


class SelfAttention(nn.Module):
    """Multi-head self-attention with a fused query, key and value projection."""

    def __init__(self, cfg: TransformerConfig, causal: bool = False):
        super().__init__()
        self.heads, self.kv_heads = cfg.heads, cfg.kv_heads or cfg.heads
        n_heads = self.heads + 2 * self.kv_heads
        self.qkv = Linear(cfg.d_model, n_heads * cfg.head_dim, bias=cfg.attn_bias)
        self.out = Linear(cfg.heads * cfg.head_dim, cfg.d_model, bias=cfg.attn_bias)
        self.relation = RELATIVE_POSITIONS[cfg.relative](cfg, causal)

    def forward(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        cache: KeyValueCache | KernelCache | None = None,
        layer: int = 0,
        norm: AnyNorm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return [residual +] self-attention([norm](x)).

        Args:
            x: hidden states (N, T, D), or (1, N, D) if packed; with a cache, T is the K hypotheses
                of a sentence, all at the same position
            inputs: mask and relative positions
            cache: keys and values of earlier steps
            layer: index of this layer in the cache
            norm: applied to x first
            residual: added to the result, with the shape of x

        Returns:
            Hidden states with the shape and dtype of x.
        """
        qkv = self.qkv(x, norm)  # (N, T, (H + 2G) d)
        if inputs.starts is None:
            assert not isinstance(cache, KernelCache)
            context = self._attend(qkv, inputs, cache, layer)
        elif isinstance(cache, KernelCache):
            context = cache.attend(layer, qkv, inputs.starts, self.heads)
        else:
            context = kernels.attend_self(qkv[0], inputs.starts, self.heads, self.kv_heads)[None]
        return self.out(context, residual=residual)

    def _attend(
        self, qkv: Tensor, inputs: SelfAttentionInputs, cache: KeyValueCache | None, layer: int
    ) -> Tensor:
        """Compute attention with torch.

        Args:
            qkv: queries, keys and values (N, T, (H + 2G) d)
            inputs: mask and relative positions
            cache: keys and values of earlier steps
            layer: index of this layer in the cache

        Returns:
            Context (N, T, H d).
        """
        if inputs.packing is not None:
            qkv = inputs.packing.pad(qkv)
        n, t, _ = qkv.shape
        qkv = qkv.view(n, t, self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)  # (N, H or G, T, d)
        q, k = (self.relation.rotate(x, inputs.relative) for x in (q, k))
        if cache is None:
            k = k.transpose(-2, -1)
        else:
            k, v = cache.append(layer, k, v)
        mask, bias = inputs.mask, self.relation.compute_bias(q, inputs.relative)
        if bias is not None:
            mask = bias if mask is None else bias + mask
        context, weights = attend(q, k, v, mask)  # (N, H, T, d), (N, H, T, S)
        relative_context = self.relation.compute_context(weights, inputs.relative)
        if relative_context is not None:
            context = context + relative_context
        context = context.transpose(1, 2).reshape(n, t, -1)  # (N, T, H * d)
        return context if inputs.packing is None else inputs.packing.pack(context)


@dataclass(frozen=True)
class CrossAttentionInputs:
    """The memory bank projected for one layer's cross-attention."""

    keys: Tensor  # (B, G, d, S), floating point
    values: Tensor  # (B, G, S, d), dtype as keys
    mask: Tensor  # (B, 1, 1, S) float32: 0 on tokens, -inf on padding
    needs_weights: bool = True  # False: attention weights are not returned
    # For kernels: (B,) int64 lengths in tokens, and (B + 1,) int64 first row of each sentence
    lengths: Tensor | None = None
    starts: Tensor | None = None


class CrossAttention(nn.Module):
    """Multi-head attention to the memory bank; its keys and values are computed once."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.heads, self.kv_heads = cfg.heads, cfg.kv_heads or cfg.heads
        self.q = Linear(cfg.d_model, cfg.heads * cfg.head_dim, bias=cfg.attn_bias)
        self.kv = Linear(cfg.d_model, 2 * self.kv_heads * cfg.head_dim, bias=cfg.attn_bias)
        self.out = Linear(cfg.heads * cfg.head_dim, cfg.d_model, bias=cfg.attn_bias)

    def project(self, memory_bank: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values.

        Args:
            memory_bank: encoder states (B, S, D)

        Returns:
            Keys (B, G, d, S) and values (B, G, S, d).  Both are contiguous; otherwise each step
            would copy them.
        """
        b, s, _ = memory_bank.shape
        kv = self.kv(memory_bank).view(b, s, 2, self.kv_heads, -1)  # (B, S, 2, G, d)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind()  # (B, G, S, d)
        return k.transpose(-2, -1).contiguous(), v.contiguous()

    def forward(
        self,
        x: Tensor,
        inputs: CrossAttentionInputs,
        norm: AnyNorm | None = None,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute [residual +] cross-attention([norm](x)).

        In step-by-step decoding, T counts the hypotheses of a sentence instead of positions.  They
        attend to the sentence's keys in a single product, so keys are never tiled.

        Args:
            x: hidden states (B, T, D); (1, R, D) if `inputs.starts` is set
            inputs: keys and values of the memory bank
            norm: applied to x first
            residual: added to the result, with the shape of x

        Returns:
            Hidden states with the shape of x, and attention weights (B, H, T, S) or (1, H, R, S),
            or None.
        """
        b, t, _ = x.shape
        q, weights = self.q(x, norm), None  # (B, T, H d)
        keys, values = inputs.keys, inputs.values
        if inputs.lengths is not None and inputs.starts is not None:
            context, weights = kernels.attend_memory(
                q, inputs.starts, keys, values, inputs.lengths, inputs.needs_weights
            )
            if weights is not None:
                weights = weights.view(b, t, self.heads, -1).transpose(1, 2)
        else:
            q = q.view(b, t, self.heads, -1).transpose(1, 2)  # (B, H, T, d)
            context, weights = attend(q, keys, values, inputs.mask)
            context = context.transpose(1, 2).reshape(b, t, -1)
        return self.out(context, residual=residual), weights
