"""Small recurrent and convolutional models with random weights, named as in their toolkits."""

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
    """Build a model with a checkpoint reader.

    Args:
        reader: a function of weights and options
        weights: weights by name
        options: options of the toolkit
    """
    path = Path("weights")
    return reader(Weights(dict(weights), path), ConfigReader(dict(options), path))


def add_copying(
    inner: Any, copying: Mapping[str, Tensor], options: Mapping[str, Any], *vocabs: Vocab
) -> Any:
    """Add a copy mechanism to a model; see `opennmt.add_copy_generator`.

    Args:
        inner: the model
        copying: weights of the copy mechanism by name
        options: options of OpenNMT-py
        vocabs: source and target vocabulary
    """
    path = Path("weights")
    weights, config = Weights(dict(copying), path), ConfigReader(dict(options), path)
    return opennmt.add_copy_generator(inner, weights, config, *vocabs)


class RandomTensors:
    """Reproducible source of random tensors."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, std: float = 0.4) -> Tensor:
        return torch.randn(shape, generator=self.generator) * std

    def linear(self, name: str, n_out: int, n_in: int, bias: bool = True) -> Tensors:
        """Make the weights of a linear layer.

        Args:
            name: name of the layer
            n_out: number of outputs
            n_in: number of inputs
            bias: include a bias
        """
        weight = {f"{name}.weight": self(n_out, n_in)}
        return {**weight, f"{name}.bias": self(n_out)} if bias else weight


def make_rnn_weights(
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
    """Make the weights of an OpenNMT-py recurrent model.

    Args:
        cell: LSTM or GRU
        brnn: bidirectional encoder
        bridge: a layer between encoder and decoder states
        input_feed: feed attentional vectors to the decoder
        attention: score function, or none
        context_gate: type of the context gate, or None
        layers: number of layers
        d: model width
        e: embedding width
        seed: random seed
    """
    random, n_gates = RandomTensors(seed), 4 if cell == "LSTM" else 3
    half = d // 2 if brnn else d
    weights = {
        "encoder.embeddings.make_embedding.emb_luts.0.weight": random(VOCAB_SIZE, e, std=1.0),
        "decoder.embeddings.make_embedding.emb_luts.0.weight": random(VOCAB_SIZE, e, std=1.0),
        **random.linear("generator.0", VOCAB_SIZE, d),
    }

    def add_cell(prefix: str, suffix: str, n_in: int, n: int) -> None:
        weights[f"{prefix}weight_ih{suffix}"] = random(n_gates * n, n_in)
        weights[f"{prefix}weight_hh{suffix}"] = random(n_gates * n, n)
        weights[f"{prefix}bias_ih{suffix}"] = random(n_gates * n)
        weights[f"{prefix}bias_hh{suffix}"] = random(n_gates * n)

    d_input = e + d if input_feed else e
    for i in range(layers):
        for direction in ("", "_reverse") if brnn else ("",):
            add_cell("encoder.rnn.", f"_l{i}{direction}", e if i == 0 else d, half)
        width = d_input if i == 0 else d
        if input_feed:
            add_cell(f"decoder.rnn.layers.{i}.", "", width, d)
        else:
            add_cell("decoder.rnn.", f"_l{i}", width, d)
    for i in range((2 if cell == "LSTM" else 1) if bridge else 0):
        weights |= random.linear(f"encoder.bridge.{i}", layers * half, layers * half)
    if attention != "none":
        weights |= random.linear("decoder.attn.linear_out", d, 2 * d, bias=False)
    if attention == "general":
        weights |= random.linear("decoder.attn.linear_in", d, d, bias=False)
    elif attention == "mlp":
        weights |= random.linear("decoder.attn.linear_context", d, d, bias=False)
        weights |= random.linear("decoder.attn.linear_query", d, d)
        weights |= {
            "decoder.attn.v.weight": random(1, d),
            "decoder.attn.linear_out.bias": random(d),
        }
    if context_gate:
        gate = "decoder.context_gate.context_gate"
        weights |= random.linear(f"{gate}.gate", d, d_input + 2 * d)
        weights |= random.linear(f"{gate}.source_proj", d, d)
        weights |= random.linear(f"{gate}.target_proj", d, d_input + d)
    return weights


def make_rnn(**options: Any) -> Rnn:
    """Make an RNN; see `make_rnn_weights` for the options."""
    return build(build_rnn, make_rnn_weights(**options), options)


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


def make_fconv_weights(
    encoder: list[tuple[int, int]],
    decoder: list[tuple[int, int]],
    attention: list[bool] | None = None,
    old_norm: bool = False,
    shared_output: bool = False,
    e: int = 6,
    seed: int = 1,
) -> Tensors:
    """Make the weights of a fairseq fconv model.

    Args:
        encoder: (width, kernel) of each encoder layer
        decoder: (width, kernel) of each decoder layer
        attention: whether each decoder layer has attention; None: all layers
        old_norm: weight normalization of the decoder over another dimension, as in old versions
        shared_output: share the target embeddings with the output layer
        e: embedding width
        seed: random seed
    """
    random, d_out = RandomTensors(seed), e if shared_output else 5
    weights: Tensors = {"decoder.version": torch.tensor([1.0 if old_norm else 2.0])}

    def add_linear(name: str, n_out: int, n_in: int) -> None:
        weights[f"{name}.weight_v"] = random(n_out, n_in)
        weights[f"{name}.weight_g"] = random(n_out, 1, std=1.0)
        weights[f"{name}.bias"] = random(n_out)

    for side, layers in (("encoder", encoder), ("decoder", decoder)):
        weights[f"{side}.embed_tokens.weight"] = random(VOCAB_SIZE, e, std=1.0)
        weights[f"{side}.embed_positions.weight"] = random(30, e, std=1.0)
        add_linear(f"{side}.fc1", layers[0][0], e)
        d_in = layers[0][0]
        for i, (d, k) in enumerate(layers):
            uses_old_norm = old_norm and side == "decoder"
            shape = (k, 1, 1) if uses_old_norm else (1, 1, 2 * d)
            weights[f"{side}.convolutions.{i}.weight_v"] = random(k, d_in, 2 * d)
            weights[f"{side}.convolutions.{i}.weight_g"] = random(*shape, std=1.0)
            weights[f"{side}.convolutions.{i}.bias"] = random(2 * d)
            if d != d_in:
                add_linear(f"{side}.projections.{i}", d, d_in)
            if side == "decoder" and (attention is None or attention[i]):
                add_linear(f"decoder.attention.{i}.in_projection", e, d)
                add_linear(f"decoder.attention.{i}.out_projection", d, e)
            d_in = d
        add_linear(f"{side}.fc2", e if side == "encoder" else d_out, d_in)
    if shared_output:
        weights["decoder.fc3.weight"] = weights["decoder.embed_tokens.weight"]
        weights["decoder.fc3.bias"] = random(VOCAB_SIZE)
    else:
        add_linear("decoder.fc3", VOCAB_SIZE, d_out)
    return weights


def make_fconv(**options: Any) -> Convolution:
    """Make a fairseq convolutional model; see `make_fconv_weights` for the options."""
    return build(build_fconv, make_fconv_weights(**options), {})


FCONVS: dict[str, dict[str, Any]] = {
    "plain": dict(encoder=[(8, 3)] * 2, decoder=[(8, 3)] * 2),
    "uneven": dict(encoder=[(8, 3), (10, 1), (7, 5)], decoder=[(8, 3), (10, 4), (9, 1)]),
    "even_kernels": dict(encoder=[(8, 2), (8, 4)], decoder=[(8, 2)] * 3),
    "some_attention": dict(encoder=[(8, 3)], decoder=[(8, 3)] * 3, attention=[False, True, True]),
    "old_norm": dict(encoder=[(8, 3)], decoder=[(8, 3)] * 2, old_norm=True),
    "shared_output": dict(encoder=[(8, 3)], decoder=[(8, 3)], shared_output=True),
    "one_word_kernels": dict(encoder=[(8, 1)], decoder=[(8, 1)]),
}


def make_cnn_weights(
    layers: int = 2, kernel: int = 3, positions: bool = False, d: int = 8, e: int = 6, seed: int = 1
) -> Tensors:
    """Make the weights of an OpenNMT-py convolutional model.

    Averaged weights differ from the current weights, as in real files.

    Args:
        layers: number of layers
        kernel: width of the kernels
        positions: include position embeddings
        d: layer width
        e: embedding width
        seed: random seed
    """
    random = RandomTensors(seed)
    weights = random.linear("generator.0", VOCAB_SIZE, d)
    for side, prefix in (("encoder", "encoder.cnn.layers"), ("decoder", "decoder.conv_layers")):
        table = f"{side}.embeddings.make_embedding"
        weights[f"{table}.emb_luts.0.weight"] = random(VOCAB_SIZE, e)
        if positions:
            weights[f"{table}.pe.pe"] = random(50, 1, e)
        weights |= random.linear(f"{side}.linear", d, e)
        for i in range(layers):
            name = f"{prefix}.{i}.conv"
            for suffix in ("", "_avg"):
                weights[f"{name}.V{suffix}"] = random(2 * d, d, kernel, 1)
                weights[f"{name}.g{suffix}"] = random(2 * d, std=1.0)
                weights[f"{name}.b{suffix}"] = random(2 * d)
            weights |= {f"{name}.weight": weights[f"{name}.V"]}
            weights |= {f"{name}.bias": weights[f"{name}.b"]}
            if side == "decoder":
                weights |= random.linear(f"decoder.attn_layers.{i}.linear_in", d, d)
    return weights


def make_cnn(**options: Any) -> Convolution:
    """Make an OpenNMT-py convolutional model; see `make_cnn_weights` for the options."""
    return build(build_cnn, make_cnn_weights(**options), {})


CNNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "positions": dict(positions=True),
    "wide_kernels": dict(kernel=5, layers=1),
    "three_layers": dict(layers=3),
}


# Source words w0 to w37, target words w18 to w53: about half of them are in both vocabularies
SRC_VOCAB = Vocab(["<unk>", "<blank>", *(f"w{i}" for i in range(38))], pad_id=1, unk_id=0)
TGT_VOCAB = Vocab(
    ["<unk>", "<blank>", "<s>", "</s>", *(f"w{i}" for i in range(18, 54))],
    unk_id=0,
    pad_id=1,
    bos_id=2,
    eos_id=3,
)


def make_copy_weights(attention: str | None, d: int, seed: int = 2) -> Tensors:
    """Make the weights of the copy mechanism of an OpenNMT-py model.

    Args:
        attention: score function of the copy attention; None: the decoder's attention is reused
        d: model width
        seed: random seed
    """
    random = RandomTensors(seed)
    weights = random.linear("generator.linear_copy", 1, d)
    if attention == "general":
        weights |= random.linear("decoder.copy_attn.linear_in", d, d, bias=False)
    elif attention == "mlp":
        weights |= random.linear("decoder.copy_attn.linear_context", d, d, bias=False)
        weights |= random.linear("decoder.copy_attn.linear_query", d, d)
        weights |= {"decoder.copy_attn.v.weight": random(1, d)}
    if attention:
        weights |= random.linear("decoder.copy_attn.linear_out", d, 2 * d, bias=attention == "mlp")
    return weights


def make_copying_rnn_weights(copying: str | None, **options: Any) -> Tensors:
    """Make the weights of an OpenNMT-py RNN with a copy mechanism."""
    plain = make_rnn_weights(**options)
    names = {name: name.replace("generator.0", "generator.linear") for name in plain}
    return {names[name]: weight for name, weight in plain.items()} | make_copy_weights(copying, d=8)


def make_copying_rnn(copying: str | None, **options: Any) -> Rnn:
    """Make an RNN with a copy mechanism; see `make_copying_rnn_weights` for the options."""
    options = {"reuse_copy_attn": copying is None, **options}
    structure = {name: value for name, value in options.items() if name != "reuse_copy_attn"}
    weights = Weights(make_copying_rnn_weights(copying, **structure), Path("weights"))
    copy_tensors = opennmt.split_copy_weights(weights).tensors
    inner = build(build_rnn, weights.tensors, options)
    return add_copying(inner, copy_tensors, options, SRC_VOCAB, TGT_VOCAB)


def make_copying_transformer() -> Transformer:
    """Make a Transformer with a copy mechanism."""
    inner = tiny.make_model()
    return add_copying(inner, make_copy_weights(None, d=16), {}, SRC_VOCAB, TGT_VOCAB)


COPYING_RNNS: dict[str, dict[str, Any]] = {
    "reuse": dict(copying=None),
    "dot": dict(copying="dot"),
    "general": dict(copying="general", brnn=True, cell="GRU"),
    "mlp": dict(copying="mlp", attention="dot"),
}


def make_ensemble(**options: Any) -> Ensemble:
    """Make an ensemble with one model of each architecture, all with TGT_VOCAB."""
    members = [
        tiny.make_model(),
        make_rnn(),
        make_cnn(),
        make_fconv(**FCONVS["plain"]),
        make_copying_rnn("general"),
    ]
    return Ensemble(members, **options)
