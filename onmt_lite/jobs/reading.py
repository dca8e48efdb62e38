"""Read buckets of lines: from a range of a file, or from a stream as lines come."""

import contextlib
import gzip
import os
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, cast

from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.text_options import DataOptions
from onmt_lite.errors import DataError, FileError, refused
from onmt_lite.jobs.inputs import (
    MATCH,
    MATCH_OR_ONE,
    Range,
    Role,
    Span,
    changed,
    open_input,
    roles_of,
    state_of,
)
from onmt_lite.jobs.reports import LOG, Summary
from onmt_lite.text.lines import (
    BOM,
    GZIP,
    STANDARD_INPUT,
    Line,
    LineReader,
    Stream,
    guess_encoding,
    object_line,
    raw_lines,
    to_line,
)
from onmt_lite.text.phrases import marked, parse_phrases

FEW_LINES = 3  # so many lines that are not UTF-8 may be damaged

Parse = Callable[[bytes, int, bool], Line]


@dataclass(frozen=True)
class Bucket:
    """Lines of the input in a row, and the lines of -tgt that belong to them."""

    number: int
    lines: list[Line]
    tgt_lines: list[Line] | None = None

    @property
    def n_lines(self) -> int:
        return len(self.lines)

    @property
    def where(self) -> str:
        """at lines 1 to 1024"""
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"

    def traced(self, n: int) -> "Bucket":
        """The searches of the first n lines are to be recorded."""
        first = [replace(line, traced=True) for line in self.lines[:n]]
        return replace(self, lines=[*first, *self.lines[n:]])


def make_bucket(number: int, columns: dict[Role, list[Line]]) -> Bucket:
    """A bucket of the lines of all inputs.  DataError for phrases that cannot be."""
    lines = columns["src"]
    phrases = [phrases_of(columns, role, len(lines)) for role in ("force_words", "ban_words")]
    lines = [marked(*row) for row in zip(lines, *phrases)]
    return Bucket(number, lines, columns.get("tgt"))


def phrases_of(columns: dict[Role, list[Line]], role: Role, n: int) -> list[tuple[str, ...]]:
    """Return the phrases of each of n lines, from its own line of the file or from the only one."""
    if role not in columns:
        return [()] * n
    for line in columns[role]:
        if "invalid-utf8" in line.notes:
            raise DataError(f"{role} line {line.id + 1} is not UTF-8; convert it")
    parsed = [parse_phrases(line.text) for line in columns[role]]
    return parsed * n if len(parsed) == 1 else parsed


def parse_of(data: DataOptions, role: Role, path: str) -> Parse:
    """How the lines of an input are parsed: as JSON objects, or as text."""
    if role in ("force_words", "ban_words"):
        return to_line
    # -input_format speaks of src; a tgt of objects has a name that says so
    is_jsonl = data.input_format == "jsonl" if role == "src" else False
    if is_jsonl or data.is_jsonl(path):
        return partial(object_line, field=data.text_field)
    return to_line


# -- files ----------------------------------------------------------------------------------------


