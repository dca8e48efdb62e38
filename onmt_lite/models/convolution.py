"""The convolutional encoder-decoder (Gehring et al. 2017), as in fairseq and OpenNMT-py.

Shapes: B sentences of K hypotheses, R = B * K rows, S source tokens, T target tokens, E embedding
width, D layer width, A attention width.  For inference only: dropout is not implemented.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import Selection
from onmt_lite.models.memory import Memory, make_padding_mask
from onmt_lite.models.output import OutputLayer
from onmt_lite.models.positions import Embedding
from onmt_lite.models.seq2seq import DecoderState, Seq2SeqModel

SQRT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two values
NO_LIMIT = 100_000  # maximum length without position embeddings


@dataclass(frozen=True)
class ConvLayer:
    """Configuration of a convolutional layer."""

    d: int  # width of the output
    kernel: int  # width of the kernel, in tokens
    has_attention: bool = False  # True if attention follows (decoder)


@dataclass(frozen=True)
class ConvolutionConfig:
    """Hyperparameters and switches that determine the computation and the weight names.

    bottleneck  True (fairseq): attention has the width of the embeddings, with projections before
                and after it; its context is scaled by the square root of the source length; a layer
                of width d_out precedes the output layer.  False (OpenNMT-py): attention has the
                width of the layers.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_src_embedding: int
    d_tgt_embedding: int
    encoder: tuple[ConvLayer, ...]
    decoder: tuple[ConvLayer, ...]
    bottleneck: bool = True
    d_out: int = 0
    src_positions: int = 0  # rows of the position table; 0: no position embeddings
    tgt_positions: int = 0
    position_offset: int = 0  # row of the first position (fairseq: 2)
    scale_embedding: bool = False  # multiply embeddings by sqrt(E)

    @property
    def enc_layers(self) -> int:
        """Number of encoder layers."""
        return len(self.encoder)

    @property
    def dec_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.decoder)

    @property
    def d_model(self) -> int:
        """Width of the widest decoder layer."""
        return max(layer.d for layer in self.decoder)

    def __post_init__(self) -> None:
        """Raise ValueError if the config is invalid."""
        if not self.encoder or not any(layer.has_attention for layer in self.decoder):
            raise ValueError("config: the encoder needs a layer, and the decoder needs attention")
        if not self.bottleneck and {layer.d for layer in self.decoder} != {self.encoder[-1].d}:
            raise ValueError("config: without a bottleneck all layers must have the same width")


@dataclass
class ConvolutionMemory(Memory):
    """An encoded batch; the bank is the attention keys."""

    values: Tensor  # (B, S, A): attention values
    scale: Tensor  # (B, 1, 1): factor of the context


class ConvolutionState(DecoderState[ConvolutionMemory]):
    """Decoder state: the last inputs of each layer."""

    def __init__(self, memory: ConvolutionMemory, buffers: list[Tensor]):
        """Initialize the state.

        Args:
            memory: the encoded batch
            buffers: last inputs of each layer (R, kernel - 1, D), 0 before the start
        """
        super().__init__(memory)
        self.buffers = buffers

    def select_rows(self, selection: Selection, fresh: "ConvolutionState | None") -> None:
        """Apply a selection to the buffers."""
        fresh_buffers = fresh.buffers if fresh else [None] * len(self.buffers)
        self.buffers = [selection.gather_rows(*pair) for pair in zip(self.buffers, fresh_buffers)]


