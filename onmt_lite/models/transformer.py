"""The Transformer (Vaswani et al. 2017) and its common variants, selected by `TransformerConfig`.

Shapes: B sentences of K hypotheses, S source tokens, T target tokens, D model width, H heads, G
key/value heads, d head width.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.attention import CrossAttentionInputs, Packing, SelfAttentionInputs
from onmt_lite.models.base import HeadSelection, Selection
from onmt_lite.models.cache import SYNC_FREE_DEVICES, KeyValueCache, RunningSums
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.kernel_cache import KernelCache
from onmt_lite.models.layers import Dropout, TransformerLayer, make_norm
from onmt_lite.models.linear import AnyNorm, CKernel
from onmt_lite.models.memory import Memory, make_padding_mask
from onmt_lite.models.output import OutputLayer
from onmt_lite.models.positions import Embedding, make_sinusoids
from onmt_lite.models.seq2seq import DecoderState, Seq2SeqModel

AnyCache: TypeAlias = KeyValueCache | KernelCache | RunningSums


@dataclass
class TransformerMemory(Memory):
    """An encoded batch; `init_state` adds the cross-attention keys and values of each layer."""

    keys: list[Tensor] = field(default_factory=list)  # (B, G, d, S)
    values: list[Tensor] = field(default_factory=list)  # (B, G, S, d)
    lengths: Tensor | None = None  # (B,) int64, for kernels


class TransformerState(DecoderState[TransformerMemory]):
    """Decoder state with a cache of earlier steps."""

    def __init__(
        self,
        memory: TransformerMemory,
        past: AnyCache,
        uses_cuda_graphs: bool = False,
    ):
        """Initialize the state.

        Args:
            memory: the encoded batch
            past: empty cache
            uses_cuda_graphs: True if steps are replayed as CUDA graphs
        """
        super().__init__(memory, uses_cuda_graphs)
        self.past = past

    def make_room(self) -> None:
        """Make room in the cache for a step."""
        self.past.make_room()

    def select_rows(self, selection: Selection, fresh: "TransformerState | None") -> None:
        """Apply a selection to the cache."""
        self.past.select(selection, cast(Any, fresh.past) if fresh else None)


class NormedEmbedding(Embedding):
    """Embeddings with norm and dropout."""

    def __init__(self, cfg: TransformerConfig, vocab_size: int, dropout: float):
        """Initialize the embeddings.

        Args:
            cfg: the model config
            vocab_size: number of tokens
            dropout: the dropout rate
        """
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
        """Embed tokens; see `Embedding.forward`."""
        return self.dropout(self.norm(super().forward(ids, positions)))


class Transformer(Seq2SeqModel[TransformerMemory, TransformerState]):
    """A Transformer encoder-decoder."""

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

    @property
    def output_norm(self) -> AnyNorm | None:  # type: ignore[override]
        """The final norm of the decoder."""
        return self.dec_norm if isinstance(self.dec_norm, AnyNorm) else None

    def tie(self) -> None:
        """Tie the output layer to the target embeddings if configured; call after loading."""
        if self.cfg.tie_output:
            self.output.weight = self.tgt_embedding.token.weight

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> TransformerMemory:
        """Encode source ids (B, S) with lengths (B,), both int64."""
        positions = torch.arange(src.size(1), device=src.device)[None]  # (1, S)
        mask = make_padding_mask(src_lengths, src.size(1))  # (B, 1, S)
        inputs = prepare_self_attention(self.encoder, mask[:, None], positions, positions)
        x = self.src_embedding(src)  # (B, S, D)
        # Packing on other devices would make the host wait for the number of tokens
        packing = None
        if src.device.type in SYNC_FREE_DEVICES and not torch.is_grad_enabled():
            packing = Packing(mask)
            if packing.has_padding:
                inputs, x = replace(inputs, packing=packing), packing.pack(x)  # (1, N, D)
        uses_kernels = isinstance(
            cast(TransformerLayer, self.decoder[0]).cross_attn.out.kernel, CKernel
        )
        lengths = src_lengths.clone() if uses_kernels and src.is_cpu else None
        if lengths is not None and self.cfg.relative == "none" and packing is not None:
            x = x.reshape(1, -1, x.size(2))  # (1, N, D)
            inputs = replace(inputs, starts=F.pad(lengths.cumsum(0), (1, 0)))
        for layer in self.encoder:
            x, _ = layer(x, inputs)
        bank = self.enc_norm(x)
        bank = bank.view(*src.shape, -1) if inputs.packing is None else inputs.packing.pad(bank)
        return TransformerMemory(bank, mask, lengths=lengths)

    def init_state(self, memory: TransformerMemory) -> TransformerState:
        """Compute the keys and values of cross-attention; returns the initial state."""
        bank, n_layers = memory.bank, len(self.decoder)
        keys, values = map(list, zip(*self._project(bank)))
        past: AnyCache
        if self.cfg.dec_self_attn == "dot":
            has_kernels = memory.lengths is not None and self.get_output_kernel(bank) is not None
            if has_kernels and self.cfg.relative == "none":
                past = KernelCache(keys)
            else:
                past = KeyValueCache(keys, self.cfg.relative != "none")
        else:
            past = RunningSums(bank.new_zeros(n_layers, *bank[:, 0].shape))  # (L, B, D)
        memory = replace(memory, keys=keys, values=values)
        if not self.output.has_copy_mechanism:
            memory.bank = bank[:, :0]  # no longer needed; `select` would move it
        return TransformerState(memory, past, uses_cuda_graphs=self.graphs is not None)

    def decode_step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, Tensor]:
        """Decode one step; see `Seq2SeqModel.decode_step`."""
        memory, past, positions = state.memory, state.past, state.positions
        if isinstance(past, KernelCache):
            return self._decode_distinct_rows(tokens, state, past)
        mask, entry_positions = past.begin_step(positions)
        inputs = prepare_self_attention(self.decoder, mask, positions[:, None], entry_positions)
        x = self.tgt_embedding(tokens, positions)
        pairs = zip(memory.keys, memory.values)
        hidden, heads = self._run(x, inputs, pairs, memory, self.align_layer, past)
        if self.get_output_kernel(hidden) is None:
            hidden = self.dec_norm(hidden)
        return hidden, self._average_heads(heads)

    def _decode_distinct_rows(
        self, tokens: Tensor, state: TransformerState, past: KernelCache
    ) -> tuple[Tensor, Tensor]:
        """Decode one step with C kernels, computing equal hypotheses once.

        Args:
            tokens: the last tokens (B, K), int64
            state: the decoder state
            past: its cache

        Returns:
            Hidden states (1, rows, D), see `DecoderState.row_index`, and attention (B, K, S).
        """
        memory, rows = state.memory, past.begin_step(tokens)
        positions = rows.select(state.positions[:, None].expand_as(tokens))  # (rows,)
        x = self.tgt_embedding(rows.select(tokens)[:, None], positions).transpose(0, 1)
        inputs = SelfAttentionInputs(None, starts=rows.starts)
        pairs = zip(memory.keys, memory.values)
        hidden, heads = self._run(x, inputs, pairs, memory, self.align_layer, past)
        attn, state.row_index = self._average_heads(heads)[0], rows.index  # (rows, S)
        if rows.kept is not None:
            attn = attn[rows.index]
        return hidden, attn.view(*tokens.shape, -1)

    def decode_all(self, tgt: Tensor, memory: TransformerMemory) -> tuple[Tensor, Tensor]:
        """Decode all positions; see `Seq2SeqModel.decode_all`."""
        hidden, heads = self._run_all(tgt, memory, self.align_layer)
        return hidden, self._average_heads(heads)

    def has_heads(self, heads: HeadSelection) -> bool:
        """Return True if the decoder has this layer."""
        n = len(self.decoder)
        return heads.layer is None or -n <= heads.layer < n

    def compute_attention(
        self, memory: TransformerMemory, tgt: Tensor, heads: HeadSelection
    ) -> Tensor:
        """Return the mean attention of the selected heads (B, T, S), float32.

        Args:
            memory: the encoded batch
            tgt: decoder input (B, T), int64
            heads: the heads to average
        """
        cfg, n_layers, layer = self.cfg, len(self.decoder), heads.layer
        if layer is None:
            layer = (cfg.report_layer or max(1, n_layers - 1)) - 1
        n_heads = cfg.report_heads if heads.n_heads is None else heads.n_heads
        weights = self.get_layer_attention(memory, tgt, layer % n_layers)
        return weights[:, : n_heads or None].float().mean(1)

    def get_layer_attention(self, memory: TransformerMemory, tgt: Tensor, layer: int) -> Tensor:
        """Return the cross-attention of all heads of a decoder layer.

        Args:
            memory: the encoded batch
            tgt: decoder input (B, T), int64
            layer: the layer, from 0

        Returns:
            Attention weights (B, H, T, S).
        """
        return self._run_all(self.output.map_to_vocab(tgt), memory, layer)[1]

    def _run_all(self, tgt: Tensor, memory: TransformerMemory, layer: int) -> tuple[Tensor, Tensor]:
        """Run all decoder layers without a state.

        Args:
            tgt: decoder input (B, T), int64
            memory: the encoded batch
            layer: the layer whose attention is returned

        Returns:
            Hidden states (B, T, D) and attention (B, H, T, S).
        """
        n = tgt.size(1)
        causal = torch.full((n, n), -math.inf, device=tgt.device).triu(1)
        positions = torch.arange(n, device=tgt.device)[None]  # (1, T)
        inputs = prepare_self_attention(self.decoder, causal, positions, positions)
        pairs = self._project(memory.bank)
        hidden, attn = self._run(self.tgt_embedding(tgt), inputs, pairs, memory, layer)
        return self.dec_norm(hidden), attn

    def _project(self, bank: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the cross-attention keys and values of each layer for the bank (B, S, D)."""
        for layer in self.decoder:
            yield cast(TransformerLayer, layer).cross_attn.project(bank)

    def _run(
        self,
        x: Tensor,
        inputs: SelfAttentionInputs,
        pairs: Iterable[tuple[Tensor, Tensor]],
        memory: TransformerMemory,
        layer: int,
        past: AnyCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run all decoder layers, without the final norm.

        Args:
            x: embedded decoder input (B, T, D)
            inputs: mask and relative positions of self-attention
            pairs: cross-attention keys and values of each layer
            memory: the encoded batch
            layer: the layer whose attention is returned
            past: cache of earlier steps

        Returns:
            Hidden states (B, T, D) and attention of the layer (B, H, T, S).
        """
        mask, starts = memory.mask[:, None], inputs.starts  # (B, 1, 1, S), (B + 1,)
        if memory.lengths is not None and starts is None:
            starts = torch.arange(0, x.size(0) * x.size(1) + 1, x.size(1))
        for i, (decoder_layer, (keys, values)) in enumerate(zip(self.decoder, pairs)):
            cross = CrossAttentionInputs(keys, values, mask, i == layer, memory.lengths, starts)
            x, weights = decoder_layer(x, inputs, cross, past, i)
            if i == layer:
                attn = weights
        return x, attn

    def _average_heads(self, heads: Tensor) -> Tensor:
        """Average the alignment heads: (B, H, T, S) -> (B, T, S)."""
        first, n = self.cfg.align_head, self.cfg.align_heads
        if n == 1:
            return heads[:, first]
        return heads[:, first : first + n if n else None].mean(1)


def prepare_self_attention(
    layers: nn.ModuleList, mask: Tensor | None, queries: Tensor, keys: Tensor | None
) -> SelfAttentionInputs:
    """Prepare the self-attention inputs that all layers share.

    Args:
        layers: encoder or decoder layers
        mask: added to the scores, float32, broadcast to (N, H, T, S)
        queries: positions of queries (N, T), int64
        keys: positions of keys (N, S), int64; None if relative positions do not need them

    Returns:
        The mask and the prepared relative positions.
    """
    relation = cast(TransformerLayer, layers[0]).self_attn.relation
    return SelfAttentionInputs(mask, relation.prepare(queries, keys))
