"""The safetensors format: 8 bytes of header length, a JSON header, raw tensor data.

The format cannot contain code. The header is checked against the file size before data is read.
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

from onmt_lite.checkpoints.weights import MAX_TENSORS, is_valid_shape, is_valid_size, make_tensor
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
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dump(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Serialize tensors as the bytes of a safetensors file.

    Args:
        tensors: tensors by name, with dtypes of DTYPES.
        metadata: header entry `__metadata__`; some toolkits require it.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    buffers, end = [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        data = ctypes.string_at(flat.data_ptr(), flat.nbytes)  # works without numpy
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(data)],
        }
        buffers.append(data)
        end += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(buffers)


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file; raise CheckpointError if it is damaged."""
    try:
        with open(path, "rb") as f:
            return _parse(f, path.stat().st_size)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def parse(data: bytes) -> dict[str, Tensor]:
    """Parse the tensors in the bytes of a file; raise ValueError if it is damaged."""
    return _parse(io.BytesIO(data), len(data))


def _parse(stream: io.BufferedIOBase, n_bytes: int) -> dict[str, Tensor]:
    if n_bytes < 8:
        raise ValueError("the file is too short for a safetensors header")
    (n,) = struct.unpack("<Q", stream.read(8))
    n_body = n_bytes - 8 - n
    if n > MAX_HEADER or n_body < 0:
        raise ValueError("the file is shorter than its header declares")
    header = parse_json(stream.read(n))
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise ValueError("the header is not a JSON object of tensors, or has more than any model")
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for start, stop, name, dtype, shape in sorted(map(_read_entry, header.items())):
        if start != end or stop - start != math.prod(shape) * dtype.itemsize or stop > n_body:
            raise ValueError(f"tensor {name[:80]!r} does not match its header entry")
        # Copied because the file offset may not be aligned for the dtype
        data = bytearray(stop - start)
        if stream.readinto(data) != len(data):
            raise ValueError("the file was truncated while it was read")
        tensors[name] = make_tensor(data, dtype, shape)
        end = stop
    if end != n_body:
        raise ValueError("the file is longer than its header declares")
    return tensors


def _read_entry(item: tuple[str, Any]) -> tuple[int, int, str, torch.dtype, list[int]]:
    """Return (start offset, end offset, name, dtype, shape) of a header item."""
    name, entry = item
    try:
        dtype, shape, (start, stop) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if (
            isinstance(shape, list)
            and is_valid_shape(shape)
            and is_valid_size(start)
            and is_valid_size(stop)
        ):
            return start, stop, name, dtype, shape
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"tensor {name[:80]!r} has an invalid header entry")