class GatedConvolution(nn.Module):
    """Convolution over positions with gated linear units (Dauphin et al. 2017)."""

    def __init__(self, d_in: int, layer: ConvLayer):
        super().__init__()
        self.kernel = layer.kernel
        self.weight = nn.Parameter(torch.zeros(2 * layer.d, layer.kernel, d_in))
        self.bias = nn.Parameter(torch.zeros(2 * layer.d))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (N, T + kernel - 1, d_in), already padded, to (N, T, D)."""
        if x.size(1) == self.kernel:  # one position: a linear layer, as in fairseq
            out = F.linear(x.flatten(1), self.weight.flatten(1), self.bias)[:, None]  # (N, 1, 2D)
        else:
            weight = self.weight.transpose(1, 2)  # (2D, d_in, kernel)
            out = F.conv1d(x.transpose(1, 2), weight, self.bias).transpose(1, 2)  # (N, T, 2D)
        return F.glu(out, -1)


class MultiStepAttention(nn.Module):
    """Attention of a decoder layer (Gehring et al. 2017, section 3.3)."""

    def __init__(self, d: int, d_attention: int, cfg: ConvolutionConfig):
        """Initialize the attention.

        Args:
            d: width of the layer
            d_attention: width of the attention, A
            cfg: the model config
        """
        super().__init__()
        self.in_proj = nn.Linear(d, d_attention)
        self.out_proj = nn.Linear(d_attention, d) if cfg.bottleneck else nn.Identity()

    def forward(
        self, x: Tensor, target: Tensor, memory: ConvolutionMemory
    ) -> tuple[Tensor, Tensor]:
        """Attend to the memory.

        Args:
            x: output of the layer (B, T, D)
            target: embedded target tokens (B, T, A)
            memory: the encoded batch

        Returns:
            x with the context added (B, T, D), and weights (B, T, S).
        """
        query = (self.in_proj(x) + target) * SQRT_HALF  # (B, T, A)
        scores = query @ memory.bank.transpose(1, 2)  # (B, T, S)
        weights = (scores.float() + memory.mask).softmax(-1).to(x.dtype)
        context = weights @ memory.values * memory.scale  # (B, T, A)
        return (self.out_proj(context) + x) * SQRT_HALF, weights


class Stack(nn.Module):
    """Embeddings and gated convolutions of the encoder or the decoder."""

    def __init__(
        self, cfg: ConvolutionConfig, layers: Sequence[ConvLayer], vocab_size: int, e: int, n: int
    ):
        """Initialize the stack.

        Args:
            cfg: the model config
            layers: configuration of the layers
            vocab_size: number of tokens
            e: embedding width, E
            n: rows of the position table, or 0
        """
        super().__init__()
        self.bottleneck = cfg.bottleneck
        table = nn.Parameter(torch.zeros(n, e)) if n else None
        self.embedding = Embedding(vocab_size, e, cfg.scale_embedding, table, cfg.position_offset)
        self.in_proj = nn.Linear(e, layers[0].d)
        self.widths = [layers[0].d, *(layer.d for layer in layers)]
        self.convolutions = nn.ModuleList(map(GatedConvolution, self.widths, layers))
        self.residuals = nn.ModuleList(
            nn.Identity() if d_in == d else nn.Linear(d_in, d) for d_in, d in pairwise(self.widths)
        )


class Encoder(Stack):
    """Convolutional encoder."""

    def __init__(self, cfg: ConvolutionConfig):
        e = cfg.d_src_embedding
        super().__init__(cfg, cfg.encoder, cfg.src_vocab_size, e, cfg.src_positions)
        self.out_proj = nn.Linear(self.widths[-1], e) if cfg.bottleneck else nn.Identity()

    def forward(self, src: Tensor, src_lengths: Tensor) -> ConvolutionMemory:
        """Encode source ids (B, S) with lengths (B,), both int64."""
        mask = make_padding_mask(src_lengths, src.size(1))
        is_token = mask.transpose(1, 2) == 0  # (B, S, 1)
        embedded = self.embedding(src)
        first = x = self.in_proj(embedded)
        for conv, residual in zip(self.convolutions, self.residuals):
            # Set padding to 0.  OpenNMT-py convolves the embeddings of padding, so its results
            # depend on the batch
            inputs = x * is_token
            k = cast(GatedConvolution, conv).kernel
            x = (conv(F.pad(inputs, (0, 0, (k - 1) // 2, k // 2))) + residual(x)) * SQRT_HALF
        keys = self.out_proj(x)
        values = (keys + (embedded if self.bottleneck else first)) * SQRT_HALF
        scale = src_lengths.sqrt() if self.bottleneck else torch.ones_like(src_lengths)
        scale = scale[:, None, None].to(keys.dtype)
        return ConvolutionMemory(keys, mask, values, scale)


class Decoder(Stack):
    """Convolutional decoder with multi-step attention."""

    def __init__(self, cfg: ConvolutionConfig):
        e = cfg.d_tgt_embedding
        super().__init__(cfg, cfg.decoder, cfg.tgt_vocab_size, e, cfg.tgt_positions)
        self.attentions = nn.ModuleDict()  # by layer index
        for i, layer in enumerate(cfg.decoder):
            if layer.has_attention:
                width = e if cfg.bottleneck else layer.d
                self.attentions[str(i)] = MultiStepAttention(layer.d, width, cfg)
        self.out_proj = nn.Linear(self.widths[-1], cfg.d_out) if cfg.bottleneck else nn.Identity()

    def forward(
        self, tokens: Tensor, memory: ConvolutionMemory, state: ConvolutionState | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the decoder.

        Args:
            tokens: decoder input (B, T), int64; with a state, the last tokens of K hypotheses
            memory: the encoded batch
            state: the decoder state in step-by-step decoding, updated in place

        Returns:
            Hidden states (B, T, D) and attention (B, T, S).
        """
        embedded = self.embedding(tokens, None if state is None else state.positions)
        first = x = self.in_proj(embedded)  # (B, T, D)
        target = embedded if self.bottleneck else first  # (B, T, A)
        weights = []
        for i, (conv, residual) in enumerate(zip(self.convolutions, self.residuals)):
            if state is None:
                n_before = cast(GatedConvolution, conv).kernel - 1
                inputs = F.pad(x, (0, 0, n_before, 0))  # (B, kernel-1 + T, D)
            else:
                newest = x.reshape(-1, 1, x.size(-1))  # (R, 1, D)
                inputs = torch.cat([state.buffers[i], newest], 1)  # (R, kernel, D)
                state.buffers[i] = inputs[:, 1:]
            out = conv(inputs).view(*x.shape[:2], -1)  # (B, T, D)
            if str(i) in self.attentions:
                out, attn = self.attentions[str(i)](out, target, memory)
                weights.append(attn)
            x = (out + residual(x)) * SQRT_HALF
        # The mean of all layers as in fairseq, or the last layer as in OpenNMT-py
        attn = torch.stack(weights).mean(0) if self.bottleneck else weights[-1]
        return self.out_proj(x), attn


