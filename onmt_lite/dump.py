"""The file of `-dump_beam`: collected while a job runs, complete at its end or not there."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from onmt_lite.buckets import Bucket
from onmt_lite.errors import FileError
from onmt_lite.files import is_device, part_of
from onmt_lite.part import refused
from onmt_lite.trace import Trace, to_json
from onmt_lite.trace_page import to_html

N_LINES = 100  # that are traced


class Dump:
    """The traces of a job; without a path, of no line."""

    def __init__(self, path: str | None):
        self.path, self.traces = path, list[Trace]()

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
            with open(written_to(self.path), "wb") as out:
                out.write(data)
            if written_to(self.path) != self.path:
                os.replace(written_to(self.path), os.path.realpath(self.path))


def written_to(path: str) -> str:
    """Where the file is until it is complete; a device is written to as it is."""
    return path if is_device(path) else str(part_of(path))


@contextlib.contextmanager
def open_dump(path: str | None) -> Iterator[Dump]:
    """The traces of a job.  FileError where their file cannot be written; nothing of it is left
    after an error."""
    if path is None:
        yield Dump(None)
        return
    with refused(path):
        if os.path.isdir(path):
            raise FileError(f"cannot write {path}: it is a directory")
        open(written_to(path), "wb").close()
    try:
        yield Dump(path)
    finally:
        if written_to(path) != path:
            with contextlib.suppress(OSError):  # it is in its place, or the error counts
                os.remove(written_to(path))
