"""Weights as safetensors files: 8 bytes of header length, a JSON header, raw numbers.

The format cannot hold code.  The header is checked against the file before any number is used.
"""

import ctypes
import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints.weights import MAX_TENSORS, is_shape, is_size, tensor_of
from onmt_lite.errors import CheckpointError
from onmt_lite.system.safe_parse import parse_json

MAX_HEADER = 16 << 20
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
Entry = tuple[torch.dtype, list[int], list[int]]  # with shape, and offsets of start and end
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dump(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Make the content of a file.  `metadata` is for the readers of other toolkits."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    parts, end = [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        data = ctypes.string_at(flat.data_ptr(), flat.nbytes)  # numpy may not be there
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(data)],
        }
        parts.append(data)
        end += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(parts)


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file.  Raises CheckpointError for a file that is damaged."""
    try:
        with open(path, "rb") as f:
            return _parse(f, path.stat().st_size)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def parse(data: bytes) -> dict[str, Tensor]:
    """Read the tensors in the content of a file.  Raises ValueError for damaged content."""
    return _parse(io.BytesIO(data), len(data))


def _parse(stream: io.BufferedIOBase, n_bytes: int) -> dict[str, Tensor]:
    if n_bytes < 8:
        raise ValueError("shorter than its header")
    (n,) = struct.unpack("<Q", stream.read(8))
    n_body = n_bytes - 8 - n
    if n > MAX_HEADER or n_body < 0:
        raise ValueError("shorter than its header says")
    entries = _read_header(stream.read(n))
    tensors, end = {}, 0
    for name, (dtype, shape, (start, stop)) in sorted(entries.items(), key=lambda e: e[1][2]):
        n_bytes = math.prod(shape) * dtype.itemsize
        if start != end or stop - start != n_bytes or stop > n_body:
            raise ValueError(f"tensor {name[:80]!r} does not lie where the header says")
        # Copied, since an offset in the file may not be aligned for the number type
        data = bytearray(stop - start)
        if stream.readinto(data) != len(data):
            raise ValueError("shorter than it was when it was opened")
        tensors[name] = tensor_of(data, dtype, shape)
        end = stop
    if end != n_body:
        raise ValueError("longer than its header says")
    return tensors


def _read_header(data: bytes) -> dict[str, Entry]:
    """Read dtype, shape and offsets of each tensor, and check their types."""
    try:
        header = parse_json(data)
        header.pop("__metadata__", None)
        entries = {
            name: (DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"])
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its header is not understood: {error}") from None
    if len(entries) > MAX_TENSORS:
        raise ValueError(f"it lists {len(entries):,} tensors, more than any model has")
    for name, (_, shape, offsets) in entries.items():
        lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
        if not lists or not is_shape(shape) or not all(map(is_size, offsets)):
            raise ValueError(f"tensor {name[:80]!r} has a header entry that is not understood")
    return entries
