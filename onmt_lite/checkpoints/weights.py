"""Weights in the files of other toolkits: from bytes to tensors under our names, and to models."""

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

# Tolerances of position tables computed in float32, where large positions lose digits
FIRST_ROWS, ATOL_FIRST, ATOL = 100, 5e-5, 2e-3
# What a file may claim to hold
MAX_TENSORS, MAX_DIMS, MAX_SIZE = 20_000, 16, 1 << 48


class Weights:
    """Tensors of a file by name, from which a reader takes those of its model."""

    def __init__(self, tensors: dict[str, Tensor], path: Path):
        """Raises CheckpointError where a number is not finite."""
        self.tensors, self.path = tensors, path
        for name in tensors:
            self.check_finite(name)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def check_finite(self, name: str) -> None:
        """Raise CheckpointError where a number of the tensor is not finite."""
        tensor = self.tensors[name]
        # A sum is many times faster than a test of each number, but may overflow
        finite = not tensor.is_floating_point() or tensor.sum().isfinite()
        if not finite and not tensor.isfinite().all():
            raise CheckpointError(f"{self.path}: {name[:100]!r} holds numbers that are not finite")

    def get_shape(self, name: str, n_dims: int = 2) -> tuple[int, ...]:
        """Shape of a tensor.  Raises CheckpointError unless it has `n_dims` dimensions."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        tensor = self.tensors[name]
        if tensor.dim() != n_dims or 0 in tensor.shape:
            raise CheckpointError(f"{self.path}: {name} has the shape {list(tensor.shape)}")
        return tuple(tensor.shape)

    def pop(self, name: str) -> Tensor:
        """Remove a tensor and return it as float32, so that no second copy is held.

        Raises CheckpointError where it is missing or of integers.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        if not self.tensors[name].is_floating_point():
            raise CheckpointError(
                f"{self.path}: {name[:100]!r} holds whole numbers; a quantised model?"
            )
        return self.tensors.pop(name).float().contiguous()

    def drop(self, pattern: str) -> None:
        """Remove tensors that translation does not need."""
        for name in [name for name in self.tensors if re.fullmatch(pattern, name)]:
            del self.tensors[name]

    def count_layers(self, start: str) -> int:
        """Count the layers whose weights have names of this start and a number."""
        matches = (re.match(re.escape(start) + r"\d+", name) for name in self.tensors)
        return len({match[0] for match in matches if match})

    def rename(self, model: str) -> None:
        """Rename weights to our names by a table of weight_names.yaml, and stack them.

        Raises CheckpointError where one of a stack is missing or does not fit, and where two
        weights would get one name.
        """
        table = load_weight_names(model).ours
        for name in list(self.tensors):
            ours, *stack = translate_name(name, table) or [""]
            if not ours or name not in self:  # taken before, in a stack
                continue
            parts = [self.pop(part) for part in stack]
            if ours in self:
                raise CheckpointError(f"{self.path}: {name} is there under another name too")
            if any(part.dim() == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
                raise CheckpointError(f"{self.path}: weights of one layer do not fit together")
            self.tensors[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)


def dequantize(
    tensors: Mapping[str, Tensor], suffix: str, divide: bool = False
) -> dict[str, Tensor]:
    """Return the tensors with the numbers that integers stand for: integer * scale.

    Args:
        tensors: those of a file.
        suffix: what the name of a scale has behind the name of its tensor; there is one scale for
            each row, or one for all.
        divide: whether the numbers are integer / scale instead.

    Raises:
        ValueError: if there are other scales, or one is not above 0.
    """
    found = {}
    for name, tensor in tensors.items():
        scale = tensors.get(f"{name}{suffix}")
        if name.endswith(suffix) and name.removesuffix(suffix) in tensors:
            continue
        if scale is not None:
            is_positive = ((scale > 0) & (scale < torch.inf)).all()
            if scale.shape not in ((), tensor.shape[:1]) or not is_positive:
                raise ValueError(
                    f"{name[:80]!r} has {list(scale.shape)} scales; each row needs one above 0, or "
                    "all rows the same"
                )
            rows = scale.float().view(-1, *[1] * (tensor.dim() - 1)) if scale.dim() else scale
            tensor = tensor.float() / rows if divide else tensor.float() * rows
        found[name] = tensor
    return found


def fold_weight_norm(weights: Weights, direction: str, length: str) -> None:
    """Multiply out weight norm: of v, the `direction`, and g, the `length`, make w = g v / ||v||.

    The norm runs over the dimensions in which g has length 1, all but the first one if g has one
    dimension.  Older versions of fairseq normed the decoder's convolutions over others.
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
    """Tell how a stored position table (n, d) was computed: a layout, or else `learned`.

    A table in half precision is `learned`: the rounded numbers are those the model was used with.
    """
    n, d = table.shape
    for layout in ("interleaved", "concat", "fairseq") if d % 2 == 0 else ():
        error = (table.float() - make_sinusoids(n, d, layout)).abs()
        if error[:FIRST_ROWS].max() < ATOL_FIRST and error.max() < ATOL:
            return layout
    return "learned"


def is_valid_shape(sizes: Sequence[Any]) -> bool:
    """Whether a tensor can have these sizes."""
    if len(sizes) > MAX_DIMS or not all(map(is_valid_size, sizes)):
        return False
    # PyTorch multiplies those beside a 0 too, and fails where they are too large
    return math.prod(max(1, n) for n in sizes) < MAX_SIZE


def make_tensor(data: bytearray, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor whose numbers these bytes are, without a copy."""
    numbers = torch.frombuffer(data or bytearray(8), dtype=dtype)  # an empty buffer is refused
    return numbers[: math.prod(shape)].view(tuple(shape))


def is_valid_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < MAX_SIZE


# -- Models from weights under our names -----------------------------------------------------------

MAX_POSITIONS = 1 << 17  # a table of positions is computed, so no file bounds it
Built = TypeVar("Built", bound=nn.Module)


def build_model(make: Callable[[], Built], weights: Weights) -> Built:
    """Call `make` and give the model all weights, which have our names and are float32.

    The model is made on the meta device and takes over the tensors: a false size in a file costs no
    memory, and no weight is held twice.  Raises CheckpointError unless names and shapes of the
    weights are exactly those of the model.
    """
    path = weights.path
    try:
        with torch.device("meta"), _Unfilled():
            model = make()
        # A transposed view would be slower, and another order of sums
        tensors = {name: weight.contiguous() for name, weight in weights.tensors.items()}
        _, unknown = model.load_state_dict(tensors, strict=False, assign=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[-1].strip()}") from None
    if isinstance(model, Transformer):
        model.tie()
    missing = [name for name, weight in model.named_parameters() if weight.is_meta]
    for what, names in (("missing", missing), ("unknown", unknown)):
        if names:
            raise CheckpointError(
                f"{path}: {len(names)} weights are {what}, first {names[0][:100]!r}"
            )
    return model.eval().requires_grad_(False)


class _Unfilled(TorchFunctionMode):
    """Skips random initialisation, which has no effect on the meta device.

    PyTorch would load its compiler for it, at more time and memory than a model of 100 MB.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.__name__ == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_transformer(cfg: TransformerConfig, weights: Weights) -> Transformer:
    """Build a Transformer, after a check of the configuration's sizes against the weights."""
    for kind, n in (("encoder", cfg.enc_layers), ("decoder", cfg.dec_layers)):
        if (layers := weights.count_layers(f"{kind}.")) != n:
            reason = f"{layers} {kind} layers, its description says {n}"
            raise CheckpointError(f"{weights.path}: {reason}")
    # Before tables of these sizes are computed, as a model is made
    tables = [w for name, w in weights.tensors.items() if name.endswith("_embedding.token.weight")]
    widest = max(n for weight in weights.tensors.values() for n in weight.shape)
    heads, d_ff = max(cfg.heads, cfg.dec_heads), max(cfg.d_ff, cfg.dec_d_ff)
    if (
        {table.shape[-1] for table in tables} != {cfg.d_model}
        or max(cfg.src_vocab_size, cfg.tgt_vocab_size, d_ff, heads * cfg.head_dim) > widest
        or max(cfg.max_positions, cfg.position_offset) > MAX_POSITIONS
    ):
        raise CheckpointError(f"{weights.path}: sizes in its description do not fit the weights")
    return build_model(lambda: Transformer(cfg), weights)


def assemble_transformer(weights: Weights, path: Path, **switches: Any) -> Transformer:
    """Build a Transformer of weights under our names, which show most switches of a configuration.

    Args:
        weights: all weights; tables of positions are cut to the same length.
        path: the file that describes the model.
        switches: what no weight shows, and what must be so whatever the weights show.

    Raises:
        CheckpointError: if the switches contradict each other or the weights, and for weights that
            are missing or unknown.
    """
    shown = _sizes(weights, **switches) | _switches(weights.tensors)
    positions = [name for name in weights.tensors if name.endswith("_embedding.position")]
    if positions:
        offset = switches.get("position_offset", 0)
        n = switches.get("max_positions", MAX_POSITIONS) + offset
        n = min(n, *(weights.get_shape(name)[0] for name in positions))
        weights.tensors |= {name: weights.tensors[name][:n] for name in positions}
        switches |= dict(positions="learned", max_positions=n - offset)
    try:
        cfg = TransformerConfig(**{**shown, **switches})
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return build_transformer(cfg, weights)


def _sizes(weights: Weights, heads: int, relative: str = "shaw", **others: Any) -> dict[str, Any]:
    """Sizes of a Transformer, by the shapes of its weights and the switches that they depend on."""
    weights.get_shape("output.weight")  # must be there
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


def _switches(ours: Mapping[str, Tensor]) -> dict[str, Any]:
    """Switches of a Transformer, by the names of its weights."""
    src, tgt = (ours[f"{side}_embedding.token.weight"] for side in ("src", "tgt"))
    has_gates = "decoder.0.self_attn.gates.weight" in ours
    average = "average_ffn" if "decoder.0.self_attn.ffn.up.weight" in ours else "average"
    return dict(
        share_embeddings=has_same_values(src, tgt),
        tie_output=has_same_values(tgt, ours["output.weight"]),
        output_bias="output.bias" in ours,
        final_norm="enc_norm.weight" in ours,
        embedding_norm="src_embedding.norm.weight" in ours,
        norm="layer" if any(name.endswith("norm.bias") for name in ours) else "rms",
        parallel_residual="encoder.0.ffn_residual.norm.weight" not in ours,
        attn_bias="encoder.0.self_attn.qkv.bias" in ours,
        ffn_bias="encoder.0.ffn.up.bias" in ours,
        gated_ffn="encoder.0.ffn.gate.weight" in ours,
        dec_self_attn=average if has_gates else "dot",
    )


def assemble_convolution(weights: Weights, positions: bool, **switches: Any) -> Convolution:
    """Build a convolutional model of weights under our names, with position vectors or without."""
    has_bottleneck = "decoder.outward.weight" in weights
    d_out = weights.get_shape("decoder.outward.weight")[0] if has_bottleneck else 0
    sizes = dict[str, Any](bottleneck=has_bottleneck, d_out=d_out)
    for side, short in (("encoder", "src"), ("decoder", "tgt")):
        n, d = weights.get_shape(f"{side}.embedding.token.weight")
        rows = weights.get_shape(f"{side}.embedding.position")[0] if positions else 0
        sizes |= {f"{short}_vocab_size": n, f"d_{short}_embedding": d, f"{short}_positions": rows}
        layers = []
        for i in range(weights.count_layers(f"{side}.convolutions.")):
            n_rows, kernel, _ = weights.get_shape(f"{side}.convolutions.{i}.weight", 3)
            attends = f"{side}.attentions.{i}.inward.weight" in weights
            layers.append(ConvLayer(n_rows // 2, kernel, attends))
        sizes[side] = tuple(layers)
    return build_model(lambda: Convolution(ConvolutionConfig(**sizes, **switches)), weights)


BANNED_LOGIT = -1e9  # the logit of what is no token: its probability is 0 in every precision


def add_zero_start_token(ours: dict[str, Tensor]) -> None:
    """Add a last row for a decoder that starts from zeros, never to be said, to the target table,
    and to the source table if both are one."""
    table, out = ours["tgt_embedding.token.weight"], ours["output.weight"]
    longer = torch.cat([table, table.new_zeros(1, table.size(1))])
    if has_same_values(table, ours["src_embedding.token.weight"]):
        ours["src_embedding.token.weight"] = longer
    ours["tgt_embedding.token.weight"] = longer
    tied = has_same_values(table, out)
    ours["output.weight"] = longer if tied else torch.cat([out, out.new_zeros(1, out.size(1))])
    bias = ours.get("output.bias", out.new_zeros(len(out)))
    ours["output.bias"] = torch.cat([bias, bias.new_tensor([BANNED_LOGIT])])


def has_same_values(one: Tensor, other: Tensor) -> bool:
    return one is other or one.shape == other.shape and torch.equal(one, other)
