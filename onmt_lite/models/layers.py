"""Layers of a Transformer: sublayers with their norms and residual connections.

Letters: N sequences, B sentences, S source tokens, T target tokens, H heads, D model width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.attention import CrossAttention, SelfAttention, Sight
from onmt_lite.models.cache import KeyValueCache, RunningSums
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.linear import Int8FeedForward, Kernel, Linear, pack
from onmt_lite.models.positions import Relation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
}


def make_norm(cfg: TransformerConfig) -> nn.Module:
    kind = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[cfg.norm]
    return kind(cfg.d_model, eps=cfg.norm_eps)


class Dropout(nn.Module):
    """Dropout with one mask for all positions of a sentence (tensor2tensor's
    `dropout_broadcast_dims`): as good as one for each, and many times cheaper to draw on a CPU."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x (N, T, D) -> the same shape."""
        if not self.training or self.p == 0:
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
        self.activation = ACTIVATIONS[cfg.activation]
        self.kernel: Kernel | None = None  # of both projections

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> the same shape."""
        if self.kernel is not None:
            return self.kernel(x)
        hidden = self.activation(self.up(x))  # (..., d_ff)
        return self.down(hidden if self.gate is None else hidden * self.gate(x))

    def pack(self, kind: str) -> bool:
        """See `onmt_lite.models.linear.pack`."""
        self.kernel = None
        if kind != "int8" or self.gate is not None or self.activation is not F.relu:
            return False
        self.kernel = Int8FeedForward(self.up, self.down)
        pack(self.up, "")
        pack(self.down, "")
        return True


class AverageAttention(nn.Module):
    """The mean of all inputs so far, gated, in place of self-attention (Zhang et al. 2018);
    `average_ffn` sends the mean through its own feed-forward layer first."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.gates = Linear(2 * cfg.d_model, 2 * cfg.d_model)
        self.relation = Relation(cfg)
        self.ffn: FeedForward | None = None
        if cfg.dec_self_attn == "average_ffn":
            plain: dict[str, Any] = dict(activation="relu", ffn_bias=True, gated_ffn=False)
            inner = replace(cfg, d_ff=cfg.d_model, norm="layer", norm_eps=1e-6, **plain)
            self.ffn, self.ffn_norm = FeedForward(inner), make_norm(inner)

    def forward(
        self, x: Tensor, sight: Sight, past: RunningSums | None = None, layer: int = 0
    ) -> Tensor:
        """As `SelfAttention.forward`; always causal, whatever the mask."""
        if past is None:
            counts = torch.arange(1, x.size(1) + 1, device=x.device)[:, None]  # (T, 1)
            mean = (x.float().cumsum(1) / counts).to(x.dtype)  # (N, T, D)
        else:
            mean = past.add(layer, x)
        if self.ffn is not None:
            mean = mean + self.ffn(self.ffn_norm(mean))
        keep, take = self.gates(torch.cat([x, mean], -1)).sigmoid().chunk(2, -1)  # (N, T, D)
        return keep * x + take * mean


class Sublayer(nn.Module):
    """Residual connection around one sublayer, with its norm before or after it."""

    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.norm = make_norm(cfg)
        self.dropout = Dropout(dropout)
        self.pre_norm = cfg.pre_norm

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        x = x + self.dropout(update)
        return x if self.pre_norm else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward: one after the other, or side by side (GPT-J)."""

    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.self_attn, self.self_attn_residual = SelfAttention(cfg), Sublayer(cfg, dropout)
        self.ffn = FeedForward(cfg)
        self.ffn_residual = None if cfg.parallel_residual else Sublayer(cfg, dropout)

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        """x (B, S, D) -> (B, S, D)."""
        around = self.self_attn_residual
        normed = around.before(x)
        update = self.self_attn(normed, sight)
        if self.ffn_residual is None:
            return around.after(x, update + self.ffn(normed))
        x = around.after(x, update)
        around = self.ffn_residual
        return around.after(x, self.ffn(around.before(x)))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory bank and feed-forward; or all three side by side."""

    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.self_attn: SelfAttention | AverageAttention
        if cfg.dec_self_attn == "dot":
            self.self_attn = SelfAttention(cfg, causal=True)
        else:
            self.self_attn = AverageAttention(cfg)
        side_by_side = cfg.parallel_residual
        self.self_attn_residual = Sublayer(cfg, dropout)
        self.cross_attn = CrossAttention(cfg)
        self.cross_attn_residual = None if side_by_side else Sublayer(cfg, dropout)
        self.ffn = FeedForward(cfg)
        self.ffn_residual = None if side_by_side else Sublayer(cfg, dropout)

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        keys_values: tuple[Tensor, Tensor],
        memory_mask: Tensor,
        past: KeyValueCache | RunningSums | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, D) -> (B, T, D), attention (B, H, T, S); with `past`, T is K."""
        around = self.self_attn_residual
        normed = around.before(x)
        update = self.self_attn(normed, sight, past, layer)
        if self.cross_attn_residual is None or self.ffn_residual is None:
            context, attn = self.cross_attn(normed, keys_values, memory_mask)
            return around.after(x, update + context + self.ffn(normed)), attn
        x = around.after(x, update)
        around = self.cross_attn_residual
        context, attn = self.cross_attn(around.before(x), keys_values, memory_mask)
        x = around.after(x, context)
        around = self.ffn_residual
        return around.after(x, self.ffn(around.before(x))), attn
