"""JSON Lines input: texts and fields, compared with json.loads of each line."""

import contextlib
import json

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Translation
from onmt_lite.jobs.inputs import scan_inputs
from onmt_lite.jobs.reports import format_jsonl
from onmt_lite.jobs.tasks import RangeReader
from onmt_lite.system.file_types import detect_file_type
from onmt_lite.text.lines import MAX_DEPTH, Line, make_line_from_json
from tests.unit.text.test_lines import line_break_warnings

INVALID = Line(1, "", ("invalid-json",), "{}")
NAMES = st.sampled_from(["text", "id", "src", "hyps", "notes", "fields", "", "te\u0078t"])
NUMBERS = st.sampled_from(["0", "-0", "1.10", "1e400", "-1E-400", "9" * 5000, "1e5", "0.1e+1"])
WRONG = st.sampled_from(
    ["NaN", "-Infinity", "01", ".5", "'a'", "{1:2}", "nul", "[1,]", '"\t"', "￮"]
)
SPACES = st.sampled_from(["", " ", "\t", " \r "])
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=5)


@st.composite
def strings(draw):
    return json.dumps(draw(TEXTS), ensure_ascii=draw(st.booleans()))


def spaced(draw, *parts):
    return "".join(f"{draw(SPACES)}{part}" for part in parts) + draw(SPACES)


@st.composite
def objects(draw, values):
    names = draw(st.lists(st.one_of(NAMES.map(json.dumps), strings()), max_size=4))
    members = [spaced(draw, name, ":", draw(values)) for name in names]
    return spaced(draw, "{", ",".join(members), "}") if members else spaced(draw, "{", "}")


@st.composite
def arrays(draw, values):
    return spaced(draw, "[", ",".join(draw(st.lists(values, max_size=3))), "]")


SCALARS = st.one_of(st.sampled_from(["true", "false", "null"]), NUMBERS, strings())
VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | arrays(inner), max_leaves=6)
OBJECTS = objects(VALUES)
DAMAGED = st.one_of(
    VALUES,
    objects(VALUES | WRONG),
    st.builds(lambda text, cut: text[:cut], OBJECTS, st.integers(0, 99)),
    st.builds(str.__add__, OBJECTS, st.sampled_from(["}", ",", "x", "\x0b", "\x00", "{}"])),
)


def parse(text):
    """Return the text of a JSON object and its other fields.

    None if it is not an object, or a field has a number that JSON does not have or Python does not
    parse.
    """
    try:
        found = json.loads(text)
        value = found.pop("text", None)
        json.dumps(found, allow_nan=False)
    except (ValueError, AttributeError, TypeError):  # not JSON, or another type
        return None
    return value, found


@settings(max_examples=200)
@given(OBJECTS | DAMAGED)
@example('{"text": "a", "id": 12345678901234567890.10, "id": 1, "text": "b"}')
@example('{"text": "a\\ud83d", "x": "\\ud83d\u2028"}')
@example('{"text": null, "id": 3}')
@example('{"text": "a", "id": [NaN]}')
@example('{"text": "a", "id": -Infinity}')
@example('{"text": "a", "id": ' + "9" * 5000 + "}")
@example('{"text": "a\\nb"}')
def test_json_line_has_text_of_field(text):
    raw = text.encode("utf-8", "replace")
    line = make_line_from_json(raw, 1)
    parsed = parse(raw.decode("utf-8"))
    if parsed is None:
        assert line == INVALID
        return
    value, others = parsed
    _, found = parse(line.fields)
    assert (found, list(found)) == (others, list(others))
    if not isinstance(value, str):
        note = "invalid-json" if "text" in json.loads(raw) else "no-text-field"
        assert (line.text, line.notes) == ("", (note,))
    elif value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") == value:
        assert (line.text, line.notes) == (value, line_break_warnings(value))
    else:
        assert len(line.text) == len(value)
        assert line.notes == ("invalid-utf8", *line_break_warnings(line.text))
        assert all(a == b or b == "\ufffd" for a, b in zip(value, line.text))


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ('{"b": 1, "ä": "ß\\u00e4", "a": [2 , {}]}', '{"b": 1, "ä": "ßä", "a": [2, {}]}'),
        ('{"n": 1.10, "m": 1E2, "z": -0.0}', '{"n": 1.1, "m": 100.0, "z": -0.0}'),
        (f'{{"n": {"9" * 4300}}}', f'{{"n": {"9" * 4300}}}'),
        ('{"a": 1, "b": 2, "a": {"a": 3, "a": 4}}', '{"a": {"a": 4}, "b": 2}'),
        ('{"a": "\\ud83d\\ude00", "b": "\\uDE00"}', '{"a": "😀", "b": "\\ude00"}'),
    ],
)
def test_json_line_fields_are_written_like_json_dumps(fields, written):
    line = make_line_from_json(f'{fields[:-1]}, "text": "x"}}'.encode(), 1)
    assert line == Line(1, "x", (), written)
    line.fields.encode("utf-8")


