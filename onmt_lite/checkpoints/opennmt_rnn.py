"""OpenNMT-py's recurrent models, versions 1 to 3: from a checkpoint's content to a model."""

from collections.abc import Mapping
from typing import Any, cast

from onmt_lite.checkpoints.renaming import Tensors, count, load_strictly, rename, size
from onmt_lite.errors import CheckpointError
from onmt_lite.models.rnn import Cell, Rnn, RnnConfig
from onmt_lite.models.rnn_attention import Gate, Score

SRC_TABLE = "encoder.embeddings.make_embedding.emb_luts.0.weight"
TGT_TABLE = "decoder.embeddings.make_embedding.emb_luts.0.weight"
RULES = (
    (r"encoder\.embeddings\.make_embedding\.emb_luts\.0\.(\w+)", r"encoder.embedding.\1"),
    (r"decoder\.embeddings\.make_embedding\.emb_luts\.0\.(\w+)", r"decoder.embedding.\1"),
    (r"encoder\.(rnn|bridge)\.(.*)", r"encoder.\1.\2"),
    (r"decoder\.rnn\.layers\.(.*)", r"decoder.cells.layers.\1"),  # with input feed
    (r"decoder\.rnn\.(\w+)_l(\d+)", r"decoder.cells.layers.\2.\1"),  # without
    (r"decoder\.attn\.linear_(?:in|query)\.(\w+)", r"decoder.attention.query.\1"),
    (r"decoder\.attn\.linear_context\.(\w+)", r"decoder.attention.key.\1"),
    (r"decoder\.attn\.v\.(\w+)", r"decoder.attention.energy.\1"),
    (r"decoder\.attn\.linear_out\.(\w+)", r"decoder.attention.out.\1"),
    # Coverage attention is trained for, but no version hands the coverage to its attention
    (r"decoder\.attn\.linear_cover\.weight", ""),
    (r"decoder\.context_gate\.context_gate\.gate\.(\w+)", r"decoder.gate.gate.\1"),
    (r"decoder\.context_gate\.context_gate\.(source|target)_proj\.(\w+)", r"decoder.gate.\1.\2"),
    (r"generator\.(?:0\.)?(weight|bias)", r"output.\1"),
)


def recognises(weights: Tensors) -> bool:
    return "encoder.rnn.weight_ih_l0" in weights


def build(weights: Tensors, options: Mapping[str, Any]) -> Rnn:
    """The model of a checkpoint.

    weights: of `model`, and of `generator` with "generator." before each name.
    options: `opt`, by name.  Only what no tensor shows is taken from it.
    CheckpointError for what is not exactly a model of this kind.
    """
    for name in ("global_attention_function", "generator_function"):
        if (function := options.get(name) or "softmax") != "softmax":
            raise CheckpointError(f"options: {name} {function!r:.50} is not supported")
    return load_strictly(lambda: Rnn(read_config(weights, options)), rename(weights, RULES))


def read_config(weights: Tensors, options: Mapping[str, Any]) -> RnnConfig:
    attention = read_attention(weights, "decoder.attn")
    if (said := options.get("global_attention") or attention) != attention:
        raise CheckpointError(
            f"options: global_attention {said!r:.50}, but weights of {attention!r}"
        )
    input_feed = any(name.startswith("decoder.rnn.layers.") for name in weights)
    layers = r"layers\.(\d+)\.weight_hh" if input_feed else r"weight_hh_l(\d+)"
    return RnnConfig(
        src_vocab_size=size(weights, SRC_TABLE, 0),
        tgt_vocab_size=size(weights, TGT_TABLE, 0),
        d_src_embedding=size(weights, SRC_TABLE, 1),
        d_tgt_embedding=size(weights, TGT_TABLE, 1),
        d_model=size(weights, "decoder.attn.linear_out.weight", 0),
        enc_layers=count(weights, r"encoder\.rnn\.weight_hh_l(\d+)"),
        dec_layers=count(weights, r"decoder\.rnn\." + layers),
        cell=_cell(weights),
        bidirectional="encoder.rnn.weight_hh_l0_reverse" in weights,
        bridge="encoder.bridge.0.weight" in weights,
        input_feed=input_feed,
        attention=attention,
        context_gate=_gate(weights, options),
    )


def _cell(weights: Tensors) -> Cell:
    """Gates are stacked: an LSTM has four of them, a GRU three."""
    name = "encoder.rnn.weight_hh_l0"
    n_gates = size(weights, name, 0) / max(1, size(weights, name, 1))
    if n_gates not in (3, 4):
        raise CheckpointError("weights: neither LSTM nor GRU cells; other kinds are not supported")
    return "lstm" if n_gates == 4 else "gru"


def read_attention(weights: Tensors, name: str) -> Score:
    """The kind of the attention `name`, by what it has weights for."""
    if f"{name}.linear_context.weight" in weights:
        return "mlp"
    return "general" if f"{name}.linear_in.weight" in weights else "dot"


def _gate(weights: Tensors, options: Mapping[str, Any]) -> Gate:
    """The three kinds have the same weights."""
    if "decoder.context_gate.context_gate.gate.weight" not in weights:
        return "none"
    kind = options.get("context_gate")
    if kind not in ("source", "target", "both"):
        raise CheckpointError(f"options: context_gate {kind!r:.50} does not say which kind it is")
    return cast(Gate, kind)
