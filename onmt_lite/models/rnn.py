"""The recurrent encoder-decoder of Luong et al. 2015, with the variants of OpenNMT-py.

Shapes: B sentences of K hypotheses, R = B * K rows, S source tokens, T queries per sentence, D
model width, E embedding width, L layers.  For inference only: dropout is not implemented.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from onmt_lite.models.base import Selection
from onmt_lite.models.memory import Memory, make_padding_mask
from onmt_lite.models.output import AttentionScorer, Normalizer, OutputLayer, Score
from onmt_lite.models.seq2seq import DecoderState, Seq2SeqModel

Hidden = tuple[Tensor, ...]  # (h,) of GRU cells, (h, c) of LSTM cells, each (L, R, D)
Cell = Literal["lstm", "gru"]
Gate = Literal["none", "source", "target", "both"]


@dataclass(frozen=True)
class RnnConfig:
    """Hyperparameters and switches that determine the computation and the weight names."""

    src_vocab_size: int
    tgt_vocab_size: int
    d_src_embedding: int = 500
    d_tgt_embedding: int = 500
    d_model: int = 500  # of decoder states, and of encoder states (both directions concatenated)
    enc_layers: int = 2
    dec_layers: int = 2
    cell: Cell = "lstm"
    bidirectional: bool = False  # bidirectional encoder, d_model / 2 per direction
    bridge: bool = False  # a layer between the final encoder states and the decoder
    input_feed: bool = True  # input feeding: the last attentional vector is part of the next input
    attention: Score = "general"
    normalizer: Normalizer = "softmax"  # from attention scores to weights
    context_gate: Gate = "none"

    def __post_init__(self) -> None:
        """Raise ValueError if the config is invalid."""
        if self.enc_layers != self.dec_layers:
            raise ValueError(
                f"config: {self.dec_layers} decoder layers cannot be initialized from "
                f"{self.enc_layers} encoder layers"
            )
        if self.bidirectional and self.d_model % 2:
            raise ValueError(
                f"config: d_model {self.d_model} must be even for a bidirectional encoder"
            )


@dataclass
class RnnMemory(Memory):
    """An encoded batch; the bank is 0 on padding."""

    keys: Tensor | None  # (B, S, D): attention keys; None: the bank
    hidden: Hidden  # initial decoder states, one row per sentence


class RnnState(DecoderState[RnnMemory]):
    """Decoder state: hidden states of all layers, and the last attentional vectors."""

    def __init__(self, memory: RnnMemory):
        super().__init__(memory)
        self.hidden = memory.hidden
        self.feed = torch.zeros_like(memory.hidden[0][0])  # (R, D)

    def select_rows(self, selection: Selection, fresh: "RnnState | None") -> None:
        """Apply a selection to the hidden states and attentional vectors."""
        fresh_hidden = fresh.hidden if fresh else [None] * len(self.hidden)
        pairs = zip(self.hidden, fresh_hidden)
        self.hidden = tuple(selection.gather_rows(x, new, 1) for x, new in pairs)
        self.feed = selection.gather_rows(self.feed, fresh.feed if fresh else None)


class RnnEncoder(nn.Module):
    """Embedding, RNN and bridge."""

    def __init__(self, cfg: RnnConfig):
        super().__init__()
        self.bidirectional = cfg.bidirectional
        self.embedding = nn.Embedding(cfg.src_vocab_size, cfg.d_src_embedding)
        rnn_class = nn.LSTM if cfg.cell == "lstm" else nn.GRU
        d = cfg.d_model // 2 if cfg.bidirectional else cfg.d_model
        sizes = cfg.d_src_embedding, d, cfg.enc_layers
        self.rnn = rnn_class(*sizes, batch_first=True, bidirectional=cfg.bidirectional)
        n_states = (2 if cfg.cell == "lstm" else 1) if cfg.bridge else 0
        width = d * cfg.enc_layers
        self.bridge = nn.ModuleList(nn.Linear(width, width) for _ in range(n_states))

    def forward(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, Hidden]:
        """Encode source sentences.

        Args:
            src: source ids (B, S), int64
            src_lengths: lengths in tokens (B,), int64

        Returns:
            Encoder states (B, S, D), 0 on padding, and the final states, (L, B, D) each.
        """
        # Packed, so that the backward direction starts at the last token of each sentence
        packed = pack_padded_sequence(
            self.embedding(src), src_lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, final = self.rnn(packed)
        bank, _ = pad_packed_sequence(states, batch_first=True, total_length=src.size(1))
        hidden = final if isinstance(final, tuple) else (final,)
        if self.bridge:
            hidden = tuple(self._apply_bridge(i, state) for i, state in enumerate(hidden))
        if self.bidirectional:  # layer 0 forward, layer 0 backward, layer 1 forward, ...
            hidden = tuple(torch.cat([state[0::2], state[1::2]], 2) for state in hidden)
        return bank, hidden

    def _apply_bridge(self, i: int, state: Tensor) -> Tensor:
        """Apply one linear layer to the concatenated layers of each sentence.

        As in OpenNMT-py 3.x.  Versions up to 2.x do not transpose before folding, which mixes the
        states of a batch; results for single sentences are the same.

        Args:
            i: index of the bridge layer
            state: final encoder states (L * directions, B, d)

        Returns:
            Initial decoder states of the same shape.
        """
        linear = cast(nn.Linear, self.bridge[i])
        by_sentence = state.transpose(0, 1)  # (B, L * directions, d)
        folded = by_sentence.reshape(state.size(1), -1, linear.in_features)  # (B, *, L * d)
        return linear(folded).relu().view(by_sentence.shape).transpose(0, 1)


class GlobalAttention(AttentionScorer):
    """Global attention with a layer from query and context to the attentional vector.

    A tanh follows unless the score function is `mlp`, as in OpenNMT-py.
    """

    def __init__(self, d: int, score: Score, normalizer: Normalizer = "softmax"):
        """Initialize the attention; see `AttentionScorer`.

        Args:
            d: width of hidden states
            score: the score function
            normalizer: the function from scores to weights
        """
        super().__init__(d, score, normalizer)
        self.out = nn.Linear(2 * d, d, bias=score == "mlp")

    def forward(
        self, query: Tensor, keys: Tensor, bank: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend to the memory bank.

        Args:
            query: decoder states (B, T, D)
            keys: attention keys (B, S, D)
            bank: encoder states (B, S, D)
            mask: added to the scores (B, 1, S), float32

        Returns:
            Attentional vectors (B, T, D) and weights (B, T, S).
        """
        weights = self.compute_weights(query, keys, mask)
        attended = self.out(torch.cat([weights @ bank, query], -1))
        return (attended if self.score == "mlp" else attended.tanh()), weights