class Reader:
    """Reads ranges.  Files stay open until `close`, so that gzip data is unpacked once."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[tuple[int, int] | None, IO[bytes]]] = {}

    def close(self) -> None:
        for _, file in self.open.values():
            file.close()
        self.open = {}

    def bucket(self, wanted: Range, data: DataOptions) -> Bucket:
        """The lines of a range.

        Raises FileError if a file cannot be read or is not what it was, DataError for phrases that
        cannot be.
        """
        columns = {
            role: self.lines(wanted, role, parse_of(data, role, span.path))
            for role, span in wanted.spans.items()
        }
        return make_bucket(wanted.number, columns)

    def lines(self, wanted: Range, role: Role, parse: Parse) -> list[Line]:
        """The lines of one input.  Raises FileError."""
        lines: list[Line] = []
        span = wanted.spans[role]
        first = wanted.first if span.n_lines == wanted.n_lines else 0  # one line for all
        left, crc = span.n_bytes, 0
        with refused(f"read {span.path}"), contextlib.suppress(EOFError, zlib.error):
            file = self._at(span)

            def read(size: int) -> bytes:
                nonlocal left, crc
                chunk = file.read(min(size, left))
                left, crc = left - len(chunk), zlib.crc32(chunk, crc)
                return chunk

            for raw, is_cut in raw_lines(Stream(read, lambda: True)):
                assert raw is not None  # such a stream never pauses
                if span.start == 0 and not lines:
                    raw = raw.removeprefix(BOM)
                lines.append(parse(raw, first + len(lines), is_cut))
        if left or crc != span.crc:
            raise changed(span.path)
        return lines

    def _at(self, span: Span) -> IO[bytes]:
        """The file, where the span begins."""
        now = state_of(span.path)
        before, file = self.open.get(span.path, (None, None))
        # One that was removed is still there
        if file is None or (now is not None and now != before):
            if file is not None:
                file.close()
            packed = is_packed(span.path)
            file = cast(IO[bytes], gzip.open(span.path, "rb") if packed else open(span.path, "rb"))
            self.open[span.path] = now, file
        file.seek(span.start)  # in gzip data, by unpacking up to there
        return file


def check_phrases(ranges: list[Range]) -> None:
    """Raise DataError for phrases that no bucket can be made with."""
    roles = [role for role in (ranges[0].spans if ranges else ()) if role.endswith("_words")]
    by_line = any(ranges[-1].spans[role].start for role in roles)
    with contextlib.closing(Reader()) as reader:
        for each in ranges if by_line else ranges[:1]:
            columns = {role: reader.lines(each, role, to_line) for role in roles}
            columns["src"] = [Line(each.first + i, "") for i in range(each.n_lines)]
            make_bucket(each.number, columns)


# -- streams --------------------------------------------------------------------------------------


class StreamReader:
    """Reads src, and the inputs that belong to it line by line, side by side."""

    def __init__(self, options: TranslateOptions, window: int, open_files: contextlib.ExitStack):
        """`window`: lines of a bucket, at most.  Raises FileError."""

        def reader(role: Role, path: str) -> LineReader:
            name = STANDARD_INPUT if path == "-" else path
            fd = open_files.enter_context(open_input(path))
            return LineReader(fd, name, window, parse_of(options.data, role, path))

        readers = {role: reader(role, path) for role, path in roles_of(options)}
        self.source, self.beside = readers.pop("src"), readers
        # Two lines show whether a file of phrases has one line for all
        self.ahead = {r: beside.take(0 if r == "tgt" else 2) for r, beside in readers.items()}

    def buckets(self) -> Iterator[Bucket]:
        """Yield buckets; short ones if the stream pauses.

        Raises FileError and DataError as `LineReader` does, DataError if the numbers of lines
        differ.
        """
        for number, lines in enumerate(self.source.windows()):
            columns = {"src": lines}
            for role in self.beside:
                columns[role] = self._take(role, len(lines))
            yield make_bucket(number, columns)
        for role, beside in self.beside.items():
            if not self._of_all(role) and (self.ahead[role] or beside.take(1)):
                n_lines = self.source.n_lines
                match = MATCH if role == "tgt" else MATCH_OR_ONE
                raise DataError(f"{role} has more lines than src, which has {n_lines}; {match}")

    def _of_all(self, role: Role) -> bool:
        return role != "tgt" and self.beside[role].n_lines == 1

    def _take(self, role: Role, n: int) -> list[Line]:
        if self._of_all(role):
            return self.ahead[role]
        ahead, beside = self.ahead[role], self.beside[role]
        lines = ahead[:n] + beside.take(n - len(ahead[:n]))
        self.ahead[role] = ahead[n:]
        if len(lines) < n:
            match = MATCH if role == "tgt" else MATCH_OR_ONE
            raise DataError(f"src has more lines than {role}, which has {beside.n_lines}; {match}")
        return lines


# -- what the lines show --------------------------------------------------------------------------


def note_encoding(reader: LineReader | None, sources: Sequence[str], summary: Summary) -> None:
    """Log which encoding would fit if more than a few lines are not UTF-8.

    reader  of a stream, which it has read to its end; a file is read again
    """
    noted = summary.notes.get("invalid-utf8")
    if noted is None or noted.n_lines <= min(FEW_LINES, summary.n_lines / 2):
        return
    reader = reader or (read_again(sources[0]) if len(sources) == 1 else None)
    if reader is None or not reader.not_utf8:
        return
    encoding = guess_encoding(reader.not_utf8)
    is_standard = reader.name == STANDARD_INPUT
    file = "FILE" if is_standard else shlex.quote(reader.name)
    packed = is_packed("/dev/stdin" if is_standard else reader.name)
    unpack, source = (f"zcat {file} | ", "") if packed else ("", f" {file}")
    if reader.n_utf8 > noted.n_lines / 10:  # as a whole, the file must not be converted
        remedy = "other lines are, so convert these alone"
    elif encoding:
        remedy = f"{unpack}iconv -f {encoding} -t utf-8{source}"
    else:
        remedy = f"see {unpack}file -i{source or ' -'}"
    likely = f" but look like {encoding}" if encoding else ""
    LOG.info("NOTE: lines %s are not UTF-8%s; %s", noted.shown(), likely, remedy)


def read_again(src: str) -> LineReader | None:
    """A reader that has read a file to its end; None if that is not possible any more."""
    with contextlib.suppress(FileError), open_input(src) as fd:
        reader = LineReader(fd, src)
        for _ in reader.windows():
            pass
        return reader
    return None


def is_packed(path: str) -> bool:
    """Return whether a file is gzip data.  A pipe, whose data are gone, counts as text."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(len(GZIP)) == GZIP
    return False
