"""Lines of an input.  A line feed ends a line; no other character does."""

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from onmt_lite.errors import FileError
from onmt_lite.text.line import Line
from onmt_lite.text.stream import Stream, text_stream

CHUNK = 1 << 16
MAX_LINE_BYTES = 1 << 20  # more than any model reads; the rest of such a line is dropped
WINDOW_LINES = 1024
MAX_WINDOW_BYTES = 4 << 20
MAX_MEAN_BYTES = 4 << 10  # of the lines of a larger window
BOM = b"\xef\xbb\xbf"
MAX_SAMPLE = 1 << 16  # bytes of lines that are not UTF-8, kept to guess their encoding


@dataclass(frozen=True)
class Window:
    """Lines in a row; `lines` is empty if they are passed over."""

    number: int
    n_lines: int
    lines: list[Line]


class LineReader:
    """Reads lines from a file descriptor, in windows of bounded size.

    A window ends early when no more input is waiting, so that a program that writes one line to a
    pipe gets the translation without closing the pipe.  Of a file, windows depend on its lines
    alone.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        window_lines: int = WINDOW_LINES,
        parse: Callable[[bytes, int, bool], Line] | None = None,
    ):
        """`name` is the input's name in messages; `parse` makes a line of its bytes, its number
        and whether it is cut, by default `to_line`."""
        self.name, self.window_lines, self.parse = name, window_lines, parse or to_line
        self.max_bytes = max(MAX_WINDOW_BYTES, MAX_MEAN_BYTES * window_lines)
        self.n_lines = 0  # read, or passed over
        self.not_utf8 = b""  # lines that are not UTF-8, up to about MAX_SAMPLE bytes
        self.n_utf8 = 0  # lines in UTF-8 that are not ASCII
        self._raw = self._raw_lines(fd)

    def windows(self) -> Iterator[list[Line]]:
        """Yield lists of lines, numbered from 0.

        Raises FileError if reading fails, DataError for an input that is not text.
        """
        return (window.lines for window in self.cut())

    def cut(self, wanted: Container[int] | None = None) -> Iterator[Window]:
        """Yield all windows; lines only of those whose numbers are `wanted`.  Errors as above."""
        number = n_lines = n_bytes = 0
        lines: list[Line] = []
        for raw, cut in self._raw:
            if raw is not None:
                if wanted is None or number in wanted:
                    lines.append(self._line(raw, cut))
                self.n_lines += 1
                n_lines, n_bytes = n_lines + 1, n_bytes + len(raw)
            full = n_lines >= self.window_lines or n_bytes >= self.max_bytes
            if n_lines and (full or raw is None):
                yield Window(number, n_lines, lines)
                number, n_lines, n_bytes, lines = number + 1, 0, 0, []
        if n_lines:
            yield Window(number, n_lines, lines)

    def take(self, n: int) -> list[Line]:
        """Read the next n lines; fewer at the end.  Errors as above."""
        lines: list[Line] = []
        for raw, cut in self._next(n):
            lines.append(self._line(raw, cut))
            self.n_lines += 1
        return lines

    def skip(self, n: int) -> int:
        """Pass over n lines, fewer at the end: their number.  Errors as above."""
        n_skipped = sum(1 for _ in self._next(n))
        self.n_lines += n_skipped
        return n_skipped

    def _next(self, n: int) -> Iterator[tuple[bytes, bool]]:
        lines = ((raw, cut) for raw, cut in self._raw if raw is not None)
        return islice(lines, n)

    def _line(self, raw: bytes, cut: bool) -> Line:
        line = self.parse(raw, self.n_lines, cut)
        self._look_at(line, raw)
        return line

    def _look_at(self, line: Line, raw: bytes) -> None:
        if "invalid-utf8" not in line.notes:
            self.n_utf8 += not raw.isascii()
        elif len(self.not_utf8) < MAX_SAMPLE and not raw.isascii():  # as JSON has half a character
            self.not_utf8 += raw[:MAX_SAMPLE] + b"\n"

    def _raw_lines(self, fd: int) -> Iterator[tuple[bytes | None, bool]]:
        yield from raw_lines(text_stream(fd, self.name))  # only now is the input looked at


def raw_lines(stream: Stream) -> Iterator[tuple[bytes | None, bool]]:
    """Yield (bytes of a line without line feed, whether it is cut); bytes None at a pause."""
    pending, cut = b"", False
    while chunk := stream.read(CHUNK):
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            yield shorten(pending + part, cut)
            pending, cut = b"", False
        pending += rest
        if len(pending) > MAX_LINE_BYTES + 1:  # one more for a carriage return
            pending, cut = pending[: MAX_LINE_BYTES + 1], True
        if not stream.waits():
            yield None, False
    if pending:
        yield shorten(pending, cut)


def shorten(raw: bytes, cut: bool) -> tuple[bytes, bool]:
    """Cut a line to MAX_LINE_BYTES, not counting a final carriage return.

    Returns the bytes and whether any are lost, which `cut` says of the bytes given.
    """
    room = MAX_LINE_BYTES + (raw.endswith(b"\r") and not cut)
    return raw[:room], cut or len(raw) > room


def to_line(raw: bytes, number: int, cut: bool = False) -> Line:
    """Decode a line, without a byte order mark on line 0 and without a final carriage return."""
    if number == 0:
        raw = raw.removeprefix(BOM)
    raw = raw.removesuffix(b"\r")
    notes = ("truncated",) if cut else ()
    try:
        return Line(number, raw.decode("utf-8"), notes)
    except UnicodeDecodeError as error:
        if cut and error.end >= len(raw) - 3:  # the cut went through a character
            return Line(number, raw.decode("utf-8", "ignore"), notes)
        return Line(number, raw.decode("utf-8", "replace"), (*notes, "invalid-utf8"))


def from_text(text: str, number: int) -> Line:
    """Make a line of a string.  Lone surrogates, which UTF-8 cannot encode, are replaced."""
    try:
        text.encode("utf-8")
        return Line(number, text)
    except UnicodeEncodeError:
        return Line(number, text.encode("utf-8", "replace").decode("utf-8"), ("invalid-utf8",))


def from_texts(texts: Iterable[str], name: str) -> Iterator[Line]:
    """Make lines of the strings in a list, a generator, a column or an open file.

    A final line feed is removed.  Raises TypeError for anything but a string; `name` is the name of
    the texts in the message.
    """
    is_table = isinstance(texts, Mapping) or hasattr(texts, "columns")
    if isinstance(texts, (str, bytes)) or is_table or not hasattr(texts, "__iter__"):
        got = "one string" if isinstance(texts, str) else type(texts).__name__
        raise TypeError(f"{name}: expected a list of lines, got {got}")
    return (
        from_text(_checked(text, f"{name}[{i}]").removesuffix("\n").removesuffix("\r"), i)
        for i, text in enumerate(texts)
    )


def _checked(text: object, place: str) -> str:
    if isinstance(text, str):
        return text
    shown = "NaN" if isinstance(text, float) and math.isnan(text) else repr(text)[:50]
    raise TypeError(f"{place}: expected a line of text, got {shown} ({type(text).__name__})")


def in_capitals(text: str) -> bool:
    """Whether a line of at least four letters is all capitals: GUTEN TAG, but not ABC.

    ß is hardly ever written as a capital, and may be a part of such a line: GROßE STRAßE.
    """
    n_letters = sum(char.isalpha() for char in text)
    return text.replace("ß", "").isupper() and n_letters > 3


def count_lines(path: str) -> int:
    """Count the lines of a text file, with a last line that has no line feed.

    Raises FileError and DataError as `LineReader` does.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    try:
        return count_ahead(fd, path)
    finally:
        os.close(fd)


def count_ahead(fd: int, name: str) -> int:
    """Count lines from the position of a descriptor to the end; see `count_lines`."""
    n, last = 0, b"\n"
    stream = text_stream(fd, name)
    while chunk := stream.read(1 << 20):
        n, last = n + chunk.count(b"\n"), chunk[-1:]
    return n + (last != b"\n")
