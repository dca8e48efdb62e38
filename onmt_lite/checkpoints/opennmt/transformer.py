"""Transformers of OpenNMT-py: switches are read off the weights, or else off the options."""

from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.building import finished
from onmt_lite.checkpoints.description import Description
from onmt_lite.checkpoints.opennmt.vocab import EMBEDDINGS, SRC, TGT
from onmt_lite.checkpoints.weights import Weights, layout_of
from onmt_lite.models.transformer import Transformer

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


def build_model(weights: Weights, opt: Description) -> Transformer:
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
    return dict(
        report_layer=layer % n_layers + 1, report_heads=max(0, opt.number("alignment_heads", 0))
    )


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
