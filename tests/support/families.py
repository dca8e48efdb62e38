"""Small recurrent and convolutional models: random weights under the names of their systems."""

from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints import opennmt_rnn
from onmt_lite.models.rnn import Rnn

VOCAB_SIZE = 40
Weights = dict[str, Tensor]


class Dice:
    """Random tensors, the same in every run."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, std: float = 0.4) -> Tensor:
        return torch.randn(shape, generator=self.generator) * std

    def linear(self, name: str, n_out: int, n_in: int, bias: bool = True) -> Weights:
        weight = {f"{name}.weight": self(n_out, n_in)}
        return {**weight, f"{name}.bias": self(n_out)} if bias else weight


def rnn_weights(
    cell: str = "LSTM",
    brnn: bool = False,
    bridge: bool = False,
    input_feed: bool = True,
    attention: str = "general",
    context_gate: str | None = None,
    layers: int = 2,
    d: int = 8,
    e: int = 6,
    seed: int = 1,
) -> Weights:
    """What OpenNMT-py saves of a recurrent model with these options."""
    dice, n_gates = Dice(seed), 4 if cell == "LSTM" else 3
    half = d // 2 if brnn else d
    weights = {
        "encoder.embeddings.make_embedding.emb_luts.0.weight": dice(VOCAB_SIZE, e, std=1.0),
        "decoder.embeddings.make_embedding.emb_luts.0.weight": dice(VOCAB_SIZE, e, std=1.0),
        **dice.linear("generator.0", VOCAB_SIZE, d),
        "decoder.attn.linear_out.weight": dice(d, 2 * d),
    }

    def cells(prefix: str, suffix: str, n_in: int, n: int) -> None:
        weights[f"{prefix}weight_ih{suffix}"] = dice(n_gates * n, n_in)
        weights[f"{prefix}weight_hh{suffix}"] = dice(n_gates * n, n)
        weights[f"{prefix}bias_ih{suffix}"] = dice(n_gates * n)
        weights[f"{prefix}bias_hh{suffix}"] = dice(n_gates * n)

    d_input = e + d if input_feed else e
    for i in range(layers):
        for direction in ("", "_reverse") if brnn else ("",):
            cells("encoder.rnn.", f"_l{i}{direction}", e if i == 0 else d, half)
        width = d_input if i == 0 else d
        if input_feed:
            cells(f"decoder.rnn.layers.{i}.", "", width, d)
        else:
            cells("decoder.rnn.", f"_l{i}", width, d)
    for i in range((2 if cell == "LSTM" else 1) if bridge else 0):
        weights |= dice.linear(f"encoder.bridge.{i}", layers * half, layers * half)
    if attention == "general":
        weights |= dice.linear("decoder.attn.linear_in", d, d, bias=False)
    elif attention == "mlp":
        weights |= dice.linear("decoder.attn.linear_context", d, d, bias=False)
        weights |= dice.linear("decoder.attn.linear_query", d, d)
        weights |= {"decoder.attn.v.weight": dice(1, d), "decoder.attn.linear_out.bias": dice(d)}
    if context_gate:
        gate = "decoder.context_gate.context_gate"
        weights |= dice.linear(f"{gate}.gate", d, d_input + 2 * d)
        weights |= dice.linear(f"{gate}.source_proj", d, d)
        weights |= dice.linear(f"{gate}.target_proj", d, d_input + d)
    return weights


def make_rnn(**options: Any) -> Rnn:
    return opennmt_rnn.build(rnn_weights(**options), options)


RNNS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": dict(cell="GRU"),
    "one_layer": dict(layers=1),
    "three_layers": dict(layers=3),
    "brnn": dict(brnn=True),
    "brnn_gru": dict(brnn=True, cell="GRU"),
    "bridge": dict(bridge=True),
    "bridge_gru": dict(bridge=True, cell="GRU"),
    "bridge_brnn": dict(bridge=True, brnn=True),
    "bridge_brnn_three_layers": dict(bridge=True, brnn=True, layers=3),
    "no_feed": dict(input_feed=False),
    "no_feed_gru": dict(input_feed=False, cell="GRU"),
    "dot": dict(attention="dot"),
    "mlp": dict(attention="mlp"),
    "mlp_gru": dict(attention="mlp", cell="GRU"),
    "gate_source": dict(context_gate="source"),
    "gate_target": dict(context_gate="target"),
    "gate_both": dict(context_gate="both"),
    "no_feed_gate": dict(input_feed=False, context_gate="both", attention="dot", brnn=True),
}
