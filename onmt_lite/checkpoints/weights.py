"""Model weights from other toolkits: checks, renaming to our names, and building models."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onmt_lite.checkpoints.weight_names import load_weight_names, translate_name
from onmt_lite.errors import CheckpointError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.convolution import ConvLayer, Convolution, ConvolutionConfig
from onmt_lite.models.positions import make_sinusoids
from onmt_lite.models.transformer import Transformer

# Tolerances for position tables; float32 is inaccurate for large positions
FIRST_ROWS, ATOL_FIRST, ATOL = 100, 5e-5, 2e-3
# Upper limits for the sizes that a file declares
MAX_TENSORS, MAX_DIMS, MAX_SIZE = 20_000, 16, 1 << 48


class Weights:
    """Named tensors of a model file, with checks."""

    def __init__(self, tensors: dict[str, Tensor], path: Path):
        """Wrap the tensors of a file.

        Args:
            tensors: tensors by name.
            path: the file, for error messages.

        Raises:
            CheckpointError: for infinite or NaN values.
        """
        self.tensors, self.path = tensors, path
        for name in tensors:
            self.check_finite(name)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def check_finite(self, name: str) -> None:
        """Raise CheckpointError if a tensor has infinite or NaN values."""
        tensor = self.tensors[name]
        # A sum is many times faster than testing each value, but may overflow
        is_finite = not tensor.is_floating_point() or tensor.sum().isfinite()
        if not is_finite and not tensor.isfinite().all():
            raise CheckpointError(f"{self.path}: {name[:100]!r} has values that are not finite")

    def get_shape(self, name: str, n_dims: int = 2) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            CheckpointError: if the tensor is missing, is empty or does not have `n_dims`
                dimensions.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        tensor = self.tensors[name]
        if tensor.dim() != n_dims or 0 in tensor.shape:
            raise CheckpointError(f"{self.path}: {name} has the shape {list(tensor.shape)}")
        return tuple(tensor.shape)

    def pop(self, name: str) -> Tensor:
        """Remove a tensor and return it as float32, so that only one copy is in memory.

        Raises:
            CheckpointError: if the tensor is missing or has an integer dtype.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        if not self.tensors[name].is_floating_point():
            raise CheckpointError(
                f"{self.path}: {name[:100]!r} has integers; use the model before quantization"
            )
        return self.tensors.pop(name).float().contiguous()

    def drop(self, pattern: str) -> None:
        """Remove the tensors whose names match a regular expression."""
        for name in [name for name in self.tensors if re.fullmatch(pattern, name)]:
            del self.tensors[name]

    def count_layers(self, start: str) -> int:
        """Count the layers in weight names of the form `start` + layer number."""
        matches = (re.match(re.escape(start) + r"\d+", name) for name in self.tensors)
        return len({match[0] for match in matches if match})

    def rename(self, model: str) -> None:
        """Rename weights to our names by a table of weight_names.yaml, and stack split matrices.

        Args:
            model: name of the table.

        Raises:
            CheckpointError: if a matrix of a stack is missing or has a different width, or if two
                weights map to the same name.
        """
        table = load_weight_names(model).internal
        for name in list(self.tensors):
            internal, *stack = translate_name(name, table) or [""]
            if not internal or name not in self:  # already part of a stack
                continue
            tensors = [self.pop(member) for member in stack]
            if internal in self:
                raise CheckpointError(f"{self.path}: {name} is duplicated under another name")
            if any(t.dim() == 0 or t.shape[1:] != tensors[0].shape[1:] for t in tensors):
                raise CheckpointError(f"{self.path}: the weights of {internal} differ in width")
            self.tensors[internal] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def dequantize(
    tensors: Mapping[str, Tensor], suffix: str, divide: bool = False
) -> dict[str, Tensor]:
    """Dequantize the tensors that have scales: weight = integer * scale.

    Args:
        tensors: all tensors of a file. The scales of tensor X are the tensor X + suffix, of shape
            (rows,) or ().
        suffix: name suffix of scales.
        divide: compute integer / scale instead.

    Returns:
        Float32 weights, and unquantized tensors unchanged.

    Raises:
        ValueError: if scales have a different shape or are not positive.
    """
    dequantized = {}
    for name, tensor in tensors.items():
        scale = tensors.get(f"{name}{suffix}")
        if name.endswith(suffix) and name.removesuffix(suffix) in tensors:
            continue
        if scale is not None:
            is_positive = ((scale > 0) & (scale < torch.inf)).all()
            if scale.shape not in ((), tensor.shape[:1]) or not is_positive:
                raise ValueError(
                    f"{name[:80]!r} has scales of shape {list(scale.shape)}; it needs one positive "
                    "scale per row, or a single one"
                )
            rows = scale.float().view(-1, *[1] * (tensor.dim() - 1)) if scale.dim() else scale
            tensor = tensor.float() / rows if divide else tensor.float() * rows
        dequantized[name] = tensor
    return dequantized


