"""Recurrent models of OpenNMT-py, versions 1 to 3."""

from typing import Any, cast

from onmt_lite.checkpoints.building import build
from onmt_lite.checkpoints.description import Description, shown
from onmt_lite.checkpoints.opennmt.vocab import SRC, TGT
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.rnn import Cell, Rnn, RnnConfig
from onmt_lite.models.rnn_attention import Gate, Normaliser, Score

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
    # Trained, but unused: no version passes the coverage to the attention
    (r"decoder\.attn\.linear_cover\.weight", ""),
    (r"decoder\.context_gate\.context_gate\.gate\.(\w+)", r"decoder.gate.gate.\1"),
    (r"decoder\.context_gate\.context_gate\.(source|target)_proj\.(\w+)", r"decoder.gate.\1.\2"),
    (r"generator\.(?:0\.)?(weight|bias)", r"output.\1"),
)


def build_model(weights: Weights, opt: Description) -> Rnn:
    """Build a recurrent model, by its weights, and by options for what no weight shows."""
    fields = read_fields(weights, opt)
    return build(lambda: Rnn(RnnConfig(**fields)), weights.by_rules(RULES), opt.path)


def read_fields(weights: Weights, opt: Description) -> dict[str, Any]:
    """Read the structure off the names of the weights, the sizes off their shapes."""
    attention = read_attention(weights, "decoder.attn", opt, "global_attention")
    input_feed = any(name.startswith("decoder.rnn.layers.") for name in weights.tensors)
    first = "layers.0.weight_hh" if input_feed else "weight_hh_l0"
    layers = "layers.{}." if input_feed else "weight_hh_l{}"
    return dict(
        **weights.table_sizes(SRC, TGT),
        d_model=weights.shape(f"decoder.rnn.{first}")[1],
        enc_layers=weights.count("encoder.rnn.weight_hh_l{}"),
        dec_layers=weights.count(f"decoder.rnn.{layers}"),
        cell=_cell(weights),
        bidirectional="encoder.rnn.weight_hh_l0_reverse" in weights,
        bridge="encoder.bridge.0.weight" in weights,
        input_feed=input_feed,
        attention=attention,
        normaliser=read_normaliser(opt),
        context_gate=_gate(weights, opt),
    )


def _cell(weights: Weights) -> Cell:
    """Tell LSTM from GRU: four stacked gates, or three."""
    rows, d = weights.shape("encoder.rnn.weight_hh_l0")
    if rows not in (3 * d, 4 * d):
        raise CheckpointError(
            f"{weights.path}: neither LSTM nor GRU cells; other kinds are not read"
        )
    return "lstm" if rows == 4 * d else "gru"


def read_attention(weights: Weights, name: str, opt: Description, *options: str) -> Score:
    """Tell the kind of the attention `name` by its weights, which an option must not deny."""
    kind: Score = "none"
    if f"{name}.linear_context.weight" in weights:
        kind = "mlp"
    elif f"{name}.linear_in.weight" in weights:
        kind = "general"
    elif f"{name}.linear_out.weight" in weights:
        kind = "dot"
    said = next((opt.get(option) for option in options if opt.get(option)), kind)
    if said != kind:
        raise CheckpointError(
            f"{opt.path}: {options[0]} is {shown(said)}, but the weights are of {kind!r}"
        )
    return kind


def read_normaliser(opt: Description) -> Normaliser:
    """Read the normaliser of all attention in the model."""
    choices: dict[str, Normaliser] = {"softmax": "softmax", "sparsemax": "sparsemax"}
    return opt.choice("global_attention_function", choices, "softmax")


def _gate(weights: Weights, opt: Description) -> Gate:
    """Read the kind of the context gate off the options: all kinds have the same weights."""
    if "decoder.context_gate.context_gate.gate.weight" not in weights:
        return "none"
    kind = opt.get("context_gate")
    if kind not in ("source", "target", "both"):
        raise CheckpointError(f"{opt.path}: context_gate {shown(kind)} is none of its kinds")
    return cast(Gate, kind)
