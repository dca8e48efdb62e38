"""The input as buckets, the units of work: what travels between the processes of a job."""

import contextlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from onmt_lite.config.options import DataOptions, JobOptions, TranslateOptions
from onmt_lite.errors import DataError
from onmt_lite.files import MATCH, open_input
from onmt_lite.inference.trace import Trace
from onmt_lite.jobs.reports import Summary
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.json_lines import object_line
from onmt_lite.text.line import Line
from onmt_lite.text.lines import LineReader, to_line
from onmt_lite.text.stream import STANDARD_INPUT

# Lines of a bucket: enough to sort by length, few enough to do again; a GPU has larger batches
BUCKET_LINES = {"cpu": 1024, "cuda": 8192}
# A small file is cut into so many buckets, for as many workers, of so many lines at least.  Batches
# get small and their lines less alike: 512 short lines of the shipped model, in buckets of 256,
# 128, 64 and 32, took 1.07, 1.12, 1.33 and 1.39 times the processor time of one bucket
BUCKETS, LEAST_LINES = 4, 128
MANY_LINES = 64  # from which a file is cut at all

Progress = Callable[[int, int], object]  # of the lines and target tokens that a batch has added


@dataclass(frozen=True)
class Bucket:
    """Lines of the input in a row, and the lines of -tgt that belong to them."""

    number: int
    lines: list[Line]
    tgt_lines: list[Line] | None = None

    @property
    def where(self) -> str:
        """at lines 1 to 1024"""
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"


@dataclass(frozen=True)
class Done:
    """A bucket that is translated.

    data     its share of the output, whole lines
    summary  of its lines
    report   its share of -report
    log      lines for the log
    seconds  how long each phase took
    traces   of its lines that are traced, see `onmt_lite.inference.trace`
    """

    number: int
    n_lines: int
    data: bytes
    summary: Summary
    report: bytes = b""
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)


class Engine(Protocol):
    """Translates buckets, in this process or in others; a context in which models are loaded.

    notes    what the options change nothing about with this model
    machine  names of what results may depend on: device, precision
    """

    notes: list[str]
    machine: dict[str, str]

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *error: Any) -> None: ...

    def run(self, buckets: Iterable[Bucket], progress: Progress) -> Iterator[Done]:
        """Yield results in the order of the buckets."""
        ...


@dataclass(frozen=True)
class Shard:
    """The buckets from number `first` to before `end` (None: all), with n_lines lines, if that is
    known."""

    first: int = 0
    end: int | None = None
    n_lines: int | None = None


def lines_per_bucket(options: TranslateOptions, device: str, total: int | None) -> int:
    """Of an input of `total` lines, None where they cannot be counted beforehand.

    Nothing but the input and the options decides, whoever works: batches, and so the last digits of
    scores, and what -resume goes on from stay the same.  Shards may be done by machines with a GPU
    and without, and are cut alike on all.
    """
    device = "cpu" if options.jobs.shard else device
    most = BUCKET_LINES[device]
    if options.jobs.bucket_lines is not None:
        return options.jobs.bucket_lines
    batches_matter = PRESETS[options.search.search].policy.as_2018
    if total is None or total < MANY_LINES or device != "cpu" or batches_matter:
        return most
    fair = max(LEAST_LINES, math.ceil(total / BUCKETS))
    return min(most, fair, math.ceil(total / 2))


def choose_shard(src: str, jobs: JobOptions, bucket_lines: int, total: int | None) -> Shard:
    """The buckets of the file `src`, of `total` lines, that -shard I/N asks for; all without it."""
    if jobs.shard is None:
        return Shard(n_lines=total)
    part, n_parts = map(int, jobs.shard.split("/"))
    with open_input(src) as fd:
        windows = LineReader(fd, src, bucket_lines).cut(wanted=())
        sizes = array("q", (window.n_lines for window in windows))
    first, end = (len(sizes) * i // n_parts for i in (part - 1, part))
    return Shard(first, end, sum(sizes[first:end]))


class BucketReader:
    """Reads the source, and the lines of -tgt that belong to it, as buckets."""

    def __init__(self, source: LineReader, target: LineReader | None, shard: Shard):
        self.source, self.target, self.shard = source, target, shard

    def buckets(self, n_done: int = 0) -> Iterator[Bucket]:
        """Yield the shard's buckets but for its first `n_done`.

        Raises FileError and DataError as `LineReader` does; DataError where the numbers of lines
        differ.
        """
        shard = self.shard
        end = shard.end
        wanted = range(shard.first + n_done, 1 << 62 if end is None else end)
        for window in self.source.cut(wanted):
            is_wanted = window.number in wanted
            tgt_lines = self._targets(window.n_lines, is_wanted)
            if is_wanted:
                yield Bucket(window.number, window.lines, tgt_lines)
            if end is not None and window.number + 1 >= end:
                return
        if self.target is not None and self.target.take(1):
            raise DataError(
                f"tgt has more lines than src, which has {self.source.n_lines}; {MATCH}"
            )

    def _targets(self, n: int, is_wanted: bool) -> list[Line] | None:
        if self.target is None:
            return None
        if not is_wanted:
            n_read, lines = self.target.skip(n), []
        else:
            lines = self.target.take(n)
            n_read = len(lines)
        if n_read < n:
            raise DataError(
                f"src has more lines than tgt, which has {self.target.n_lines}; {MATCH}"
            )
        return lines


@contextlib.contextmanager
def open_buckets(data: DataOptions, bucket_lines: int, shard: Shard) -> Iterator[BucketReader]:
    """A reader of -src and -tgt.  Raises FileError."""
    with contextlib.ExitStack() as stack:

        def reader(path: str) -> LineReader:
            name = STANDARD_INPUT if path == "-" else path
            parse = partial(object_line, field=data.text_field) if data.is_jsonl(path) else to_line
            return LineReader(stack.enter_context(open_input(path)), name, bucket_lines, parse)

        target = None if data.tgt is None else reader(data.tgt)
        yield BucketReader(reader(data.src), target, shard)


def roles(
    tgt_lines: list[Line] | None, data: DataOptions
) -> tuple[list[Line] | None, list[Line] | None]:
    """The lines of -tgt as references and as prefixes, of which they are one."""
    return (None, tgt_lines) if data.tgt_file_prefix else (tgt_lines, None)
