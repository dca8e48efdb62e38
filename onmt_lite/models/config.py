"""Transformer configuration, with switches for the variants of all supported toolkits."""

import math
import typing
from dataclasses import dataclass, replace
from typing import Literal

MAY_BE_ZERO = {
    *("position_offset", "kv_heads", "head_width", "dec_heads", "dec_d_ff", "rotary_dim"),
    *("align_layer", "align_head", "align_heads", "report_layer", "report_heads"),
}
MAX_RELATIVE = 1 << 17  # limits tables that are computed, not read from a file


@dataclass(frozen=True)
class TransformerConfig:
    """Hyperparameters and switches that determine the computation and the weight names."""

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 256
    heads: int = 4
    d_ff: int = 1024
    enc_layers: int = 4
    dec_layers: int = 3
    pre_norm: bool = True  # norm before each sublayer (OpenNMT-py) or after it (Marian)
    final_norm: bool = True  # one more norm on top of each stack, needed with pre_norm
    embedding_norm: bool = False  # norm after the embeddings (mBART)
    positions: Literal["interleaved", "concat", "fairseq", "learned", "none"] = "interleaved"
    position_offset: int = 0  # row of the first position (fairseq: 2)
    max_positions: int = 1024
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "gelu_sigmoid"] = "relu"
    attn_bias: bool = True
    ffn_bias: bool = True
    output_bias: bool = True
    scale_embedding: bool = True  # multiply embeddings by sqrt(d_model)
    share_embeddings: bool = True  # source and target share one table
    tie_output: bool = True  # the output layer uses the target embeddings
    norm_eps: float = 1e-6
    norm: Literal["layer", "rms"] = "layer"
    gated_ffn: bool = False  # a second projection multiplies the activated one
    parallel_residual: bool = False  # all sublayers of a layer read the same normalized input
    kv_heads: int = 0  # key/value heads, each shared by several query heads; 0: as many as heads
    head_width: int = 0  # dimensions of a head (T5); 0: d_model / heads
    dec_heads: int = 0  # of the decoder; 0: as in the encoder
    dec_d_ff: int = 0
    dec_self_attn: Literal["dot", "average", "average_ffn"] = "dot"
    relative: Literal["none", "shaw", "buckets", "rotary", "alibi"] = "none"  # see `positions`
    relative_limit: int = 1  # larger distances are clipped to it
    relative_values: bool = False  # shaw: separate vectors for values
    relative_buckets: int = 32
    rotary_theta: float = 10000.0
    rotary_dim: int = 0  # dimensions of a head that are rotated; 0: all
    rotary_interleave: bool = False  # pair adjacent dimensions instead of halves
    align_layer: int = 0  # decoder layer used for alignment, from 1; 0: the last
    align_head: int = 0  # head of this layer, or the first of several
    align_heads: int = 1  # number of heads to average; 0: all from align_head on
    align_late: bool = False  # attention aligns the previous token, not the predicted token
    report_layer: int = 0  # decoder layer for -report_align, from 1; 0: the second to last
    report_heads: int = 0  # number of heads to average, from the first; 0: all

    def __post_init__(self) -> None:
        """Raise ValueError if the config is invalid."""
        hints = typing.get_type_hints(type(self))
        for name, value in vars(self).items():
            choices = typing.get_args(hints[name])
            is_valid = value in choices if choices else type(value) is hints[name]
            minimum = 0 if name in MAY_BE_ZERO else 1
            is_small = type(value) is int and value < minimum
            if not is_valid or is_small or (type(value) is float and not math.isfinite(value)):
                raise ValueError(f"config: {name} cannot be {value!r}")
        if self.share_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ValueError("config: vocabularies of different sizes cannot share embeddings")
        dec_heads = self.dec_heads or self.heads
        for heads in (self.heads, dec_heads):
            if self.d_model % 2 or not self.head_width and self.d_model % heads:
                raise ValueError(f"config: d_model {self.d_model} is odd or not divisible by heads")
            if heads % (self.kv_heads or heads):
                raise ValueError(f"config: {heads} heads cannot share {self.kv_heads} kv_heads")
            width = self.head_width or self.d_model // heads
            rotated = self.rotary_dim or width
            if self.relative == "rotary" and (rotated > width or rotated % 2):
                raise ValueError(f"config: rotary_dim cannot be {rotated} for heads of {width}")
        last_head = self.align_head + max(1, self.align_heads)
        if self.align_layer > self.dec_layers or last_head > dec_heads:
            raise ValueError("config: the head of align_layer and align_head does not exist")
        if self.report_layer > self.dec_layers:
            raise ValueError("config: report_layer does not exist")
        if max(self.relative_limit, self.relative_buckets) > MAX_RELATIVE:
            raise ValueError(f"config: relative positions must not exceed {MAX_RELATIVE}")
        if self.relative == "buckets" and not 4 <= self.relative_buckets < 2 * self.relative_limit:
            raise ValueError("config: relative_buckets must be from 4 to below 2 * relative_limit")

    @property
    def head_dim(self) -> int:
        """Dimensions per head."""
        return self.head_width or self.d_model // self.heads

    @property
    def decoder_config(self) -> "TransformerConfig":
        """The config with heads and d_ff of the decoder."""
        return replace(self, heads=self.dec_heads or self.heads, d_ff=self.dec_d_ff or self.d_ff)
