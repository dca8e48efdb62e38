"""Tensors from the bytes of files, and limits on what a file may claim to hold."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MAX_TENSORS = 20_000
MAX_DIMS = 16
MAX_SIZE = 1 << 48


def is_shape(sizes: Sequence[Any]) -> bool:
    """Whether a tensor can have these sizes.

    PyTorch multiplies those beside a 0 too, and fails where they are too large.
    """
    if len(sizes) > MAX_DIMS or not all(map(is_size, sizes)):
        return False
    return math.prod(max(1, n) for n in sizes) < MAX_SIZE


def tensor_of(data: bytearray, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor whose numbers these bytes are, without a copy."""
    numbers = torch.frombuffer(data or bytearray(8), dtype=dtype)  # an empty buffer is refused
    return numbers[: math.prod(shape)].view(tuple(shape))


def is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < MAX_SIZE
