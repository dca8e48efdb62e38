"""Input lines, decoded from bytes. Only a line feed ends a line."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from onmt_lite.system.byte_stream import ByteStream, open_text_stream
from onmt_lite.system.safe_parse import parse_json

CHUNK = 1 << 16
MAX_LINE_BYTES = 1 << 20  # more than any model reads; longer lines are truncated
WINDOW_LINES = 1024
MAX_WINDOW_BYTES = 4 << 20
MAX_MEAN_BYTES = 4 << 10  # average line size in a larger window
BOM = b"\xef\xbb\xbf"
# Characters that some programs treat as a line end
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
CAPITALS = "capitals"  # warning: the line was lowercased
INVALID_JSON = "invalid-json"  # warning: the line is not a JSON object with text
NO_TEXT_FIELD = "no-text-field"  # warning: the JSON object has no text field
WITHOUT_TEXT = {INVALID_JSON, NO_TEXT_FIELD}


@dataclass(frozen=True)
class Line:
    """One line of input."""

    id: int
    text: str
    notes: tuple[str, ...] = ()  # warnings from reading, as in the JSONL output
    fields: str | None = None  # JSON input: the object without its text, as JSON
    traced: bool = False  # its search is recorded, see `onmt_lite.trace.tracer`
    forced: tuple[str, ...] = ()  # phrases that the translation must contain
    banned: tuple[str, ...] = ()  # phrases that the translation must not contain


# -- lines ----------------------------------------------------------------------------------------


class LineReader:
    """Reads lines from a file descriptor in windows of bounded size.

    A window ends early when no more input is waiting, so that a program can write one line to a
    pipe and read its translation without closing the pipe. For a file, windows depend only on its
    lines.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        window_lines: int = WINDOW_LINES,
        parse: Callable[[bytes, int, bool], Line] | None = None,
    ):
        """
        Args:
            fd: file descriptor to read.
            name: name of the input in messages.
            window_lines: maximum number of lines in a window.
            parse: makes a Line from its bytes, its number and whether it is truncated (default:
                `decode_line`).
        """
        self.name, self.window_lines, self.parse = name, window_lines, parse or decode_line
        self.n_lines = 0
        self._lines = self._parse_lines(fd)

    def windows(self) -> Iterator[list[Line]]:
        """Yield lists of lines, numbered from 0.

        Raises:
            FileError: if reading fails.
            DataError: if the input is not text.
        """
        max_bytes = get_max_window_bytes(self.window_lines)
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
        """Yield the lines one by one. Raises the same errors as `windows`."""
        return (line for line, _ in self._lines if line is not None)

    def _parse_lines(self, fd: int) -> Iterator[tuple[Line | None, int]]:
        """Yield each line and its size in bytes; (None, 0) at a pause of the input."""
        for raw, is_truncated in iter_raw_lines(open_text_stream(fd, self.name)):
            if raw is None:
                yield None, 0
                continue
            line = self.parse(raw, self.n_lines, is_truncated)
            self.n_lines += 1
            yield line, len(raw)


def get_max_window_bytes(n_lines: int) -> int:
    """Return the number of bytes at which a window of `n_lines` lines ends early."""
    return max(MAX_WINDOW_BYTES, MAX_MEAN_BYTES * n_lines)


def iterate_growing_windows(
    pairs: Iterable[tuple[Line, Line | None]],
) -> Iterator[list[tuple[Line, Line | None]]]:
    """Yield windows of growing size.

    Small first windows return the first results early; larger windows fill batches.
    """
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
    """Yield each line without its line feed and whether it is truncated.

    At a pause of the input, the bytes are None.
    """
    pending, is_truncated = b"", False
    while chunk := stream.read(CHUNK):
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            yield truncate_line(pending + part, is_truncated)
            pending, is_truncated = b"", False
        pending += rest
        if len(pending) > MAX_LINE_BYTES + 1:  # plus one for a carriage return
            pending, is_truncated = pending[: MAX_LINE_BYTES + 1], True
        if not stream.is_ready():
            yield None, False
    if pending:
        yield truncate_line(pending, is_truncated)


def truncate_line(raw: bytes, is_truncated: bool) -> tuple[bytes, bool]:
    """Truncate a line to MAX_LINE_BYTES, not counting a final carriage return.

    Args:
        raw: bytes of the line.
        is_truncated: whether bytes were dropped already.

    Returns:
        The bytes, and whether any bytes were dropped now or before.
    """
    limit = MAX_LINE_BYTES + (raw.endswith(b"\r") and not is_truncated)
    return raw[:limit], is_truncated or len(raw) > limit


def decode_line(raw: bytes, number: int, is_truncated: bool = False) -> Line:
    """Decode a line, dropping a byte order mark on line 0 and a final carriage return.

    Args:
        raw: bytes of the line.
        number: line number, from 0.
        is_truncated: whether the line is truncated.
    """
    return warn_about_breaks(_decode(raw, number, is_truncated))


