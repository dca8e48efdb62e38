"""Reads .npz files, zip archives of arrays, without numpy and without anything that could be run.

Each member, stored as it is, is a .npy file: a magic number, a version, the length of a header,
the header (type, order and shape, written as Python), the numbers.
"""

import math
import re
import struct
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from onmt_lite.checkpoints.archive import damage_refused
from onmt_lite.checkpoints.weights import MAX_TENSORS, is_shape, tensor_of

MAX_HEADER = 4096
HEADER = re.compile(
    rb"\{'descr': '([^']*)', 'fortran_order': False, 'shape': \(([\d, ]*)\),? *\}[ \n]*"
)
TYPES = {
    "f4": torch.float32,
    "f2": torch.float16,
    "f8": torch.float64,
    "i1": torch.int8,
    "u1": torch.uint8,
}


def read(path: Path) -> dict[str, Tensor]:
    """The arrays by name.  CheckpointError for a file that is not what it should be."""
    with open(path, "rb") as f, damage_refused(path, ".npz file of arrays"):
        with zipfile.ZipFile(f) as members:
            _check_members(members, path.stat().st_size)
            names = members.namelist()
            return {name.removesuffix(".npy"): _array(name, members.read(name)) for name in names}


def _check_members(members: zipfile.ZipFile, file_size: int) -> None:
    """Nothing is read for a mere claim."""
    infos = members.infolist()
    if len(infos) > MAX_TENSORS or len({info.filename for info in infos}) < len(infos):
        raise ValueError("too many arrays, or one of them twice")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{info.filename[:80]!r} is compressed, which Marian does not do")
    if sum(info.file_size for info in infos) > file_size:
        raise ValueError("its arrays are larger than the file")


def _array(name: str, data: bytes) -> Tensor:
    wrong = ValueError(f"{name[:80]!r} is not an array of numbers in C order")
    if data[:6] != b"\x93NUMPY" or data[6:7] not in (b"\1", b"\2", b"\3"):
        raise wrong
    form = "<H" if data[6] == 1 else "<I"
    start = 8 + struct.calcsize(form)
    (n,) = struct.unpack(form, data[8:start])
    header = HEADER.fullmatch(data[start : start + n]) if n <= MAX_HEADER else None
    dtype = TYPES.get(header[1].decode("latin-1").lstrip("<|")) if header else None
    if header is None or dtype is None:
        raise wrong
    shape = [int(size) for size in header[2].replace(b" ", b"").split(b",") if size]
    if not is_shape(shape) or math.prod(shape) * dtype.itemsize != len(data) - start - n:
        raise wrong
    return tensor_of(bytearray(data[start + n :]), dtype, shape)