@settings(max_examples=60)
@given(OBJECTS)
def test_record_contains_other_fields(text):
    line = make_line_from_json(text.encode("utf-8", "replace"), 7)
    written = format_jsonl(Translation(7, line.text, notes=line.notes, fields=line.fields))
    assert written.splitlines(keepends=True) == [written]
    _, record = parse(written)
    assert record.pop("fields") == parse(line.fields)[1]
    assert record == {"id": 7, "src": line.text, "hyps": [], "notes": [*line.notes]}


@settings(max_examples=60)
@given(st.binary(max_size=9), st.booleans())
def test_json_line_any_bytes_give_a_line(data, cut):
    line = make_line_from_json(b'{"text": "' + data + b'"}', 1, cut)
    assert line.text.encode("utf-8") is not None
    assert ("truncated" in line.notes) == cut and (not cut or "invalid-json" in line.notes)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(OBJECTS.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=5)),
        max_size=6,
    )
)
@example([b'{"text": "a"}', b"", b'{"text": "b"}\r', b"{", b"\xff"])
def test_json_lines_file_keeps_line_count(tmp_path_factory, lines):
    data = b"\n".join(lines)
    lines = data.split(b"\n") if data else []  # drawn lines may contain line feeds
    assume(detect_file_type(data) is None)
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_bytes(data)
    options = TranslateOptions.of(src=str(path), bucket_lines=2)
    ranges = scan_inputs(options, [str(path)]).ranges
    with contextlib.closing(RangeReader()) as reader:
        found = [line for each in ranges for line in reader.read_bucket(each, options.data).lines]
    lines = lines[:-1] if lines and not lines[-1] else lines
    assert found == [make_line_from_json(line, i) for i, line in enumerate(lines)]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "Infinity", "1e400", "9" * 4301])
def test_json_line_unwritable_number_is_invalid(number):
    for value in (number, f"[1, {number}]"):
        assert make_line_from_json(f'{{"text": "x", "n": {value}}}'.encode(), 1) == INVALID


@pytest.mark.parametrize(("head", "tail"), [("[", "]"), ('{"a": ', "}")], ids=["[]", "{}"])
def test_json_line_too_deep_nesting_is_invalid(head, tail):
    for depth in (1, MAX_DEPTH, MAX_DEPTH + 1, 5000, 200_000):
        value = head * depth + "1" + tail * depth
        line = make_line_from_json(f'{{"text": "a", "x": {value}}}'.encode(), 1)
        fits = Line(1, "a", (), f'{{"x": {value}}}')
        assert line == (fits if depth <= MAX_DEPTH else INVALID)


def test_json_line_encoding_byte_order_mark_and_field_name():
    line = make_line_from_json(b'{"text": "f\xfcr", "x": "\xff"}', 1)
    assert line == Line(1, "f\ufffdr", ("invalid-utf8",), '{"x": "\ufffd"}')
    assert make_line_from_json(b'\xef\xbb\xbf{"text": "a"}\r', 0) == Line(0, "a", (), "{}")
    assert make_line_from_json(b'\xef\xbb\xbf{"text": "a"}', 1) == INVALID
    raw = '{"text": "a", "ü b": "c"}'.encode()
    assert make_line_from_json(raw, 1, field="ü b") == Line(1, "c", (), '{"text": "a"}')
    assert make_line_from_json(raw, 1, field="none").notes == ("no-text-field",)
