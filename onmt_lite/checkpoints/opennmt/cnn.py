"""Convolutional models of OpenNMT-py."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.building import build
from onmt_lite.checkpoints.description import Description
from onmt_lite.checkpoints.opennmt.vocab import EMBEDDINGS, SRC, TGT
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer

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


def build_model(weights: Weights, opt: Description) -> Convolution:
    """Build a convolutional model.  Raises CheckpointError where weights or options do not fit."""
    weights = fold_averages(weights)
    fields = read_fields(weights)
    return build(
        lambda: Convolution(ConvolutionConfig(**fields)), weights.by_rules(RULES), weights.path
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
            folded[f"{base}.weight"] = _fold(weights, base)
        elif part == "b_avg":
            folded[f"{base}.bias"] = tensor
        elif part not in ("weight", "bias", "V", "g", "b", "g_avg"):
            raise CheckpointError(f"{weights.path}: {name} is of a kind that is not read")
    return Weights(folded, weights.path)


def _fold(weights: Weights, base: str) -> Tensor:
    """Weight norm: g V / ||V|| per output channel; (out, in, kernel, 1) -> (out, kernel, in)."""
    n_out, *_ = weights.shape(f"{base}.V_avg", 4)
    if weights.shape(f"{base}.g_avg", 1) != (n_out,):
        raise CheckpointError(f"{weights.path}: {base}.g_avg does not fit {base}.V_avg")
    v, g = (weights.numbers(f"{base}.{part}") for part in ("V_avg", "g_avg"))
    v = v[..., 0].transpose(1, 2)
    return v * (g / v.flatten(1).norm(dim=1))[:, None, None]


def read_fields(weights: Weights) -> dict[str, Any]:
    """Read the sizes off the tensors, with averages folded."""
    names = [f"{table}.pe.pe" for table in EMBEDDINGS.values()]
    has_positions = any(name in weights for name in names)  # on both sides or on none
    src_positions, tgt_positions = (weights.shape(n)[0] if has_positions else 0 for n in names)
    return dict(
        **weights.table_sizes(SRC, TGT),
        encoder=read_layers(weights, "encoder.cnn.layers.{}.conv.weight", lambda i: False),
        decoder=read_layers(weights, "decoder.conv_layers.{}.conv.weight", lambda i: True),
        bottleneck=False,
        src_positions=src_positions,
        tgt_positions=tgt_positions,
        scale_embedding=has_positions,
    )


def read_layers(
    weights: Weights, pattern: str, attends: Callable[[int], bool]
) -> tuple[Layer, ...]:
    """Read widths and kernels off the convolutions (2 out, kernel, in) named by `pattern`.

    pattern  the name, with {} for the number of the layer
    """
    shapes = [weights.shape(pattern.format(i), 3) for i in range(weights.count(pattern))]
    return tuple(Layer(rows // 2, kernel, attends(i)) for i, (rows, kernel, _) in enumerate(shapes))
