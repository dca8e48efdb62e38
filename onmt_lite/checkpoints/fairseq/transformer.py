"""The Transformer of fairseq, from 0.6 to 0.12."""

import re
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.building import MAX_POSITIONS, finished
from onmt_lite.checkpoints.description import Description, refuse_kinds, shown
from onmt_lite.checkpoints.huggingface.bart import read_stacks
from onmt_lite.checkpoints.huggingface.directory import ACTIVATIONS
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.positions import sinusoids
from onmt_lite.models.transformer import Transformer

SRC, TGT = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
OFFSET = 2  # positions count from behind the pad token's id
# Computed tables, format versions, and copies that the encoder's fast path keeps
NOT_WEIGHTS = (
    r"(encoder|decoder)\.(version|embed_positions\._float_tensor)"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
)
OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
NOT_READ = ("cross_self_attention", "no_cross_attention", "adaptive_input", "char_inputs")


def build_model(weights: Weights, options: Description) -> Transformer:
    """CheckpointError where weights are missing, unknown or misshapen."""
    _check_kind(weights, options)
    weights.drop(NOT_WEIGHTS)
    _rename_old(weights)
    d_model = weights.shape(SRC)[1]
    ours, positions = _positions(weights, options, d_model)
    switches = _switches(weights, options)
    ours |= _embeddings(weights)
    ours |= read_stacks(weights, "")
    model = finished(ours, weights, options.path, norm_eps=1e-5, **switches, **positions)
    options.agree("encoder_layers", model.cfg.enc_layers)
    options.agree("decoder_layers", model.cfg.dec_layers)
    return model


def _check_kind(weights: Weights, options: Description) -> None:
    """CheckpointError for relatives that have the same weights but compute something else."""
    name = options.get("arch") or options.get("_name") or "transformer"
    read = isinstance(name, str) and re.match("transformer(?!_lm)|m?bart", name)
    reasons = {option: options.flag(option) for option in NOT_READ} | {
        "adaptive softmax": "decoder.adaptive_softmax.head.weight" in weights,
        f"architecture {shown(name)}": not read,
    }
    refuse_kinds(f"{weights.path}: fairseq: a Transformer with", reasons)


def _rename_old(weights: Weights) -> None:
    """Names of 0.6 and before: query, key and value in one tensor, norms by number."""
    for name in list(weights.tensors):
        if match := re.fullmatch(r"(.*_attn\.)in_proj_(weight|bias)", name):
            tensor = weights.take(name)
            if tensor.dim() == 0 or tensor.size(0) % 3:
                raise CheckpointError(f"{weights.path}: {name} is not three matrices in one")
            for part, rows in zip("qkv", tensor.chunk(3)):
                weights.tensors[f"{match[1]}{part}_proj.{match[2]}"] = rows
        if match := re.fullmatch(r"((encoder|decoder)\.layers\.\d+\.)layer_norms\.(\d)(.*)", name):
            norms = OLD_NORMS[match[2]]
            if int(match[3]) < len(norms):
                weights.tensors[match[1] + norms[int(match[3])] + match[4]] = weights.take(name)


def _switches(weights: Weights, options: Description) -> dict[str, Any]:
    pre_norm = {options.flag(f"{side}_normalize_before") for side in ("encoder", "decoder")}
    if len(pre_norm) == 2:
        raise CheckpointError(f"{weights.path}: fairseq: encoder and decoder differ in their norms")
    return dict(
        pre_norm=pre_norm.pop(),
        final_norm="encoder.layer_norm.weight" in weights,
        embedding_norm="encoder.layernorm_embedding.weight" in weights,
        heads=options.number("encoder_attention_heads", 8),
        dec_heads=options.number("decoder_attention_heads", 8),
        activation=options.choice("activation_fn", ACTIVATIONS, "relu"),
        scale_embedding=not options.flag("no_scale_embedding"),
    )


def _embeddings(weights: Weights) -> dict[str, Tensor]:
    """Both tables and the output layer, which has had three names."""
    tgt = weights.take(TGT)
    names = ("decoder.output_projection.weight", "decoder.embed_out")
    output = next((weights.take(name) for name in names if name in weights), tgt)
    return {
        "src_embedding.token.weight": weights.take(SRC),
        "tgt_embedding.token.weight": tgt,
        "output.weight": output,
    }


def _positions(
    weights: Weights, options: Description, d_model: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and switches of the position vectors: computed, learned, or none."""
    limits = [options.number(f"max_{side}_positions", 1024) for side in ("source", "target")]
    n = min(*limits, MAX_POSITIONS)
    names = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    if not any(name in weights for name in names):
        none = options.flag("no_token_positional_embeddings")
        layout = "none" if none else "fairseq"
        return {}, dict(positions=layout, position_offset=OFFSET, max_positions=n)
    # One side may be learned and the other computed: both become tables, of equal length
    rows = [weights.shape(name)[0] - OFFSET for name in names if name in weights]
    n = min(n, *rows)
    tables = [
        weights.take(name) if name in weights else sinusoids(n + OFFSET, d_model, "fairseq")
        for name in names
    ]
    ours = {
        f"{side}_embedding.position": t[: n + OFFSET] for side, t in zip(("src", "tgt"), tables)
    }
    return ours, dict(positions="learned", position_offset=OFFSET, max_positions=n)
