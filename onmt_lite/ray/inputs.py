"""Inputs, found, looked at and cut into ranges: what the driver hands out instead of text."""

import contextlib
import glob
import hashlib
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.text.file_types import LOOKED_AT, kind_of
from onmt_lite.text.json_lines import object_line
from onmt_lite.text.line import Line
from onmt_lite.text.lines import (
    BOM,
    MAX_LINE_BYTES,
    MAX_MEAN_BYTES,
    MAX_WINDOW_BYTES,
    raw_lines,
    to_line,
)
from onmt_lite.text.stream import GZIP, Stream

CHUNK = 1 << 20
Kind = Literal["text", "jsonl"]  # of inputs and outputs
MANIFEST = "manifest.json"  # of a folder that a job has written: no input


@dataclass(frozen=True)
class Range:
    """Where the lines of a bucket stand.

    number   of the bucket, from 0
    file     the input's place among all inputs
    first    number of the first line, counted over all inputs from 0
    start    bytes before the range
    n_bytes  its bytes, and `crc` their CRC-32
    """

    number: int
    file: int
    path: str
    file_bytes: int
    first: int
    n_lines: int
    start: int
    n_bytes: int = 0
    crc: int = 0


class Part(NamedTuple):
    """A range as a file knows it."""

    start: int
    n_lines: int
    n_bytes: int
    crc: int


@dataclass(frozen=True)
class Input:
    """A file that was read to its end: its parts, and what tells it from another."""

    path: str
    n_bytes: int
    sha256: str
    parts: list[Part]

    @property
    def n_lines(self) -> int:
        return sum(part.n_lines for part in self.parts)


# -- which files ----------------------------------------------------------------------------------


def find_files(words: Sequence[str]) -> list[str]:
    """Absolute paths of the files that -src names, in the order of the words; those of a folder
    and of a pattern are sorted.

    Of a folder, files whose names begin with a dot or an underscore, and manifest.json, are left
    out.  FileError for what is not there or cannot be read, OptionError for what is no file.
    """
    return [os.path.abspath(path) for word in words for path in _files_of(word)]


def _files_of(word: str) -> list[str]:
    if os.path.lexists(word):
        return _in_folder(word) if os.path.isdir(word) else [_checked(word)]
    found = sorted(glob.glob(word, recursive=True))
    if not found:
        what = "nothing has a name like this" if glob.has_magic(word) else "no such file or folder"
        raise FileError(f"cannot read {word}: {what}")
    # A pattern such as text/** finds folders besides the files in them
    files = [_checked(path) for path in found if not os.path.isdir(path)]
    return files or [file for folder in found for file in _in_folder(folder)]


def _in_folder(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error.strerror}") from None
    paths = [os.path.join(folder, n) for n in names if n[0] not in "._" and n != MANIFEST]
    for path in paths:
        if os.path.isdir(path):
            raise OptionError(
                f"src: {path} is a folder within a folder; name each folder, or give "
                f"{os.path.join(folder, '**', '*')}"
            )
    if not paths:
        raise FileError(f"cannot read {folder}: there is no file in it")
    return [_checked(path) for path in paths]


