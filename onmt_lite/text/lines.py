"""Lines of an input, from its bytes.  A line feed ends a line; no other character does."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from onmt_lite.system.byte_stream import ByteStream, text_stream
from onmt_lite.system.safe_parse import parse_json

CHUNK = 1 << 16
MAX_LINE_BYTES = 1 << 20  # more than any model reads; the rest of such a line is dropped
WINDOW_LINES = 1024
MAX_WINDOW_BYTES = 4 << 20
MAX_MEAN_BYTES = 4 << 10  # of the lines of a larger window
BOM = b"\xef\xbb\xbf"
# Characters that some programs take for the end of a line
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
CAPITALS = "capitals"  # the note of a line that was read in small letters
INVALID_JSON = "invalid-json"  # the note of a line that is no object with a text
NO_TEXT_FIELD = (
    "no-text-field"  # the note of a line that is an object without the field of the text
)
WITHOUT_TEXT = {INVALID_JSON, NO_TEXT_FIELD}


@dataclass(frozen=True)
class Line:
    """One line of input."""

    id: int
    text: str
    notes: tuple[str, ...] = ()  # on how it was read, as in the JSONL output
    fields: str | None = None  # of a JSON object: the object without the text, as JSON
    traced: bool = False  # its search is to be watched, see `onmt_lite.trace.tracer`
    forced: tuple[str, ...] = ()  # phrases that its translation is to hold
    banned: tuple[str, ...] = ()  # phrases that no translation of it may hold


# -- lines ----------------------------------------------------------------------------------------


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
        self.name, self.window_lines, self.parse = name, window_lines, parse or decode_line
        self.n_lines = 0
        self._lines = self._parsed(fd)

    def windows(self) -> Iterator[list[Line]]:
        """Yield lists of lines, numbered from 0.

        Raises FileError if reading fails, DataError for an input that is not text.
        """
        max_bytes = max_window_bytes(self.window_lines)
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

    def lines(self) -> Iterator[Line]:
        """Yield one line after the other.  Errors as above."""
        return (line for line, _ in self._lines if line is not None)

    def _parsed(self, fd: int) -> Iterator[tuple[Line | None, int]]:
        """Yield lines and their bytes; None at a pause."""
        for raw, cut in iter_raw_lines(text_stream(fd, self.name)):
            if raw is None:
                yield None, 0
                continue
            line = self.parse(raw, self.n_lines, cut)
            self.n_lines += 1
            yield line, len(raw)


def max_window_bytes(n_lines: int) -> int:
    """The bytes at which a window of so many lines ends early."""
    return max(MAX_WINDOW_BYTES, MAX_MEAN_BYTES * n_lines)


def growing_windows(
    pairs: Iterable[tuple[Line, Line | None]],
) -> Iterator[list[tuple[Line, Line | None]]]:
    """Yield windows of growing size: the first results come soon, later windows fill batches."""
    window: list[tuple[Line, Line | None]] = []
    n_chars, size = 0, 1
    for pair in pairs:
        window.append(pair)
        n_chars += len(pair[0].text)
        if len(window) == size or n_chars >= MAX_WINDOW_BYTES:
            yield window
            window, n_chars, size = [], 0, min(2 * size, WINDOW_LINES)
    if window:
        yield window


def iter_raw_lines(stream: ByteStream) -> Iterator[tuple[bytes | None, bool]]:
    """Yield (bytes of a line without line feed, whether it is cut); bytes None at a pause."""
    pending, cut = b"", False
    while chunk := stream.read(CHUNK):
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            yield truncate_line(pending + part, cut)
            pending, cut = b"", False
        pending += rest
        if len(pending) > MAX_LINE_BYTES + 1:  # one more for a carriage return
            pending, cut = pending[: MAX_LINE_BYTES + 1], True
        if not stream.waits():
            yield None, False
    if pending:
        yield truncate_line(pending, cut)


def truncate_line(raw: bytes, cut: bool) -> tuple[bytes, bool]:
    """Cut a line to MAX_LINE_BYTES, not counting a final carriage return.

    Returns the bytes and whether any are lost, which `cut` says of the bytes given.
    """
    room = MAX_LINE_BYTES + (raw.endswith(b"\r") and not cut)
    return raw[:room], cut or len(raw) > room


def decode_line(raw: bytes, number: int, cut: bool = False) -> Line:
    """Decode a line, without a byte order mark on line 0 and without a final carriage return."""
    return with_breaks(decoded(raw, number, cut))


def with_breaks(line: Line) -> Line:
    """With a note if the text has several lines by itself; they are read as one."""
    if not LINE_BREAKS.search(line.text.strip()):
        return line
    return replace(line, notes=(*line.notes, "line-breaks"))


def decoded(raw: bytes, number: int, cut: bool) -> Line:
    """As `to_line`, whatever the text holds."""
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


def line_from_text(text: str, number: int) -> Line:
    """Make a line of a string.  Lone surrogates, which UTF-8 cannot encode, are replaced."""
    valid = text.encode("utf-8", "replace").decode("utf-8")
    return with_breaks(Line(number, valid, () if valid == text else ("invalid-utf8",)))


def lines_from_texts(texts: Iterable[str], name: str) -> Iterator[Line]:
    """Make lines of the strings in a list, a generator, a column or an open file.

    A final line feed is removed.  Raises TypeError for anything but a string; `name` is the name of
    the texts in the message.
    """
    is_table = isinstance(texts, Mapping) or hasattr(texts, "columns")
    if isinstance(texts, (str, bytes)) or is_table or not hasattr(texts, "__iter__"):
        got = "one string" if isinstance(texts, str) else type(texts).__name__
        raise TypeError(f"{name}: expected a list of lines, got {got}")
    return (
        line_from_text(_checked(text, f"{name}[{i}]").removesuffix("\n").removesuffix("\r"), i)
        for i, text in enumerate(texts)
    )


def _checked(text: object, place: str) -> str:
    if isinstance(text, str):
        return text
    shown = "NaN" if isinstance(text, float) and math.isnan(text) else repr(text)[:50]
    raise TypeError(f"{place}: expected a line of text, got {shown} ({type(text).__name__})")


def is_all_uppercase(text: str) -> bool:
    """Whether a line of at least four letters is all capitals: GUTEN TAG, but not ABC.

    ß is hardly ever written as a capital, and may be a part of such a line: GROßE STRAßE.
    """
    n_letters = sum(char.isalpha() for char in text)
    return text.replace("ß", "").isupper() and n_letters > 3


# -- lines that are JSON objects, one field of which is the text to translate ---------------------

MAX_DEPTH = 200  # arrays and objects in one another; not all readers take 1,000
HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")  # a lone surrogate, which no encoding has


def line_from_json(raw: bytes, number: int, cut: bool = False, field: str = "text") -> Line:
    """Make a line of a JSON object: its text is that of `field`, its `fields` are the others.

    An object without the field has no text, and the note `no-text-field`.
    Any other line has no text, and the note `invalid-json`; so has a line that is `cut`, whose
    object lacks its end, and one that cannot be written as JSON again: with NaN, Infinity, numbers
    that are too large for a float or whole ones of more than 4,300 digits, which Python does not
    read.
    """
    line = decoded(raw, number, cut)
    text, fields, note = None, "{}", INVALID_JSON
    try:
        record = parse_json(line.text, unique=False, max_depth=MAX_DEPTH + 1)
        if isinstance(record, dict):
            is_there = field in record
            value = record.pop(field, None)
            fields = json.dumps(record, ensure_ascii=False, allow_nan=False)
            text, note = value, INVALID_JSON if is_there else NO_TEXT_FIELD
    except ValueError:
        pass
    # Half a character becomes \\udXXX, its escape in JSON too
    fields = fields.encode("utf-8", "backslashreplace").decode("utf-8")
    if cut or not isinstance(text, str):
        return Line(number, "", (*line.notes, INVALID_JSON if cut else note), fields)
    whole = HALF_A_CHARACTER.sub("\ufffd", text)
    notes = line.notes if whole == text else (*line.notes, "invalid-utf8")
    return with_breaks(Line(number, whole, notes, fields))
