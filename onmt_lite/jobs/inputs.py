"""The inputs of a job: each file is read once before the first line is translated, in a pass that
cuts it into ranges, counts its lines and hashes it."""

import contextlib
import hashlib
import math
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from onmt_lite.config.environment import may_have_gpu
from onmt_lite.config.files import rereads
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, FileError, OptionError, refused
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.lines import MAX_LINE_BYTES, STANDARD_INPUT, max_bytes_of, text_stream

Role = str  # of an input: src, tgt, force_words or ban_words

CHUNK = 1 << 20
MATCH = "they must match line by line"
MATCH_OR_ONE = f"{MATCH}, or be one line for all"

# Lines of a bucket: enough to sort by length, few enough to do again; a GPU has larger batches
BUCKET_LINES = {"cpu": 1024, "cuda": 8192}
# A small file is cut into so many buckets, for as many workers, of so many lines at least.  Batches
# get small and their lines less alike: 512 short lines of the shipped model, in buckets of 256,
# 128, 64 and 32, took 1.07, 1.12, 1.33 and 1.39 times the processor time of one bucket
BUCKETS, LEAST_LINES = 4, 128
MANY_LINES = 64  # from which a file is cut at all
SMALL = 4 << 20  # bytes of text, up to which a file may be a small one


@dataclass(frozen=True)
class Span:
    """Whole lines of a file.

    start    bytes of the text before them, counted after unpacking
    n_bytes  their own, and `crc` the CRC-32 of these
    """

    path: str
    n_lines: int
    start: int
    n_bytes: int
    crc: int


@dataclass(frozen=True)
class Range:
    """A bucket of lines, as they stand in files.

    first  number of the first line, from 0
    spans  the lines of src, and those of each further input that belong to them; a span of one
           line may be that of all lines
    """

    number: int
    first: int
    spans: dict[Role, Span]

    @property
    def n_lines(self) -> int:
        return self.spans["src"].n_lines

    @property
    def where(self) -> str:
        """at lines 1 to 1024"""
        return f"at lines {self.first + 1} to {self.first + self.n_lines}"


@dataclass
class Survey:
    """The result of one pass over a file.

    spans  the file, cut
    text   all of it, if it is small
    """

    path: str
    spans: list[Span] = field(default_factory=list)
    n_bytes: int = 0
    sha256: str = ""
    text: list[bytes] = field(default_factory=list)

    @property
    def n_lines(self) -> int:
        return sum(span.n_lines for span in self.spans)


# -- one pass over a file -------------------------------------------------------------------------


