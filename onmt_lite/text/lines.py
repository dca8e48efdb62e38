"""Lines of an input.  A line feed ends a line; no other character does."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from onmt_lite.text.line import Line
from onmt_lite.text.stream import Stream, text_stream

CHUNK = 1 << 16
MAX_LINE_BYTES = 1 << 20  # more than any model reads; the rest of such a line is dropped
WINDOW_LINES = 1024
MAX_WINDOW_BYTES = 4 << 20
MAX_MEAN_BYTES = 4 << 10  # of the lines of a larger window
BOM = b"\xef\xbb\xbf"
MAX_SAMPLE = 1 << 16  # bytes of lines that are not UTF-8, kept to guess their encoding


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
        self.n_lines = 0
        self.not_utf8 = b""  # lines that are not UTF-8, up to about MAX_SAMPLE bytes
        self.n_utf8 = 0  # lines in UTF-8 that are not ASCII
        self._lines = self._parsed(fd)

    def windows(self) -> Iterator[list[Line]]:
        """Yield lists of lines, numbered from 0.

        Raises FileError if reading fails, DataError for an input that is not text.
        """
        max_bytes = max_bytes_of(self.window_lines)
        lines: list[Line] = []
        n_bytes = 0
        for line, size in self._lines:
            if line is not None:
                lines.append(line)
                n_bytes += size
            full = len(lines) >= self.window_lines or n_bytes >= max_bytes
            if lines and (full or line is None):
                yield lines
                lines, n_bytes = [], 0
        if lines:
            yield lines

    def take(self, n: int) -> list[Line]:
        """Read the next n lines; fewer at the end.  Errors as above."""
        return list(islice((line for line, _ in self._lines if line is not None), n))

    def _parsed(self, fd: int) -> Iterator[tuple[Line | None, int]]:
        """Yield lines and their bytes; None at a pause."""
        for raw, cut in raw_lines(text_stream(fd, self.name)):
            if raw is None:
                yield None, 0
                continue
            line = self.parse(raw, self.n_lines, cut)
            self.n_lines += 1
            if not raw.isascii():  # as JSON that escapes half a character is
                if "invalid-utf8" not in line.notes:
                    self.n_utf8 += 1
                elif len(self.not_utf8) < MAX_SAMPLE:
                    self.not_utf8 += raw[:MAX_SAMPLE] + b"\n"
            yield line, len(raw)


def max_bytes_of(n_lines: int) -> int:
    """The bytes at which a window of so many lines ends early."""
    return max(MAX_WINDOW_BYTES, MAX_MEAN_BYTES * n_lines)


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
