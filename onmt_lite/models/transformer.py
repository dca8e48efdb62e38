"""The Transformer (Vaswani et al. 2017), one module for its common variants.

Letters: B sentences of K rows, S source tokens, T target tokens, D model width, H heads, G heads of
keys and values, d width of a head.  `TransformerConfig` alone decides which variant runs.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.attention import CrossAttentionInputs, Packing, SelfAttentionInputs
from onmt_lite.models.base import HeadSelection, Selection
from onmt_lite.models.cache import SYNC_FREE_DEVICES, KeyValueCache, RunningSums
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.layers import Dropout, TransformerLayer, make_norm
from onmt_lite.models.linear import CKernel
from onmt_lite.models.positions import Embedding, make_sinusoids
from onmt_lite.models.seq2seq import DecoderState, Memory, OutputLayer, Seq2SeqModel, padding_mask


@dataclass
class TransformerMemory(Memory):
    """With keys and values of each layer's attention to the bank, once there is a state."""

    keys: list[Tensor] = field(default_factory=list)  # (B, G, d, S)
    values: list[Tensor] = field(default_factory=list)  # (B, G, S, d)
    lengths: Tensor | None = None  # (B,), for kernels


class TransformerState(DecoderState[TransformerMemory]):
    """past: keys and values, or sums, of the rows' own tokens."""

    def __init__(
        self,
        memory: TransformerMemory,
        past: KeyValueCache | RunningSums,
        uses_cuda_graphs: bool = False,
    ):
        super().__init__(memory, uses_cuda_graphs)
        self.past = past

    def make_room(self) -> None:
        self.past.make_room()

    def select_rows(self, selection: Selection, fresh: "TransformerState | None") -> None:
        self.past.select(selection, cast(Any, fresh.past) if fresh else None)


class NormedEmbedding(Embedding):
    """Embedding with the norm and the dropout of a Transformer."""

    def __init__(self, cfg: TransformerConfig, vocab_size: int, dropout: float):
        n_rows = cfg.max_positions + cfg.position_offset
        table: Tensor | None = None
        if cfg.positions == "learned":
            table = nn.Parameter(torch.zeros(n_rows, cfg.d_model))
        elif cfg.positions != "none":
            table = make_sinusoids(n_rows, cfg.d_model, cfg.positions)
        super().__init__(vocab_size, cfg.d_model, cfg.scale_embedding, table, cfg.position_offset)
        self.norm = make_norm(cfg) if cfg.embedding_norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.dropout(self.norm(super().forward(ids, positions)))


