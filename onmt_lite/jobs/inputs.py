"""The inputs of a job.

Before the first line is translated, one pass over each file splits it into ranges, counts its lines
and hashes it.  A small file takes a second pass if it is to be split into smaller ranges.
"""

import contextlib
import hashlib
import math
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from onmt_lite.config.files import check_inputs, is_rereadable
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, FileError, OptionError, wrap_os_errors
from onmt_lite.search.presets import PRESETS
from onmt_lite.system.byte_stream import STANDARD_INPUT, open_text_stream
from onmt_lite.text.lines import MAX_LINE_BYTES, get_max_window_bytes

Role = str  # src, tgt, force_words or ban_words

CHUNK = 1 << 20

# Lines per bucket: enough to sort by length, few enough to repeat; larger batches on a GPU
BUCKET_LINES = {"cpu": 1024, "cuda": 8192}
# A small file is split into this many buckets for workers, with at least this many lines each.
# Small buckets make small batches of unequal lengths: 512 short lines with the shipped model, in
# buckets of 256, 128, 64 and 32, took 1.07, 1.12, 1.33 and 1.39 times the CPU time of one bucket
MIN_BUCKETS, MIN_BUCKET_LINES = 4, 128
MIN_SPLIT_LINES = 64  # shorter files are not split
SMALL_FILE_BYTES = 4 << 20  # bytes of text up to which a file is small


@dataclass(frozen=True)
class Span:
    """Consecutive whole lines of a file.

    Attributes:
        path: the file.
        n_lines: number of lines.
        start: bytes of text before them, counted after unpacking.
        n_bytes: bytes of the lines.
        crc: CRC-32 of the lines.
    """

    path: str
    n_lines: int
    start: int
    n_bytes: int
    crc: int


@dataclass(frozen=True)
class Range:
    """A bucket of lines in files.

    Attributes:
        number: position of the bucket in the job.
        first: number of the first line, from 0.
        spans: the lines of each input; phrase files may have a single line for all.
    """

    number: int
    first: int
    spans: dict[Role, Span]

    @property
    def n_lines(self) -> int:
        """Number of source lines."""
        return self.spans["src"].n_lines

    @property
    def where(self) -> str:
        """Lines of the range, for messages."""
        return f"at lines {self.first + 1} to {self.first + self.n_lines}"


@dataclass
class InputScan:
    """Result of one pass over a file.

    Attributes:
        spans: the lines of the file, split.
        n_bytes: size of the text after unpacking.
        sha256: SHA-256 of the text in hexadecimal.
    """

    spans: list[Span]
    n_bytes: int
    sha256: str

    @property
    def n_lines(self) -> int:
        """Number of lines."""
        return sum(span.n_lines for span in self.spans)


def split_spans(
    path: str, chunks: Iterable[bytes], counts: Iterable[float], max_bytes: float = math.inf
) -> Iterator[Span]:
    """Split a file into spans of whole lines.  The last line may lack its line feed.

    Args:
        path: path of the file, for the spans.
        chunks: the contents.
        counts: lines of each span.
        max_bytes: a span ends early at this size; only the beginning of a line that is longer than
            any model reads is counted.

    Yields:
        The spans in order.
    """
    sizes = iter(counts)
    n_target = next(sizes)
    start = n_bytes = n_lines = crc = 0
    n_counted = 0  # bytes of the lines, without the end of overlong ones
    length = 0  # bytes of the current line so far
    for chunk in chunks:
        segment_start = at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            n_counted += min(length + end - at, MAX_LINE_BYTES)
            length, at, n_lines = 0, end + 1, n_lines + 1
            if n_lines == n_target or n_counted >= max_bytes:
                segment = memoryview(chunk)[segment_start:at]
                n_bytes, crc, segment_start = n_bytes + len(segment), zlib.crc32(segment, crc), at
                yield Span(path, n_lines, start, n_bytes, crc)
                start += n_bytes
                n_bytes = n_lines = crc = n_counted = 0
                n_target = next(sizes)
        length += len(chunk) - at
        rest = memoryview(chunk)[segment_start:]
        n_bytes, crc = n_bytes + len(rest), zlib.crc32(rest, crc)
    if n_bytes:
        yield Span(path, n_lines + (length > 0), start, n_bytes, crc)


