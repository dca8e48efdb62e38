"""Reads files of `torch.save` without running anything from them.

A file of PyTorch 1.6 or later is a zip archive without compression: `NAME/data.pkl` holds the
structure, `NAME/data/N` the numbers of storage N.  Each member has a CRC, which PyTorch ignores and
this reader checks.  Older files are a row of pickles followed by the numbers, without any checksum.
"""

import contextlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints.pickled import Storage, StoredTensor, parse
from onmt_lite.errors import CheckpointError

ZIP = b"PK\x03\x04"
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickle of 0x1950a86a20f9469cfc6c
MAX_PICKLE = 64 << 20  # without numbers; a large vocabulary takes a tenth
CHUNK = 1 << 20
MAX_TENSORS = 20_000
MAX_REASON = 200  # characters of a quoted message
MEMBER = re.compile(r"[^/]+/(data\.pkl|data/\d+|version|byteorder|\.\w+|\.data/\w+)")
# Errors raised on damaged files
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    RuntimeError,  # encrypted; NotImplementedError, of a newer zip version
    EOFError,
    OSError,  # an offset outside the file
    KeyError,
    IndexError,
    OverflowError,
)


def is_archive(path: Path) -> bool:
    """Whether the file starts like a file of `torch.save`, or like any pickle."""
    if not path.is_file():
        return False
    with open(path, "rb") as f:
        start = f.read(4)
    return start == ZIP or start[:1] == b"\x80"


class Archive:
    """An open file.  `root` is the object that was saved, with a `StoredTensor` for each tensor."""

    def __init__(self, path: Path, root: Any, read_storage: Callable[[Storage, bytearray], int]):
        self.path, self.root = path, root
        self._read_storage = read_storage
        self._storages: dict[str, Tensor] = {}

    def tensors(self, table: Any) -> dict[str, Tensor]:
        """The tensors of a state dict; tensors that share a storage in the file share memory.

        Raises CheckpointError where `table` is not a state dict.
        """
        if not isinstance(table, dict):
            raise CheckpointError(f"{self.path}: its weights are not a table of tensors")
        if len(table) > MAX_TENSORS:
            raise CheckpointError(f"{self.path}: {len(table):,} tensors, more than any model has")
        tensors = {}
        for name, stored in table.items():
            if not isinstance(name, str) or not isinstance(stored, StoredTensor):
                raise CheckpointError(f"{self.path}: {str(name)[:80]!r} is not a tensor")
            tensors[name] = self._tensor(stored)
        return tensors

    def forget(self) -> None:
        """Drop the storages, so that their memory is freed with the last tensor that uses it."""
        self._storages.clear()

    def _tensor(self, stored: StoredTensor) -> Tensor:
        storage = stored.storage
        flat = self._storages.get(storage.key)
        if flat is None:
            with damage_refused(self.path):
                n_bytes = storage.numel * storage.dtype.itemsize
                if n_bytes > self.path.stat().st_size:  # nothing is allocated for a mere claim
                    raise ValueError(f"storage {storage.key} is larger than the file")
                data = bytearray(n_bytes)
                if self._read_storage(storage, data) != n_bytes:
                    raise ValueError(f"storage {storage.key} does not have the size it claims")
            flat = torch.frombuffer(data or bytearray(8), dtype=torch.uint8)
            self._storages[storage.key] = flat
        numbers = flat.view(storage.dtype)
        return numbers.as_strided(stored.size, stored.stride, stored.offset)


@contextlib.contextmanager
def damage_refused(path: Path, kind: str = "PyTorch file of a model") -> Iterator[None]:
    """Turn the errors of reading a damaged file into one CheckpointError."""
    try:
        yield
    except DAMAGE as error:
        reason = str(error).partition("\n")[0][:MAX_REASON] or type(error).__name__
        raise CheckpointError(f"{path}: no {kind}: {reason}") from None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Open a file and check it as far as the format allows.  Raises CheckpointError."""
    with open(path, "rb") as f:
        start = f.read(len(OLD))
        f.seek(0)
        with contextlib.ExitStack() as stack:
            with damage_refused(path):
                if start.startswith(ZIP):
                    members = stack.enter_context(zipfile.ZipFile(f))
                    archive = _open_zip(path, members)
                elif start == OLD:
                    archive = _open_old(path, f)
                else:
                    raise ValueError("a pickle, but not one that torch.save writes")
            yield archive
            archive.forget()


def _open_zip(path: Path, members: zipfile.ZipFile) -> Archive:
    names = _check_members(members, path.stat().st_size)
    for name in names.values():  # zipfile compares the CRC at the end of each
        with members.open(name) as member:
            while member.read(CHUNK):
                pass
    if "byteorder" in names and members.read(names["byteorder"]) != b"little":
        raise ValueError("its numbers are big-endian")
    root = parse(io.BytesIO(members.read(names["data.pkl"])))

    def read(storage: Storage, data: bytearray) -> int:
        """Fill `data`.  Returns the number of bytes that the file has for it."""
        with members.open(names[f"data/{storage.key}"]) as member:
            n = 0
            while n <= len(data) and (part := member.read(CHUNK)):
                data[n : n + len(part)] = part
                n += len(part)
        return n

    return Archive(path, root, read)


def _check_members(members: zipfile.ZipFile, file_size: int) -> dict[str, str]:
    """Full names by the name behind the common folder.  ValueError for what torch never writes."""
    names: dict[str, str] = {}
    for info in members.infolist():
        if not MEMBER.fullmatch(info.filename) or info.filename.startswith("."):
            raise ValueError(
                f"a zip archive with {info.filename[:80]!r}, which torch.save does not write"
            )
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{info.filename[:80]!r} is compressed, which torch.save does not do")
        names[info.filename.partition("/")[2]] = info.filename
    tops = {name.partition("/")[0] for name in names.values()}
    if len(names) != len(members.infolist()) or len(tops) != 1 or "data.pkl" not in names:
        raise ValueError("a zip archive without one data.pkl and numbers beside it")
    if sum(info.file_size for info in members.infolist()) > file_size:
        raise ValueError("its parts are larger than the file")
    if members.getinfo(names["data.pkl"]).file_size > MAX_PICKLE:
        raise ValueError("its data.pkl is too large")
    return names


def _open_old(path: Path, f: io.BufferedReader) -> Archive:
    head = io.BytesIO(f.read(MAX_PICKLE))
    storages: dict[str, Storage] = {}
    _, version, system, root, keys = (parse(head, storages) for _ in range(5))
    if version != 1001 or not isinstance(system, dict) or not system.get("little_endian"):
        raise ValueError("its format version or byte order is not the one that is read")
    offsets, offset = {}, head.tell()
    for key in keys:
        f.seek(offset)
        if struct.unpack("<q", f.read(8)) != (storages[key].numel,):
            raise ValueError(f"storage {key} does not have the size it claims")
        offsets[key] = offset + 8
        offset += 8 + storages[key].numel * storages[key].dtype.itemsize
    if offset != path.stat().st_size:
        raise ValueError("it ends before or after its numbers do")

    def read(storage: Storage, data: bytearray) -> int:
        f.seek(offsets[storage.key])
        return f.readinto(data)

    return Archive(path, root, read)
