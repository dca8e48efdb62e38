"""Models of OpenNMT-py: Transformers, recurrent and convolutional ones, copying or not."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from onmt_lite.checkpoints.description import Description, shown
from onmt_lite.checkpoints.weights import Weights, build, finished, layout_of
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer
from onmt_lite.models.family import AttentionWeights, CopyHead, Family, Head, Normaliser, Score
from onmt_lite.models.rnn import Rnn, RnnConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.vocab import Vocab

# The tables with a row for each token, in models of every kind
EMBEDDINGS = {side: f"{side}.embeddings.make_embedding" for side in ("encoder", "decoder")}
SRC, TGT = (f"{name}.emb_luts.0.weight" for name in EMBEDDINGS.values())

# -- Transformers ----------------------------------------------------------------------------------

ENC, DEC = "encoder.transformer", "decoder.transformer_layers"
MAX_POSITIONS = 5000  # rows of its position tables
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "gelu"}
LAYOUTS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "fairseq"}

# Our names of a layer's parts, and theirs; a model has some of them
COMMON = {
    "self_attn.qkv": tuple(f"self_attn.linear_{x}" for x in ("query", "keys", "values")),
    "self_attn.out": ("self_attn.final_linear",),
    "ffn.up": ("feed_forward.w_1",),
    "ffn.down": ("feed_forward.w_2",),
    "ffn.gate": ("feed_forward.w_3",),
    "ffn_residual.norm": ("feed_forward.layer_norm",),
}
RELATIONS = {
    "buckets": {"self_attn.relation": ("self_attn.relative_attention_bias",)},
    "shaw": {"self_attn.relation": ("self_attn.relative_positions_embeddings",)},
}
ENCODER_LAYER = COMMON | {"self_attn_residual.norm": ("layer_norm",)}
DECODER_LAYER = COMMON | {
    "self_attn.gates": ("self_attn.gating_layer",),
    "self_attn.ffn.up": ("self_attn.average_layer.w_1",),
    "self_attn.ffn.down": ("self_attn.average_layer.w_2",),
    "self_attn.ffn_norm": ("self_attn.average_layer.layer_norm",),
    "self_attn_residual.norm": ("layer_norm_1",),
    "cross_attn.q": ("context_attn.linear_query",),
    "cross_attn.kv": ("context_attn.linear_keys", "context_attn.linear_values"),
    "cross_attn.out": ("context_attn.final_linear",),
    "cross_attn_residual.norm": ("layer_norm_2",),
}


def build_transformer(weights: Weights, opt: Description) -> Transformer:
    """Build a Transformer.  Raises CheckpointError for missing, unknown or misshapen weights."""
    switches = _switches(weights, opt)
    relation = RELATIONS.get(switches["relative"], {})
    ours, positions = _positions(weights, opt)
    ours["src_embedding.token.weight"] = weights.take(SRC)
    ours["tgt_embedding.token.weight"] = weights.take(TGT)
    ours |= weights.renamed("encoder", "", {"enc_norm": ("layer_norm",)})
    ours |= weights.renamed("decoder", "", {"dec_norm": ("layer_norm",)})
    ours["output.weight"] = weights.take("generator.weight")
    ours["output.bias"] = weights.take("generator.bias")
    # The mask of later positions, before 1.0; norms that a parallel layer has but does not use
    weights.drop(r"decoder\.transformer_layers\.\d+\.mask")
    if switches["parallel_residual"]:
        weights.drop(r"decoder\.transformer_layers\.\d+\.layer_norm_(2|res)\.(weight|bias)")
    ours |= weights.layers(ENC + ".{}", "encoder", switches["enc_layers"], ENCODER_LAYER | relation)
    ours |= weights.layers(DEC + ".{}", "decoder", switches["dec_layers"], DECODER_LAYER | relation)
    return finished(ours, weights, opt.path, **switches, **positions)


def _switches(weights: Weights, opt: Description) -> dict[str, Any]:
    """Read the switches off names and shapes of the weights, and a few off the options."""
    first, query = f"{ENC}.0", f"{ENC}.0.self_attn.linear_query"
    d_model, heads = weights.shape(SRC)[1], opt.number("heads", 8)
    n_keys = weights.shape(f"{first}.self_attn.linear_keys.weight")[0]
    average = f"{DEC}.0.self_attn.gating_layer.weight" in weights
    average_ffn = f"{DEC}.0.self_attn.average_layer.w_1.weight" in weights
    dec_layers = weights.count(DEC + ".{}.")
    return dict(
        heads=heads,
        kv_heads=0 if n_keys == d_model else n_keys * max(1, heads) // d_model,
        enc_layers=weights.count(ENC + ".{}."),
        dec_layers=dec_layers,
        activation=opt.choice("pos_ffn_activation_fn", ACTIVATIONS, "relu"),
        gated_ffn=f"{first}.feed_forward.w_3.weight" in weights,
        attn_bias=f"{query}.bias" in weights,
        ffn_bias=f"{first}.feed_forward.w_1.bias" in weights,
        norm="layer" if "encoder.layer_norm.bias" in weights else "rms",
        norm_eps=opt.real("norm_eps", 1e-6),
        parallel_residual=f"{first}.feed_forward.layer_norm.weight" not in weights,
        dec_self_attn=("average_ffn" if average_ffn else "average") if average else "dot",
        **_relation(weights, opt),
        **_alignment(opt, dec_layers),
    )


def _alignment(opt: Description, n_layers: int) -> dict[str, int]:
    """The heads that the model was made to align with, where it has the layer that is named."""
    layer = opt.number("alignment_layer", n_layers)
    if not -n_layers <= layer < n_layers:
        return {}
    heads = max(0, opt.number("alignment_heads", 0))
    return dict(report_layer=layer % n_layers + 1, report_heads=heads)


def _relation(weights: Weights, opt: Description) -> dict[str, Any]:
    """Read max_relative_positions: the largest distance, -1 for rotary, -2 for ALiBi."""
    limit = opt.number("max_relative_positions", 0)
    attention = f"{ENC}.0.self_attn"
    if f"{attention}.relative_attention_bias.weight" in weights:
        buckets, _ = weights.shape(f"{attention}.relative_attention_bias.weight")
        return dict(relative="buckets", relative_limit=limit, relative_buckets=buckets)
    if f"{attention}.relative_positions_embeddings.weight" in weights:
        rows, _ = weights.shape(f"{attention}.relative_positions_embeddings.weight")
        return dict(relative="shaw", relative_limit=rows // 2)
    if limit == -1:
        return dict(
            relative="rotary",
            rotary_theta=opt.real("rotary_theta", 10000.0),
            rotary_dim=opt.number("rotary_dim", 0),
            rotary_interleave=opt.flag("rotary_interleave", True),
        )
    return dict(relative="alibi" if limit == -2 else "none")


def _positions(weights: Weights, opt: Description) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and switches of the position vectors; without them embeddings are not scaled."""
    names = [f"{name}.pe.pe" for name in EMBEDDINGS.values()]
    if not any(name in weights for name in names):
        if not opt.flag("position_encoding"):
            return {}, dict(positions="none", scale_embedding=False, max_positions=MAX_POSITIONS)
        layout = opt.choice("position_encoding_type", LAYOUTS, "SinusoidalInterleaved")
        return {}, dict(positions=layout, max_positions=MAX_POSITIONS)
    for name in names:
        weights.shape(name, n_dims=3)
    src, tgt = (weights.take(name)[:, 0] for name in names)
    layout = layout_of(src)
    switches = dict(positions=layout, max_positions=min(src.size(0), tgt.size(0)))
    if layout != "learned" and layout_of(tgt) == layout:
        return {}, switches
    tables = {"src_embedding.position": src, "tgt_embedding.position": tgt}
    return tables, switches | dict(positions="learned")