def scan_file(path: str, counts: Iterable[float], max_bytes: float = math.inf) -> InputScan:
    """Split, count and hash a file.

    Args:
        path: the file; "-" for standard input.
        counts: lines of each span.
        max_bytes: see `split_spans`.

    Raises:
        FileError: if the file cannot be read or changes meanwhile.
        DataError: if it is not text.
    """
    n_bytes, sha = 0, hashlib.sha256()

    def chunks(fd: int) -> Iterator[bytes]:
        nonlocal n_bytes
        stream = open_text_stream(fd, STANDARD_INPUT if path == "-" else path)
        while chunk := stream.read(CHUNK):
            sha.update(chunk)
            n_bytes += len(chunk)
            yield chunk

    with open_input(path) as fd:
        spans = list(split_spans(path, chunks(fd), counts, max_bytes))
    return InputScan(spans, n_bytes, sha.hexdigest())


@dataclass
class Inputs:
    """The inputs of a job, as they were before the first line was read.

    Attributes:
        ranges: the buckets; None if an input is a stream, which can be read only once.
        n_lines: lines to translate; None for a stream.
        files: bytes and SHA-256 of each input.
    """

    ranges: list[Range] | None
    n_lines: int | None
    files: dict[str, Any]


def scan_inputs(options: TranslateOptions, sources: Sequence[str]) -> Inputs:
    """Read all input files to the end, and split them into the buckets of the job.

    Args:
        options: options of the job.
        sources: the files of src in order.

    Raises:
        FileError: if a file cannot be read or changes meanwhile.
        DataError: if an input is not text, or line counts differ.
        OptionError: if -shard is used with a stream.
    """
    parallel = list_line_inputs(options)[1:]
    paths = [*sources, *(path for _, path in parallel)]
    check_inputs([*(("src", path) for path in sources), *parallel])
    if streams := [path for path in paths if not is_rereadable(path)]:
        if options.jobs.shard:
            raise OptionError(
                f"shard: the lines of {streams[0]} cannot be counted in advance; use a file"
            )
        return scan_streams(options)
    scans = scan_sources(options, sources)
    spans = [span for scan in scans for span in scan.spans]
    n_lines = sum(scan.n_lines for scan in scans)
    names = [f"src {i}" for i in range(1, len(sources) + 1)] if len(sources) > 1 else ["src"]
    files = dict(zip(names, scans))
    columns = {"src": spans}
    for role, path in parallel:
        files[role] = scan = scan_file(path, chain((s.n_lines for s in spans), repeat(math.inf)))
        check_line_count(role, scan.n_lines, n_lines)
        is_single_line = role != "tgt" and scan.n_lines == 1
        columns[role] = scan.spans * len(spans) if is_single_line else scan.spans
    ranges, first = [], 0
    for number, bucket_spans in enumerate(zip(*columns.values())):
        ranges.append(Range(number, first, dict(zip(columns, bucket_spans))))
        first += bucket_spans[0].n_lines
    if options.jobs.shard is not None:
        shard, n_shards = map(int, options.jobs.shard.split("/"))
        ranges = ranges[len(ranges) * (shard - 1) // n_shards : len(ranges) * shard // n_shards]
    fingerprints = {name: [scan.n_bytes, scan.sha256] for name, scan in files.items()}
    n_lines_to_translate = sum(line_range.n_lines for line_range in ranges)
    return Inputs(ranges, n_lines_to_translate, fingerprints)


def scan_streams(options: TranslateOptions) -> Inputs:
    """Count the lines if at least src is a file."""
    n_lines = None
    if options.data.src == "-" and read_file_state("-"):  # a file opened by the shell
        start = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
        n_lines = scan_file("-", repeat(math.inf)).n_lines
        os.lseek(sys.stdin.fileno(), start, os.SEEK_SET)
    for role, path in list_line_inputs(options):
        if os.path.isfile(path):
            n_found = scan_file(path, repeat(math.inf)).n_lines
            n_lines = n_found if role == "src" else n_lines
            if n_lines is not None:
                check_line_count(role, n_found, n_lines)
    return Inputs(None, n_lines, {})


def scan_sources(options: TranslateOptions, sources: Sequence[str]) -> list[InputScan]:
    """Split the files of src; the bucket size depends on their lines."""
    limit = choose_bucket_lines(options, None)
    scans = [scan_file(path, repeat(limit), get_max_window_bytes(limit)) for path in sources]
    balanced = choose_bucket_lines(options, sum(scan.n_lines for scan in scans))
    if balanced < limit and all(scan.n_bytes <= SMALL_FILE_BYTES for scan in scans):
        scans = [
            scan_file(path, repeat(balanced), get_max_window_bytes(balanced)) for path in sources
        ]
    return scans


def choose_bucket_lines(options: TranslateOptions, total: int | None) -> int:
    """Return the lines per bucket.

    Only the input and the options count, not the machine: batches stay the same, and with them the
    last digits of scores and the partial files for -resume.  Shards may run on machines with and
    without a GPU and are split alike on all of them.

    Args:
        options: options of the job.
        total: lines of the input; None if they cannot be counted.
    """
    if options.jobs.bucket_lines is not None:
        return options.jobs.bucket_lines
    device = "cuda" if options.speed.expects_gpu and not options.jobs.shard else "cpu"
    limit = BUCKET_LINES[device]
    batches_matter = PRESETS[options.search.search].policy.depends_on_batch
    if total is None or total < MIN_SPLIT_LINES or device != "cpu" or batches_matter:
        return limit
    balanced = max(MIN_BUCKET_LINES, math.ceil(total / MIN_BUCKETS))
    return min(limit, balanced, math.ceil(total / 2))


def check_line_count(role: Role, n_found: int, n_lines: int) -> None:
    """Raise DataError unless an input has as many lines as src.

    Args:
        role: the input.
        n_found: its lines.
        n_lines: lines of src.
    """
    if n_found != n_lines and (role == "tgt" or n_found != 1):
        lines = "1 line" if n_lines == 1 else f"{n_lines} lines"
        raise make_line_count_error(role, f"src has {lines}, {role}", n_found)


def make_line_count_error(role: Role, statement: str, n: int) -> DataError:
    """Return the error for an input with a wrong number of lines.

    Args:
        role: the input.
        statement: what comes before the number, such as "src has 4 lines, tgt".
        n: number of lines of the input.
    """
    or_one = "" if role == "tgt" else ", or the file must have a single line for all"
    return DataError(f"{statement} has {n}; they must match line by line{or_one}")


# -- files and streams ----------------------------------------------------------------------------


def list_line_inputs(options: TranslateOptions) -> list[tuple[Role, str]]:
    """Return the inputs that are read line by line, src first."""
    data, phrases = options.data, options.phrases
    named = [("src", data.src), ("tgt", data.tgt)]
    named += [("force_words", phrases.force_words), ("ban_words", phrases.ban_words)]
    return [(role, path) for role, path in named if path is not None]


@contextlib.contextmanager
def open_input(path: str) -> Iterator[int]:
    """Open an input for reading.  Raises FileError, also at the end if the file has changed."""
    if path == "-":
        if sys.stdin is None:
            closed = "cannot read standard input: it is closed; open it or set -src FILE"
            raise FileError(closed)
        yield sys.stdin.fileno()
        return
    with UnchangedFiles(path):
        with wrap_os_errors(f"read {path}"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


class UnchangedFiles:
    """Context that checks at its end that files have not changed.

    Streams are not checked, nor are removed files, because an open file can still be read.
    """

    def __init__(self, *paths: str):
        self.states = {path: read_file_state(path) for path in paths}

    def __enter__(self) -> "UnchangedFiles":
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, DataError):  # a change may explain it
            self.check()

    def check(self) -> None:
        """Raise FileError if a file has been written: lines might be lost or read twice."""
        for path, before in self.states.items():
            if before is not None and read_file_state(path) not in (before, None):
                raise make_changed_error(path)


def make_changed_error(path: str) -> FileError:
    """Return the error for a file that changed while it was being read."""
    name = STANDARD_INPUT if path == "-" else path
    return FileError(f"{name} changed while it was being read; restore it, or run the job again")


def read_file_state(path: str) -> tuple[int, int] | None:
    """Return size and modification time of a regular file, None for anything else."""
    try:
        status = os.stat(sys.stdin.fileno() if path == "-" and sys.stdin else path)
    except (OSError, ValueError):
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None