def _checked(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise OptionError(f"src: {path} is no regular file, so that actors cannot share it")
    return path


def kind_of_files(paths: Sequence[str], asked: Kind | Literal["auto"]) -> Kind:
    """What -input_format asks for, or what all suffixes say.  OptionError where suffixes differ."""
    if asked != "auto":
        return asked
    kinds: dict[Kind, str] = {}  # the first file of each
    for path in paths:
        kinds.setdefault("jsonl" if path.lower().endswith(".jsonl") else "text", path)
    if len(kinds) > 1:
        shown = ", ".join(f"{path} is {kind}" for kind, path in kinds.items())
        raise OptionError(f"src: files of several kinds ({shown}); translate each kind by itself")
    return next(iter(kinds))


def look_at(path: str) -> None:
    """DataError where a file of text or JSON lines is neither, by its first bytes."""
    head = next(_chunks(path, LOOKED_AT), b"")
    if head.startswith(GZIP):
        raise DataError(
            f"{path} is gzip data, which cannot be cut into buckets; unpack it first: gunzip {path}"
        )
    if kind := kind_of(head):
        raise DataError(f"{path} is {kind.what}; {kind.remedy.replace('{}', path)}")


# -- cutting --------------------------------------------------------------------------------------


def number(inputs: Sequence[Input]) -> list[Range]:
    """The ranges of all inputs, numbered; inputs without a line are one empty range together, so
    that their output is an empty part."""
    ranges: list[Range] = []
    first = 0
    for i, each in enumerate(inputs):
        for part in each.parts:
            ranges.append(Range(len(ranges), i, each.path, each.n_bytes, first, **part._asdict()))
            first += part.n_lines
    return ranges or [Range(0, 0, inputs[0].path, inputs[0].n_bytes, 0, n_lines=0, start=0)]


def cut_lines(path: str, bucket_lines: int) -> Input:
    """A file of lines, cut where translate.py cuts: after `bucket_lines` lines, or before that
    where they are very long.  FileError where it cannot be read."""
    sha, size = hashlib.sha256(), 0

    def chunks() -> Iterator[bytes]:
        nonlocal size
        for chunk in _chunks(path, CHUNK):
            sha.update(chunk)
            size += len(chunk)
            yield chunk

    parts = list(cut(chunks(), bucket_lines))
    return Input(path, size, sha.hexdigest(), parts)


def cut(chunks: Iterable[bytes], bucket_lines: int) -> Iterator[Part]:
    """Runs of whole lines: a line feed ends a line, and the last one may lack it."""
    max_bytes = max(MAX_WINDOW_BYTES, MAX_MEAN_BYTES * bucket_lines)
    start = n_bytes = n_lines = crc = 0
    n_counted = 0  # bytes of the lines, as far as a model may read them
    length = 0  # bytes of the line that has not ended
    for chunk in chunks:
        taken = at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            n_counted += min(length + end - at, MAX_LINE_BYTES)
            length, at, n_lines = 0, end + 1, n_lines + 1
            if n_lines == bucket_lines or n_counted >= max_bytes:
                piece = memoryview(chunk)[taken:at]
                n_bytes, crc, taken = n_bytes + len(piece), zlib.crc32(piece, crc), at
                yield Part(start, n_lines, n_bytes, crc)
                start += n_bytes
                n_bytes = n_lines = crc = n_counted = 0
        length += len(chunk) - at
        rest = memoryview(chunk)[taken:]
        n_bytes, crc = n_bytes + len(rest), zlib.crc32(rest, crc)
    if n_bytes:
        yield Part(start, n_lines + (length > 0), n_bytes, crc)


# -- reading again --------------------------------------------------------------------------------


def read_lines(wanted: Range, kind: str, text_field: str) -> list[Line]:
    """The lines of a range of text, or of JSON objects.  FileError where the file cannot be read
    or is no longer what it was."""
    lines: list[Line] = []
    with _refused(wanted.path), open(wanted.path, "rb") as file:
        file.seek(wanted.start)
        left, crc = wanted.n_bytes, 0

        def read(size: int) -> bytes:
            nonlocal left, crc
            chunk = file.read(min(size, left))
            left, crc = left - len(chunk), zlib.crc32(chunk, crc)
            return chunk

        for raw, is_cut in raw_lines(Stream(read, lambda: True)):
            assert raw is not None  # such a stream never pauses
            if wanted.start == 0 and not lines:
                raw = raw.removeprefix(BOM)
            number = wanted.first + len(lines)
            lines.append(
                object_line(raw, number, is_cut, text_field)
                if kind == "jsonl"
                else to_line(raw, number, is_cut)
            )
        if left or crc != wanted.crc or os.fstat(file.fileno()).st_size != wanted.file_bytes:
            raise changed(wanted)
    return lines


def changed(wanted: Range) -> FileError:
    return FileError(f"{wanted.path} was changed while it was read; translate it once more")


def _chunks(path: str, size: int) -> Iterator[bytes]:
    with _refused(path), open(path, "rb") as file:
        while chunk := file.read(size):
            yield chunk


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
