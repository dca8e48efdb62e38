"""The inputs of a job: before the first line is translated, each file is read in a pass that cuts
it into ranges, counts its lines and hashes it; a small one in two, if it is cut finer then."""

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
from onmt_lite.text.lines import MAX_LINE_BYTES, max_window_bytes

Role = str  # of an input: src, tgt, force_words or ban_words

CHUNK = 1 << 20

# Lines of a bucket: enough to sort by length, few enough to do again; a GPU has larger batches
BUCKET_LINES = {"cpu": 1024, "cuda": 8192}
# A small file is cut into so many buckets, for as many workers, of so many lines at least.  Batches
# get small and their lines less alike: 512 short lines of the shipped model, in buckets of 256,
# 128, 64 and 32, took 1.07, 1.12, 1.33 and 1.39 times the processor time of one bucket
MIN_BUCKETS, MIN_BUCKET_LINES = 4, 128
MIN_SPLIT_LINES = 64  # from which a file is cut at all
SMALL_FILE_BYTES = 4 << 20  # bytes of text, up to which a file may be a small one


@dataclass(frozen=True)
class Span:
    """Whole lines of a file."""

    path: str
    n_lines: int
    start: int  # bytes of the text before them, counted after unpacking
    n_bytes: int  # their own
    crc: int  # CRC-32 of these


@dataclass(frozen=True)
class Range:
    """A bucket of lines, as they stand in files."""

    number: int
    first: int  # number of the first line, from 0
    spans: dict[Role, Span]  # of each input; one line of phrases may be that of all lines

    @property
    def n_lines(self) -> int:
        return self.spans["src"].n_lines

    @property
    def where(self) -> str:
        return f"at lines {self.first + 1} to {self.first + self.n_lines}"


@dataclass
class InputScan:
    """The result of one pass over a file."""

    spans: list[Span]  # the file, cut
    n_bytes: int
    sha256: str

    @property
    def n_lines(self) -> int:
        return sum(span.n_lines for span in self.spans)


def split_spans(
    path: str, chunks: Iterable[bytes], counts: Iterable[float], max_bytes: float = math.inf
) -> Iterator[Span]:
    """Yield whole lines: a line feed ends a line, and the last one may lack it.

    counts     lines of each span, if there are as many
    max_bytes  a span ends early when it has so many; of a line that is longer than any model
               reads, only the beginning counts
    """
    sizes = iter(counts)
    wanted = next(sizes)
    start = n_bytes = n_lines = crc = 0
    n_counted = 0  # bytes of the lines, as far as a model may read them
    length = 0  # bytes of the line that has not ended
    for chunk in chunks:
        taken = at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            n_counted += min(length + end - at, MAX_LINE_BYTES)
            length, at, n_lines = 0, end + 1, n_lines + 1
            if n_lines == wanted or n_counted >= max_bytes:
                piece = memoryview(chunk)[taken:at]
                n_bytes, crc, taken = n_bytes + len(piece), zlib.crc32(piece, crc), at
                yield Span(path, n_lines, start, n_bytes, crc)
                start += n_bytes
                n_bytes = n_lines = crc = n_counted = 0
                wanted = next(sizes)
        length += len(chunk) - at
        rest = memoryview(chunk)[taken:]
        n_bytes, crc = n_bytes + len(rest), zlib.crc32(rest, crc)
    if n_bytes:
        yield Span(path, n_lines + (length > 0), start, n_bytes, crc)


