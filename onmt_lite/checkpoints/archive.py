"""Loads `torch.save` files with torch's weights-only loader, so no code in them is executed.

A file of PyTorch 1.6 or later is an uncompressed zip archive: `NAME/data.pkl` is the pickled
structure, `NAME/data/N` the raw values of storage N. PyTorch ignores the CRC of the members;
this module checks it. Older files are a series of pickles and raw values, without a checksum.
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
from onmt_lite.checkpoints.config_reader import format_value
from onmt_lite.checkpoints.weights import MAX_TENSORS, is_valid_shape
from onmt_lite.errors import CheckpointError

ZIP = b"PK\x03\x04"
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # pickled 0x1950a86a20f9469cfc6c
BIG_ENDIAN = re.compile(rb"little_endian(q.)?\x89")  # in the third pickle of a legacy file
MAX_PICKLE = 64 << 20  # bytes without tensor data; a large vocabulary takes a tenth of this
MAX_REASON = 200  # characters of a quoted error
MEMBER = re.compile(r"[^/.][^/]*/(data\.pkl|data/\d+|version|byteorder|\.\w+|\.data/\w+)")
# Errors that reading a damaged file can raise
READ_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, OSError, LookupError),
    *(OverflowError, RuntimeError),  # an encrypted zip file, or a newer zip version
)
SAFE_GLOBALS_LOCK = threading.Lock()  # torch keeps one list of safe globals for all threads


def is_archive(path: Path) -> bool:
    """Return True if the file starts like a `torch.save` archive or any pickle."""
    if not path.is_file():
        return False
    with open(path, "rb") as f:
        start = f.read(1024)
    return b"/data.pkl" in start if start.startswith(ZIP) else start[:1] == b"\x80"


@contextlib.contextmanager
def convert_read_errors(path: Path, expected: str = "PyTorch model file") -> Iterator[None]:
    """Convert the errors of reading a damaged file to CheckpointError.

    Args:
        path: the file.
        expected: expected file type, for the message.
    """
    try:
        yield
    except READ_ERRORS as error:
        reason = str(error).partition("\n")[0][:MAX_REASON] or type(error).__name__
        raise CheckpointError(f"{path}: not a valid {expected}: {reason}") from None


def load(path: Path) -> Any:
    """Load the saved object; replace objects of other packages with `InertObject`.

    Raises:
        CheckpointError: if the file is damaged or not a torch.save file.
    """
    with open(path, "rb") as f, convert_read_errors(path):
        start = f.read(len(LEGACY))
        if start.startswith(ZIP):
            names = _check_zip(f, path.stat().st_size)
        elif start == LEGACY:
            names = _check_legacy(f, path.stat().st_size)
        else:
            raise ValueError("it is a pickle, but not one that torch.save writes")
        f.seek(0)
        content = _load(f, names)
        if start == LEGACY and f.read(1):
            raise ValueError("it has trailing data")
    return content


def _load(f: IO[bytes], names: set[str]) -> Any:
    """Call torch.load with an inert class for each name.

    Raises:
        MemoryError: if the file does not fit into memory.
        ValueError: for all other errors of torch.load.
    """
    inert_classes = pickle_check.make_inert_classes(names)
    try:
        with SAFE_GLOBALS_LOCK, torch.serialization.safe_globals(inert_classes):
            return torch.load(f, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise MemoryError from None
        raise ValueError(f"torch cannot load it: {str(error) or type(error).__name__}") from None


def _check_zip(f: IO[bytes], n_bytes: int) -> set[str]:
    """Return the class names in the pickle; raise ValueError unless torch wrote the archive."""
    with zipfile.ZipFile(f) as members:
        names = check_zip_members(members, n_bytes)
        root = names[0].partition("/")[0]
        is_known = all(MEMBER.fullmatch(name) and name.startswith(f"{root}/") for name in names)
        if not is_known or not {f"{root}/data.pkl", f"{root}/version"} <= {*names}:
            raise ValueError("the zip archive does not have the members that torch.save writes")
        if damaged := members.testzip():
            raise ValueError(f"checksum mismatch in {damaged[:80]!r}")
        with members.open(f"{root}/data.pkl") as member:
            return pickle_check.check_pickle(io.BytesIO(member.read(MAX_PICKLE)), n_bytes)


def check_zip_members(members: zipfile.ZipFile, n_bytes: int) -> list[str]:
    """Return the member names of a zip archive after checking its directory.

    The declared sizes are checked before any memory is allocated for them.

    Args:
        members: the open archive.
        n_bytes: size of the archive file.

    Raises:
        ValueError: if a member is duplicate, compressed or larger than the file.
    """
    infos, names = members.infolist(), members.namelist()
    if not 0 < len({*names}) == len(names) <= MAX_TENSORS:
        raise ValueError("the zip archive is empty, too large, or has duplicate members")
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        raise ValueError("a member of the zip archive is compressed")
    if sum(info.file_size for info in infos) > n_bytes:
        raise ValueError("the members of the zip archive are larger than the file")
    return names


def _check_legacy(f: IO[bytes], n_bytes: int) -> set[str]:
    """Check the five pickles: magic number, version, system, object, storage keys."""
    f.seek(0)
    pickles = io.BytesIO(f.read(MAX_PICKLE))
    names = set().union(*(pickle_check.check_pickle(pickles, n_bytes) for _ in range(5)))
    if BIG_ENDIAN.search(pickles.getvalue()[: pickles.tell()]):
        raise ValueError("it was written on a big-endian machine")
    return names


def check_state_dict(state_dict: Any, path: Path) -> dict[str, Tensor]:
    """Return the detached tensors of a state dict.

    Args:
        state_dict: the object that should be a state dict.
        path: its file, for messages.

    Raises:
        CheckpointError: if it is not a dict of strided tensors without overlapping memory.
    """
    if not isinstance(state_dict, dict):
        raise CheckpointError(f"{path}: the weights are not a dict of tensors")
    if len(state_dict) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(state_dict):,} tensors are more than any model has")
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path}: {format_value(name)} is not a tensor")
        if not is_valid_shape(tensor.shape) or _overlaps(tensor):
            raise CheckpointError(
                f"{path}: tensor {name[:80]!r} has an invalid shape or overlapping memory"
            )
    return {name: tensor.detach() for name, tensor in state_dict.items()}


def _overlaps(tensor: Tensor) -> bool:
    """Return True if elements share memory: a small file could then declare a huge tensor."""
    extent = 1
    for stride, n in sorted(zip(tensor.stride(), tensor.shape)):
        if n > 1 and stride < extent:
            return True
        extent = stride * n if n > 1 else extent
    return False