class ContextGate(nn.Module):
    """Context gate (Tu et al. 2017, section 3.2).

    Weighs the target context (decoder input and output) against the source context (attentional
    vector).
    """

    def __init__(self, d_input: int, d: int, gate_type: Gate):
        """Initialize the gate.

        Args:
            d_input: width of the decoder input
            d: width of hidden states
            gate_type: the context that is gated
        """
        super().__init__()
        self.gate_type = gate_type
        self.gate = nn.Linear(d_input + 2 * d, d)
        self.source = nn.Linear(d, d)
        self.target = nn.Linear(d_input + d, d)

    def forward(self, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
        """Return the gated vectors (R, D).

        Args:
            x: decoder input (R, d_input)
            output: decoder output (R, D)
            attended: attentional vectors (R, D)
        """
        z = self.gate(torch.cat([x, output, attended], -1)).sigmoid()  # (R, D)
        source, target = self.source(attended), self.target(torch.cat([x, output], -1))
        if self.gate_type in ("source", "both"):
            source = z * source
        if self.gate_type == "target":
            target = z * target
        elif self.gate_type == "both":
            target = (1 - z) * target
        return (source + target).tanh()


class RnnDecoder(nn.Module):
    """Embedding, cells, attention and context gate.

    Runs one step at a time because of input feeding.  Without attention, only the initial state
    depends on the source.
    """

    def __init__(self, cfg: RnnConfig):
        super().__init__()
        self.input_feed = cfg.input_feed
        d_input = cfg.d_tgt_embedding + (cfg.d_model if cfg.input_feed else 0)
        self.embedding = nn.Embedding(cfg.tgt_vocab_size, cfg.d_tgt_embedding)
        cell_class = nn.LSTMCell if cfg.cell == "lstm" else nn.GRUCell
        widths = [d_input] + [cfg.d_model] * (cfg.dec_layers - 1)
        self.cells = nn.ModuleList(cell_class(d, cfg.d_model) for d in widths)
        self.attention = self.gate = None
        if cfg.attention != "none":
            self.attention = GlobalAttention(cfg.d_model, cfg.attention, cfg.normalizer)
        if cfg.context_gate != "none":
            self.gate = ContextGate(d_input, cfg.d_model, cfg.context_gate)

    def forward(self, tokens: Tensor, state: RnnState) -> tuple[Tensor, Tensor]:
        """Decode one step.

        Args:
            tokens: the last tokens (B, K), int64
            state: the decoder state, updated in place except for its positions

        Returns:
            Attentional vectors (B, K, D) and attention (B, K, S).
        """
        x = self.embedding(tokens.flatten())  # (R, E)
        if self.input_feed:
            x = torch.cat([x, state.feed], 1)  # (R, E + D)
        output, new = x, []
        for i, cell in enumerate(self.cells):
            hidden = tuple(x[i] for x in state.hidden)  # (R, D) each
            new.append(cell(output, hidden) if len(hidden) == 2 else (cell(output, *hidden),))
            output = new[-1][0]  # (R, D)
        state.hidden = tuple(torch.stack(states) for states in zip(*new))  # (L, R, D) each
        queries = output.view(*tokens.shape, -1)  # (B, K, D): one product per sentence
        attended, attn = self._attend(queries, state.memory)
        state.feed = attended.flatten(0, 1)  # (R, D)
        if self.gate is not None:
            state.feed = self.gate(x, output, state.feed)
        return state.feed.view(*tokens.shape, -1), attn

    def _attend(self, queries: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor]:
        """Apply the attention to queries (B, K, D), or return them with uniform weights."""
        if self.attention is None:
            uniform = memory.mask.softmax(-1).to(queries.dtype)  # (B, 1, S)
            return queries, uniform.expand(-1, queries.size(1), -1)
        keys = memory.bank if memory.keys is None else memory.keys
        return self.attention(queries, keys, memory.bank, memory.mask)


class Rnn(Seq2SeqModel[RnnMemory, RnnState]):
    """A recurrent encoder-decoder."""

    max_positions = 100_000  # the model has no position embeddings

    def __init__(self, cfg: RnnConfig):
        super().__init__()
        self.cfg = cfg
        self.vocab_size = cfg.tgt_vocab_size
        self.has_attention = cfg.attention != "none"
        self.encoder, self.decoder = RnnEncoder(cfg), RnnDecoder(cfg)
        self.output = OutputLayer(cfg.d_model, cfg.tgt_vocab_size)

    def run_encoder(self, src: Tensor, src_lengths: Tensor) -> RnnMemory:
        """Encode source ids (B, S) with lengths (B,), both int64."""
        bank, hidden = self.encoder(src, src_lengths)
        mask, attention = make_padding_mask(src_lengths, src.size(1)), self.decoder.attention
        keys = None if attention is None else attention.project_keys(bank)
        return RnnMemory(bank, mask, keys, hidden)

    def init_state(self, memory: RnnMemory) -> RnnState:
        """Return the initial state."""
        return RnnState(memory)

    def decode_step(self, tokens: Tensor, state: RnnState) -> tuple[Tensor, Tensor]:
        """Decode one step; see `Seq2SeqModel.decode_step`."""
        return self.decoder(tokens, state)

    def decode_all(self, tgt: Tensor, memory: RnnMemory) -> tuple[Tensor, Tensor]:
        """Decode all positions step by step; see `Seq2SeqModel.decode_all`."""
        state = self.init_state(memory)
        steps = [self.decoder(tokens[:, None], state) for tokens in tgt.unbind(1)]
        hidden, attn = zip(*steps)
        return torch.cat(hidden, 1), torch.cat(attn, 1)
