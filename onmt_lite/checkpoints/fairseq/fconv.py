"""Convolutional models of fairseq (`fconv`)."""

import re
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.building import build
from onmt_lite.checkpoints.description import Description
from onmt_lite.checkpoints.opennmt.cnn import read_layers
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer

PAD_ID = 1  # in every fairseq dictionary; positions are counted from the one after it
MAX_SPEC = 10_000  # characters of a description of layers
LAYER = r"\((\d{1,4}),(\d{1,4})(?:,(\d{1,4}))?\)"
LAYERS = re.compile(r"\[((?:\(\d{1,4},\d{1,4}(?:,\d{1,4})?\),?)+)\](?:\*(\d{1,3}))?")
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


def build_model(weights: Weights, options: Description) -> Convolution:
    """Build an fconv model.  Raises CheckpointError where weights or options do not fit."""
    weights = fold_weight_norm(weights)
    fields = read_fields(weights)
    model = build(
        lambda: Convolution(ConvolutionConfig(**fields)), weights.by_rules(RULES), weights.path
    )
    _check_layers(options, "encoder_layers", model.cfg.encoder)
    _check_layers(options, "decoder_layers", model.cfg.decoder)
    return model


def _check_layers(options: Description, name: str, layers: tuple[Layer, ...]) -> None:
    """Raise CheckpointError where the options, if present, contradict the weights."""
    if options.get(name) is None:
        return
    said = _listed(options.text(name))
    if not said:
        raise CheckpointError(f"{options.path}: fairseq: {name} is not understood")
    # No weight shows a residual over several layers
    if any(residual not in ("", "1") for _, _, residual in said):
        raise CheckpointError(
            f"{options.path}: fairseq: {name} with residuals over several layers, which are not "
            "read"
        )
    if [(int(d), int(kernel)) for d, kernel, _ in said] != [(x.d, x.kernel) for x in layers]:
        raise CheckpointError(f"{options.path}: fairseq: {name} is not what the weights have")


def _listed(spec: str) -> list[tuple[str, str, str]]:
    """(width, kernel, residual or "") of each layer in a text such as `[(8, 3)] * 2 + [(9, 1)]`.

    fairseq runs it as Python.  Empty where it is anything else.
    """
    layers: list[tuple[str, str, str]] = []
    for term in spec.replace(" ", "").split("+") if len(spec) <= MAX_SPEC else [""]:
        match = LAYERS.fullmatch(term)
        if match is None:
            return []
        layers += re.findall(LAYER, match[1]) * int(match[2] or 1)
    return layers


def fold_weight_norm(weights: Weights) -> Weights:
    """Multiply out weight norm, w = g v / ||v||, with v the direction and g the length.

    The norm runs over the dimensions in which g has length 1; older versions of fairseq normed the
    decoder's convolutions over others.
    """
    folded: dict[str, Tensor] = {}
    for name, tensor in weights.tensors.items():
        if name.endswith(".weight_v"):
            g_name = name.removesuffix("v") + "g"
            weights.shape(g_name, tensor.dim())
            g, v = weights.numbers(g_name), weights.numbers(name)
            dims = [i for i in range(v.dim()) if g.size(i) == 1]
            try:
                folded[name.removesuffix("_v")] = g * v / v.norm(dim=dims, keepdim=True)
            except RuntimeError:
                raise CheckpointError(f"{weights.path}: {g_name} does not fit {name}") from None
        elif not (name.endswith(".weight_g") and f"{name[:-1]}v" in weights):
            folded[name] = tensor
    return Weights({name: _our_layout(w) for name, w in folded.items()}, weights.path)


def _our_layout(weight: Tensor) -> Tensor:
    """Transpose the weight of a convolution: (kernel, in, out) -> (out, kernel, in)."""
    return weight.permute(2, 0, 1) if weight.dim() == 3 else weight


def read_fields(weights: Weights) -> dict[str, Any]:
    """Read the sizes off the tensors, with weight norm folded and in our layout."""
    src, tgt = "encoder.embed_positions.weight", "decoder.embed_positions.weight"
    return dict(
        **weights.table_sizes("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        encoder=read_layers(weights, "encoder.convolutions.{}.weight", lambda i: False),
        decoder=read_layers(
            weights,
            "decoder.convolutions.{}.weight",
            lambda i: f"decoder.attention.{i}.in_projection.weight" in weights,
        ),
        d_out=weights.shape("decoder.fc2.weight")[0],
        src_positions=weights.shape(src)[0],
        tgt_positions=weights.shape(tgt)[0],
        position_offset=PAD_ID + 1,
    )
