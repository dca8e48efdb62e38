r"""Lines of bytes, compared with plain `bytes.split(b"\n")`."""

import gzip
import math
import os
import re
import threading
import tracemalloc
import zlib

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from onmt_lite.errors import FileError
from onmt_lite.jobs.inputs import open_input, scan_file
from onmt_lite.system.file_types import detect_file_type
from onmt_lite.text import lines as lines_module
from onmt_lite.text.lines import (
    Line,
    LineReader,
    decode_line,
    is_all_uppercase,
    make_line_from_json,
    make_line_from_text,
)

BOM = b"\xef\xbb\xbf"
ODD = [b"\n", b"\r", b"\r\n", b"\n\n", BOM, b"\0", b"\x85", b"\x0b", b"\x0c", b"\x1c", b" ", b"\t"]
ODD += [text.encode() for text in ("\x85", "\u2028", "\u2029", "ü", "😀", "word")]
ODD += [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\xaf"]  # not UTF-8
DATA = st.lists(st.one_of(st.sampled_from(ODD), st.binary(max_size=3)), max_size=12).map(b"".join)


def line_break_warnings(text):
    """Return the warning of a text with line breaks inside."""
    breaks = re.search("\\S[^\\S]*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\\s*\\S", text)
    return ("line-breaks",) if breaks else ()


def split_lines(data):
    """Return (text, warnings) of each line."""
    parts = data.removeprefix(BOM).split(b"\n")
    if parts[-1] == b"" and data != BOM:  # a byte order mark only is a line without text
        parts.pop()  # nothing follows the last line feed
    found = []
    for part in parts:
        part = part[:-1] if part.endswith(b"\r") else part
        try:
            text, notes = part.decode("utf-8"), ()
        except UnicodeDecodeError:
            text, notes = part.decode("utf-8", "replace"), ("invalid-utf8",)
        found.append((text, notes + line_break_warnings(text)))
    return found


def read_file(path, data, **options):
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return list(LineReader(fd, str(path), **options).windows())
    finally:
        os.close(fd)


def read_pipe(pieces, **options):
    """Read input that another thread writes in pieces."""
    reading, writing = os.pipe()

    def write():
        for piece in pieces:
            os.write(writing, piece)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return list(LineReader(reading, "pipe", **options).windows())
    finally:
        thread.join()
        os.close(reading)


LOUD = ["GUTEN TAG!", "ÄRGER", "UM 14 UHR", "DAS HAUS.", "GROß", "STRAẞE"]
QUIET = ["", "I", "ABC", "14:35", "Guten Tag", "IBM ist da", "ßßßß", "你好吗朋友"]


@pytest.mark.parametrize("text", LOUD + QUIET)
def test_is_all_uppercase(text):
    assert is_all_uppercase(text) == (text in LOUD)


def test_line_from_text_replaces_lone_surrogate():
    assert make_line_from_text("gut \U0001f600", 3) == Line(3, "gut \U0001f600")
    assert make_line_from_text("gut \ud83d", 3) == Line(3, "gut ?", ("invalid-utf8",))


def flat(windows):
    found = [line for window in windows for line in window]
    assert [line.id for line in found] == list(range(len(found)))
    assert all(windows), "an empty window"
    return [(line.text, line.notes) for line in found]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "file"


@settings(max_examples=250)
@given(DATA, st.integers(1, 7), st.sampled_from([1, 2, 3, 7, 1 << 16]))
@example(b"", 1, 1)
@example(b"\n", 1, 1)
@example(BOM, 1, 1)
@example(BOM + BOM + b"a\n" + BOM, 1, 1)
@example(BOM + b"\n", 1, 2)
@example(b"a\r\r\n\rb\r", 2, 1)
@example("a\u2028b\x85c\x0bd\x1ce\u2029\n".encode(), 1, 3)
@example(b"a\0b\n\0\n", 3, 2)
@example("ü\n😀".encode(), 1, 1)  # characters split by reads of one byte
def test_line_reader_file_equals_split(path, data, window_lines, chunk):
    assume(not detect_file_type(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "CHUNK", chunk)
        windows = read_file(path, data, window_lines=window_lines)
    assert flat(windows) == split_lines(data)
    assert all(len(window) == window_lines for window in windows[:-1])
    assert all(len(window) <= window_lines for window in windows)
    assert scan_file(str(path), [math.inf]).n_lines == len(split_lines(data))


@settings(max_examples=100)
@given(st.lists(DATA.filter(len), max_size=6), st.integers(1, 7))
@example([b"a", b"\n", b"b\r", b"\nc"], 3)
@example([BOM[:1], BOM[1:] + b"x\n"], 3)
@example([b"\xc3", b"\xbc\n"], 3)
def test_line_reader_pipe_lines_do_not_depend_on_writes(pieces, window_lines):
    # The reader may see only the first bytes
    assume(not any(detect_file_type(b"".join(pieces[:n])) for n in range(len(pieces) + 1)))
    windows = read_pipe(pieces, window_lines=window_lines)
    assert flat(windows) == split_lines(b"".join(pieces))
    assert all(len(window) <= window_lines for window in windows)


@settings(max_examples=100)
@given(st.lists(st.sampled_from([b"", b"a", b"abcd", b"abcde", b"abcdefghij"]), max_size=6))
@example([b"abcde"])
def test_line_above_byte_limit_is_truncated_with_warning(path, texts):
    data = b"\n".join(texts)
    expected = [
        (part[:4].decode(), ("truncated",) if len(part) > 4 else ()) for part in data.split(b"\n")
    ]
    if data.endswith(b"\n") or not data:
        expected.pop()
    for chunk in (1, 3, 64):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lines_module, "MAX_LINE_BYTES", 4)
            patch.setattr(lines_module, "CHUNK", chunk)
            assert flat(read_file(path, data)) == expected


CUTS = [
    (b"abcde\xc3\xbc", "abcde", ("truncated",)),  # an incomplete character is dropped
    (b"abc\xf0\x9f\x98\x80", "abc", ("truncated",)),
    (b"abcd\xc3\xbc", "abcd\xfc", ()),
    ("€€€".encode(), "€€", ("truncated",)),
    (b"a\xffbcdefgh", "a\ufffdbcde", ("truncated", "invalid-utf8")),
    (b"abcdef\r", "abcdef", ()),  # the line ending does not count
]


@pytest.mark.parametrize("chunk", [1, 1 << 16])
@pytest.mark.parametrize("data, text, notes", CUTS)
def test_truncated_line_ends_at_character_boundary(path, monkeypatch, data, text, notes, chunk):
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 6)
    monkeypatch.setattr(lines_module, "CHUNK", chunk)
    (found, found_notes), after = flat(read_file(path, data + b"\nz\n"))
    assert (found, set(found_notes), after) == (text, {*notes}, ("z", ()))


