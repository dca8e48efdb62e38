"""OpenNMT-py's convolutional models: from a checkpoint's content to a model."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.renaming import Tensors, count, load_strictly, rename, size
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer

LAYERS = {"encoder": "encoder.cnn.layers", "decoder": "decoder.conv_layers"}
RULES = (
    (
        r"(en|de)coder\.embeddings\.make_embedding\.emb_luts\.0\.weight",
        r"\1coder.embedding.token.weight",
    ),
    (r"(en|de)coder\.embeddings\.make_embedding\.pe\.pe", r"\1coder.embedding.position"),
    (r"(en|de)coder\.linear\.(\w+)", r"\1coder.inward.\2"),
    (r"encoder\.cnn\.layers\.(\d+)\.conv\.(\w+)", r"encoder.convolutions.\1.\2"),
    (r"decoder\.conv_layers\.(\d+)\.conv\.(\w+)", r"decoder.convolutions.\1.\2"),
    (r"decoder\.attn_layers\.(\d+)\.linear_in\.(\w+)", r"decoder.attentions.\1.inward.\2"),
    (r"generator\.(?:0\.)?(weight|bias)", r"output.\1"),
)


def recognises(weights: Tensors) -> bool:
    return "encoder.cnn.layers.0.conv.V_avg" in weights


def build(weights: Tensors, options: Mapping[str, Any]) -> Convolution:
    """The model of a checkpoint.

    weights: of `model`, and of `generator` with "generator." before each name.
    options: `opt`, by name.  Only what no tensor shows is taken from it.
    CheckpointError for what is not exactly a model of this kind.
    """
    if (function := options.get("generator_function") or "softmax") != "softmax":
        raise CheckpointError(f"options: generator_function {function!r:.50} is not supported")
    folded = fold_averages(weights)
    return load_strictly(lambda: Convolution(read_config(folded)), rename(folded, RULES))


def fold_averages(weights: Tensors) -> dict[str, Tensor]:
    """One weight (out, kernel, in) and bias per convolution, tables of positions as matrices.

    A file has each convolution three times: as trained (`weight`, `bias`, of which V and b are
    copies), its length g, and running averages of V, g and b.  OpenNMT-py translates with the
    averages, but goes on averaging while it translates, so that its output drifts.  Here they
    stay as they are in the file.
    """
    folded = {}
    for name, tensor in weights.items():
        base, dot, part = name.rpartition(".")
        if f"{base}.V_avg" not in weights:
            is_table = name.endswith(".pe.pe") and tensor.dim() == 3
            folded[name] = tensor.flatten(0, 1) if is_table else tensor  # (P, 1, E) -> (P, E)
        elif part == "V_avg":
            folded[f"{base}.weight"] = _fold(weights, base)
        elif part == "b_avg":
            folded[f"{base}.bias"] = tensor
        elif part not in ("weight", "bias", "V", "g", "b", "g_avg"):
            raise CheckpointError(f"weights: {name} is of a kind that is not read")
    return folded


def _fold(weights: Tensors, base: str) -> Tensor:
    """Weight norm: g V / ||V|| per output channel; (out, in, kernel, 1) -> (out, kernel, in)."""
    n_out = size(weights, f"{base}.V_avg", 3) and size(weights, f"{base}.V_avg", 0)
    if size(weights, f"{base}.g_avg", 0) != n_out:
        raise CheckpointError(f"weights: {base}.g_avg does not fit {base}.V_avg")
    v, g = weights[f"{base}.V_avg"].float(), weights[f"{base}.g_avg"].float()
    v = v[..., 0].transpose(1, 2)
    return v * (g / v.flatten(1).norm(dim=1))[:, None, None]


def read_config(weights: Tensors) -> ConvolutionConfig:
    """Sizes from the tensors, averages folded."""
    tables = [f"{side}.embeddings.make_embedding" for side in LAYERS]
    src, tgt = (f"{table}.emb_luts.0.weight" for table in tables)
    names = [f"{table}.pe.pe" for table in tables]
    has_positions = any(name in weights for name in names)  # on both sides or on none
    src_positions, tgt_positions = (size(weights, n, 0) if has_positions else 0 for n in names)
    return ConvolutionConfig(
        src_vocab_size=size(weights, src, 0),
        tgt_vocab_size=size(weights, tgt, 0),
        d_src_embedding=size(weights, src, 1),
        d_tgt_embedding=size(weights, tgt, 1),
        encoder=_layers(weights, "encoder"),
        decoder=_layers(weights, "decoder"),
        bottleneck=False,
        src_positions=src_positions,
        tgt_positions=tgt_positions,
        scale_embedding=has_positions,
    )


def _layers(weights: Tensors, side: str) -> tuple[Layer, ...]:
    prefix = LAYERS[side]
    n = count(weights, re.escape(prefix) + r"\.(\d+)\.conv\.weight")
    names = [f"{prefix}.{i}.conv.weight" for i in range(n)]
    return tuple(
        Layer(size(weights, name, 0) // 2, size(weights, name, 1), attends=side == "decoder")
        for name in names
    )