def warn_about_breaks(line: Line) -> Line:
    """Add a warning if the text contains line breaks; it is translated as one line."""
    if not LINE_BREAKS.search(line.text.strip()):
        return line
    return replace(line, notes=(*line.notes, "line-breaks"))


def _decode(raw: bytes, number: int, is_truncated: bool) -> Line:
    """Decode a line without checking for line breaks.

    Args:
        raw: bytes of the line.
        number: line number, from 0.
        is_truncated: whether the line is truncated.
    """
    if number == 0:
        raw = raw.removeprefix(BOM)
    raw = raw.removesuffix(b"\r")
    notes = ("truncated",) if is_truncated else ()
    try:
        return Line(number, raw.decode("utf-8"), notes)
    except UnicodeDecodeError as error:
        if is_truncated and error.end >= len(raw) - 3:  # truncated inside a character
            return Line(number, raw.decode("utf-8", "ignore"), notes)
        return Line(number, raw.decode("utf-8", "replace"), (*notes, "invalid-utf8"))


def make_line_from_text(text: str, number: int) -> Line:
    """Make a line from a string. Lone surrogates are replaced, because UTF-8 cannot encode them."""
    valid = text.encode("utf-8", "replace").decode("utf-8")
    return warn_about_breaks(Line(number, valid, () if valid == text else ("invalid-utf8",)))


def make_lines_from_texts(texts: Iterable[str], name: str) -> Iterator[Line]:
    """Make lines from the strings in a list, a generator, a column or an open file.

    A final line feed is removed.

    Args:
        texts: the strings.
        name: name of the argument in messages.

    Raises:
        TypeError: if `texts` is not a sequence of strings.
    """
    is_mapping = isinstance(texts, Mapping) or hasattr(texts, "columns")
    if isinstance(texts, (str, bytes)) or is_mapping or not hasattr(texts, "__iter__"):
        got = "one string" if isinstance(texts, str) else type(texts).__name__
        raise TypeError(f"{name}: expected a list of lines, got {got}")
    return (
        make_line_from_text(
            _require_text(text, f"{name}[{i}]").removesuffix("\n").removesuffix("\r"), i
        )
        for i, text in enumerate(texts)
    )


def _require_text(text: object, position: str) -> str:
    """Return the text, or raise TypeError naming its position."""
    if isinstance(text, str):
        return text
    shown = "NaN" if isinstance(text, float) and math.isnan(text) else repr(text)[:50]
    raise TypeError(f"{position}: expected a line of text, got {shown} ({type(text).__name__})")


def is_all_uppercase(text: str) -> bool:
    """Return True if a line of at least four letters is in uppercase: GUTEN TAG, but not ABC.

    ß is rarely written in uppercase and may be part of such a line: GROßE STRAßE.
    """
    return text.replace("ß", "").isupper() and sum(map(str.isalpha, text)) > 3


# -- JSON lines ------------------------------------------------------------------------------------

MAX_DEPTH = 200  # nesting of arrays and objects; some JSON readers fail at 1,000
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # cannot be encoded


def make_line_from_json(
    raw: bytes, number: int, is_truncated: bool = False, field: str = "text"
) -> Line:
    """Make a line from a JSON object: the value of `field` is its text, the rest its `fields`.

    An object without the field becomes a line without text and with the warning `no-text-field`.
    Any other line becomes a line without text and with the warning `invalid-json`. This includes
    truncated lines and objects that cannot be written as JSON again: NaN, Infinity, numbers too
    large for a float, and integers of more than 4,300 digits, which Python does not parse.

    Args:
        raw: bytes of the line.
        number: line number, from 0.
        is_truncated: whether the line is truncated.
        field: name of the text field.
    """
    line = _decode(raw, number, is_truncated)
    text, fields, note = None, "{}", INVALID_JSON
    try:
        record = parse_json(line.text, unique=False, max_depth=MAX_DEPTH + 1)
        if isinstance(record, dict):
            has_field = field in record
            value = record.pop(field, None)
            fields = json.dumps(record, ensure_ascii=False, allow_nan=False)
            text, note = value, INVALID_JSON if has_field else NO_TEXT_FIELD
    except ValueError:
        pass
    # A lone surrogate becomes \\udXXX, which is also its JSON escape
    fields = fields.encode("utf-8", "backslashreplace").decode("utf-8")
    if is_truncated or not isinstance(text, str):
        return Line(number, "", (*line.notes, INVALID_JSON if is_truncated else note), fields)
    whole = LONE_SURROGATE.sub("\ufffd", text)
    notes = line.notes if whole == text else (*line.notes, "invalid-utf8")
    return warn_about_breaks(Line(number, whole, notes, fields))
