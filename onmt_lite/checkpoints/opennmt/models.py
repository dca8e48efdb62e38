"""Builds OpenNMT-py models: Transformer, RNN and CNN, with or without copy attention."""

from typing import Any, cast

import torch

from onmt_lite.checkpoints.config_reader import ConfigReader, format_value
from onmt_lite.checkpoints.weights import (
    Weights,
    assemble_convolution,
    assemble_transformer,
    build_model,
    detect_position_layout,
    fold_weight_norm,
)
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution
from onmt_lite.models.output import AttentionScorer, CopyGenerator, Normalizer, OutputLayer, Score
from onmt_lite.models.rnn import Rnn, RnnConfig
from onmt_lite.models.seq2seq import Seq2SeqModel
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.vocab import Vocab

# -- Transformers ----------------------------------------------------------------------------------

MAX_POSITIONS = 5000  # rows of OpenNMT-py's position tables
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "gelu"}
LAYOUTS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "fairseq"}
RELATION = "encoder.transformer.0.self_attn.relative_attention_bias.weight"
FEED_NORM = "encoder.transformer.0.feed_forward.layer_norm.weight"


def build_transformer(weights: Weights, opt: ConfigReader) -> Transformer:
    """Build a Transformer.

    Args:
        weights: tensors under OpenNMT-py's names; they are renamed in place.
        opt: the training options.

    Raises:
        CheckpointError: if weights are missing, unknown or of the wrong shape, or an option is not
            supported.
    """
    # Causal mask (versions before 1.0), and unused norms of parallel residual layers
    weights.drop(r"decoder\.transformer_layers\.\d+\.mask")
    if FEED_NORM not in weights:
        weights.drop(r"decoder\.transformer_layers\.\d+\.layer_norm_(2|res)\.(weight|bias)")
    relative = _read_relative_positions(weights, opt)
    weights.rename("opennmt_transformer")
    return assemble_transformer(
        weights,
        opt.path,
        heads=opt.get_int("heads", 8),
        activation=opt.get_choice("pos_ffn_activation_fn", ACTIVATIONS, "relu"),
        norm_eps=opt.get_float("norm_eps", 1e-6),
        output_bias=True,
        **relative,
        **_read_alignment_heads(opt, weights.count_layers("decoder.")),
        **_read_positions(weights, opt),
    )


def _read_alignment_heads(opt: ConfigReader, n_layers: int) -> dict[str, int]:
    """Return the layer and number of heads trained to align; empty if there is no such layer."""
    layer = opt.get_int("alignment_layer", n_layers)
    if not -n_layers <= layer < n_layers:
        return {}
    heads = max(0, opt.get_int("alignment_heads", 0))
    return dict(report_layer=layer % n_layers + 1, report_heads=heads)


def _read_relative_positions(weights: Weights, opt: ConfigReader) -> dict[str, Any]:
    """Read max_relative_positions: a maximum distance, -1 for rotary or -2 for ALiBi."""
    limit = opt.get_int("max_relative_positions", 0)
    if RELATION in weights:
        return dict(relative="buckets", relative_limit=limit)
    if limit == -1:
        return dict(
            relative="rotary",
            rotary_theta=opt.get_float("rotary_theta", 10000.0),
            rotary_dim=opt.get_int("rotary_dim", 0),
            rotary_interleave=opt.get_bool("rotary_interleave", True),
        )
    return dict(relative="alibi") if limit == -2 else {}


def _read_positions(weights: Weights, opt: ConfigReader) -> dict[str, Any]:
    """Return the position settings; remove tables that can be computed."""
    names = [name for name in weights.tensors if name.endswith("_embedding.position")]
    if not names:
        if not opt.get_bool("position_encoding"):
            return dict(positions="none", scale_embedding=False, max_positions=MAX_POSITIONS)
        layout = opt.get_choice("position_encoding_type", LAYOUTS, "SinusoidalInterleaved")
        return dict(positions=layout, max_positions=MAX_POSITIONS)
    for name in ("src_embedding.position", "tgt_embedding.position"):  # both sides or none
        weights.get_shape(name, n_dims=3)  # (P, 1, E)
        weights.tensors[name] = weights.tensors[name][:, 0]
    layouts = {detect_position_layout(weights.tensors[name]) for name in names}
    if len(layouts) > 1 or "learned" in layouts:
        return {}
    rows = [len(weights.tensors.pop(name)) for name in names]
    return dict(positions=layouts.pop(), max_positions=min(rows))