class Convolution(Seq2SeqModel[ConvolutionMemory, ConvolutionState]):
    """A convolutional encoder-decoder."""

    def __init__(self, cfg: ConvolutionConfig):
        super().__init__()
        self.cfg = cfg
        self.vocab_size = cfg.tgt_vocab_size
        self.encoder, self.decoder = Encoder(cfg), Decoder(cfg)
        d_out = cfg.d_out if cfg.bottleneck else cfg.decoder[-1].d
        self.output = OutputLayer(d_out, cfg.tgt_vocab_size)
        embeddings = self.encoder.embedding, self.decoder.embedding
        tables = [e.position for e in embeddings if e.position is not None]
        self.max_positions = min([NO_LIMIT, *(len(t) - cfg.position_offset for t in tables)])

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> ConvolutionMemory:
        """Encode source ids (B, S) with lengths (B,), both int64."""
        return self.encoder(src, src_lengths)

    def init_state(self, memory: ConvolutionMemory) -> ConvolutionState:
        """Return the initial state."""
        n = memory.bank.size(0)
        buffers = [
            memory.bank.new_zeros(n, layer.kernel - 1, d)
            for d, layer in zip(self.decoder.widths, self.cfg.decoder)
        ]
        return ConvolutionState(memory, buffers)

    def decode_step(self, tokens: Tensor, state: ConvolutionState) -> tuple[Tensor, Tensor]:
        """Decode one step; see `Seq2SeqModel.decode_step`."""
        return self.decoder(tokens, state.memory, state)

    def decode_all(self, tgt: Tensor, memory: ConvolutionMemory) -> tuple[Tensor, Tensor]:
        """Decode all positions; see `Seq2SeqModel.decode_all`."""
        return self.decoder(tgt, memory)
