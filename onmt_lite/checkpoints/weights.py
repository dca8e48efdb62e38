"""Weights in the files of other toolkits: from bytes to tensors under our names, and to models."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onmt_lite.errors import CheckpointError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.positions import sinusoids
from onmt_lite.models.transformer import Transformer

Parts = Mapping[str, tuple[str, ...]]
Rules = Sequence[tuple[str, str]]  # (pattern of the whole name, our name), first match wins
# Tolerances of position tables computed in float32, where large positions lose digits
FIRST_ROWS, ATOL_FIRST, ATOL = 100, 5e-5, 2e-3
# What a file may claim to hold
MAX_TENSORS, MAX_DIMS, MAX_SIZE = 20_000, 16, 1 << 48


class Weights:
    """Tensors of a file by name, from which a reader takes those of its model."""

    def __init__(self, tensors: dict[str, Tensor], path: Path):
        """Raises CheckpointError where a number is not finite."""
        for name, tensor in tensors.items():
            # A sum is many times faster than a test of each number, but may overflow
            finite = not tensor.is_floating_point() or tensor.sum().isfinite()
            if not finite and not tensor.isfinite().all():
                raise CheckpointError(f"{path}: {name[:100]!r} holds numbers that are not finite")
        self.tensors, self.path = tensors, path

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str, n_dims: int = 2) -> tuple[int, ...]:
        """Shape of a tensor.  Raises CheckpointError unless it has `n_dims` dimensions."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        if tensor.dim() != n_dims or 0 in tensor.shape:
            raise CheckpointError(f"{self.path}: {name} has the shape {list(tensor.shape)}")
        return tuple(tensor.shape)

    def take(self, name: str) -> Tensor:
        """Remove a tensor and return it as float32, so that no second copy is held."""
        tensor = self.numbers(name)
        del self.tensors[name]
        return tensor.contiguous()

    def numbers(self, name: str) -> Tensor:
        """A tensor as float32.  Raises CheckpointError where it is missing or of integers."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{self.path}: {name[:100]!r} holds whole numbers; a quantised model?"
            )
        return tensor.float()

    def drop(self, pattern: str) -> None:
        """Remove tensors that translation does not need."""
        for name in [name for name in self.tensors if re.fullmatch(pattern, name)]:
            del self.tensors[name]

    def count(self, start: str) -> int:
        """Count layers, whose numbers from 0 on are in the place of {} in this start of names."""
        pattern = re.escape(start).replace(r"\{\}", r"(\d+)")
        matches = (re.match(pattern, name) for name in self.tensors)
        numbers = {match[1] for match in matches if match}
        if not numbers or numbers != set(map(str, range(len(numbers)))):
            raise CheckpointError(f"{self.path}: the weights have no layers 0, 1, ... of {start}")
        return len(numbers)

    def table_sizes(self, src: str, tgt: str) -> dict[str, Any]:
        """Sizes of both embedding tables, under the names of configurations."""
        (n_src, d_src), (n_tgt, d_tgt) = self.shape(src), self.shape(tgt)
        sizes = dict(src_vocab_size=n_src, tgt_vocab_size=n_tgt)
        return sizes | dict(d_src_embedding=d_src, d_tgt_embedding=d_tgt)

    def renamed(self, theirs: str, ours: str, parts: Parts) -> dict[str, Tensor]:
        """Take the weights of one layer, under our names, as far as the file has them.

        theirs and ours are prefixes; parts has our names, and theirs, whose tensors are stacked.
        """
        renamed: dict[str, Tensor] = {}
        for name, sources in parts.items():
            for kind in ("weight", "bias"):
                names = [joined(theirs, source, kind) for source in sources]
                if not any(name in self for name in names):
                    continue
                stack = [self.take(name) for name in names]
                if any(t.dim() == 0 or t.shape[1:] != stack[0].shape[1:] for t in stack):
                    raise CheckpointError(f"{self.path}: weights of one layer do not fit together")
                stacked = stack[0] if len(stack) == 1 else torch.cat(stack)
                renamed[joined(ours, name, kind)] = stacked
        return renamed

    def layers(
        self, theirs: str, ours: str, n: int, parts: Parts, first: int = 0
    ) -> dict[str, Tensor]:
        """Take the weights of n layers, `first` being the number in the place of {} in `theirs`."""
        found: dict[str, Tensor] = {}
        for i in range(n):
            found |= self.renamed(theirs.format(i + first), f"{ours}.{i}", parts)
        return found

    def by_rules(self, rules: Rules) -> dict[str, Tensor]:
        """Take all remaining tensors, under our names; a rule to "" drops the tensor."""
        ours: dict[str, Tensor] = {}
        for theirs in list(self.tensors):
            matches = ((re.fullmatch(pattern, theirs), new) for pattern, new in rules)
            name = next((match.expand(new) for match, new in matches if match), None)
            if name is None:
                raise CheckpointError(
                    f"{self.path}: the weight {theirs[:100]!r} is not of a model that is read"
                )
            if name in ours:
                raise CheckpointError(f"{self.path}: {theirs} is there under another name too")
            if name:
                ours[name] = self.take(theirs)
            else:
                del self.tensors[theirs]
        return ours


def joined(*names: str) -> str:
    """Join the parts of a weight's name, of which some may be empty."""
    return ".".join(filter(None, names))


def layout_of(table: Tensor, offset: int = 0) -> str:
    """Tell how a stored position table (n, d) was computed: a layout, or else `learned`.

    A table in half precision is `learned`: the rounded numbers are those the model was used with.
    """
    n, d = table.shape
    for layout in ("interleaved", "concat", "fairseq") if d % 2 == 0 else ():
        error = (table.float() - sinusoids(n, d, layout))[offset:].abs()
        if error[:FIRST_ROWS].max() < ATOL_FIRST and error.max() < ATOL:
            return layout
    return "learned"


