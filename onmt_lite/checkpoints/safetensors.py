"""Weights as safetensors files: 8 bytes of header length, a JSON header, raw numbers.

The format cannot hold code.  Everything the header claims is checked against the file
before a number is used.
"""

import ctypes
import json
import math
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_lite.errors import CheckpointError

MAX_HEADER = 16 << 20
MAX_SIZE = 1 << 48
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dump(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The file's bytes.  `metadata` says what readers of other toolkits want to know of it."""
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
    """The tensors of a file.  CheckpointError says what is wrong with it."""
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def parse(data: bytes) -> dict[str, Tensor]:
    """The tensors.  ValueError says what is wrong with the data."""
    if len(data) < 8:
        raise ValueError("shorter than its header")
    (n,) = struct.unpack("<Q", data[:8])
    if n > min(MAX_HEADER, len(data) - 8):
        raise ValueError("shorter than its header says")
    header = parse_json(bytes(data[8 : 8 + n]))
    if not isinstance(header, dict):
        raise ValueError("its header is not a table of tensors")
    header.pop("__metadata__", None)
    body = torch.frombuffer(bytearray(data[8 + n :] or b"\0"), dtype=torch.uint8)
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=_start):
        dtype, shape, (start, stop) = _read_entry(name, entry)
        size = math.prod(shape) * dtype.itemsize
        if start != end or stop - start != size or stop > len(data) - 8 - n:
            raise ValueError(f"tensor {name[:80]!r} does not lie where the header says")
        # A copy starts where its type may start, which the file does not promise
        tensors[name] = body[start:stop].clone().view(dtype).view(shape)
        end = stop
    if end != len(data) - 8 - n:
        raise ValueError("longer than its header says")
    return tensors


def _start(item: tuple[str, Any]) -> int:
    return _read_entry(*item)[2][0]


def _read_entry(name: str, entry: Any) -> tuple[torch.dtype, list[int], list[int]]:
    """dtype, shape and offsets of one tensor, each of the right type."""
    wrong = ValueError(f"tensor {name[:80]!r} has a header entry that is not understood")
    try:
        dtype, shape, offsets = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError):
        raise wrong from None
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise wrong
    if not all(type(n) is int and 0 <= n < MAX_SIZE for n in shape + offsets):
        raise wrong
    return dtype, shape, offsets