class Transformer(Seq2SeqModel[TransformerMemory, TransformerState]):
    """Encoder, decoder and head."""

    def __init__(self, cfg: TransformerConfig, dropout: float = 0.0):
        super().__init__()
        self.cfg = cfg
        self.max_positions = cfg.max_positions
        self.align_layer, self.aligns_late = (cfg.align_layer or cfg.dec_layers) - 1, cfg.align_late
        self.vocab_size = cfg.tgt_vocab_size
        self.supports_cuda_graphs = cfg.dec_self_attn == "dot"
        self.src_embedding = NormedEmbedding(cfg, cfg.src_vocab_size, dropout)
        self.tgt_embedding = NormedEmbedding(cfg, cfg.tgt_vocab_size, dropout)
        if cfg.share_embeddings:
            self.src_embedding.token = self.tgt_embedding.token
        self.encoder = nn.ModuleList(
            TransformerLayer(cfg, dropout, False) for _ in range(cfg.enc_layers)
        )
        self.decoder = nn.ModuleList(
            TransformerLayer(cfg.decoder_config, dropout, True) for _ in range(cfg.dec_layers)
        )
        self.enc_norm = make_norm(cfg) if cfg.final_norm else nn.Identity()
        self.dec_norm = make_norm(cfg) if cfg.final_norm else nn.Identity()
        self.output: OutputLayer = OutputLayer(
            cfg.d_model, cfg.tgt_vocab_size, bias=cfg.output_bias
        )
        self.tie()

    def tie(self) -> None:
        """Tie the output layer to the target table, if the model does; call it after loading."""
        if self.cfg.tie_output:
            self.output.weight = self.tgt_embedding.token.weight

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> TransformerMemory:
        places = torch.arange(src.size(1), device=src.device)[None]  # (1, S)
        mask = padding_mask(src_lengths, src.size(1))  # (B, 1, S)
        inputs = prepare_self_attention(self.encoder, mask[:, None], places, places)
        x = self.src_embedding(src)  # (B, S, D)
        # Elsewhere the host would wait for the number of tokens
        packing = None
        if src.device.type in SYNC_FREE_DEVICES and not torch.is_grad_enabled():
            packing = Packing(mask)
            if packing.has_padding:
                inputs, x = replace(inputs, packing=packing), packing.pack(x)  # (1, N, D)
        in_c = isinstance(cast(TransformerLayer, self.decoder[0]).cross_attn.out.kernel, CKernel)
        lengths = src_lengths.clone() if in_c and src.is_cpu else None
        if lengths is not None and self.cfg.relative == "none" and packing is not None:
            x = x.reshape(1, -1, x.size(2))  # (1, N, D)
            inputs = replace(inputs, starts=F.pad(lengths.cumsum(0), (1, 0)))
        for layer in self.encoder:
            x, _ = layer(x, inputs)
        bank = self.enc_norm(x)
        bank = bank.view(*src.shape, -1) if inputs.packing is None else inputs.packing.pad(bank)
        return TransformerMemory(bank, mask, lengths=lengths)

    def init_state(self, memory: TransformerMemory) -> TransformerState:
        bank, n_layers = memory.bank, len(self.decoder)
        keys, values = map(list, zip(*self._pairs(bank)))
        past: KeyValueCache | RunningSums
        if self.cfg.dec_self_attn == "dot":
            past = KeyValueCache(keys, self.cfg.relative != "none")
        else:
            past = RunningSums(bank.new_zeros(n_layers, *bank[:, 0].shape))  # (L, B, D)
        memory = replace(memory, keys=keys, values=values)
        if not self.output.has_copy_mechanism:
            memory.bank = bank[:, :0]  # nobody reads it any more, and moving it takes time
        return TransformerState(memory, past, uses_cuda_graphs=self.graphs is not None)

    def decode_step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, Tensor]:
        memory, past, positions = state.memory, state.past, state.positions
        mask, places = past.begin_step(positions)
        inputs = prepare_self_attention(self.decoder, mask, positions[:, None], places)
        if memory.lengths is not None and isinstance(past, KeyValueCache):
            if self.cfg.relative == "none":
                inputs = replace(inputs, past=past.find_past())
        x = self.tgt_embedding(tokens, positions)
        pairs = zip(memory.keys, memory.values)
        hidden, heads = self._run(x, inputs, pairs, memory, self.align_layer, past)
        return hidden, self._alignment(heads)

    def decode_all(self, tgt: Tensor, memory: TransformerMemory) -> tuple[Tensor, Tensor]:
        hidden, heads = self._run_all(tgt, memory, self.align_layer)
        return hidden, self._alignment(heads)

    def has_heads(self, heads: HeadSelection) -> bool:
        n = len(self.decoder)
        return heads.layer is None or -n <= heads.layer < n

    def compute_attention(
        self, memory: TransformerMemory, tgt: Tensor, heads: HeadSelection
    ) -> Tensor:
        cfg, n_layers, layer = self.cfg, len(self.decoder), heads.layer
        if layer is None:
            layer = (cfg.report_layer or max(1, n_layers - 1)) - 1
        n_heads = cfg.report_heads if heads.n_heads is None else heads.n_heads
        weights = self.layer_attention(memory, tgt, layer % n_layers)
        return weights[:, : n_heads or None].float().mean(1)

    def layer_attention(self, memory: TransformerMemory, tgt: Tensor, layer: int) -> Tensor:
        """The attention of all heads of a decoder layer, from 0, to the memory bank for decoder
        input tgt (B, T): (B, H, T, S)."""
        return self._run_all(self.output.map_to_vocab(tgt), memory, layer)[1]

    def _run_all(self, tgt: Tensor, memory: TransformerMemory, layer: int) -> tuple[Tensor, Tensor]:
        """Run all layers on decoder input (B, T), without a state; returns what `_run` does."""
        n = tgt.size(1)
        causal = torch.full((n, n), -math.inf, device=tgt.device).triu(1)
        places = torch.arange(n, device=tgt.device)[None]  # (1, T)
        inputs = prepare_self_attention(self.decoder, causal, places, places)
        return self._run(self.tgt_embedding(tgt), inputs, self._pairs(memory.bank), memory, layer)

    def _pairs(self, bank: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the keys and values of each layer's attention to the bank (B, S, D)."""
        for layer in self.decoder:
            yield cast(TransformerLayer, layer).cross_attn.project(bank)

    def _run(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        pairs: Iterable[tuple[Tensor, Tensor]],
        memory: TransformerMemory,
        layer: int,
        past: KeyValueCache | RunningSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run all layers on x (B, T, D), each with its keys and values of the memory -> hidden
        states (B, T, D), attention of one layer (B, H, T, S)."""
        mask = memory.mask[:, None]  # (B, 1, 1, S)
        for i, (each, pair) in enumerate(zip(self.decoder, pairs)):
            x, heads = each(
                x, inputs, CrossAttentionInputs(*pair, mask, memory.lengths, i == layer), past, i
            )
            if i == layer:
                found = heads
        return self.dec_norm(x), found

    def _alignment(self, heads: Tensor) -> Tensor:
        """Weights (B, H, T, S) of a layer -> (B, T, S), the mean of the alignment heads."""
        first, n = self.cfg.align_head, self.cfg.align_heads
        if n == 1:
            return heads[:, first]
        return heads[:, first : first + n if n else None].mean(1)


def prepare_self_attention(
    layers: nn.ModuleList, mask: Tensor | None, queries: Tensor, keys: Tensor | None
) -> SelfAttentionInputs:
    """The inputs of the layers' self-attention, at positions of queries (N, T) and keys (N, S)."""
    relation = cast(TransformerLayer, layers[0]).self_attn.relation
    return SelfAttentionInputs(mask, relation.prepare(queries, keys))