def cut(
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


def survey(path: str, counts: Iterable[float], max_bytes: float = math.inf) -> Survey:
    """Cut, count and hash a file; arguments as those of `cut`.

    Raises FileError if it cannot be read or changes meanwhile, DataError if it is no text.
    """
    found, sha = Survey(path), hashlib.sha256()

    def chunks(fd: int) -> Iterator[bytes]:
        stream = text_stream(fd, path)
        while chunk := stream.read(CHUNK):
            sha.update(chunk)
            found.n_bytes += len(chunk)
            found.text = [*found.text, chunk] if found.n_bytes <= SMALL else []
            yield chunk

    with open_input(path) as fd:
        found.spans = list(cut(path, chunks(fd), counts, max_bytes))
    found.sha256 = sha.hexdigest()
    return found


# -- all inputs -----------------------------------------------------------------------------------


@dataclass
class Inputs:
    """The inputs of a job, as they were before the first line was read.

    ranges   the buckets; None if an input is a stream, which can be read only once
    n_lines  to be translated; None for a stream
    window   lines of a bucket
    files    bytes and SHA-256 of each file
    """

    ranges: list[Range] | None
    n_lines: int | None
    window: int
    files: dict[str, list[int | str]]


def look_at_inputs(options: TranslateOptions, sources: Sequence[str]) -> Inputs:
    """Read all inputs that are files to their ends.

    Raises FileError and DataError as `survey` does, and DataError if files do not match line by
    line; OptionError if a stream is to be cut into shards.
    """
    beside = [(role, path) for role, path in roles_of(options)[1:]]
    for path in (*sources, *(path for _, path in beside)):
        check_readable(path)
    if not all(is_file(path) for path in (*sources, *(path for _, path in beside))):
        return with_streams(options, sources)
    surveys = survey_sources(options, sources)
    spans = [span for each in surveys for span in each.spans]
    n_lines = sum(span.n_lines for span in spans)
    named = [("src", each) for each in surveys]
    columns = {"src": spans}
    for role, path in beside:
        found = survey(path, chain((span.n_lines for span in spans), repeat(math.inf)))
        check_match(role, found.n_lines, n_lines)
        named.append((role, found))
        of_all = role != "tgt" and found.n_lines == 1
        columns[role] = found.spans * len(spans) if of_all else found.spans
    ranges, first = [], 0
    for number, row in enumerate(zip(*columns.values())):
        ranges.append(Range(number, first, dict(zip(columns, row))))
        first += row[0].n_lines
    ranges, window = shard_of(ranges, options), bucket_lines(options, n_lines)
    n_lines = sum(each.n_lines for each in ranges)
    return Inputs(ranges, n_lines, window, described(named))


def with_streams(options: TranslateOptions, sources: Sequence[str]) -> Inputs:
    """Lines are counted if src, at least, is a file."""
    (src,) = sources
    if options.jobs.shard:
        stream = next(path for _, path in roles_of(options) if not is_file(path))
        raise OptionError(f"shard: lines of {stream} cannot be counted first; give a file")
    n_lines = count_standard_input() if src == "-" else None
    for role, path in roles_of(options):
        if os.path.isfile(path):
            n_found = survey(path, repeat(math.inf)).n_lines
            n_lines = n_found if role == "src" else n_lines
            if n_lines is not None:
                check_match(role, n_found, n_lines)
    return Inputs(None, n_lines, bucket_lines(options, n_lines), {})


def survey_sources(options: TranslateOptions, sources: Sequence[str]) -> list[Survey]:
    """Cut the files of src as `bucket_lines` says, which depends on their lines."""
    most = bucket_lines(options, None)
    surveys = [survey(path, repeat(most), max_bytes_of(most)) for path in sources]
    fair = bucket_lines(options, sum(each.n_lines for each in surveys))
    if fair < most and all(each.n_bytes <= SMALL for each in surveys):
        for each in surveys:
            each.spans = list(cut(each.path, each.text, repeat(fair), max_bytes_of(fair)))
    for each in surveys:
        each.text = []
    return surveys


def bucket_lines(options: TranslateOptions, total: int | None) -> int:
    """Lines of a bucket, of an input of `total` lines; None if they cannot be counted beforehand.

    Nothing but the input and the options decides, whoever works: batches, and so the last digits of
    scores, and what -resume goes on from stay the same.  Shards may be done by machines with a GPU
    and without, and are cut alike on all.
    """
    if options.jobs.bucket_lines is not None:
        return options.jobs.bucket_lines
    device = "cuda" if expects_gpu(options) and not options.jobs.shard else "cpu"
    most = BUCKET_LINES[device]
    batches_matter = PRESETS[options.search.search].policy.as_2018
    if total is None or total < MANY_LINES or device != "cpu" or batches_matter:
        return most
    fair = max(LEAST_LINES, math.ceil(total / BUCKETS))
    return min(most, fair, math.ceil(total / 2))


def expects_gpu(options: TranslateOptions) -> bool:
    """Return whether the job runs on a GPU, as far as that is known without torch."""
    speed = options.speed
    if speed.device == "auto" and not speed.gpu:
        return may_have_gpu()
    return speed.device != "cpu" and speed.gpu != (-1,)


def shard_of(ranges: list[Range], options: TranslateOptions) -> list[Range]:
    """The ranges that -shard I/N asks for; all without it."""
    if options.jobs.shard is None:
        return ranges
    part, n_parts = map(int, options.jobs.shard.split("/"))
    first, end = (len(ranges) * i // n_parts for i in (part - 1, part))
    return ranges[first:end]


def check_match(role: Role, n_found: int, n_lines: int) -> None:
    """Raise DataError unless an input has as many lines as src."""
    if n_found == n_lines or (role != "tgt" and n_found == 1):
        return
    if role == "tgt":
        raise DataError(f"src has {n_lines} lines, tgt has {n_found}; {MATCH}")
    if n_found < n_lines:
        raise DataError(f"src has more lines than {role}, which has {n_found}; {MATCH_OR_ONE}")
    raise DataError(f"{role} has more lines than src, which has {n_lines}; {MATCH_OR_ONE}")


def described(named: Sequence[tuple[Role, Survey]]) -> dict[str, list[int | str]]:
    """Bytes and SHA-256 of each file, by its role; src 1, src 2 ... if there are several."""
    n_sources = sum(role == "src" for role, _ in named)
    names = [f"src {i}" for i in range(1, n_sources + 1)] if n_sources > 1 else ["src"]
    names += [role for role, _ in named if role != "src"]
    return {name: [each.n_bytes, each.sha256] for name, (_, each) in zip(names, named)}


# -- files and streams ----------------------------------------------------------------------------


def roles_of(options: TranslateOptions) -> list[tuple[Role, str]]:
    """The inputs that are read line by line, src first."""
    data, phrases = options.data, options.phrases
    named = [("src", data.src), ("tgt", data.tgt)]
    named += [("force_words", phrases.force_words), ("ban_words", phrases.ban_words)]
    return [(role, path) for role, path in named if path is not None]


def is_file(path: str) -> bool:
    return path != "-" and rereads(path)


def check_readable(path: str) -> None:
    """Raise FileError for a missing file or a directory."""
    if path == "-":
        return
    # Looked at, not opened: opening a FIFO would take its writer's only reader away
    with refused(f"read {path}"):
        mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise FileError(f"cannot read {path}: it is a directory")


def count_standard_input() -> int | None:
    """Lines of a file that the shell has opened; None for a stream."""
    if sys.stdin is None:
        return None
    fd = sys.stdin.fileno()
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    start = os.lseek(fd, 0, os.SEEK_CUR)
    stream = text_stream(fd, STANDARD_INPUT)
    chunks = iter(lambda: stream.read(CHUNK), b"")
    n = sum(span.n_lines for span in cut("-", chunks, [math.inf]))
    os.lseek(fd, start, os.SEEK_SET)
    return n


@contextlib.contextmanager
def open_input(path: str) -> Iterator[int]:
    """A file descriptor to read from.  FileError, also at the end for a file that has changed."""
    if path == "-":
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed")
        yield sys.stdin.fileno()
        return
    with Unchanged(path):
        with refused(f"read {path}"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


class Unchanged:
    """Files that a job reads line by line and that must stay as they are until it ends.

    As a context, checks them at its end.  Streams are left alone, and so are files that are
    removed, since an open file can still be read.
    """

    def __init__(self, *paths: str):
        self.states = {path: state_of(path) for path in paths}

    def __enter__(self) -> "Unchanged":
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        if error is None or isinstance(error, DataError):  # lines that do not match, say
            self.check()

    def check(self) -> None:
        """Raise FileError for a file that was written since: lines would be lost, or read twice."""
        for path, before in self.states.items():
            if before is not None and state_of(path) not in (before, None):
                raise changed(path)


def changed(path: str) -> FileError:
    name = STANDARD_INPUT if path == "-" else path
    return FileError(
        f"{name} was changed while it was read; put it back as it was, or translate it once more"
    )


def state_of(path: str) -> tuple[int, int] | None:
    """What changes when a regular file is written; None for anything else."""
    try:
        found = os.stat(sys.stdin.fileno() if path == "-" and sys.stdin else path)
    except (OSError, ValueError):
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
