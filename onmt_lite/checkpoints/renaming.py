"""Tensors of other systems: their structure, their names, and a load that leaves nothing over."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from onmt_lite.errors import CheckpointError

Tensors = Mapping[str, Tensor]
Rules = Sequence[tuple[str, str]]  # (pattern of the whole name, our name), first match wins
Model = TypeVar("Model", bound=nn.Module)


def size(weights: Tensors, name: str, dim: int) -> int:
    """Length of one dimension of the tensor `name`; CheckpointError where there is none."""
    if name not in weights:
        raise CheckpointError(f"weights: {name} is missing")
    shape = list(weights[name].shape)
    if dim >= len(shape) or 0 in shape:
        raise CheckpointError(f"weights: {name} has the shape {shape}")
    return shape[dim]


def count(weights: Tensors, pattern: str) -> int:
    """How many numbers 0, 1, ... follow each other where `pattern` has its group."""
    found = {int(m[1]) for name in weights if (m := re.fullmatch(pattern, name))}
    return next(i for i in range(len(found) + 1) if i not in found)


def rename(weights: Tensors, rules: Rules) -> dict[str, Tensor]:
    """The same tensors under our names, as float32; CheckpointError for a name without a rule.

    A rule whose new name is empty drops the tensor: it has no part in the computation.
    """
    renamed = {}
    for name, tensor in weights.items():
        new = _new_name(name, rules)
        if new in renamed:
            raise CheckpointError(f"weights: {name} is there twice, under another name too")
        if new:
            renamed[new] = tensor.float().contiguous()
    return renamed


def _new_name(name: str, rules: Rules) -> str:
    for pattern, new in rules:
        if match := re.fullmatch(pattern, name):
            return match.expand(new)
    raise CheckpointError(f"weights: {name} is of a kind that is not read")


def load_strictly(make: Callable[[], Model], weights: Tensors) -> Model:
    """The model that `make` makes with these weights, ready for translating.

    It is made without memory of its own and takes over the tensors, so that sizes a file only
    claims cost nothing.  CheckpointError unless every weight finds a place, every place a weight,
    of its size and finite.
    """
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"weights: {name} holds numbers that are not finite")
    try:
        with torch.device("meta"):
            model = make()
        missing, unexpected = model.load_state_dict(dict(weights), strict=False, assign=True)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    except RuntimeError as error:
        raise CheckpointError(f"weights: {str(error).splitlines()[-1].strip()}") from None
    if missing or unexpected:
        what, names = ("missing", missing) if missing else ("unknown", unexpected)
        raise CheckpointError(f"weights: {len(names)} are {what}, the first is {names[0]}")
    return model.eval().requires_grad_(False)