def scan_file(path: str, counts: Iterable[float], max_bytes: float = math.inf) -> InputScan:
    """Split, count and hash a file.  Arguments as in `split_spans`.

    Raises FileError if it cannot be read or changes meanwhile, DataError if it is not text.
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
    """The inputs of a job, as they were before the first line was read."""

    ranges: list[Range] | None  # the buckets; None if an input is a stream, to be read only once
    n_lines: int | None  # to be translated; None for a stream
    files: dict[str, Any]  # bytes and SHA-256 of each


def scan_inputs(options: TranslateOptions, sources: Sequence[str]) -> Inputs:
    """Read all input files to the end.

    Raises as `scan_file`, DataError if files do not match line by line, OptionError if a stream is
    to be split into shards.
    """
    beside = list_line_inputs(options)[1:]
    paths = [*sources, *(path for _, path in beside)]
    check_inputs([*(("src", path) for path in sources), *beside])
    if streams := [path for path in paths if not is_rereadable(path)]:
        if options.jobs.shard:
            raise OptionError(f"shard: lines of {streams[0]} cannot be counted first; give a file")
        return scan_streams(options)
    surveys = scan_sources(options, sources)
    spans = [span for each in surveys for span in each.spans]
    n_lines = sum(each.n_lines for each in surveys)
    names = [f"src {i}" for i in range(1, len(sources) + 1)] if len(sources) > 1 else ["src"]
    files = dict(zip(names, surveys))
    columns = {"src": spans}
    for role, path in beside:
        files[role] = found = scan_file(path, chain((s.n_lines for s in spans), repeat(math.inf)))
        check_line_count(role, found.n_lines, n_lines)
        of_all = role != "tgt" and found.n_lines == 1
        columns[role] = found.spans * len(spans) if of_all else found.spans
    ranges, first = [], 0
    for number, row in enumerate(zip(*columns.values())):
        ranges.append(Range(number, first, dict(zip(columns, row))))
        first += row[0].n_lines
    if options.jobs.shard is not None:
        part, n_parts = map(int, options.jobs.shard.split("/"))
        ranges = ranges[len(ranges) * (part - 1) // n_parts : len(ranges) * part // n_parts]
    described = {name: [each.n_bytes, each.sha256] for name, each in files.items()}
    n_wanted = sum(each.n_lines for each in ranges)
    return Inputs(ranges, n_wanted, described)


def scan_streams(options: TranslateOptions) -> Inputs:
    """Lines are counted if src, at least, is a file."""
    n_lines = None
    if options.data.src == "-" and read_file_state("-"):  # a file that the shell has opened
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
    """Cut the files of src as `choose_bucket_lines` says, which depends on their lines."""
    most = choose_bucket_lines(options, None)
    surveys = [scan_file(path, repeat(most), max_window_bytes(most)) for path in sources]
    fair = choose_bucket_lines(options, sum(each.n_lines for each in surveys))
    if fair < most and all(each.n_bytes <= SMALL_FILE_BYTES for each in surveys):
        surveys = [scan_file(path, repeat(fair), max_window_bytes(fair)) for path in sources]
    return surveys


def choose_bucket_lines(options: TranslateOptions, total: int | None) -> int:
    """Lines of a bucket, of an input of `total` lines; None if they cannot be counted beforehand.

    Nothing but the input and the options decides, whoever works: batches, and so the last digits of
    scores, and what -resume goes on from stay the same.  Shards may be done by machines with a GPU
    and without, and are cut alike on all.
    """
    if options.jobs.bucket_lines is not None:
        return options.jobs.bucket_lines
    device = "cuda" if options.speed.expects_gpu and not options.jobs.shard else "cpu"
    most = BUCKET_LINES[device]
    batches_matter = PRESETS[options.search.search].policy.depends_on_batch
    if total is None or total < MIN_SPLIT_LINES or device != "cpu" or batches_matter:
        return most
    fair = max(MIN_BUCKET_LINES, math.ceil(total / MIN_BUCKETS))
    return min(most, fair, math.ceil(total / 2))


def check_line_count(role: Role, n_found: int, n_lines: int) -> None:
    """Raise DataError unless an input has as many lines as src."""
    if n_found != n_lines and (role == "tgt" or n_found != 1):
        lines = "1 line" if n_lines == 1 else f"{n_lines} lines"
        raise line_count_error(role, f"src has {lines}, {role}", n_found)


def line_count_error(role: Role, says: str, n: int) -> DataError:
    """src has 4 lines, tgt has 3 | src has more lines than tgt, which has 3"""
    or_one = "" if role == "tgt" else ", or be one line for all"
    return DataError(f"{says} has {n}; they must match line by line{or_one}")


# -- files and streams ----------------------------------------------------------------------------


def list_line_inputs(options: TranslateOptions) -> list[tuple[Role, str]]:
    """The inputs that are read line by line, src first."""
    data, phrases = options.data, options.phrases
    named = [("src", data.src), ("tgt", data.tgt)]
    named += [("force_words", phrases.force_words), ("ban_words", phrases.ban_words)]
    return [(role, path) for role, path in named if path is not None]


@contextlib.contextmanager
def open_input(path: str) -> Iterator[int]:
    """A file descriptor to read from.  FileError, also at the end for a file that has changed."""
    if path == "-":
        if sys.stdin is None:
            closed = "cannot read standard input: it is closed; open it or give -src FILE"
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
    """Files that must stay as they are; a context that checks them at its end.  Streams are left
    alone, and so are files that are removed, since an open file can still be read."""

    def __init__(self, *paths: str):
        self.states = {path: read_file_state(path) for path in paths}

    def __enter__(self) -> "UnchangedFiles":
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        if error is None or isinstance(error, DataError):  # lines that do not match, say
            self.check()

    def check(self) -> None:
        """Raise FileError for a file that was written since: lines would be lost, or read twice."""
        for path, before in self.states.items():
            if before is not None and read_file_state(path) not in (before, None):
                raise changed_error(path)


def changed_error(path: str) -> FileError:
    name = STANDARD_INPUT if path == "-" else path
    return FileError(
        f"{name} was changed while it was read; put it back as it was, or translate it once more"
    )


def read_file_state(path: str) -> tuple[int, int] | None:
    """What changes when a regular file is written; None for anything else."""
    try:
        found = os.stat(sys.stdin.fileno() if path == "-" and sys.stdin else path)
    except (OSError, ValueError):
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
