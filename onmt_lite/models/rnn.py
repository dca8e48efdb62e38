"""The recurrent encoder-decoder of Luong et al. 2015, in the variants of OpenNMT-py.

Letters: B sentences of K rows, R = B*K, S source tokens, T queries of a sentence, D model width, E
embedding width, L layers.  Not for training: there is no dropout.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from onmt_lite.models.base import Selection
from onmt_lite.models.seq2seq import (
    AttentionScorer,
    DecoderState,
    Memory,
    Normalizer,
    OutputLayer,
    Score,
    Seq2SeqModel,
    padding_mask,
)

Hidden = tuple[Tensor, ...]  # (h,) of GRU cells, (h, c) of LSTM cells, each (L, R, D)
Cell = Literal["lstm", "gru"]
Gate = Literal["none", "source", "target", "both"]


@dataclass(frozen=True)
class RnnConfig:
    """All that decides the computation and the names of the weights."""

    src_vocab_size: int
    tgt_vocab_size: int
    d_src_embedding: int = 500
    d_tgt_embedding: int = 500
    d_model: int = 500  # of decoder states, and of encoder states with both directions together
    enc_layers: int = 2
    dec_layers: int = 2
    cell: Cell = "lstm"
    bidirectional: bool = False  # the encoder reads both ways, each with half of d_model
    bridge: bool = False  # one more layer between the encoder's last states and the decoder
    input_feed: bool = True  # the last attentional vector is part of the next input
    attention: Score = "general"
    normalizer: Normalizer = "softmax"  # makes attention weights of scores
    context_gate: Gate = "none"

    def __post_init__(self) -> None:
        """ValueError for what cannot be built, whoever wrote it."""
        if self.enc_layers != self.dec_layers:
            raise ValueError(
                f"config: {self.dec_layers} decoder layers cannot start from the states of "
                f"{self.enc_layers} encoder layers"
            )
        if self.bidirectional and self.d_model % 2:
            raise ValueError(f"config: d_model {self.d_model} has no half for each direction")


@dataclass
class RnnMemory(Memory):
    """The bank is 0 on padding."""

    keys: Tensor | None  # (B, S, D), of the attention; None: the bank
    hidden: Hidden  # first hidden states of the decoder, one row per sentence


class RnnState(DecoderState[RnnMemory]):
    """hidden: states of each layer; feed (R, D): attentional vectors of the last step."""

    def __init__(self, memory: RnnMemory):
        super().__init__(memory)
        self.hidden = memory.hidden
        self.feed = torch.zeros_like(memory.hidden[0][0])  # (R, D)

    def select_rows(self, selection: Selection, fresh: "RnnState | None") -> None:
        joining = fresh.hidden if fresh else [None] * len(self.hidden)
        self.hidden = tuple(selection.gather_rows(*pair, 1) for pair in zip(self.hidden, joining))
        self.feed = selection.gather_rows(self.feed, fresh.feed if fresh else None)


class RnnEncoder(nn.Module):
    """Embedding, RNN and bridge."""

    def __init__(self, cfg: RnnConfig):
        super().__init__()
        self.bidirectional = cfg.bidirectional
        self.embedding = nn.Embedding(cfg.src_vocab_size, cfg.d_src_embedding)
        kind = nn.LSTM if cfg.cell == "lstm" else nn.GRU
        d = cfg.d_model // 2 if cfg.bidirectional else cfg.d_model
        sizes = cfg.d_src_embedding, d, cfg.enc_layers
        self.rnn = kind(*sizes, batch_first=True, bidirectional=cfg.bidirectional)
        n_parts = (2 if cfg.cell == "lstm" else 1) if cfg.bridge else 0
        width = d * cfg.enc_layers
        self.bridge = nn.ModuleList(nn.Linear(width, width) for _ in range(n_parts))

    def forward(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, Hidden]:
        """src (B, S) -> states (B, S, D), 0 on padding, and the last ones, each (L, B, D)."""
        # Packed, the backward direction starts at a sentence's own last token
        packed = pack_padded_sequence(
            self.embedding(src), src_lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, last = self.rnn(packed)
        bank, _ = pad_packed_sequence(states, batch_first=True, total_length=src.size(1))
        hidden = last if isinstance(last, tuple) else (last,)
        if self.bridge:
            hidden = tuple(self._cross(i, part) for i, part in enumerate(hidden))
        if self.bidirectional:  # layer 0 forward, layer 0 backward, layer 1 forward, ...
            hidden = tuple(torch.cat([part[0::2], part[1::2]], 2) for part in hidden)
        return bank, hidden

    def _cross(self, i: int, part: Tensor) -> Tensor:
        """The bridge: all layers of a sentence go through one linear layer together.

        part (L * directions, B, d) -> the same shape.  This is the rule of OpenNMT-py 3.x.  Up to
        2.x it folds without moving the sentences first, which mixes the states of a batch; for a
        sentence alone the results are the same.
        """
        linear = cast(nn.Linear, self.bridge[i])
        by_sentence = part.transpose(0, 1)  # (B, L * directions, d)
        folded = by_sentence.reshape(part.size(1), -1, linear.in_features)  # (B, *, L * d)
        return linear(folded).relu().view(by_sentence.shape).transpose(0, 1)


class GlobalAttention(AttentionScorer):
    """Attention with one more layer over query and context, which makes the attentional vector.

    It ends in a tanh unless the attention is `mlp` (OpenNMT-py's rule).
    """

    def __init__(self, d: int, score: Score, normalizer: Normalizer = "softmax"):
        super().__init__(d, score, normalizer)
        self.out = nn.Linear(2 * d, d, bias=score == "mlp")

    def forward(
        self, query: Tensor, keys: Tensor, bank: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """-> attentional vectors (B, T, D) and weights (B, T, S)."""
        weights = self.compute_weights(query, keys, mask)
        attended = self.out(torch.cat([weights @ bank, query], -1))
        return (attended if self.score == "mlp" else attended.tanh()), weights


class ContextGate(nn.Module):
    """Context gate (Tu et al. 2017, section 3.2): weighs the target so far, which is the decoder's
    input and output, against the source, which is the attentional vector."""

    def __init__(self, d_input: int, d: int, kind: Gate):
        super().__init__()
        self.kind = kind
        self.gate = nn.Linear(d_input + 2 * d, d)
        self.source = nn.Linear(d, d)
        self.target = nn.Linear(d_input + d, d)

    def forward(self, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
        """Decoder input (R, d_input), its output and attentional vector (R, D) -> (R, D)."""
        z = self.gate(torch.cat([x, output, attended], -1)).sigmoid()  # (R, D)
        source, target = self.source(attended), self.target(torch.cat([x, output], -1))
        if self.kind in ("source", "both"):
            source = z * source
        if self.kind == "target":
            target = z * target
        elif self.kind == "both":
            target = (1 - z) * target
        return (source + target).tanh()


class RnnDecoder(nn.Module):
    """Embedding, cells, attention and context gate, one step at a time because of input feeding.

    A decoder without attention knows the source by its first state alone.
    """

    def __init__(self, cfg: RnnConfig):
        super().__init__()
        self.input_feed = cfg.input_feed
        d_input = cfg.d_tgt_embedding + (cfg.d_model if cfg.input_feed else 0)
        self.embedding = nn.Embedding(cfg.tgt_vocab_size, cfg.d_tgt_embedding)
        kind = nn.LSTMCell if cfg.cell == "lstm" else nn.GRUCell
        widths = [d_input] + [cfg.d_model] * (cfg.dec_layers - 1)
        self.cells = nn.ModuleList(kind(d, cfg.d_model) for d in widths)
        self.attention = self.gate = None
        if cfg.attention != "none":
            self.attention = GlobalAttention(cfg.d_model, cfg.attention, cfg.normalizer)
        if cfg.context_gate != "none":
            self.gate = ContextGate(d_input, cfg.d_model, cfg.context_gate)

    def forward(self, tokens: Tensor, state: RnnState) -> tuple[Tensor, Tensor]:
        """The newest tokens (B, K) -> attentional vectors (B, K, D), attention (B, K, S).

        Advances `state` in place, except for its positions.
        """
        x = self.embedding(tokens.flatten())  # (R, E)
        if self.input_feed:
            x = torch.cat([x, state.feed], 1)  # (R, E + D)
        output, new = x, []
        for i, cell in enumerate(self.cells):
            own = tuple(part[i] for part in state.hidden)  # (R, D) each
            new.append(cell(output, own) if len(own) == 2 else (cell(output, *own),))
            output = new[-1][0]  # (R, D)
        state.hidden = tuple(torch.stack(parts) for parts in zip(*new))  # (L, R, D) each
        queries = output.view(*tokens.shape, -1)  # (B, K, D): one product per sentence
        attended, attn = self._attend(queries, state.memory)
        state.feed = attended.flatten(0, 1)  # (R, D)
        if self.gate is not None:
            state.feed = self.gate(x, output, state.feed)
        return state.feed.view(*tokens.shape, -1), attn

    def _attend(self, queries: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor]:
        """As `GlobalAttention`; without one, the queries and even weights."""
        if self.attention is None:
            even = memory.mask.softmax(-1).to(queries.dtype)  # (B, 1, S)
            return queries, even.expand(-1, queries.size(1), -1)
        keys = memory.bank if memory.keys is None else memory.keys
        return self.attention(queries, keys, memory.bank, memory.mask)


class Rnn(Seq2SeqModel[RnnMemory, RnnState]):
    """Encoder, decoder and head."""

    max_positions = 100_000  # nothing in the model counts positions

    def __init__(self, cfg: RnnConfig):
        super().__init__()
        self.cfg = cfg
        self.vocab_size = cfg.tgt_vocab_size
        self.has_attention = cfg.attention != "none"
        self.encoder, self.decoder = RnnEncoder(cfg), RnnDecoder(cfg)
        self.output = OutputLayer(cfg.d_model, cfg.tgt_vocab_size)

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> RnnMemory:
        bank, hidden = self.encoder(src, src_lengths)
        mask, attention = padding_mask(src_lengths, src.size(1)), self.decoder.attention
        keys = None if attention is None else attention.project_keys(bank)
        return RnnMemory(bank, mask, keys, hidden)

    def init_state(self, memory: RnnMemory) -> RnnState:
        return RnnState(memory)

    def decode_step(self, tokens: Tensor, state: RnnState) -> tuple[Tensor, Tensor]:
        return self.decoder(tokens, state)

    def decode_all(self, tgt: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor]:
        """One token after the other."""
        state = self.init_state(memory)
        steps = [self.decoder(newest[:, None], state) for newest in tgt.unbind(1)]
        hidden, attn = zip(*steps)
        return torch.cat(hidden, 1), torch.cat(attn, 1)