def fold_weight_norm(weights: Weights, direction: str, length: str) -> None:
    """Fold weight norm into the weights: w = g v / ||v||.

    The norm runs over the dimensions in which g has length 1, or over all but the first dimension
    if g is a vector.  The dimensions vary between fairseq versions (decoder convolutions).

    Args:
        weights: all weights; w replaces v and g in place.
        direction: name suffix of v.
        length: name suffix of g.

    Raises:
        CheckpointError: if the shape of g does not fit v.
    """
    for name in [name for name in weights.tensors if name.endswith(f".{direction}")]:
        scope = name.removesuffix(direction)
        v, g = weights.pop(name), weights.pop(scope + length)
        try:
            if g.dim() == 1:
                g = g.view(*v.shape[:1], *[1] * (v.dim() - 1))
            dims = [i for i in range(v.dim()) if g.size(i) == 1]
            weights.tensors[f"{scope}weight"] = (
                g * v / torch.linalg.vector_norm(v, dim=dims, keepdim=True)
            )
        except (RuntimeError, IndexError):
            raise CheckpointError(f"{weights.path}: {scope}{length} does not fit {name}") from None
        weights.check_finite(f"{scope}weight")


def detect_position_layout(table: Tensor) -> str:
    """Return the sinusoid layout of a stored position table (P, E), or `learned`.

    A half-precision table is `learned`, because a computed table would differ from its rounded
    values.
    """
    n, d = table.shape
    for layout in ("interleaved", "concat", "fairseq") if d % 2 == 0 else ():
        error = (table.float() - make_sinusoids(n, d, layout)).abs()
        if error[:FIRST_ROWS].max() < ATOL_FIRST and error.max() < ATOL:
            return layout
    return "learned"


def is_valid_shape(sizes: Sequence[Any]) -> bool:
    """Return True if a tensor can have this shape."""
    if len(sizes) > MAX_DIMS or not all(map(is_valid_size, sizes)):
        return False
    # PyTorch multiplies the other sizes even if one is 0, and fails on overflow
    return math.prod(max(1, n) for n in sizes) < MAX_SIZE


