"""Limits on the tensors that a file may claim to hold, checked before anything is allocated."""

import math
from collections.abc import Sequence
from typing import Any

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


def is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < MAX_SIZE
