"""Reads files of `torch.save` by torch's loader for weights alone, which runs nothing from them.

A file of PyTorch 1.6 or later is a zip archive without compression: `NAME/data.pkl` holds the
structure, `NAME/data/N` the numbers of storage N.  Each member has a CRC, which PyTorch ignores and
this reader checks.  Older files are a row of pickles followed by the numbers, without any checksum.
"""

import contextlib
import io
import re
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from onmt_lite.checkpoints import pickle_check
from onmt_lite.checkpoints.config_reader import shown
from onmt_lite.checkpoints.weights import MAX_TENSORS, is_shape
from onmt_lite.errors import CheckpointError

ZIP = b"PK\x03\x04"
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickle of 0x1950a86a20f9469cfc6c
BIG_ENDIAN = re.compile(rb"little_endian(q.)?\x89")  # in the third pickle of an older file
MAX_PICKLE = 64 << 20  # without numbers; a large vocabulary takes a tenth
MAX_REASON = 200  # characters of a quoted message
MEMBER = re.compile(r"[^/.][^/]*/(data\.pkl|data/\d+|version|byteorder|\.\w+|\.data/\w+)")
# Errors raised on damaged files
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, OSError, LookupError),
    *(OverflowError, RuntimeError),  # a zip file with a password, or of a newer version
)
LOADING = threading.Lock()  # torch has one table of stand-ins for all threads


def is_archive(path: Path) -> bool:
    """Return True if the file starts like a file of `torch.save`, or like any pickle."""
    if not path.is_file():
        return False
    with open(path, "rb") as f:
        start = f.read(1024)
    return b"/data.pkl" in start if start.startswith(ZIP) else start[:1] == b"\x80"


@contextlib.contextmanager
def convert_read_errors(path: Path, kind: str = "PyTorch file of a model") -> Iterator[None]:
    """Turn the errors of reading a damaged file into one CheckpointError."""
    try:
        yield
    except DAMAGE as error:
        reason = str(error).partition("\n")[0][:MAX_REASON] or type(error).__name__
        raise CheckpointError(f"{path}: no {kind}: {reason}") from None


def load(path: Path) -> Any:
    """The object that was saved, those of other packages each a `Record`.  CheckpointError."""
    with open(path, "rb") as f, convert_read_errors(path):
        start = f.read(len(OLD))
        if start.startswith(ZIP):
            names = _check_zip(f, path.stat().st_size)
        elif start == OLD:
            names = _check_old(f, path.stat().st_size)
        else:
            raise ValueError("a pickle, but not one that torch.save writes")
        f.seek(0)
        root = _load(f, names)
        if start == OLD and f.read(1):
            raise ValueError("it ends after its numbers do")
    return root


def _load(f: IO[bytes], names: set[str]) -> Any:
    """Raises MemoryError, or ValueError for any other error: torch raises many."""
    stand_ins = pickle_check.make_inert_classes(names)
    try:
        with LOADING, torch.serialization.safe_globals(stand_ins):
            return torch.load(f, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise MemoryError from None
        raise ValueError(f"torch cannot load it: {str(error) or type(error).__name__}") from None


def _check_zip(f: IO[bytes], n_bytes: int) -> set[str]:
    """Names of classes in the pickle.  ValueError for what torch never writes, and for damage."""
    with zipfile.ZipFile(f) as members:
        names = check_zip_members(members, n_bytes)
        folder = names[0].partition("/")[0]
        of_torch = all(MEMBER.fullmatch(n) and n.startswith(f"{folder}/") for n in names)
        if not of_torch or not {f"{folder}/data.pkl", f"{folder}/version"} <= {*names}:
            raise ValueError("a zip archive with other parts than torch.save writes")
        if damaged := members.testzip():
            raise ValueError(f"the checksum of {damaged[:80]!r} is wrong")
        with members.open(f"{folder}/data.pkl") as part:
            return pickle_check.check_pickle(io.BytesIO(part.read(MAX_PICKLE)), n_bytes)


def check_zip_members(members: zipfile.ZipFile, n_bytes: int) -> list[str]:
    """Return the names in an archive.  ValueError unless every part has its own and is stored as it
    is, in a file of `n_bytes`: nothing is read for a mere claim."""
    parts, names = members.infolist(), members.namelist()
    if not 0 < len({*names}) == len(names) <= MAX_TENSORS:
        raise ValueError("a zip archive with no part, too many, or one of them twice")
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError("a part is compressed, which no toolkit does")
    if sum(part.file_size for part in parts) > n_bytes:
        raise ValueError("its parts are larger than the file")
    return names


def _check_old(f: IO[bytes], n_bytes: int) -> set[str]:
    """Check five pickles: a magic number, a version, the system, the object, keys of storages."""
    f.seek(0)
    head = io.BytesIO(f.read(MAX_PICKLE))
    names = set().union(*(pickle_check.check_pickle(head, n_bytes) for _ in range(5)))
    if BIG_ENDIAN.search(head.getvalue()[: head.tell()]):
        raise ValueError("its numbers are big-endian")
    return names


def check_state_dict(table: Any, path: Path) -> dict[str, Tensor]:
    """Check a state dict: tensors by name.  Raises CheckpointError for anything else."""
    if not isinstance(table, dict):
        raise CheckpointError(f"{path}: its weights are not a table of tensors")
    if len(table) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(table):,} tensors, more than any model has")
    for name, tensor in table.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path}: {shown(name)} is not a tensor")
        if not is_shape(tensor.shape) or _overlaps(tensor):
            raise CheckpointError(f"{path}: {name[:80]!r} uses numbers twice")
    return {name: tensor.detach() for name, tensor in table.items()}


def _overlaps(tensor: Tensor) -> bool:
    """Whether some of its numbers are at the same place: a few could stand for more than fit."""
    reached = 1
    for step, n in sorted(zip(tensor.stride(), tensor.shape)):
        if n > 1 and step < reached:
            return True
        reached = step * n if n > 1 else reached
    return False