def is_shape(sizes: Sequence[Any]) -> bool:
    """Whether a tensor can have these sizes."""
    if len(sizes) > MAX_DIMS or not all(map(is_size, sizes)):
        return False
    # PyTorch multiplies those beside a 0 too, and fails where they are too large
    return math.prod(max(1, n) for n in sizes) < MAX_SIZE


def tensor_of(data: bytearray, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor whose numbers these bytes are, without a copy."""
    numbers = torch.frombuffer(data or bytearray(8), dtype=dtype)  # an empty buffer is refused
    return numbers[: math.prod(shape)].view(tuple(shape))


def is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < MAX_SIZE


# -- Models from weights under our names -----------------------------------------------------------

MAX_POSITIONS = 1 << 17  # a table of positions is computed, so no file bounds it
Built = TypeVar("Built", bound=nn.Module)


def build(make: Callable[[], Built], weights: Mapping[str, Tensor], path: Path) -> Built:
    """Call `make` and give the model these weights, float32.

    The model is made on the meta device and takes over the tensors: a false size in a file costs no
    memory, and no weight is held twice.  Raises CheckpointError unless names and shapes of the
    weights are exactly those of the model.
    """
    try:
        with torch.device("meta"), _Unfilled():
            model = make()
        _, unknown = model.load_state_dict(dict(weights), strict=False, assign=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[-1].strip()}") from None
    if isinstance(model, Transformer):
        model.tie()
    missing = [name for name, weight in model.named_parameters() if weight.is_meta]
    for what, names in (("missing", missing), ("unknown", unknown)):
        if names:
            raise CheckpointError(f"{path}: {len(names)} weights are {what}, first {names[0]}")
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


def build_transformer(
    cfg: TransformerConfig, weights: Mapping[str, Tensor], path: Path
) -> Transformer:
    """Build a Transformer, after a check of the configuration's sizes against the weights."""
    for kind, n in (("encoder", cfg.enc_layers), ("decoder", cfg.dec_layers)):
        if (layers := _count_layers(weights, kind)) != n:
            raise CheckpointError(f"{path}: {layers} {kind} layers, its description says {n}")
    # Before tables of these sizes are computed, as a model is made
    tables = [w for name, w in weights.items() if name.endswith("_embedding.token.weight")]
    widest = max(n for weight in weights.values() for n in weight.shape)
    heads, d_ff = max(cfg.heads, cfg.dec_heads), max(cfg.d_ff, cfg.dec_d_ff)
    if (
        {table.shape[-1] for table in tables} != {cfg.d_model}
        or max(cfg.src_vocab_size, cfg.tgt_vocab_size, d_ff, heads * cfg.width) > widest
        or max(cfg.max_positions, cfg.position_offset) > MAX_POSITIONS
    ):
        raise CheckpointError(f"{path}: sizes in its description do not fit the weights")
    return build(lambda: Transformer(cfg), weights, path)


def _count_layers(ours: Mapping[str, Tensor], side: str) -> int:
    return len({name.split(".")[1] for name in ours if name.startswith(f"{side}.")})


def finished(ours: dict[str, Tensor], rest: Weights, path: Path, **switches: Any) -> Transformer:
    """Build a Transformer of weights under our names, which tell the sizes, and of switches.

    path: the file that describes the model.  CheckpointError where the switches contradict each
    other or the weights, and where weights of the file are left in `rest`.
    """
    src, tgt = (ours[f"{side}_embedding.token.weight"] for side in ("src", "tgt"))
    sizes: dict[str, Any] = dict(
        src_vocab_size=len(src),
        tgt_vocab_size=len(tgt),
        d_model=tgt.size(1),
        output_bias="output.bias" in ours,
        share_embeddings=same_numbers(src, tgt),
        tie_output=same_numbers(tgt, ours["output.weight"]),
    )
    for side, prefix in (("encoder", ""), ("decoder", "dec_")):
        sizes[f"{side[:3]}_layers"] = _count_layers(ours, side)
        if f"{side}.0.ffn.up.weight" in ours:
            sizes[f"{prefix}d_ff"] = len(ours[f"{side}.0.ffn.up.weight"])
    try:
        cfg = TransformerConfig(**{**sizes, **switches})
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    if rest.tensors:
        name = min(rest.tensors)
        raise CheckpointError(
            f"{rest.path}: {len(rest.tensors)} weights are not of a model that is read, "
            f"first {name[:100]!r}"
        )
    return build_transformer(cfg, ours, rest.path)


NEVER = -1e9  # the logit of what is no token: its probability is 0 in every precision


def add_zero_start(ours: dict[str, Tensor]) -> None:
    """Add a last row for a decoder that starts from zeros, never to be said, to the target table,
    and to the source table if both are one."""
    table, out = ours["tgt_embedding.token.weight"], ours["output.weight"]
    longer = torch.cat([table, table.new_zeros(1, table.size(1))])
    if same_numbers(table, ours["src_embedding.token.weight"]):
        ours["src_embedding.token.weight"] = longer
    ours["tgt_embedding.token.weight"] = longer
    tied = same_numbers(table, out)
    ours["output.weight"] = longer if tied else torch.cat([out, out.new_zeros(1, out.size(1))])
    bias = ours.get("output.bias", out.new_zeros(len(out)))
    ours["output.bias"] = torch.cat([bias, bias.new_tensor([NEVER])])


def same_numbers(one: Tensor, other: Tensor) -> bool:
    return one is other or one.shape == other.shape and torch.equal(one, other)