# -- Recurrent models ------------------------------------------------------------------------------

GATES = {name: name for name in ("source", "target", "both")}


def build_rnn(weights: Weights, opt: ConfigReader) -> Rnn:
    """Build an RNN; options are only used for settings that cannot be inferred from the weights.

    Args:
        weights: tensors under OpenNMT-py's names; they are renamed in place.
        opt: the training options.

    Raises:
        CheckpointError: if weights or options are invalid or not supported.
    """
    attention = detect_attention(weights, "decoder.attn", opt, "global_attention")
    input_feed = any(name.startswith("decoder.rnn.layers.") for name in weights.tensors)
    # Trained but unused: no version passes the coverage to the attention
    weights.drop(r"decoder\.attn\.linear_cover\.weight")
    weights.rename("opennmt_rnn")
    n_src, d_src = weights.get_shape("encoder.embedding.weight")
    n_tgt, d_tgt = weights.get_shape("decoder.embedding.weight")
    rows, d = weights.get_shape("encoder.rnn.weight_hh_l0")
    if rows not in (3 * d, 4 * d):
        raise CheckpointError(
            f"{weights.path}: only LSTM and GRU cells are supported; use another model"
        )
    # The weights show that there is a context gate, but not its type
    has_gate = "decoder.gate.gate.weight" in weights
    fields: dict[str, Any] = dict(
        src_vocab_size=n_src,
        tgt_vocab_size=n_tgt,
        d_src_embedding=d_src,
        d_tgt_embedding=d_tgt,
        d_model=weights.get_shape("decoder.cells.0.weight_hh")[1],
        enc_layers=weights.count_layers("encoder.rnn.weight_hh_l"),
        dec_layers=weights.count_layers("decoder.cells."),
        cell="lstm" if rows == 4 * d else "gru",
        bidirectional="encoder.rnn.weight_hh_l0_reverse" in weights,
        bridge="encoder.bridge.0.weight" in weights,
        input_feed=input_feed,
        attention=attention,
        normalizer=read_attention_function(opt),
        context_gate=opt.get_choice("context_gate", GATES) if has_gate else "none",
    )
    return build_model(lambda: Rnn(RnnConfig(**fields)), weights)


def detect_attention(weights: Weights, name: str, opt: ConfigReader, *options: str) -> Score:
    """Detect the attention score function from its weights.

    Args:
        weights: all tensors.
        name: prefix of the attention weights.
        opt: the training options.
        options: names of options that set the function; the first option with a value must match.

    Raises:
        CheckpointError: if option and weights do not match.
    """
    score: Score = "none"
    if f"{name}.linear_context.weight" in weights:
        score = "mlp"
    elif f"{name}.linear_in.weight" in weights:
        score = "general"
    elif f"{name}.linear_out.weight" in weights:
        score = "dot"
    configured = next((opt.get(option) for option in options if opt.get(option)), score)
    if configured != score:
        raise CheckpointError(
            f"{opt.path}: {options[0]} is {format_value(configured)}, but the weights are of type "
            f"{score!r}"
        )
    return score


def read_attention_function(opt: ConfigReader) -> Normalizer:
    """Return the attention normalization: softmax or sparsemax."""
    choices: dict[str, Normalizer] = {"softmax": "softmax", "sparsemax": "sparsemax"}
    return opt.get_choice("global_attention_function", choices, "softmax")


# -- Convolutional models --------------------------------------------------------------------------

