"""Weights of other toolkits: taken by name, each once, and none left over."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_lite.errors import CheckpointError
from onmt_lite.models.positions import sinusoids

Rules = Sequence[tuple[str, str]]  # (pattern of the whole name, our name), first match wins
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
        """The tensor as float32; here it is forgotten, so that nothing keeps two copies of it."""
        tensor = self.numbers(name)
        del self.tensors[name]
        return tensor.contiguous()

    def numbers(self, name: str) -> Tensor:
        """The tensor as float32.  CheckpointError where it is missing or not of real numbers."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: the weights lack {name}")
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{self.path}: {name[:100]!r} holds whole numbers; a quantised model?"
            )
        return tensor.float()

    def drop(self, pattern: str) -> None:
        """Forget tensors that hold nothing a translation needs."""
        for name in [name for name in self.tensors if re.fullmatch(pattern, name)]:
            del self.tensors[name]

    def count(self, pattern: str) -> int:
        """How many layers there are: numbers from 0 on where names have the pattern's group."""
        matches = (re.match(pattern, name) for name in self.tensors)
        numbers = {match[1] for match in matches if match}
        if not numbers or numbers != set(map(str, range(len(numbers)))):
            raise CheckpointError(f"{self.path}: the weights have no layers 0, 1, ... of {pattern}")
        return len(numbers)

    def table_sizes(self, src: str, tgt: str) -> dict[str, Any]:
        """The sizes of both embedding tables, as configurations name them."""
        (src_size, d_src), (tgt_size, d_tgt) = self.shape(src), self.shape(tgt)
        return dict(
            src_vocab_size=src_size,
            tgt_vocab_size=tgt_size,
            d_src_embedding=d_src,
            d_tgt_embedding=d_tgt,
        )

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

    def by_rules(self, rules: Rules) -> dict[str, Tensor]:
        """All that is left, under our names; a rule without a new name drops the tensor."""
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
