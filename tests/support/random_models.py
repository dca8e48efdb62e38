"""Small recurrent and convolutional models: random weights under the names of their systems."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints.config_reader import ConfigReader
from onmt_lite.checkpoints.fairseq import build_fconv
from onmt_lite.checkpoints.opennmt import models as opennmt
from onmt_lite.checkpoints.opennmt.models import build_cnn, build_rnn
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.models.convolution import Convolution
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.models.rnn import Rnn
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.vocab import Vocab
from tests.support import tiny

VOCAB_SIZE = 40
Tensors = dict[str, Tensor]


def build(reader: Any, weights: Mapping[str, Tensor], options: Mapping[str, Any]) -> Any:
    """What a reader of files makes of weights and options."""
    path = Path("weights")
    return reader(Weights(dict(weights), path), ConfigReader(dict(options), path))


def add_copying(inner: Any, own: Mapping[str, Tensor], options: Mapping[str, Any], *vocabs) -> Any:
    """As `opennmt.add_copy_generator`."""
    path = Path("weights")
    weights, described = Weights(dict(own), path), ConfigReader(dict(options), path)
    return opennmt.add_copy_generator(inner, weights, described, *vocabs)


class Dice:
    """Random tensors, the same in every run."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, std: float = 0.4) -> Tensor:
        return torch.randn(shape, generator=self.generator) * std

    def linear(self, name: str, n_out: int, n_in: int, bias: bool = True) -> Tensors:
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
) -> Tensors:
    """What OpenNMT-py saves of a recurrent model with these options."""
    dice, n_gates = Dice(seed), 4 if cell == "LSTM" else 3
    half = d // 2 if brnn else d
    weights = {
        "encoder.embeddings.make_embedding.emb_luts.0.weight": dice(VOCAB_SIZE, e, std=1.0),
        "decoder.embeddings.make_embedding.emb_luts.0.weight": dice(VOCAB_SIZE, e, std=1.0),
        **dice.linear("generator.0", VOCAB_SIZE, d),
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
    if attention != "none":
        weights |= dice.linear("decoder.attn.linear_out", d, 2 * d, bias=False)
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
    return build(build_rnn, rnn_weights(**options), options)


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
    "no_attention": dict(attention="none"),
    "mlp_gru": dict(attention="mlp", cell="GRU"),
    "gate_source": dict(context_gate="source"),
    "gate_target": dict(context_gate="target"),
    "gate_both": dict(context_gate="both"),
    "no_feed_gate": dict(input_feed=False, context_gate="both", attention="dot", brnn=True),
}


def fconv_weights(
    encoder: list[tuple[int, int]],
    decoder: list[tuple[int, int]],
    attention: list[bool] | None = None,
    old_norm: bool = False,
    shared_output: bool = False,
    e: int = 6,
    seed: int = 1,
) -> Tensors:
    """What fairseq saves of an fconv model with layers (width, kernel) and these options.

    `old_norm`: the decoder's convolutions are normed over another dimension, as once in fairseq.
    """
    dice, d_out = Dice(seed), e if shared_output else 5
    weights: Tensors = {"decoder.version": torch.tensor([1.0 if old_norm else 2.0])}

    def linear(name: str, n_out: int, n_in: int) -> None:
        weights[f"{name}.weight_v"] = dice(n_out, n_in)
        weights[f"{name}.weight_g"] = dice(n_out, 1, std=1.0)
        weights[f"{name}.bias"] = dice(n_out)

    for side, layers in (("encoder", encoder), ("decoder", decoder)):
        weights[f"{side}.embed_tokens.weight"] = dice(VOCAB_SIZE, e, std=1.0)
        weights[f"{side}.embed_positions.weight"] = dice(30, e, std=1.0)
        linear(f"{side}.fc1", layers[0][0], e)
        d_in = layers[0][0]
        for i, (d, k) in enumerate(layers):
            normed_once = old_norm and side == "decoder"
            shape = (k, 1, 1) if normed_once else (1, 1, 2 * d)
            weights[f"{side}.convolutions.{i}.weight_v"] = dice(k, d_in, 2 * d)
            weights[f"{side}.convolutions.{i}.weight_g"] = dice(*shape, std=1.0)
            weights[f"{side}.convolutions.{i}.bias"] = dice(2 * d)
            if d != d_in:
                linear(f"{side}.projections.{i}", d, d_in)
            if side == "decoder" and (attention is None or attention[i]):
                linear(f"decoder.attention.{i}.in_projection", e, d)
                linear(f"decoder.attention.{i}.out_projection", d, e)
            d_in = d
        linear(f"{side}.fc2", e if side == "encoder" else d_out, d_in)
    if shared_output:
        weights["decoder.fc3.weight"] = weights["decoder.embed_tokens.weight"]
        weights["decoder.fc3.bias"] = dice(VOCAB_SIZE)
    else:
        linear("decoder.fc3", VOCAB_SIZE, d_out)
    return weights


def make_fconv(**options: Any) -> Convolution:
    return build(build_fconv, fconv_weights(**options), {})


