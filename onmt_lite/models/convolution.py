"""The convolutional encoder-decoder (Gehring et al. 2017), as fairseq and OpenNMT-py have it.

Letters: B sentences of K rows, R = B*K, S source tokens, T target tokens, E width of embeddings, D
of a layer, A of the attention.  Not for training: there is no dropout.
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
from onmt_lite.models.positions import Embedding
from onmt_lite.models.seq2seq import DecoderState, Memory, OutputLayer, Seq2SeqModel, padding_mask

SQRT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two
NO_LIMIT = 100_000


@dataclass(frozen=True)
class ConvLayer:
    """A convolution."""

    d: int  # of its output
    kernel: int
    has_attention: bool = False  # whether attention follows it (decoder)


@dataclass(frozen=True)
class ConvolutionConfig:
    """All that decides the computation and the names of the weights.

    bottleneck  True, fairseq: attention has the width of the embeddings, with a layer into and out
                of it, its context is scaled by the root of the source length, and a layer of width
                d_out precedes the output.  False, OpenNMT-py: attention has the layers' width.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_src_embedding: int
    d_tgt_embedding: int
    encoder: tuple[ConvLayer, ...]
    decoder: tuple[ConvLayer, ...]
    bottleneck: bool = True
    d_out: int = 0
    src_positions: int = 0  # rows of the position table; 0: positions are not embedded
    tgt_positions: int = 0
    position_offset: int = 0  # index of the first position (fairseq: 2)
    scale_embedding: bool = False  # multiply embeddings by sqrt(E)

    @property
    def enc_layers(self) -> int:
        return len(self.encoder)

    @property
    def dec_layers(self) -> int:
        return len(self.decoder)

    @property
    def d_model(self) -> int:
        return max(layer.d for layer in self.decoder)

    def __post_init__(self) -> None:
        """ValueError for what cannot be built, whoever wrote it."""
        if not self.encoder or not any(layer.has_attention for layer in self.decoder):
            raise ValueError("config: needs a layer in the encoder and attention in the decoder")
        if not self.bottleneck and {layer.d for layer in self.decoder} != {self.encoder[-1].d}:
            raise ValueError("config: without a bottleneck all layers are of one width")


@dataclass
class ConvolutionMemory(Memory):
    """The bank holds the keys of the attention."""

    values: Tensor  # (B, S, A), of the attention
    scale: Tensor  # (B, 1, 1), factor of the context


class ConvolutionState(DecoderState[ConvolutionMemory]):
    """buffers: each layer's last inputs of each row (R, kernel-1, D), 0 before the start."""

    def __init__(self, memory: ConvolutionMemory, buffers: list[Tensor]):
        super().__init__(memory)
        self.buffers = buffers

    def select_rows(self, selection: Selection, fresh: "ConvolutionState | None") -> None:
        joining = fresh.buffers if fresh else [None] * len(self.buffers)
        self.buffers = [selection.gather_rows(*pair) for pair in zip(self.buffers, joining)]


class GatedConvolution(nn.Module):
    """A convolution over positions and the gated linear unit of Dauphin et al. 2017."""

    def __init__(self, d_in: int, layer: ConvLayer):
        super().__init__()
        self.kernel = layer.kernel
        self.weight = nn.Parameter(torch.zeros(2 * layer.d, layer.kernel, d_in))
        self.bias = nn.Parameter(torch.zeros(2 * layer.d))

    def forward(self, x: Tensor) -> Tensor:
        """x (N, T + kernel-1, d_in), padded already -> (N, T, D)."""
        if x.size(1) == self.kernel:  # one position: a linear layer, as in fairseq's decoding
            out = F.linear(x.flatten(1), self.weight.flatten(1), self.bias)[:, None]  # (N, 1, 2D)
        else:
            weight = self.weight.transpose(1, 2)  # (2D, d_in, kernel)
            out = F.conv1d(x.transpose(1, 2), weight, self.bias).transpose(1, 2)  # (N, T, 2D)
        return F.glu(out, -1)


class MultiStepAttention(nn.Module):
    """Attention of one decoder layer (Gehring et al. 2017, section 3.3)."""

    def __init__(self, d: int, d_attention: int, cfg: ConvolutionConfig):
        super().__init__()
        self.inward = nn.Linear(d, d_attention)
        self.outward = nn.Linear(d_attention, d) if cfg.bottleneck else nn.Identity()

    def forward(
        self, x: Tensor, target: Tensor, memory: ConvolutionMemory
    ) -> tuple[Tensor, Tensor]:
        """ConvLayer's output x (B, T, D), target (B, T, A) -> x with context, weights (B, T, S)."""
        query = (self.inward(x) + target) * SQRT_HALF  # (B, T, A)
        scores = query @ memory.bank.transpose(1, 2)  # (B, T, S)
        weights = (scores.float() + memory.mask).softmax(-1).to(x.dtype)
        context = weights @ memory.values * memory.scale  # (B, T, A)
        return (self.outward(context) + x) * SQRT_HALF, weights


class Stack(nn.Module):
    """Embeddings and gated convolutions of one side."""

    def __init__(
        self, cfg: ConvolutionConfig, layers: Sequence[ConvLayer], vocab_size: int, e: int, n: int
    ):
        """e: width of the embeddings; n: rows of the position table."""
        super().__init__()
        self.bottleneck = cfg.bottleneck
        table = nn.Parameter(torch.zeros(n, e)) if n else None
        self.embedding = Embedding(vocab_size, e, cfg.scale_embedding, table, cfg.position_offset)
        self.inward = nn.Linear(e, layers[0].d)
        self.widths = [layers[0].d, *(layer.d for layer in layers)]
        self.convolutions = nn.ModuleList(map(GatedConvolution, self.widths, layers))
        self.residuals = nn.ModuleList(
            nn.Identity() if d_in == d else nn.Linear(d_in, d) for d_in, d in pairwise(self.widths)
        )