def test_window_is_bounded_by_bytes(path, monkeypatch):
    """A few long lines fill a window like many short ones."""
    monkeypatch.setattr(lines_module, "MAX_WINDOW_BYTES", 10)
    monkeypatch.setattr(lines_module, "MAX_MEAN_BYTES", 0)
    windows = read_file(path, b"abcdef\n" * 5 + b"a\n" * 3)
    assert [len(window) for window in windows] == [2, 2, 4]


@pytest.mark.parametrize("parse", [decode_line, make_line_from_json])
@pytest.mark.parametrize(
    ("text", "n"), [(b"a" * 999, 10), (b"a" * 99 + b"\n", 40)], ids=["one line", "many lines"]
)
def test_gzip_bomb_does_not_increase_memory(path, text, n, parse):
    """10 MB without a line feed, or 40,000 lines, a few hundred times their compressed size."""
    packing = zlib.compressobj(wbits=31)
    packed = b"".join(packing.compress(text * 1000) for _ in range(n))
    path.write_bytes(packed + packing.flush())
    with open_input(str(path)) as fd:
        tracemalloc.start()
        n_lines = sum(len(window) for window in LineReader(fd, "x", parse=parse).windows())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert n_lines == max(1, 1000 * n * text.count(b"\n")) and peak < 5 << 20


@pytest.mark.timeout(60)  # a reader that waits for more would never return
def test_line_reader_pipe_yields_line_before_next_is_written():
    reading, writing = os.pipe()
    try:
        windows = LineReader(reading, "pipe").windows()
        os.write(writing, b"first\n")
        assert [line.text for line in next(windows)] == ["first"]
        os.write(writing, b"second\nthird\nfour")  # an incomplete line
        assert [line.text for line in next(windows)] == ["second", "third"]
        os.write(writing, b"th\n")
        assert [line.text for line in next(windows)] == ["fourth"]
        os.write(writing, b"last")
        os.close(writing)
        assert [(line.id, line.text) for line in next(windows)] == [(4, "last")]
        assert next(windows, None) is None
    finally:
        os.close(reading)


@pytest.mark.timeout(60)
def test_gzip_pipe_first_byte_arrives_separately():
    data = gzip.compress(b"one\ntwo\n")
    reading, writing = os.pipe()
    os.write(writing, data[:1])
    later = threading.Timer(0.2, lambda: (os.write(writing, data[1:]), os.close(writing)))
    later.start()
    assert flat(LineReader(reading, "pipe").windows()) == [("one", ()), ("two", ())]
    later.join()
    os.close(reading)


@pytest.mark.parametrize("change", [b"a\nb\nc\n", b"a\n", b"b\nb\n"])
def test_file_that_changes_while_read(tmp_path, change):
    path = tmp_path / "src"
    path.write_bytes(b"a\nb\n")
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileError, match="src changed while it was being read"):
        with open_input(str(path)):
            path.write_bytes(change)
    with open_input(str(path)) as fd:
        assert os.read(fd, 99) == change


def test_decode_line_warnings_and_ids():
    assert decode_line(BOM + b"a", 0).text == "a"
    assert decode_line(BOM + b"a", 1).text == "\ufeffa"
    assert decode_line(b"a\r", 5).text == "a"
    assert decode_line(b"a\r\r", 5).text == "a\r"
    line = decode_line(b"\xffabcdefg", 5, is_truncated=True)
    assert (line.id, line.text) == (5, "\ufffdabcdefg")
    assert set(line.notes) == {"truncated", "invalid-utf8"}


def test_read_error_names_file(tmp_path):
    for path in (tmp_path, tmp_path / "none"):  # a directory can be opened but not read
        with pytest.raises(FileError, match=str(path)):
            scan_file(str(path), [math.inf])
