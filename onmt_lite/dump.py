"""The file of `-dump_beam`: collected while a job runs, complete at its end or not there."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO

from onmt_lite.buckets import Bucket
from onmt_lite.errors import FileError
from onmt_lite.files import is_device, part_of
from onmt_lite.part import refused
from onmt_lite.trace import Trace, to_json
from onmt_lite.trace_page import to_html

N_LINES = 100  # that are traced


class Dump:
    """The traces of a job; without a path, of no line.

    part  the file until it is complete; None for a device
    """

    def __init__(self, path: str | None, part: BinaryIO | None = None):
        self.path, self.part, self.traces = path, part, list[Trace]()

    def marked(self, buckets: Iterable[Bucket]) -> Iterator[Bucket]:
        """The buckets, the first lines of which are to be traced."""
        left = N_LINES if self.path is not None else 0
        for bucket in buckets:
            first, rest = bucket.lines[:left], bucket.lines[left:]
            left -= len(first)
            yield replace(bucket, lines=[*(replace(line, traced=True) for line in first), *rest])

    def write(self) -> None:
        """Put the file in its place.  Raises FileError."""
        if self.path is None:
            return
        made = to_html if self.path.endswith(".html") else to_json
        data = made(self.traces).encode("utf-8", "backslashreplace")
        with refused(self.path):
            if self.part is None:
                with open(self.path, "wb") as out:
                    out.write(data)
                return
            self.part.write(data)
            self.part.flush()
            os.fsync(self.part.fileno())
            os.replace(self.part.name, os.path.realpath(self.path))


@contextlib.contextmanager
def open_dump(path: str | None) -> Iterator[Dump]:
    """The traces of a job.  FileError where their file cannot be written; nothing of it is left
    after an error."""
    if path is None or is_device(path):  # which is written to as it is
        yield Dump(path)
        return
    with refused(path):
        if os.path.isdir(path):
            raise FileError(f"cannot write {path}: it is a directory")
        part = str(part_of(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            file = open(part, "wb", opener=lambda name, _: os.open(name, flags, 0o666))
        except FileExistsError:
            raise FileError(
                f"cannot write {path}: {part} is in the way; remove it, or choose another file"
            ) from None
    try:
        with file:
            yield Dump(path, file)
    finally:
        with contextlib.suppress(OSError):  # it is in its place, or the error counts
            os.remove(part)
