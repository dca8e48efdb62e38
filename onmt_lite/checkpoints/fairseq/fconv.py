"""Convolutional models of fairseq (`fconv`)."""

import ast
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.convolutional import build_convolution, read_layers
from onmt_lite.checkpoints.description import Description
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer

PAD_ID = 1  # in every fairseq dictionary; positions are counted from the one after it
MAX_SPEC = 10_000  # characters of a description of layers
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
    model = build_convolution(read_config, fold_weight_norm(weights), RULES)
    _check_layers(options, "encoder_layers", model.cfg.encoder)
    _check_layers(options, "decoder_layers", model.cfg.decoder)
    return model


def _check_layers(options: Description, name: str, layers: tuple[Layer, ...]) -> None:
    """Raise CheckpointError where the options, if present, contradict the weights."""
    if options.get(name) is None:
        return
    try:
        spec = options.text(name)
        if len(spec) > MAX_SPEC:
            raise ValueError("longer than any list of layers")
        said = evaluate(ast.parse(spec, mode="eval").body)
        if not isinstance(said, list) or not all(isinstance(layer, tuple) for layer in said):
            raise ValueError("not a list of layers")
    except (ValueError, SyntaxError, RecursionError, TypeError, MemoryError):
        raise CheckpointError(f"{options.path}: fairseq: {name} is not understood") from None
    # (width, kernel, residual): no weight shows a residual over several layers
    if any(residual not in ([], [1]) for _, _, *residual in said):
        raise CheckpointError(
            f"{options.path}: fairseq: {name} with residuals over several layers, which are not "
            "read"
        )
    if [tuple(layer[:2]) for layer in said] != [(layer.d, layer.kernel) for layer in layers]:
        raise CheckpointError(f"{options.path}: fairseq: {name} is not what the weights have")


def evaluate(node: ast.expr) -> Any:
    """Evaluate lists of tuples of numbers, added and multiplied: `[(512, 3)] * 20`.

    fairseq runs such a text as Python.  Raises ValueError for anything else.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 10_000:
        return node.value
    if isinstance(node, ast.List):
        return [evaluate(item) for item in node.elts]
    if isinstance(node, ast.Tuple) and len(node.elts) in (2, 3):
        return tuple(evaluate(item) for item in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = evaluate(node.left), evaluate(node.right)
        wanted = list if isinstance(node.op, ast.Add) else int
        if isinstance(left, list) and isinstance(right, wanted) and len(left) < 1000:
            return left + right if isinstance(right, list) else left * right
    raise ValueError("not a list of layers")


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


def read_config(weights: Weights) -> ConvolutionConfig:
    """Read the sizes off the tensors, with weight norm folded and in our layout."""
    src, tgt = "encoder.embed_positions.weight", "decoder.embed_positions.weight"
    return ConvolutionConfig(
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
