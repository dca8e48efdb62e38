"""Layers of a Transformer: sublayers with their norms and residual connections.

Letters: N sequences, B sentences, S source tokens, T target tokens, H heads, D model width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from onmt_lite.models.attention import (
    CrossAttention,
    CrossAttentionInputs,
    SelfAttention,
    SelfAttentionInputs,
)
from onmt_lite.models.cache import KeyValueCache, RunningSums
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import AnyNorm, CKernel, LayerNorm, Linear, RMSNorm
from onmt_lite.models.positions import RelativePositions


def make_norm(cfg: TransformerConfig) -> AnyNorm:
    kind = {"layer": LayerNorm, "rms": RMSNorm}[cfg.norm]
    return kind(cfg.d_model, eps=cfg.norm_eps)


class Dropout(nn.Module):
    """Dropout with one mask for all positions of a sentence (tensor2tensor's
    `dropout_broadcast_dims`): as good as one for each, and many times cheaper to draw on a CPU."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    @property
    def draws(self) -> bool:
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """x (N, T, D) -> the same shape."""
        if not self.draws:
            return x
        keep = 1 - self.p
        return x * x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(keep).div_(keep)


class FeedForward(nn.Module):
    """Two projections with an activation between; gated, a third one multiplies its output."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.up = Linear(cfg.d_model, cfg.d_ff, bias=cfg.ffn_bias)
        self.down = Linear(cfg.d_ff, cfg.d_model, bias=cfg.ffn_bias)
        self.gate = Linear(cfg.d_model, cfg.d_ff, bias=cfg.ffn_bias) if cfg.gated_ffn else None
        self.activation = cfg.activation

    def forward(
        self, x: Tensor, norm: AnyNorm | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """[residual +] the layers of [norm](x), x (..., D) -> the same shape."""
        if self.gate is not None:
            x = x if norm is None else norm(x)
            hidden = self.up(x, activation=self.activation) * self.gate(x)  # (..., d_ff)
            return self.down(hidden, residual=residual)
        up, down = self.up.kernel, self.down.kernel
        if isinstance(up, CKernel) and isinstance(down, CKernel) and x.is_cpu:
            if self.activation in kernels.ACTIVATIONS:
                given = up.weights, down.weights, None if norm is None else norm.kernel_norm
                return kernels.feed_forward(x, *given, self.activation, residual)
        return self.down(self.up(x, norm, self.activation), residual=residual)


class AverageAttention(nn.Module):
    """The mean of all inputs so far, gated, in place of self-attention (Zhang et al. 2018);
    `average_ffn` sends the mean through its own feed-forward layer first."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.gates = Linear(2 * cfg.d_model, 2 * cfg.d_model)
        self.relation = RelativePositions(cfg)
        self.ffn: FeedForward | None = None
        if cfg.dec_self_attn == "average_ffn":
            plain: dict[str, Any] = dict(activation="relu", ffn_bias=True, gated_ffn=False)
            inner = replace(cfg, d_ff=cfg.d_model, norm="layer", norm_eps=1e-6, **plain)
            self.ffn, self.ffn_norm = FeedForward(inner), make_norm(inner)

    def forward(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        past: RunningSums | None = None,
        layer: int = 0,
        norm: AnyNorm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """As `SelfAttention.forward`; always causal, whatever the mask."""
        x = x if norm is None else norm(x)
        if past is None:
            counts = torch.arange(1, x.size(1) + 1, device=x.device)[:, None]  # (T, 1)
            mean = (x.float().cumsum(1) / counts).to(x.dtype)  # (N, T, D)
        else:
            mean = past.add(layer, x)
        if self.ffn is not None:
            mean = self.ffn(mean, self.ffn_norm, mean)
        keep, take = self.gates(torch.cat([x, mean], -1)).sigmoid().chunk(2, -1)  # (N, T, D)
        update = keep * x + take * mean
        return update if residual is None else residual + update


class Sublayer(nn.Module):
    """Residual connection around one sublayer, with its norm before or after it."""

    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.norm = make_norm(cfg)
        self.dropout = Dropout(dropout)
        self.pre_norm = cfg.pre_norm

    def forward(
        self, x: Tensor, layer: Callable[[Tensor, AnyNorm | None, Tensor | None], Tensor]
    ) -> Tensor:
        """x (N, T, D) -> the same shape.

        layer  of x, the norm that comes before it and the residual that is added after it, if
               there are any: a kernel does all three at once
        """
        norm = self.norm if self.pre_norm else None
        if self.dropout.draws:
            x = x + self.dropout(layer(x, norm, None))
        else:
            x = layer(x, norm, x)
        return x if self.pre_norm else self.norm(x)


class TransformerLayer(nn.Module):
    """Self-attention, a decoder's attention to the memory bank, and feed-forward: one after the
    other, or all side by side (GPT-J)."""

    def __init__(self, cfg: TransformerConfig, dropout: float, is_decoder: bool):
        super().__init__()
        self.self_attn: SelfAttention | AverageAttention
        if is_decoder and cfg.dec_self_attn != "dot":
            self.self_attn = AverageAttention(cfg)
        else:
            self.self_attn = SelfAttention(cfg, causal=is_decoder)
        self.self_attn_residual = Sublayer(cfg, dropout)
        self.side_by_side = cfg.parallel_residual  # then this residual is the only one
        if is_decoder:
            self.cross_attn = CrossAttention(cfg)
        if is_decoder and not self.side_by_side:
            self.cross_attn_residual = Sublayer(cfg, dropout)
        self.ffn = FeedForward(cfg)
        if not self.side_by_side:
            self.ffn_residual = Sublayer(cfg, dropout)

    def forward(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        bank: CrossAttentionInputs | None = None,
        past: KeyValueCache | RunningSums | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D) -> (B, T, D), attention (B, H, T, S) if it is wanted; with `past`, T is K."""
        found: Tensor | None = None

        def look(x: Tensor, norm: AnyNorm | None, residual: Tensor | None) -> Tensor:
            return self.self_attn(x, inputs, past, layer, norm, residual)

        def read(x: Tensor, norm: AnyNorm | None, residual: Tensor | None) -> Tensor:
            nonlocal found
            x, found = self.cross_attn(x, bank, norm, residual)
            return x

        def all_at_once(x: Tensor, norm: AnyNorm | None, residual: Tensor | None) -> Tensor:
            x = x if norm is None else norm(x)
            update = look(x, None, residual)
            return self.ffn(x, residual=update if bank is None else read(x, None, update))

        if self.side_by_side:
            return self.self_attn_residual(x, all_at_once), found
        x = self.self_attn_residual(x, look)
        if bank is not None:
            x = self.cross_attn_residual(x, read)
        return self.ffn_residual(x, self.ffn), found
