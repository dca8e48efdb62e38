"""The Transformer (Vaswani et al. 2017), one module for its common variants.

Letters: B sentences, K beams per sentence, R = B*K rows (row = b*K + k), S source
tokens, T target tokens, D model width, H heads.  Which variant runs is decided by
`TransformerConfig` alone; the names of its fields say what toolkits disagree about.
"""

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.cache import DecoderState, KeyValueCache

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that decides the computation and the names of the weights."""

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 256
    heads: int = 4
    d_ff: int = 1024
    enc_layers: int = 4
    dec_layers: int = 3
    pre_norm: bool = True  # norm before each sublayer (OpenNMT-py) or after it (Marian)
    final_norm: bool = True  # one more norm on top of each stack, needed with pre_norm
    embedding_norm: bool = False  # norm on the embedded input (mBART)
    positions: Literal["interleaved", "concat", "learned"] = "interleaved"
    position_offset: int = 0  # index of the first position (fairseq: 2)
    max_positions: int = 1024
    activation: Literal["relu", "gelu", "silu"] = "relu"
    attn_bias: bool = True
    ffn_bias: bool = True
    output_bias: bool = True
    scale_embedding: bool = True  # multiply embeddings by sqrt(d_model)
    share_embeddings: bool = True  # source and target use one table
    tie_output: bool = True  # the output layer is the target table
    norm_eps: float = 1e-6

    def __post_init__(self):
        """ValueError for what cannot be built, whoever wrote it."""
        hints = typing.get_type_hints(type(self))
        for name, value in vars(self).items():
            choices = typing.get_args(hints[name])
            fits = value in choices if choices else type(value) is hints[name]
            least = 0 if name == "position_offset" else 1
            if not fits or (type(value) is int and value < least):
                raise ValueError(f"config: {name} cannot be {value!r}")
        if self.d_model % self.heads or self.d_model % 2:
            raise ValueError(f"config: d_model {self.d_model} is odd or not divisible by heads")
        if self.share_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ValueError("config: vocabularies of different size cannot share a table")


@dataclass(frozen=True)
class Memory:
    """An encoded batch.

    bank (B, S, D)     encoder states
    mask (B, 1, 1, S)  0 on tokens, -inf on padding; added to attention scores
    """

    bank: Tensor
    mask: Tensor


def sinusoids(n: int, d: int, layout: str) -> Tensor:
    """Position table (n, d) of Vaswani et al. 2017, section 3.5.

    `interleaved` alternates sine and cosine columns (OpenNMT-py), `concat` puts all
    sines before all cosines (Marian as read by transformers).
    """
    angles = torch.arange(n, dtype=torch.float64)[:, None] * torch.exp(
        torch.arange(0, d, 2, dtype=torch.float64) * -(math.log(10000.0) / d)
    )
    parts = [angles.sin(), angles.cos()]
    table = torch.stack(parts, 2).flatten(1) if layout == "interleaved" else torch.cat(parts, 1)
    return table.float()


class Dropout(nn.Module):
    """Dropout with one mask per sentence, the same at all its positions.

    tensor2tensor's `dropout_broadcast_dims`: as good as a mask per position and many
    times cheaper to draw on a CPU.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x (N, T, D) -> the same shape."""
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        return x * x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(keep).div_(keep)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention of queries (..., T, d) to keys and values (..., S, d).

    Returns the context (..., T, d) and the weights (..., T, S).

    `mask` is added to the scores; its -inf entries get weight 0.  The softmax runs in
    float32 whatever the weights' type.  Two plain products, on purpose: on a CPU the
    fused kernel's bfloat16 backward is several times slower.
    """
    scores = (q @ k.transpose(-2, -1)).float() * q.size(-1) ** -0.5
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).to(q.dtype)
    return weights @ v, weights


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; query, key and value in one product."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model, bias=cfg.attn_bias)
        self.out = nn.Linear(cfg.d_model, cfg.d_model, bias=cfg.attn_bias)

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: KeyValueCache | None = None, layer: int = 0
    ) -> Tensor:
        n, t, _ = x.shape
        qkv = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # 3 x (N, H, T, d)
        q, k, v = qkv.unbind()
        if cache is not None:
            k, v = cache.append(layer, k, v)
        context, _ = attend(q, k, v, mask)
        return self.out(context.transpose(1, 2).reshape(n, t, -1))


