"""Lines of a JSONL input: an object each, one field of which is the text to translate."""

import json
import re
from typing import NoReturn

from onmt_lite.text.line import Line
from onmt_lite.text.lines import to_line

INVALID = "invalid-json"  # the note of a line that is no object with a text
MAX_DEPTH = 200  # arrays and objects in one another; not all readers take 1,000
SPACE = re.compile(r"[ \t\r]*")
HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")  # a lone surrogate, which no encoding has


def object_line(raw: bytes, number: int, cut: bool = False, field: str = "text") -> Line:
    """Make a line of a JSON object: its text is that of `field`, its `fields` are the others.

    Any other line has no text, and the note `invalid-json`; so has a line that is `cut`, whose
    object lacks its end.
    """
    line = to_line(raw, number, cut)
    try:
        text, fields = read_object(line.text, field)
    except (ValueError, RecursionError):
        text, fields = None, "{}"
    if cut or not isinstance(text, str):
        return Line(number, "", (*line.notes, INVALID), fields)
    whole = HALF_A_CHARACTER.sub("\ufffd", text)
    notes = line.notes if whole == text else (*line.notes, "invalid-utf8")
    return Line(number, whole, notes, fields)


def read_object(text: str, field: str) -> tuple[object, str]:
    """Read an object: the value of `field`, and the text of an object of all other fields.

    These stay as they are written, so that no number is rounded and no field is lost whose name
    comes twice.  Of several fields with the name `field` the last counts; the value of none, and a
    number, is None.  ValueError or RecursionError unless `text` is one object, with values of at
    most MAX_DEPTH arrays and objects in one another.
    """
    value, others = None, []
    mark, place = _mark(text, 0, "{")
    if text.startswith("}", place):
        mark, place = _mark(text, place, "}")
    while mark in "{,":
        start = place
        name, end = _value(text, place)
        _, place = _mark(text, end, ":")
        found, end = _value(text, place)
        if not isinstance(name, str):
            raise ValueError(f"no name: {name!r}")
        if name == field:
            value = found
        else:
            others.append(text[start:end].replace("\r", " "))  # between, never in, strings
        mark, place = _mark(text, end, ",}")
    if place < len(text):
        raise ValueError(f"more than an object: {text[place:]}")
    return value, f"{{{', '.join(others)}}}"


def _mark(text: str, place: int, marks: str) -> tuple[str, int]:
    """The mark that stands next, one of `marks`, and the place of what follows."""
    place = SPACE.match(text, place).end()  # type: ignore[union-attr]
    mark = text[place : place + 1]
    if not mark or mark not in marks:
        raise ValueError(f"none of {marks} at {place}: {mark}")
    return mark, SPACE.match(text, place + 1).end()  # type: ignore[union-attr]


def _value(text: str, place: int) -> tuple[object, int]:
    """The value that stands there and the place behind it.

    Only strings are what they are: a number is None, an object the list of its values.
    """
    value, end = DECODER.raw_decode(text, place)
    if _depth(value) > MAX_DEPTH:
        raise ValueError(f"deeper than {MAX_DEPTH}")
    return value, end


def _depth(value: object) -> int:
    """How many lists are in one another."""
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _no_value(number: str) -> None:
    """A number is passed on as text; its value may be out of range."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"no JSON: {constant}")  # NaN, Infinity


DECODER = json.JSONDecoder(
    object_pairs_hook=lambda members: [value for _, value in members],
    parse_int=_no_value,
    parse_float=_no_value,
    parse_constant=_refuse,
)