CONVOLUTION = r"(encoder\.cnn\.layers|decoder\.conv_layers)\.\d+\.conv\."


def build_cnn(weights: Weights, opt: ConfigReader) -> Convolution:
    """Build a CNN.

    A file has the trained parameters of each convolution (`weight` and `bias`, with copies V and b,
    and the norm g) and running averages of V, g and b. The averages are used for translation.
    OpenNMT-py continues to average during translation, so its output drifts; here the stored
    averages do not change.

    Args:
        weights: tensors under OpenNMT-py's names; they are renamed in place.
        opt: the training options (not used).

    Raises:
        CheckpointError: if weights are missing, unknown or of the wrong shape.
    """
    weights.drop(CONVOLUTION + "(weight|bias|V|g|b)")
    fold_weight_norm(weights, "V_avg", "g_avg")
    weights.rename("opennmt_cnn")
    for name, weight in weights.tensors.items():
        if weight.dim() == 4:  # (out, in, kernel, 1) -> (out, kernel, in)
            weights.tensors[name] = weight[..., 0].transpose(1, 2)
        elif weight.dim() == 3:  # positions: (P, 1, E) -> (P, E)
            weights.tensors[name] = weight.flatten(0, 1)
    # On both sides or on neither
    has_positions = any(name.endswith(".position") for name in weights.tensors)
    return assemble_convolution(weights, has_positions, scale_embedding=has_positions)


# -- Copy attention --------------------------------------------------------------------------------

ATTENTION = "decoder.copy_attn"


def split_copy_weights(weights: Weights) -> Weights:
    """Remove and return the copy weights, so that `weights` becomes a plain model."""
    copy_weights = {}
    for name in list(weights.tensors):
        tensor = weights.tensors.pop(name)
        if name.startswith(("generator.linear_copy.", ATTENTION)):
            copy_weights[name] = tensor
        else:
            weights.tensors[name.replace("generator.linear.", "generator.")] = tensor
    return Weights(copy_weights, weights.path)


def add_copy_generator(
    model: Seq2SeqModel,
    copy_weights: Weights,
    opt: ConfigReader,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
) -> Seq2SeqModel:
    """Replace the output layer with a CopyGenerator.

    The copy distribution of a Transformer is the first attention head of its last layer.

    Args:
        model: the model without copy attention.
        copy_weights: weights of the copy attention; they are renamed in place.
        opt: the training options.
        src_vocab: source vocabulary.
        tgt_vocab: target vocabulary.

    Returns:
        The same model.

    Raises:
        CheckpointError: if the weights do not match the model or the vocabulary.
    """
    if tgt_vocab.pad_id is None or tgt_vocab.unk_id is None:
        raise CheckpointError(f"{opt.path}: copy attention needs a padding and an unknown token")
    has_attention = any(name.startswith(ATTENTION) for name in copy_weights.tensors)
    if has_attention == (not isinstance(model, Rnn) or opt.get_bool("reuse_copy_attn")):
        raise CheckpointError(
            f"{opt.path}: {ATTENTION} is {'unexpected' if has_attention else 'missing'} in this "
            "model"
        )
    # Target ID of each source ID (Vsrc,); unknown if the word is not in the target vocabulary
    src_to_tgt = torch.tensor(tgt_vocab.encode(src_vocab.tokens))
    special = tgt_vocab.pad_id, tgt_vocab.unk_id
    options = ("copy_attn_type", "global_attention")
    score = detect_attention(copy_weights, ATTENTION, opt, *options) if has_attention else None
    output = cast(OutputLayer, model.output)

    def make_generator() -> CopyGenerator:
        attention = None
        if score is not None:
            attention = AttentionScorer(output.in_features, score, read_attention_function(opt))
        return CopyGenerator(output, src_to_tgt, *special, attention)

    copy_weights.drop(r"decoder\.copy_attn\.linear_out\.\w+")  # only the attention weights are used
    copy_weights.rename("opennmt_copy")
    model.output = build_model(make_generator, copy_weights)
    return model