FCONVS: dict[str, dict[str, Any]] = {
    "plain": dict(encoder=[(8, 3)] * 2, decoder=[(8, 3)] * 2),
    "uneven": dict(encoder=[(8, 3), (10, 1), (7, 5)], decoder=[(8, 3), (10, 4), (9, 1)]),
    "even_kernels": dict(encoder=[(8, 2), (8, 4)], decoder=[(8, 2)] * 3),
    "some_attention": dict(encoder=[(8, 3)], decoder=[(8, 3)] * 3, attention=[False, True, True]),
    "old_norm": dict(encoder=[(8, 3)], decoder=[(8, 3)] * 2, old_norm=True),
    "shared_output": dict(encoder=[(8, 3)], decoder=[(8, 3)], shared_output=True),
    "one_word_kernels": dict(encoder=[(8, 1)], decoder=[(8, 1)]),
}


def cnn_weights(
    layers: int = 2, kernel: int = 3, positions: bool = False, d: int = 8, e: int = 6, seed: int = 1
) -> Tensors:
    """What OpenNMT-py saves of a convolutional model with these options.

    The averages differ from what they are averages of, as they do in a real file.
    """
    dice = Dice(seed)
    weights = dice.linear("generator.0", VOCAB_SIZE, d)
    for side, prefix in (("encoder", "encoder.cnn.layers"), ("decoder", "decoder.conv_layers")):
        table = f"{side}.embeddings.make_embedding"
        weights[f"{table}.emb_luts.0.weight"] = dice(VOCAB_SIZE, e)
        if positions:
            weights[f"{table}.pe.pe"] = dice(50, 1, e)
        weights |= dice.linear(f"{side}.linear", d, e)
        for i in range(layers):
            name = f"{prefix}.{i}.conv"
            for suffix in ("", "_avg"):
                weights[f"{name}.V{suffix}"] = dice(2 * d, d, kernel, 1)
                weights[f"{name}.g{suffix}"] = dice(2 * d, std=1.0)
                weights[f"{name}.b{suffix}"] = dice(2 * d)
            weights |= {f"{name}.weight": weights[f"{name}.V"]}
            weights |= {f"{name}.bias": weights[f"{name}.b"]}
            if side == "decoder":
                weights |= dice.linear(f"decoder.attn_layers.{i}.linear_in", d, d)
    return weights


def make_cnn(**options: Any) -> Convolution:
    return build(build_cnn, cnn_weights(**options), {})


CNNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "positions": dict(positions=True),
    "wide_kernels": dict(kernel=5, layers=1),
    "three_layers": dict(layers=3),
}


# Source words w0 to w37, target words w18 to w53: about half of them on both sides
SRC_VOCAB = Vocab(["<unk>", "<blank>", *(f"w{i}" for i in range(38))], pad_id=1, unk_id=0)
TGT_VOCAB = Vocab(
    ["<unk>", "<blank>", "<s>", "</s>", *(f"w{i}" for i in range(18, 54))],
    unk_id=0,
    pad_id=1,
    bos_id=2,
    eos_id=3,
)


def copy_weights(attention: str | None, d: int, seed: int = 2) -> Tensors:
    """What copying adds to the weights of an OpenNMT-py model; attention None: it is reused."""
    dice = Dice(seed)
    weights = dice.linear("generator.linear_copy", 1, d)
    if attention == "general":
        weights |= dice.linear("decoder.copy_attn.linear_in", d, d, bias=False)
    elif attention == "mlp":
        weights |= dice.linear("decoder.copy_attn.linear_context", d, d, bias=False)
        weights |= dice.linear("decoder.copy_attn.linear_query", d, d)
        weights |= {"decoder.copy_attn.v.weight": dice(1, d)}
    if attention:
        weights |= dice.linear("decoder.copy_attn.linear_out", d, 2 * d, bias=attention == "mlp")
    return weights


def copying_rnn_weights(copying: str | None, **options: Any) -> Tensors:
    """An RNN with a CopyGenerator."""
    plain = rnn_weights(**options)
    names = {name: name.replace("generator.0", "generator.linear") for name in plain}
    return {names[name]: weight for name, weight in plain.items()} | copy_weights(copying, d=8)


def make_copying_rnn(copying: str | None, **options: Any) -> Rnn:
    options = {"reuse_copy_attn": copying is None, **options}
    structure = {name: value for name, value in options.items() if name != "reuse_copy_attn"}
    weights = Weights(copying_rnn_weights(copying, **structure), Path("weights"))
    own = opennmt.split_copy_weights(weights).tensors
    inner = build(build_rnn, weights.tensors, options)
    return add_copying(inner, own, options, SRC_VOCAB, TGT_VOCAB)


def make_copying_transformer() -> Transformer:
    inner = tiny.make_model()
    return add_copying(inner, copy_weights(None, d=16), {}, SRC_VOCAB, TGT_VOCAB)


COPYING_RNNS: dict[str, dict[str, Any]] = {
    "reuse": dict(copying=None),
    "dot": dict(copying="dot"),
    "general": dict(copying="general", brnn=True, cell="GRU"),
    "mlp": dict(copying="mlp", attention="dot"),
}


def make_ensemble(**options: Any) -> Ensemble:
    """One model of each family, all with TGT_VOCAB; see `Ensemble` for the options."""
    members = [
        tiny.make_model(),
        make_rnn(),
        make_cnn(),
        make_fconv(**FCONVS["plain"]),
        make_copying_rnn("general"),
    ]
    return Ensemble(members, **options)
