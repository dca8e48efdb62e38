"""The Transformer (Vaswani et al. 2017), one module for its common variants.

Letters: B sentences, K beams per sentence, R = B*K rows (row = b*K + k), S source
tokens, T target tokens, V target vocabulary, D model width, H heads.  Which variant runs is
decided by `TransformerConfig` alone; the names of its fields say what toolkits disagree about.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from onmt_lite.models.attention import Sight
from onmt_lite.models.cache import DecoderState, KeyValueCache, RunningSums
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.layers import DecoderLayer, Dropout, EncoderLayer, make_norm
from onmt_lite.models.positions import sinusoids


@dataclass(frozen=True)
class Memory:
    """An encoded batch.

    bank (B, S, D)     encoder states
    mask (B, 1, 1, S)  0 on tokens, -inf on padding; added to attention scores
    """

    bank: Tensor
    mask: Tensor


class Embedding(nn.Module):
    """Token vectors plus position vectors."""

    position: Tensor | None

    def __init__(self, cfg: TransformerConfig, vocab_size: int, dropout: float):
        super().__init__()
        self.token = nn.Embedding(vocab_size, cfg.d_model)
        self.scale = cfg.d_model**0.5 if cfg.scale_embedding else 1.0
        self.offset = cfg.position_offset
        n_rows = cfg.max_positions + cfg.position_offset
        if cfg.positions == "learned":
            self.position = nn.Parameter(torch.zeros(n_rows, cfg.d_model))
        else:
            computed = cfg.positions != "none"
            table = sinusoids(n_rows, cfg.d_model, cfg.positions) if computed else None
            self.register_buffer("position", table, persistent=False)
        self.norm = make_norm(cfg) if cfg.embedding_norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids (N, T) at positions (N or 1, T or 1) -> (N, T, D)."""
        x = self.token(ids) * self.scale
        if self.position is not None:
            x = x + self.position[positions + self.offset]
        return self.dropout(self.norm(x))


class Transformer(nn.Module):
    """Encoder, decoder and output layer: an `onmt_lite.models.base.EncoderDecoder`."""

    def __init__(self, cfg: TransformerConfig, dropout: float = 0.0):
        super().__init__()
        self.cfg = cfg
        self.max_positions = cfg.max_positions
        self.align_layer, self.aligns_late = (cfg.align_layer or cfg.dec_layers) - 1, cfg.align_late
        self.vocab_size = cfg.tgt_vocab_size
        self.src_embedding = Embedding(cfg, cfg.src_vocab_size, dropout)
        self.tgt_embedding = Embedding(cfg, cfg.tgt_vocab_size, dropout)
        if cfg.share_embeddings:
            self.src_embedding.token = self.tgt_embedding.token
        self.encoder = nn.ModuleList(EncoderLayer(cfg, dropout) for _ in range(cfg.enc_layers))
        own = cfg.of_decoder
        self.decoder = nn.ModuleList(DecoderLayer(own, dropout) for _ in range(cfg.dec_layers))
        self.enc_norm = make_norm(cfg) if cfg.final_norm else nn.Identity()
        self.dec_norm = make_norm(cfg) if cfg.final_norm else nn.Identity()
        self.output = nn.Linear(cfg.d_model, cfg.tgt_vocab_size, bias=cfg.output_bias)
        self.tie()

    def tie(self) -> None:
        """Make the output layer the target table, where it is; after weights were taken over."""
        if self.cfg.tie_output:
            self.output.weight = self.tgt_embedding.token.weight

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def encode(self, src: Tensor, src_lengths: Tensor) -> Memory:
        """src (B, S) padded ids, src_lengths (B,) -> the memory that decoding reads."""
        places = torch.arange(src.size(1), device=src.device)[None]
        inside = places < src_lengths[:, None]
        x = self.src_embedding(src, places)
        mask = torch.zeros(inside.shape, device=src.device).masked_fill_(~inside, -math.inf)
        mask = mask[:, None, None]  # (B, 1, 1, S): the same for every head and query
        sight = look(self.encoder, mask, places, places)
        for layer in self.encoder:
            x = layer(x, sight)
        return Memory(self.enc_norm(x), mask)

    def init_state(self, memory: Memory) -> DecoderState:
        """One row per sentence, nothing decoded yet; `select` tiles it to K rows."""
        bank, n_layers = memory.bank, len(self.decoder)
        cross = [cast(DecoderLayer, layer).cross_attn.project(bank) for layer in self.decoder]
        past: KeyValueCache | RunningSums
        if self.cfg.dec_self_attn == "dot":
            past = KeyValueCache(n_layers, bank.size(0), bank.device)
        else:
            past = RunningSums(bank.new_zeros(n_layers, *bank[:, 0].shape))
        return DecoderState(past, cross, memory.mask)

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
        # The hypotheses of a sentence go together, and all are at its position
        positions, past = state.positions[:, None], state.past
        x = self.tgt_embedding(tokens.view(len(positions), -1), positions)  # (B, K, D)
        mask, places = past.begin_step(state.positions)
        sight = look(self.decoder, mask, positions, places)
        for i, layer in enumerate(self.decoder):
            x, heads = layer(x, sight, state.cross[i], state.memory_mask, past, i)
            if i == self.align_layer:
                attn = self._alignment(heads)
        state.positions = state.positions + 1
        return self.dec_norm(x).flatten(0, 1), attn.flatten(0, 1)

    def _alignment(self, heads: Tensor) -> Tensor:
        """Weights (B, H, T, S) of a layer -> (B, T, S), of the heads that tell what was
        translated."""
        first, n = self.cfg.align_head, self.cfg.align_heads
        if n == 1:
            return heads[:, first]
        return heads[:, first : first + n if n else None].mean(1)

    def forward_hidden(self, memory: Memory, tgt: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`: what the output layer reads (B, T, D), attention (B, T, S)."""
        t = tgt.size(1)
        places = torch.arange(t, device=tgt.device)[None]
        causal = torch.full((t, t), -math.inf, device=tgt.device).triu(1)
        sight = look(self.decoder, causal, places, places)
        x = self.tgt_embedding(tgt, places)
        for i, layer in enumerate(self.decoder):
            keys_values = cast(DecoderLayer, layer).cross_attn.project(memory.bank)
            x, heads = layer(x, sight, keys_values, memory.mask)
            if i == self.align_layer:
                attn = self._alignment(heads)
        return self.dec_norm(x), attn


def look(layers: nn.ModuleList, mask: Tensor | None, queries: Tensor, keys: Tensor) -> Sight:
    """What the layers' self-attention sees, from positions of queries (N, T) and keys (N, S)."""
    relation = getattr(layers[0].self_attn, "relation", None)
    return Sight(mask, None if relation is None else relation.prepare(queries, keys))
