"""Transformer layers: sublayers with norms and residual connections.

Shapes: N sequences, B sentences, S source tokens, T target tokens, H heads, D model width.
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
from onmt_lite.models.kernel_cache import KernelCache
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import AnyNorm, CKernel, LayerNorm, Linear, RMSNorm
from onmt_lite.models.positions import RelativePositions


def make_norm(cfg: TransformerConfig) -> AnyNorm:
    """Build the norm that the config specifies."""
    norm_class = {"layer": LayerNorm, "rms": RMSNorm}[cfg.norm]
    return norm_class(cfg.d_model, eps=cfg.norm_eps)


class Dropout(nn.Module):
    """Dropout with one mask for all positions of a sentence.

    This is tensor2tensor's `dropout_broadcast_dims`: as good as a mask per position, and many times
    cheaper to sample on a CPU.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    @property
    def is_active(self) -> bool:
        """True during training with a dropout rate above 0."""
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x (N, T, D)."""
        if not self.is_active:
            return x
        keep = 1 - self.p
        return x * x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(keep).div_(keep)


class FeedForward(nn.Module):
    """Two projections with an activation between them, optionally gated by a third projection."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.up = Linear(cfg.d_model, cfg.d_ff, bias=cfg.ffn_bias)
        self.down = Linear(cfg.d_ff, cfg.d_model, bias=cfg.ffn_bias)
        self.gate = Linear(cfg.d_model, cfg.d_ff, bias=cfg.ffn_bias) if cfg.gated_ffn else None
        self.activation = cfg.activation

    def forward(
        self, x: Tensor, norm: AnyNorm | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Return [residual +] feed-forward([norm](x)).

        Args:
            x: hidden states (..., D)
            norm: applied to x first
            residual: added to the result, with the shape of x

        Returns:
            Hidden states with the shape of x.
        """
        if self.gate is not None:
            x = x if norm is None else norm(x)
            hidden = self.up(x, activation=self.activation) * self.gate(x)  # (..., d_ff)
            return self.down(hidden, residual=residual)
        up, down = self.up.kernel, self.down.kernel
        if isinstance(up, CKernel) and isinstance(down, CKernel) and x.is_cpu:
            if self.activation in kernels.ACTIVATIONS:
                weights = up.weights, down.weights, None if norm is None else norm.kernel_norm
                return kernels.feed_forward(x, *weights, self.activation, residual)
        return self.down(self.up(x, norm, self.activation), residual=residual)


class AverageAttention(nn.Module):
    """Average attention (Zhang et al. 2018): the gated mean of all inputs so far.

    It replaces self-attention.  `average_ffn` applies a separate feed-forward layer to the mean.
    """

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
        """Return [residual +] average attention([norm](x)), always causal.

        Args:
            x: hidden states (N, T, D); with `past`, T is the K hypotheses of a sentence
            inputs: ignored
            past: sums of earlier steps
            layer: index of this layer in `past`
            norm: applied to x first
            residual: added to the result, with the shape of x

        Returns:
            Hidden states with the shape of x.
        """
        x = x if norm is None else norm(x)
        if past is None:
            counts = torch.arange(1, x.size(1) + 1, device=x.device)[:, None]  # (T, 1)
            mean = (x.float().cumsum(1) / counts).to(x.dtype)  # (N, T, D)
        else:
            mean = past.add(layer, x)
        if self.ffn is not None:
            mean = self.ffn(mean, self.ffn_norm, mean)
        gates = self.gates(torch.cat([x, mean], -1)).sigmoid()  # (N, T, 2D)
        input_gate, mean_gate = gates.chunk(2, -1)  # (N, T, D) each
        update = input_gate * x + mean_gate * mean
        return update if residual is None else residual + update


class Sublayer(nn.Module):
    """Residual connection around a sublayer, with a norm before or after it."""

    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.norm = make_norm(cfg)
        self.dropout = Dropout(dropout)
        self.pre_norm = cfg.pre_norm

    def forward(
        self, x: Tensor, layer: Callable[[Tensor, AnyNorm | None, Tensor | None], Tensor]
    ) -> Tensor:
        """Apply norm, sublayer and residual connection.

        Args:
            x: hidden states (N, T, D)
            layer: the sublayer, as a function of x, the norm to apply first and the residual to
                add; a kernel computes all three at once

        Returns:
            Hidden states (N, T, D).
        """
        norm = self.norm if self.pre_norm else None
        if self.dropout.is_active:
            x = x + self.dropout(layer(x, norm, None))
        else:
            x = layer(x, norm, x)
        return x if self.pre_norm else self.norm(x)


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention in a decoder, and feed-forward.

    The sublayers run one after the other, or in parallel (GPT-J).
    """

    def __init__(self, cfg: TransformerConfig, dropout: float, is_decoder: bool):
        """Initialize the layer.

        Args:
            cfg: the config; in a decoder, `TransformerConfig.decoder_config`
            dropout: the dropout rate
            is_decoder: True for causal self-attention and cross-attention
        """
        super().__init__()
        self.self_attn: SelfAttention | AverageAttention
        if is_decoder and cfg.dec_self_attn != "dot":
            self.self_attn = AverageAttention(cfg)
        else:
            self.self_attn = SelfAttention(cfg, causal=is_decoder)
        self.self_attn_residual = Sublayer(cfg, dropout)
        self.is_parallel = cfg.parallel_residual  # if so, this is the only residual connection
        if is_decoder:
            self.cross_attn = CrossAttention(cfg)
        if is_decoder and not self.is_parallel:
            self.cross_attn_residual = Sublayer(cfg, dropout)
        self.ffn = FeedForward(cfg)
        if not self.is_parallel:
            self.ffn_residual = Sublayer(cfg, dropout)

    def forward(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        memory: CrossAttentionInputs | None = None,
        past: KeyValueCache | KernelCache | RunningSums | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer.

        Args:
            x: hidden states (B, T, D); with `past`, T is the K hypotheses of a sentence
            inputs: mask and relative positions of self-attention
            memory: keys and values of the memory bank, in a decoder
            past: cache of earlier steps
            layer: index of this layer in the cache

        Returns:
            Hidden states (B, T, D), and cross-attention weights (B, H, T, S) or None.
        """
        weights: Tensor | None = None

        def attend_self(x: Tensor, norm: AnyNorm | None, residual: Tensor | None) -> Tensor:
            return self.self_attn(x, inputs, past, layer, norm, residual)

        def attend_memory(x: Tensor, norm: AnyNorm | None, residual: Tensor | None) -> Tensor:
            nonlocal weights
            x, weights = self.cross_attn(x, memory, norm, residual)
            return x

        def run_parallel(x: Tensor, norm: AnyNorm | None, residual: Tensor | None) -> Tensor:
            x = x if norm is None else norm(x)
            update = attend_self(x, None, residual)
            if memory is not None:
                update = attend_memory(x, None, update)
            return self.ffn(x, residual=update)

        if self.is_parallel:
            return self.self_attn_residual(x, run_parallel), weights
        x = self.self_attn_residual(x, attend_self)
        if memory is not None:
            x = self.cross_attn_residual(x, attend_memory)
        return self.ffn_residual(x, self.ffn), weights