# -- Recurrent models ------------------------------------------------------------------------------

OF_RNN = (
    (r"(en|de)coder\.embeddings\.make_embedding\.emb_luts\.0\.(\w+)", r"\1coder.embedding.\2"),
    (r"encoder\.(rnn|bridge)\.(.*)", r"encoder.\1.\2"),
    (r"decoder\.rnn\.layers\.(.*)", r"decoder.cells.\1"),  # with input feed
    (r"decoder\.rnn\.(\w+)_l(\d+)", r"decoder.cells.\2.\1"),  # without
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


def build_rnn(weights: Weights, opt: Description) -> Rnn:
    """Build a recurrent model, by its weights, and by options for what no weight shows."""
    attention = read_attention(weights, "decoder.attn", opt, "global_attention")
    input_feed = any(name.startswith("decoder.rnn.layers.") for name in weights.tensors)
    first = "layers.0.weight_hh" if input_feed else "weight_hh_l0"
    layers = "layers.{}." if input_feed else "weight_hh_l{}"
    rows, d = weights.shape("encoder.rnn.weight_hh_l0")
    if rows not in (3 * d, 4 * d):
        raise CheckpointError(
            f"{weights.path}: neither LSTM nor GRU cells; other kinds are not read"
        )
    gate = "none"  # all kinds have the same weights
    if "decoder.context_gate.context_gate.gate.weight" in weights:
        gate = opt.get("context_gate")
        if gate not in ("source", "target", "both"):
            raise CheckpointError(f"{opt.path}: context_gate {shown(gate)} is none of its kinds")
    fields: dict[str, Any] = dict(
        **weights.table_sizes(SRC, TGT),
        d_model=weights.shape(f"decoder.rnn.{first}")[1],
        enc_layers=weights.count("encoder.rnn.weight_hh_l{}"),
        dec_layers=weights.count(f"decoder.rnn.{layers}"),
        cell="lstm" if rows == 4 * d else "gru",
        bidirectional="encoder.rnn.weight_hh_l0_reverse" in weights,
        bridge="encoder.bridge.0.weight" in weights,
        input_feed=input_feed,
        attention=attention,
        normaliser=read_normaliser(opt),
        context_gate=gate,
    )
    return build(lambda: Rnn(RnnConfig(**fields)), weights.by_rules(OF_RNN), opt.path)


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


# -- Convolutional models --------------------------------------------------------------------------

OF_CNN = (
    (r"(en|de)coder\.embeddings\.\w+\.emb_luts\.0\.weight", r"\1coder.embedding.token.weight"),
    (r"(en|de)coder\.embeddings\.make_embedding\.pe\.pe", r"\1coder.embedding.position"),
    (r"(en|de)coder\.linear\.(\w+)", r"\1coder.inward.\2"),
    (r"encoder\.cnn\.layers\.(\d+)\.conv\.(\w+)", r"encoder.convolutions.\1.\2"),
    (r"decoder\.conv_layers\.(\d+)\.conv\.(\w+)", r"decoder.convolutions.\1.\2"),
    (r"decoder\.attn_layers\.(\d+)\.linear_in\.(\w+)", r"decoder.attentions.\1.inward.\2"),
    (r"generator\.(?:0\.)?(weight|bias)", r"output.\1"),
)


def build_cnn(weights: Weights, opt: Description) -> Convolution:
    """Build a convolutional model.  Raises CheckpointError where weights do not fit."""
    weights = fold_averages(weights)
    names = [f"{table}.pe.pe" for table in EMBEDDINGS.values()]
    has_positions = any(name in weights for name in names)  # on both sides or on none
    src_positions, tgt_positions = (weights.shape(n)[0] if has_positions else 0 for n in names)
    fields: dict[str, Any] = dict(
        **weights.table_sizes(SRC, TGT),
        encoder=read_layers(weights, "encoder.cnn.layers.{}.conv.weight", lambda i: False),
        decoder=read_layers(weights, "decoder.conv_layers.{}.conv.weight", lambda i: True),
        bottleneck=False,
        src_positions=src_positions,
        tgt_positions=tgt_positions,
        scale_embedding=has_positions,
    )
    return build(
        lambda: Convolution(ConvolutionConfig(**fields)), weights.by_rules(OF_CNN), weights.path
    )


def fold_averages(weights: Weights) -> Weights:
    """Reduce each convolution to one weight (out, kernel, in) and bias, each position table to 2-D.

    A file has each convolution three times: as trained (`weight`, `bias`, of which V and b are
    copies), its length g, and running averages of V, g and b.  Averages are what translates.
    OpenNMT-py goes on averaging while it translates, so that its output drifts; here the averages
    of the file are used unchanged.
    """
    folded: dict[str, Tensor] = {}
    for name, tensor in weights.tensors.items():
        base, dot, part = name.rpartition(".")
        if f"{base}.V_avg" not in weights:
            is_table = name.endswith(".pe.pe") and tensor.dim() == 3
            folded[name] = tensor.flatten(0, 1) if is_table else tensor  # (P, 1, E) -> (P, E)
        elif part == "V_avg":
            # Weight norm: g V / ||V|| per output; (out, in, kernel, 1) -> (out, kernel, in)
            if weights.shape(f"{base}.g_avg", 1) != weights.shape(name, 4)[:1]:
                raise CheckpointError(f"{weights.path}: {base}.g_avg does not fit {base}.V_avg")
            v, g = weights.numbers(name)[..., 0].transpose(1, 2), weights.numbers(f"{base}.g_avg")
            folded[f"{base}.weight"] = v * (g / v.flatten(1).norm(dim=1))[:, None, None]
        elif part == "b_avg":
            folded[f"{base}.bias"] = tensor
        elif part not in ("weight", "bias", "V", "g", "b", "g_avg"):
            raise CheckpointError(f"{weights.path}: {name} is of a kind that is not read")
    return Weights(folded, weights.path)


def read_layers(
    weights: Weights, pattern: str, attends: Callable[[int], bool]
) -> tuple[Layer, ...]:
    """Read widths and kernels off the convolutions (2 out, kernel, in), {} being their number."""
    shapes = [weights.shape(pattern.format(i), 3) for i in range(weights.count(pattern))]
    return tuple(Layer(rows // 2, kernel, attends(i)) for i, (rows, kernel, _) in enumerate(shapes))


# -- Copy attention --------------------------------------------------------------------------------

ATTENTION = "decoder.copy_attn"
OF_COPYING = (
    (r"generator\.linear_copy\.(\w+)", r"gate.\1"),
    (r"decoder\.copy_attn\.linear_(?:in|query)\.(\w+)", r"attention.query.\1"),
    (r"decoder\.copy_attn\.linear_context\.(\w+)", r"attention.key.\1"),
    (r"decoder\.copy_attn\.v\.(\w+)", r"attention.energy.\1"),
    (r"decoder\.copy_attn\.linear_out\.(\w+)", ""),  # only its weights on the source count
)


def split_copying(weights: Weights) -> Weights:
    """Take the weights of copying out of `weights`, whose rest becomes those of a plain model."""
    copying = {}
    for name in list(weights.tensors):
        tensor = weights.tensors.pop(name)
        if name.startswith(("generator.linear_copy.", ATTENTION)):
            copying[name] = tensor
        else:
            weights.tensors[name.replace("generator.linear.", "generator.")] = tensor
    return Weights(copying, weights.path)


def with_copying(
    model: Family, copying: Weights, opt: Description, src_vocab: Vocab, tgt_vocab: Vocab
) -> Family:
    """Give the model a head that copies.  Raises CheckpointError where the weights do not fit.

    A Transformer copies by the attention that its steps return: the first head of the last layer.
    """
    if tgt_vocab.pad_id is None or tgt_vocab.unk_id is None:
        raise CheckpointError(f"{opt.path}: copying needs padding and the unknown word as tokens")
    has_attention = any(name.startswith(ATTENTION) for name in copying.tensors)
    if has_attention == (not isinstance(model, Rnn) or opt.flag("reuse_copy_attn")):
        raise CheckpointError(
            f"{opt.path}: {ATTENTION} is {'there' if has_attention else 'missing'}, which does not "
            "fit the kind of model"
        )
    # Target id of each source id (Vsrc,), the unknown token where the target lacks the word
    table = torch.tensor(tgt_vocab.encode(src_vocab.tokens))
    special = tgt_vocab.pad_id, tgt_vocab.unk_id
    options = ("copy_attn_type", "global_attention")
    kind = read_attention(copying, ATTENTION, opt, *options) if has_attention else None
    vocabulary = cast(Head, model.output)

    def make() -> CopyHead:
        d = vocabulary.in_features
        attention = None if kind is None else AttentionWeights(d, kind, read_normaliser(opt))
        return CopyHead(vocabulary, table, *special, attention)

    model.output = build(make, copying.by_rules(OF_COPYING), copying.path)
    return model