class Encoder(Stack):
    def __init__(self, cfg: ConvolutionConfig):
        e = cfg.d_src_embedding
        super().__init__(cfg, cfg.encoder, cfg.src_vocab_size, e, cfg.src_positions)
        self.outward = nn.Linear(self.widths[-1], e) if cfg.bottleneck else nn.Identity()

    def forward(self, src: Tensor, src_lengths: Tensor) -> ConvolutionMemory:
        mask = padding_mask(src_lengths, src.size(1))
        inside = mask.transpose(1, 2) == 0  # (B, S, 1)
        embedded = self.embedding(src)
        first = x = self.inward(embedded)
        for conv, around in zip(self.convolutions, self.residuals):
            # A convolution sees 0 after a sentence's end, padded or not.  OpenNMT-py lets it see
            # vectors of padding, by which a sentence depends on its batch
            seen = x * inside
            k = cast(GatedConvolution, conv).kernel
            x = (conv(F.pad(seen, (0, 0, (k - 1) // 2, k // 2))) + around(x)) * SQRT_HALF
        keys = self.outward(x)
        values = (keys + (embedded if self.bottleneck else first)) * SQRT_HALF
        scale = src_lengths.sqrt() if self.bottleneck else torch.ones_like(src_lengths)
        scale = scale[:, None, None].to(keys.dtype)
        return ConvolutionMemory(keys, mask, values, scale)


class Decoder(Stack):
    def __init__(self, cfg: ConvolutionConfig):
        e = cfg.d_tgt_embedding
        super().__init__(cfg, cfg.decoder, cfg.tgt_vocab_size, e, cfg.tgt_positions)
        self.attentions = nn.ModuleDict()  # by the numbers of their layers
        for i, layer in enumerate(cfg.decoder):
            if layer.has_attention:
                width = e if cfg.bottleneck else layer.d
                self.attentions[str(i)] = MultiStepAttention(layer.d, width, cfg)
        self.outward = nn.Linear(self.widths[-1], cfg.d_out) if cfg.bottleneck else nn.Identity()

    def forward(
        self, tokens: Tensor, memory: ConvolutionMemory, state: ConvolutionState | None = None
    ) -> tuple[Tensor, Tensor]:
        """Decoder input (B, T) -> what the head reads (B, T, D), attention (B, T, S).

        With `state`, which advances: the newest tokens, T being the K hypotheses of a sentence.
        """
        embedded = self.embedding(tokens, None if state is None else state.positions)
        first = x = self.inward(embedded)  # (B, T, D)
        target = embedded if self.bottleneck else first  # (B, T, A)
        weights = []
        for i, (conv, around) in enumerate(zip(self.convolutions, self.residuals)):
            if state is None:
                n_before = cast(GatedConvolution, conv).kernel - 1
                seen = F.pad(x, (0, 0, n_before, 0))  # (B, kernel-1 + T, D)
            else:
                newest = x.reshape(-1, 1, x.size(-1))  # (R, 1, D)
                seen = torch.cat([state.buffers[i], newest], 1)  # (R, kernel, D)
                state.buffers[i] = seen[:, 1:]
            out = conv(seen).view(*x.shape[:2], -1)  # (B, T, D)
            if str(i) in self.attentions:
                out, attn = self.attentions[str(i)](out, target, memory)
                weights.append(attn)
            x = (out + around(x)) * SQRT_HALF
        # As the originals report it: the mean of all layers, or the last one's
        attn = torch.stack(weights).mean(0) if self.bottleneck else weights[-1]
        return self.outward(x), attn


class Convolution(Seq2SeqModel[ConvolutionMemory, ConvolutionState]):
    """Encoder, decoder and head."""

    def __init__(self, cfg: ConvolutionConfig):
        super().__init__()
        self.cfg = cfg
        self.vocab_size = cfg.tgt_vocab_size
        self.encoder, self.decoder = Encoder(cfg), Decoder(cfg)
        d_out = cfg.d_out if cfg.bottleneck else cfg.decoder[-1].d
        self.output = OutputLayer(d_out, cfg.tgt_vocab_size)
        sides = self.encoder.embedding, self.decoder.embedding
        tables = [side.position for side in sides if side.position is not None]
        self.max_positions = min([NO_LIMIT, *(len(t) - cfg.position_offset for t in tables)])

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> ConvolutionMemory:
        return self.encoder(src, src_lengths)

    def init_state(self, memory: ConvolutionMemory) -> ConvolutionState:
        n = memory.bank.size(0)
        buffers = [
            memory.bank.new_zeros(n, layer.kernel - 1, d)
            for d, layer in zip(self.decoder.widths, self.cfg.decoder)
        ]
        return ConvolutionState(memory, buffers)

    def decode_step(self, tokens: Tensor, state: ConvolutionState) -> tuple[Tensor, Tensor]:
        return self.decoder(tokens, state.memory, state)

    def decode_all(self, tgt: Tensor, memory: ConvolutionMemory) -> tuple[Tensor, Tensor]:
        return self.decoder(tgt, memory)
