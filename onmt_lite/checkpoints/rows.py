"""Matrices as 8-bit integers with one scale a row: weight = integer * scale of the row.

The size is half of float16's, and translations are as good.
"""

from pathlib import Path

import torch
from torch import Tensor

from onmt_lite.errors import CheckpointError

LARGEST = 127
SCALE = ".scale"  # behind the name of the matrix
CLIPPINGS = torch.linspace(1.0, 0.6, 9)  # of a row's largest weight, tried one by one


def pack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store matrices as int8 (rows, columns) and float16 scales (rows,), the rest as float16."""
    packed = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            packed[name], packed[name + SCALE] = to_rows(tensor.float())
        else:
            packed[name] = tensor.half()
    return packed


def unpack(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Undo `pack`; matrices become float32.

    Raises CheckpointError unless each row of a matrix of integers has a scale above 0.
    """
    scales = {name: t for name, t in tensors.items() if name.endswith(SCALE)}
    unpacked = {}
    for name in [name for name in tensors if name not in scales]:
        tensor = tensors[name]
        if tensor.dtype == torch.int8:
            scale = scales.pop(name + SCALE, torch.empty(0))
            one_each = tensor.dim() == 2 and scale.shape == tensor.shape[:1]
            if not one_each or not ((scale > 0) & (scale < torch.inf)).all():
                raise CheckpointError(f"{path}: {name[:100]!r} needs a scale above 0 for each row")
            tensor = tensor.float() * scale.float()[:, None]
        unpacked[name] = tensor
    for name in scales:
        raise CheckpointError(f"{path}: {name[:100]!r} belongs to no matrix of integers")
    return unpacked


def to_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Integers (rows, columns) and scales (rows,) with the least squared error of all CLIPPINGS."""
    largest = matrix.abs().amax(1)
    best_error = torch.full_like(largest, torch.inf)
    integers, scales = torch.zeros_like(matrix), torch.ones_like(largest)
    for share in CLIPPINGS:
        # A row of zeros has the smallest scale
        scale = (largest * share / LARGEST).clamp(min=torch.finfo(torch.half).tiny).half().float()
        rounded = (matrix / scale[:, None]).round().clamp(-LARGEST, LARGEST)
        error = (rounded * scale[:, None] - matrix).square().sum(1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        integers = torch.where(better[:, None], rounded, integers)
        scales = torch.where(better, scale, scales)
    return integers.to(torch.int8), scales.half()