class CrossAttention(nn.Module):
    """Multi-head attention to the memory bank, whose keys and values are made once."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.heads = cfg.heads
        self.q = nn.Linear(cfg.d_model, cfg.d_model, bias=cfg.attn_bias)
        self.kv = nn.Linear(cfg.d_model, 2 * cfg.d_model, bias=cfg.attn_bias)
        self.out = nn.Linear(cfg.d_model, cfg.d_model, bias=cfg.attn_bias)

    def project(self, memory_bank: Tensor) -> tuple[Tensor, Tensor]:
        """Memory bank (B, S, D) -> keys and values, each (B, H, S, d)."""
        b, s, _ = memory_bank.shape
        k, v = self.kv(memory_bank).view(b, s, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        return k, v

    def forward(
        self, x: Tensor, keys_values: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, D) -> (B, T, D) and the first head's weights (B, T, S).

        In step-by-step decoding T counts the beams of a sentence, not positions: K
        hypotheses ask one sentence's keys in a single product, so keys are never tiled.
        """
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        context, weights = attend(q, *keys_values, mask)
        return self.out(context.transpose(1, 2).reshape(b, t, -1)), weights[:, 0]


class FeedForward(nn.Module):
    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.up = nn.Linear(cfg.d_model, cfg.d_ff, bias=cfg.ffn_bias)
        self.down = nn.Linear(cfg.d_ff, cfg.d_model, bias=cfg.ffn_bias)
        self.activation = ACTIVATIONS[cfg.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Sublayer(nn.Module):
    """The residual connection around one sublayer, with its norm before or after it."""

    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(cfg.d_model, eps=cfg.norm_eps)
        self.dropout = Dropout(dropout)
        self.pre_norm = cfg.pre_norm

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        x = x + self.dropout(update)
        return x if self.pre_norm else self.norm(x)


class EncoderLayer(nn.Module):
    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.self_attn, self.self_attn_residual = SelfAttention(cfg), Sublayer(cfg, dropout)
        self.ffn, self.ffn_residual = FeedForward(cfg), Sublayer(cfg, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        around = self.self_attn_residual
        x = around.after(x, self.self_attn(around.before(x), mask))
        around = self.ffn_residual
        return around.after(x, self.ffn(around.before(x)))


class DecoderLayer(nn.Module):
    def __init__(self, cfg: TransformerConfig, dropout: float):
        super().__init__()
        self.self_attn, self.self_attn_residual = SelfAttention(cfg), Sublayer(cfg, dropout)
        self.cross_attn, self.cross_attn_residual = CrossAttention(cfg), Sublayer(cfg, dropout)
        self.ffn, self.ffn_residual = FeedForward(cfg), Sublayer(cfg, dropout)

    def forward(
        self,
        x: Tensor,
        self_mask: Tensor | None,
        keys_values: tuple[Tensor, Tensor],
        memory_mask: Tensor,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, Tensor]:
        around = self.self_attn_residual
        x = around.after(x, self.self_attn(around.before(x), self_mask, cache, layer))
        around = self.cross_attn_residual
        # (R, 1, D) -> (B, K, D) in step-by-step decoding; no change where T > 1
        asked = around.before(x).reshape(keys_values[0].size(0), -1, x.size(-1))
        context, attn = self.cross_attn(asked, keys_values, memory_mask)
        x = around.after(x, context.view_as(x))
        around = self.ffn_residual
        return around.after(x, self.ffn(around.before(x))), attn


class Embedding(nn.Module):
    """Token vectors plus position vectors."""

    def __init__(self, cfg: TransformerConfig, vocab_size: int, dropout: float):
        super().__init__()
        self.token = nn.Embedding(vocab_size, cfg.d_model)
        self.scale = cfg.d_model**0.5 if cfg.scale_embedding else 1.0
        self.offset = cfg.position_offset
        n_rows = cfg.max_positions + cfg.position_offset
        if cfg.positions == "learned":
            self.position = nn.Parameter(torch.zeros(n_rows, cfg.d_model))
        else:
            table = sinusoids(n_rows, cfg.d_model, cfg.positions)
            self.register_buffer("position", table, persistent=False)
        norm = cfg.embedding_norm
        self.norm = nn.LayerNorm(cfg.d_model, eps=cfg.norm_eps) if norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids (N, T) at positions start, start+1, ... -> (N, T, D)."""
        first = start + self.offset
        x = self.token(ids) * self.scale + self.position[first : first + ids.size(1)]
        return self.dropout(self.norm(x))


class Transformer(nn.Module):
    """Encoder, decoder and output layer: an `onmt_lite.models.base.EncoderDecoder`."""

    def __init__(self, cfg: TransformerConfig, dropout: float = 0.0):
        super().__init__()
        self.cfg = cfg
        self.max_positions = cfg.max_positions
        self.vocab_size = cfg.tgt_vocab_size
        self.src_embedding = Embedding(cfg, cfg.src_vocab_size, dropout)
        self.tgt_embedding = Embedding(cfg, cfg.tgt_vocab_size, dropout)
        if cfg.share_embeddings:
            self.src_embedding.token = self.tgt_embedding.token
        self.encoder = nn.ModuleList(EncoderLayer(cfg, dropout) for _ in range(cfg.enc_layers))
        self.decoder = nn.ModuleList(DecoderLayer(cfg, dropout) for _ in range(cfg.dec_layers))
        norm = cfg.final_norm
        self.enc_norm = nn.LayerNorm(cfg.d_model, eps=cfg.norm_eps) if norm else nn.Identity()
        self.dec_norm = nn.LayerNorm(cfg.d_model, eps=cfg.norm_eps) if norm else nn.Identity()
        self.output = nn.Linear(cfg.d_model, cfg.tgt_vocab_size, bias=cfg.output_bias)
        if cfg.tie_output:
            self.output.weight = self.tgt_embedding.token.weight

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def encode(self, src: Tensor, src_lengths: Tensor) -> Memory:
        """src (B, S) padded ids, src_lengths (B,) -> the memory that decoding reads."""
        inside = torch.arange(src.size(1), device=src.device) < src_lengths[:, None]
        x = self.src_embedding(src)
        mask = torch.zeros(inside.shape, device=src.device).masked_fill_(~inside, -math.inf)
        mask = mask[:, None, None]  # (B, 1, 1, S): the same for every head and query
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory(self.enc_norm(x), mask)

    def init_state(self, memory: Memory) -> DecoderState:
        """One row per sentence, nothing decoded yet; `select` tiles it to K rows."""
        return DecoderState(
            KeyValueCache(n_layers=len(self.decoder), n_rows=memory.bank.size(0)),
            [cast(DecoderLayer, layer).cross_attn.project(memory.bank) for layer in self.decoder],
            memory.mask,
        )

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> next-token logits (R, V), attention (R, S).

        Appends to `state`'s cache in place.
        """
        hidden, attn = self.step_hidden(tokens, state)
        return self.output(hidden), attn

    def forward(self, memory: Memory, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> logits of what follows each (B, T, V)."""
        hidden, _ = self.forward_hidden(memory, tgt)
        return self.output(hidden)

    def step_hidden(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """As `step`: what the output layer reads (R, D), attention (R, S)."""
        x = self.tgt_embedding(tokens[:, None], start=state.cache.length)
        for i, layer in enumerate(self.decoder):
            x, attn = layer(x, None, state.cross[i], state.memory_mask, state.cache, i)
        state.cache.length += 1
        return self.dec_norm(x[:, 0]), attn.flatten(0, 1)

    def forward_hidden(self, memory: Memory, tgt: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`: what the output layer reads (B, T, D), attention (B, T, S)."""
        t = tgt.size(1)
        causal = torch.full((t, t), -math.inf, device=tgt.device).triu(1)
        x = self.tgt_embedding(tgt)
        for layer in self.decoder:
            keys_values = cast(DecoderLayer, layer).cross_attn.project(memory.bank)
            x, attn = layer(x, causal, keys_values, memory.mask)
        return self.dec_norm(x), attn
