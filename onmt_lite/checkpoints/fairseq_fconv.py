"""fairseq's convolutional models (`fconv`): from a checkpoint's content to a model."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.renaming import Tensors, count, load_strictly, rename, size
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer

PAD_ID = 1  # in every fairseq dictionary; positions are counted from the one after it
RULES = (
    (r"(en|de)coder\.embed_tokens\.weight", r"\1coder.embedding.token.weight"),
    (r"(en|de)coder\.embed_positions\.weight", r"\1coder.embedding.position"),
    (r"(en|de)coder\.fc1\.(\w+)", r"\1coder.inward.\2"),
    (r"(en|de)coder\.convolutions\.(.*)", r"\1coder.convolutions.\2"),
    (r"(en|de)coder\.projections\.(.*)", r"\1coder.residuals.\2"),
    (r"decoder\.attention\.(\d+)\.in_projection\.(\w+)", r"decoder.attentions.\1.inward.\2"),
    (r"decoder\.attention\.(\d+)\.out_projection\.(\w+)", r"decoder.attentions.\1.outward.\2"),
    (r"(en|de)coder\.fc2\.(\w+)", r"\1coder.outward.\2"),
    (r"decoder\.fc3\.(\w+)", r"output.\1"),
    (r"decoder\.version", ""),
)


def recognises(weights: Tensors) -> bool:
    return "encoder.convolutions.0.weight_v" in weights


def build(weights: Tensors, options: Mapping[str, Any]) -> Convolution:
    """The model of a checkpoint.

    weights: its `model`.  options: `args`, or the model's part of `cfg`, by name.  Only what no
    tensor shows is taken from them.  CheckpointError for what is not exactly an fconv model.
    """
    for name in ("encoder_layers", "decoder_layers"):
        # (width, kernel, residual): a residual that skips layers has no weights of its own
        if re.search(r"\(\s*\d+\s*,\s*\d+\s*,\s*(?!1\s*\))\d", str(options.get(name, ""))):
            raise CheckpointError(f"options: {name} with residuals over several layers")
    folded = {name: _our_layout(w) for name, w in fold_weight_norm(weights).items()}
    return load_strictly(lambda: Convolution(read_config(folded)), rename(folded, RULES))


def fold_weight_norm(weights: Tensors) -> dict[str, Tensor]:
    """Direction v and length g of each weight-normed tensor, multiplied out: w = g v / ||v||.

    The norm runs over the dimensions in which g has length 1: not always the same ones, since
    fairseq once normed its decoder's convolutions over another.
    """
    folded = {}
    for name, tensor in weights.items():
        if name.endswith(".weight_v"):
            g_name = name.removesuffix("v") + "g"
            size(weights, g_name, tensor.dim() - 1)
            g, v = weights[g_name].float(), tensor.float()
            dims = [i for i in range(v.dim()) if g.size(i) == 1]
            try:
                folded[name.removesuffix("_v")] = g * v / v.norm(dim=dims, keepdim=True)
            except RuntimeError:
                raise CheckpointError(f"weights: {g_name} does not fit {name}") from None
        elif not (name.endswith(".weight_g") and f"{name[:-1]}v" in weights):
            folded[name] = tensor
    return folded


def _our_layout(weight: Tensor) -> Tensor:
    """A convolution's (kernel, in, out) -> (out, kernel, in)."""
    return weight.permute(2, 0, 1) if weight.dim() == 3 else weight


def read_config(weights: Tensors) -> ConvolutionConfig:
    """Sizes from the tensors, weight norm folded and in our layout."""
    src, tgt = (f"{side}coder.embed_tokens.weight" for side in ("en", "de"))
    return ConvolutionConfig(
        src_vocab_size=size(weights, src, 0),
        tgt_vocab_size=size(weights, tgt, 0),
        d_src_embedding=size(weights, src, 1),
        d_tgt_embedding=size(weights, tgt, 1),
        encoder=_layers(weights, "encoder"),
        decoder=_layers(weights, "decoder"),
        d_out=size(weights, "decoder.fc2.weight", 0),
        src_positions=size(weights, "encoder.embed_positions.weight", 0),
        tgt_positions=size(weights, "decoder.embed_positions.weight", 0),
        position_offset=PAD_ID + 1,
    )


def _layers(weights: Tensors, side: str) -> tuple[Layer, ...]:
    names = [
        f"{side}.convolutions.{i}.weight"
        for i in range(count(weights, side + r"\.convolutions\.(\d+)\.weight"))
    ]
    return tuple(
        Layer(
            size(weights, name, 0) // 2,
            size(weights, name, 1),
            attends=f"{side}.attention.{i}.in_projection.weight" in weights,
        )
        for i, name in enumerate(names)
    )