def make_tensor(data: bytearray, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor of a dtype and shape that shares memory with `data` (little-endian)."""
    values = torch.frombuffer(data or bytearray(8), dtype=dtype)  # it rejects empty buffers
    return values[: math.prod(shape)].view(tuple(shape))


def is_valid_size(n: Any) -> bool:
    """Return True if a tensor dimension or file offset can have this value."""
    return type(n) is int and 0 <= n < MAX_SIZE


# -- Building models from renamed weights ----------------------------------------------------------

MAX_POSITIONS = 1 << 17  # limits position tables that are computed, not stored
Model = TypeVar("Model", bound=nn.Module)


def build_model(make: Callable[[], Model], weights: Weights) -> Model:
    """Build a model and move the weights into it.

    The model is created on the meta device and adopts the tensors, so a wrong size in a file costs
    no memory and no weight is stored twice.

    Args:
        make: creates the model.
        weights: float32 tensors under our names.

    Returns:
        The model in evaluation mode, without gradients.

    Raises:
        CheckpointError: unless the weights match the model exactly in names and shapes.
    """
    path = weights.path
    try:
        with torch.device("meta"), _SkipInitialization():
            model = make()
        # A transposed view would be slower and change the order of summation
        tensors = {name: weight.contiguous() for name, weight in weights.tensors.items()}
        _, unknown = model.load_state_dict(tensors, strict=False, assign=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[-1].strip()}") from None
    if isinstance(model, Transformer):
        model.tie()
    missing = [name for name, weight in model.named_parameters() if weight.is_meta]
    for problem, names in (("missing", missing), ("unknown", unknown)):
        if names:
            raise CheckpointError(
                f"{path}: {len(names)} weights are {problem}, the first is {names[0][:100]!r}"
            )
    return model.eval().requires_grad_(False)


class _SkipInitialization(TorchFunctionMode):
    """Skips random initialization.

    It has no effect on the meta device, but makes PyTorch import its compiler.  The import costs
    more time and memory than loading a model of 100 MB.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.__name__ == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_transformer(cfg: TransformerConfig, weights: Weights) -> Transformer:
    """Build a Transformer, after checking the sizes in its configuration against the weights."""
    for side, n in (("encoder", cfg.enc_layers), ("decoder", cfg.dec_layers)):
        if (n_layers := weights.count_layers(f"{side}.")) != n:
            raise CheckpointError(
                f"{weights.path}: the weights have {n_layers} {side} layers, the configuration {n}"
            )
    # Check sizes before allocating memory for position tables
    tables = [w for name, w in weights.tensors.items() if name.endswith("_embedding.token.weight")]
    widest = max(n for weight in weights.tensors.values() for n in weight.shape)
    heads, d_ff = max(cfg.heads, cfg.dec_heads), max(cfg.d_ff, cfg.dec_d_ff)
    if (
        {table.shape[-1] for table in tables} != {cfg.d_model}
        or max(cfg.src_vocab_size, cfg.tgt_vocab_size, d_ff, heads * cfg.head_dim) > widest
        or max(cfg.max_positions, cfg.position_offset) > MAX_POSITIONS
    ):
        raise CheckpointError(
            f"{weights.path}: sizes in the configuration do not match the weights"
        )
    return build_model(lambda: Transformer(cfg), weights)


def assemble_transformer(weights: Weights, path: Path, **switches: Any) -> Transformer:
    """Build a Transformer, with a configuration that is mostly inferred from the weights.

    Args:
        weights: all weights, under our names; position tables are truncated to the same length.
        path: the configuration file, for error messages.
        switches: fields of TransformerConfig that cannot be inferred or that override inference.

    Raises:
        CheckpointError: if the switches contradict each other or the weights, or if weights are
            missing or unknown.
    """
    inferred = _infer_sizes(weights, **switches) | _infer_switches(weights.tensors)
    positions = [name for name in weights.tensors if name.endswith("_embedding.position")]
    if positions:
        offset = switches.get("position_offset", 0)
        n = switches.get("max_positions", MAX_POSITIONS) + offset
        n = min(n, *(weights.get_shape(name)[0] for name in positions))
        weights.tensors |= {name: weights.tensors[name][:n] for name in positions}
        switches |= dict(positions="learned", max_positions=n - offset)
    try:
        cfg = TransformerConfig(**{**inferred, **switches})
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return build_transformer(cfg, weights)


def _infer_sizes(
    weights: Weights, heads: int, relative: str = "shaw", **unused: Any
) -> dict[str, Any]:
    """Infer the sizes of a Transformer from the shapes of its weights.

    Args:
        weights: all weights, under our names.
        heads: number of encoder attention heads.
        relative: type of relative positions, if the weights have any.
        unused: further switches, ignored.
    """
    weights.get_shape("output.weight")  # must exist
    n_tgt, d_model = weights.get_shape("tgt_embedding.token.weight")
    n_rows, _ = weights.get_shape("encoder.0.self_attn.qkv.weight")
    _, d_heads = weights.get_shape("encoder.0.self_attn.out.weight")
    width, odd = divmod(d_heads, max(1, heads))
    kv_heads = (n_rows // max(1, width) - heads) // 2
    sizes = dict[str, Any](
        src_vocab_size=weights.get_shape("src_embedding.token.weight")[0],
        tgt_vocab_size=n_tgt,
        d_model=d_model,
        enc_layers=weights.count_layers("encoder."),
        dec_layers=weights.count_layers("decoder."),
        d_ff=weights.get_shape("encoder.0.ffn.up.weight")[0],
        dec_d_ff=weights.get_shape("decoder.0.ffn.up.weight")[0],
        head_width=0 if odd or d_heads == d_model else width,
        kv_heads=0 if kv_heads == heads else kv_heads,
    )
    if "encoder.0.self_attn.relation.weight" in weights:
        n, _ = weights.get_shape("encoder.0.self_attn.relation.weight")
        shaw = dict(relative="shaw", relative_limit=n // 2)
        sizes |= shaw if relative == "shaw" else dict(relative_buckets=n)
    return sizes


def _infer_switches(internal: Mapping[str, Tensor]) -> dict[str, Any]:
    """Infer the variant of a Transformer from the names of its weights."""
    src, tgt = (internal[f"{side}_embedding.token.weight"] for side in ("src", "tgt"))
    has_gates = "decoder.0.self_attn.gates.weight" in internal
    average = "average_ffn" if "decoder.0.self_attn.ffn.up.weight" in internal else "average"
    return dict(
        share_embeddings=has_same_values(src, tgt),
        tie_output=has_same_values(tgt, internal["output.weight"]),
        output_bias="output.bias" in internal,
        final_norm="enc_norm.weight" in internal,
        embedding_norm="src_embedding.norm.weight" in internal,
        norm="layer" if any(name.endswith("norm.bias") for name in internal) else "rms",
        parallel_residual="encoder.0.ffn_residual.norm.weight" not in internal,
        attn_bias="encoder.0.self_attn.qkv.bias" in internal,
        ffn_bias="encoder.0.ffn.up.bias" in internal,
        gated_ffn="encoder.0.ffn.gate.weight" in internal,
        dec_self_attn=average if has_gates else "dot",
    )


def assemble_convolution(weights: Weights, has_positions: bool, **switches: Any) -> Convolution:
    """Build a convolutional model, with sizes that are inferred from the weights.

    Args:
        weights: all weights, under our names.
        has_positions: whether the model has position embeddings.
        switches: further fields of ConvolutionConfig.

    Raises:
        CheckpointError: if the weights do not match the model.
    """
    has_bottleneck = "decoder.out_proj.weight" in weights
    d_out = weights.get_shape("decoder.out_proj.weight")[0] if has_bottleneck else 0
    sizes = dict[str, Any](bottleneck=has_bottleneck, d_out=d_out)
    for side, short in (("encoder", "src"), ("decoder", "tgt")):
        n, d = weights.get_shape(f"{side}.embedding.token.weight")
        position = f"{side}.embedding.position"
        rows = weights.get_shape(position)[0] if has_positions else 0
        sizes |= {f"{short}_vocab_size": n, f"d_{short}_embedding": d, f"{short}_positions": rows}
        layers = []
        for i in range(weights.count_layers(f"{side}.convolutions.")):
            n_rows, kernel, _ = weights.get_shape(f"{side}.convolutions.{i}.weight", 3)
            has_attention = f"{side}.attentions.{i}.in_proj.weight" in weights
            layers.append(ConvLayer(n_rows // 2, kernel, has_attention))
        sizes[side] = tuple(layers)
    return build_model(lambda: Convolution(ConvolutionConfig(**sizes, **switches)), weights)


BANNED_LOGIT = -1e9  # gives probability 0 in every precision


def add_zero_start_token(internal: dict[str, Tensor]) -> None:
    """Append a banned token with an all-zero embedding, for decoders that start from zeros.

    The token is added to the target embeddings, to the source embeddings if shared, and to the
    output layer.

    Args:
        internal: all weights, under our names; changed in place.
    """
    table, out = internal["tgt_embedding.token.weight"], internal["output.weight"]
    longer = torch.cat([table, table.new_zeros(1, table.size(1))])
    if has_same_values(table, internal["src_embedding.token.weight"]):
        internal["src_embedding.token.weight"] = longer
    internal["tgt_embedding.token.weight"] = longer
    tied = has_same_values(table, out)
    internal["output.weight"] = longer if tied else torch.cat([out, out.new_zeros(1, out.size(1))])
    bias = internal.get("output.bias", out.new_zeros(len(out)))
    internal["output.bias"] = torch.cat([bias, bias.new_tensor([BANNED_LOGIT])])


def has_same_values(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have equal shapes and values."""
    return a is b or a.shape == b.shape and torch.equal(a, b)
