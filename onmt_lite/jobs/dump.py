"""The file of `-dump_beam`: collected while a job runs, complete at its end or not there."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from onmt_lite.inference.trace import Trace, to_json
from onmt_lite.inference.trace_page import to_html
from onmt_lite.jobs.buckets import Bucket
from onmt_lite.jobs.output import Stream, open_whole, write_whole
from onmt_lite.jobs.part import Part

N_LINES = 100  # that are traced


class Dump:
    """The traces of a job; without a path, of no line.

    sink  where the file is written
    """

    def __init__(self, path: str | None, sink: Stream | Part | None = None):
        self.path, self.sink, self.traces = path, sink, list[Trace]()

    def marked(self, buckets: Iterable[Bucket]) -> Iterator[Bucket]:
        """The buckets, the first lines of which are to be traced."""
        left = N_LINES if self.path is not None else 0
        for bucket in buckets:
            first, rest = bucket.lines[:left], bucket.lines[left:]
            left -= len(first)
            yield replace(bucket, lines=[*(replace(line, traced=True) for line in first), *rest])

    def write(self) -> None:
        """Put the file in its place.  Raises FileError, and Interrupted where nobody reads a
        pipe."""
        if self.path is None or self.sink is None:
            return
        made = to_html if self.path.endswith(".html") else to_json
        write_whole(self.sink, made(self.traces).encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def open_dump(path: str | None) -> Iterator[Dump]:
    """The traces of a job.  FileError where their file cannot be written; nothing of it is left
    after an error."""
    if path is None:
        yield Dump(None)
        return
    with open_whole(path) as sink:
        yield Dump(path, sink)
