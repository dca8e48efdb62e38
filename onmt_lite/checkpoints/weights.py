"""Weights of other toolkits: taken by name, each once, and none left over."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints.description import Description
from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.positions import sinusoids
from onmt_lite.models.transformer import Transformer, TransformerConfig

MAX_POSITIONS = 1 << 17  # a table of positions is computed, so no file bounds it
# Of a position table that was computed in float32: large positions lose digits
FIRST_ROWS, ATOL_FIRST, ATOL = 100, 5e-5, 2e-3


def check_numbers(tensors: dict[str, Tensor], path: Path) -> None:
    """CheckpointError where a weight is not finite."""
    for name, tensor in tensors.items():
        # A sum is many times faster than a look at each number, but may overflow
        if tensor.is_floating_point() and not tensor.sum().isfinite():
            if not tensor.isfinite().all():
                raise CheckpointError(f"{path}: {name[:100]!r} holds numbers that are not finite")


class Weights:
    """The tensors of a file, from which a reader takes what its model has."""

    def __init__(self, tensors: dict[str, Tensor], path: Path):
        """CheckpointError where a tensor holds numbers that no model works with."""
        check_numbers(tensors, path)
        self.tensors, self.path = tensors, path

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str, n_dims: int = 2) -> tuple[int, ...]:
        """The shape of a tensor that must be there, with that many dimensions."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        if tensor.dim() != n_dims or 0 in tensor.shape:
            raise CheckpointError(f"{self.path}: {name} has the shape {list(tensor.shape)}")
        return tuple(tensor.shape)

    def take(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        return self.tensors.pop(name)

    def drop(self, pattern: str) -> None:
        """Forget tensors that hold nothing a translation needs."""
        for name in [name for name in self.tensors if re.fullmatch(pattern, name)]:
            del self.tensors[name]

    def count(self, prefix: str) -> int:
        """How many layers PREFIX.0, PREFIX.1, ... there are."""
        found = {name[len(prefix) + 1 :].split(".")[0] for name in self.under(prefix)}
        numbers = {int(n) for n in found if n.isdecimal() and len(n) < 6}
        if not numbers or numbers != set(range(len(numbers))):
            raise CheckpointError(f"{self.path}: the weights have no layers {prefix}.0, ...")
        return len(numbers)

    def under(self, prefix: str) -> Iterable[str]:
        return (name for name in self.tensors if name.startswith(prefix + "."))

    def same(self, one: str, other: str) -> bool:
        """Whether both are there and hold the same numbers."""
        a, b = self.tensors.get(one), self.tensors.get(other)
        return a is not None and b is not None and a.shape == b.shape and torch.equal(a, b)

    def renamed(self, theirs: str, ours: str, parts: Mapping[str, tuple[str, ...]]) -> dict:
        """The weights of one layer under our names; `parts` says which of theirs make up ours.

        Weight and bias of each; a bias that is not there is left out.
        """
        found = {}
        for name, sources in parts.items():
            for kind in ("weight", "bias"):
                names = [joined(theirs, source, kind) for source in sources]
                if kind == "weight" or names[0] in self:
                    tensors = [self.take(name) for name in names]
                    found[joined(ours, name, kind)] = self._stacked(tensors)
        return found

    def _stacked(self, tensors: list[Tensor]) -> Tensor:
        if any(t.dim() == 0 or t.shape[1:] != tensors[0].shape[1:] for t in tensors):
            raise CheckpointError(f"{self.path}: weights of one layer do not fit together")
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def joined(*names: str) -> str:
    """The name of a weight from its parts, of which some may be empty."""
    return ".".join(filter(None, names))


def layout_of(table: Tensor, offset: int = 0) -> str:
    """How a stored position table (n, d) was computed; `learned` if it was not.

    So is one in half precision: what was stored is what the model was used with.
    """
    n, d = table.shape
    for layout in ("interleaved", "concat", "fairseq") if d % 2 == 0 else ():
        error = (table.float() - sinusoids(n, d, layout))[offset:].abs()
        if error[:FIRST_ROWS].max() < ATOL_FIRST and error.max() < ATOL:
            return layout
    return "learned"


def build_config(path: Path, **fields) -> TransformerConfig:
    """CheckpointError where the fields do not go together."""
    try:
        return TransformerConfig(**fields)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def build(cfg: TransformerConfig, weights: dict[str, Tensor], path: Path) -> Transformer:
    """The model with exactly these weights, for use.  CheckpointError says what does not fit."""
    if not all(tensor.is_floating_point() for tensor in weights.values()):
        raise CheckpointError(f"{path}: some weights are whole numbers; a quantised model?")
    # Sizes first: nothing is built that the weights do not fill
    for kind, n in (("encoder", cfg.enc_layers), ("decoder", cfg.dec_layers)):
        found = len({name.split(".")[1] for name in weights if name.startswith(f"{kind}.")})
        if found != n:
            raise CheckpointError(f"{path}: {found} {kind} layers, its description says {n}")
    n_numbers = sum(tensor.numel() for tensor in weights.values())
    sizes = (cfg.d_ff, cfg.dec_d_ff, cfg.src_vocab_size, cfg.tgt_vocab_size)
    if max(sizes) * cfg.d_model > n_numbers or cfg.max_positions > MAX_POSITIONS:
        raise CheckpointError(f"{path}: sizes in its description are larger than the weights")
    try:
        model = Transformer(cfg)
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[-1].strip()}") from None
    tied = {n for n, p in model.named_parameters(remove_duplicate=False)} - {
        n for n, p in model.named_parameters()
    }
    wrong = sorted(set(missing) - tied) + unexpected
    if wrong:
        raise CheckpointError(f"{path}: {len(wrong)} weights missing or unknown, first {wrong[0]}")
    return model.eval().requires_grad_(False)


def finished(cfg: TransformerConfig, ours: dict[str, Tensor], rest: Weights) -> Transformer:
    """As `build`, once nothing is left of what the file holds."""
    if rest.tensors:
        name = min(rest.tensors)
        raise CheckpointError(
            f"{rest.path}: {len(rest.tensors)} weights are not of a model that is read, "
            f"first {name[:100]!r}"
        )
    return build(cfg, ours, rest.path)


def naming_the_file(
    build: Callable[[Mapping[str, Tensor], Mapping[str, Any]], EncoderDecoder],
) -> Callable[["Weights", Description], EncoderDecoder]:
    """A builder that knows weights and options alone, as one whose errors name the file."""

    def build_model(weights: Weights, options: Description) -> EncoderDecoder:
        try:
            return build(weights.tensors, options.values)
        except CheckpointError as error:
            raise CheckpointError(f"{weights.path}: {error}") from None

    return build_model
