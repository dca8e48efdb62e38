"""JSON and YAML from outside: plain values, or a ValueError."""

import pytest

from onmt_lite.system.safe_parse import parse_json, parse_yaml


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True, "x"]}, [], "text", 7])
def test_plain_values_are_read(parse, value):
    text = {"{'a'": '{"a": [1, 2.5, null, true, "x"]}', "[]": "[]", "'text": '"text"', "7": "7"}
    (data,) = [each for start, each in text.items() if repr(value).startswith(start)]
    assert parse(data.encode()) == value


WRONG_JSON = {
    "cut": b'{"a": 1',
    "text": b"beam_size: 5",
    "not UTF-8": b'{"a": "\xff"}',
    "names twice": b'{"a": {"b": 1, "b": 2}}',
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
    "long integer": b"1" * 5000,
}


@pytest.mark.parametrize("name", WRONG_JSON)
def test_invalid_json_raises_value_error(name):
    with pytest.raises(ValueError):
        parse_json(WRONG_JSON[name])


def test_json_max_depth_and_duplicate_names():
    assert parse_json("[[[]]]", max_depth=3) == [[[]]]
    with pytest.raises(ValueError, match="deep"):
        parse_json("[[[[]]]]", max_depth=3)
    assert parse_json('{"a": 1, "a": 2}', unique=False) == {"a": 2}


WRONG_YAML = {
    "not UTF-8": b"a: \xff",
    "a tag that runs code": b"!!python/object/apply:os.abort []",
    "a wrong tag": b"!!bool 5",
    "a merge key": b"a: &a {b: 1}\nc: {<<: *a}",
    "deep nesting": b"[" * 5000 + b"]" * 5000,
    "several documents": b"a: 1\n---\nb: 2",
    "an impossible date": b"2026-13-45",
    "NUL": b"a: \0",
}


@pytest.mark.parametrize("name", WRONG_YAML)
def test_invalid_yaml_raises_value_error(name):
    with pytest.raises(ValueError, match="not valid YAML with plain values"):
        parse_yaml(WRONG_YAML[name])
