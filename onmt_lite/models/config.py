"""Configuration of a Transformer: one set of switches for all toolkits."""

import math
import typing
from dataclasses import dataclass, replace
from typing import Literal

MAY_BE_ZERO = {
    *("position_offset", "kv_heads", "head_width", "dec_heads", "dec_d_ff", "rotary_dim"),
    *("align_layer", "align_head", "align_heads", "report_layer", "report_heads"),
}
MAX_RELATIVE = 1 << 17  # no file bounds a table that is computed


@dataclass(frozen=True)
class TransformerConfig:
    """All that decides the computation and the names of the weights."""

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
    positions: Literal["interleaved", "concat", "fairseq", "learned", "none"] = "interleaved"
    position_offset: int = 0  # index of the first position (fairseq: 2)
    max_positions: int = 1024
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "gelu_sigmoid"] = "relu"
    attn_bias: bool = True
    ffn_bias: bool = True
    output_bias: bool = True
    scale_embedding: bool = True  # multiply embeddings by sqrt(d_model)
    share_embeddings: bool = True  # source and target use one table
    tie_output: bool = True  # the output layer is the target table
    norm_eps: float = 1e-6
    norm: Literal["layer", "rms"] = "layer"
    gated_ffn: bool = False  # a second projection multiplies the activated one
    parallel_residual: bool = False  # the sublayers of a layer read the same normed input
    kv_heads: int = 0  # heads of keys and values, each shared by several queries; 0: as many
    head_width: int = 0  # dimensions of a head (T5); 0: d_model over heads
    dec_heads: int = 0  # if the decoder differs from the encoder; 0: it does not
    dec_d_ff: int = 0
    dec_self_attn: Literal["dot", "average", "average_ffn"] = "dot"
    relative: Literal["none", "shaw", "buckets", "rotary", "alibi"] = "none"  # see `positions`
    relative_limit: int = 1  # distances beyond it count as it
    relative_values: bool = False  # shaw: values have their own vectors instead of the keys'
    relative_buckets: int = 32
    rotary_theta: float = 10000.0
    rotary_dim: int = 0  # dimensions of a head that are turned; 0: all
    rotary_interleave: bool = False  # pairs are neighbours, else halves
    align_layer: int = 0  # decoder layer whose attention aligns; 0: the last
    align_head: int = 0  # the head of that layer, or the first of several
    align_heads: int = 1  # so many heads are averaged; 0: all from align_head on
    align_late: bool = False  # it aligns the token before the one that is being made
    report_layer: int = 0  # decoder layer for -report_align, from 1; 0: the second to last
    report_heads: int = 0  # number of its heads that are averaged, from the first; 0: all

    def __post_init__(self) -> None:
        """ValueError for what cannot be built, whoever wrote it."""
        hints = typing.get_type_hints(type(self))
        for name, value in vars(self).items():
            choices = typing.get_args(hints[name])
            fits = value in choices if choices else type(value) is hints[name]
            least = 0 if name in MAY_BE_ZERO else 1
            small = type(value) is int and value < least
            if not fits or small or (type(value) is float and not math.isfinite(value)):
                raise ValueError(f"config: {name} cannot be {value!r}")
        if self.share_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ValueError("config: vocabularies of different size cannot share a table")
        dec_heads = self.dec_heads or self.heads
        for heads in (self.heads, dec_heads):
            if self.d_model % 2 or not self.head_width and self.d_model % heads:
                raise ValueError(f"config: d_model {self.d_model} is odd or not divisible by heads")
            if heads % (self.kv_heads or heads):
                raise ValueError(f"config: {heads} heads cannot share {self.kv_heads} kv_heads")
            width = self.head_width or self.d_model // heads
            turned = self.rotary_dim or width
            if self.relative == "rotary" and (turned > width or turned % 2):
                raise ValueError(f"config: rotary_dim cannot be {turned} of {width}")
        last_aligning = self.align_head + max(1, self.align_heads)
        if self.align_layer > self.dec_layers or last_aligning > dec_heads:
            raise ValueError("config: align_layer and align_head name an attention that is missing")
        if self.report_layer > self.dec_layers:
            raise ValueError("config: report_layer names a layer that is missing")
        if max(self.relative_limit, self.relative_buckets) > MAX_RELATIVE:
            raise ValueError("config: relative positions of a size that nothing has")
        if self.relative == "buckets" and not 4 <= self.relative_buckets < 2 * self.relative_limit:
            raise ValueError("config: relative_buckets does not fit relative_limit")

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.head_width or self.d_model // self.heads

    @property
    def decoder_config(self) -> "TransformerConfig":
        """The same with the decoder's own heads and d_ff."""
        return replace(self, heads=self.dec_heads or self.heads, d_ff=self.dec_d_ff or self.d_ff)
