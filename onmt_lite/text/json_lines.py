"""Lines of a JSONL input: an object each, one field of which is the text to translate."""

import json
import re

from onmt_lite.text.line import Line
from onmt_lite.text.lines import to_line

INVALID = "invalid-json"  # the note of a line that is no object with a text
MAX_DEPTH = 200  # arrays and objects in one another; not all readers take 1,000
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
    """Read an object: the value of `field`, None if it has none, and the other fields as JSON.

    Raises ValueError or RecursionError unless `text` is one object whose other fields can be
    written as JSON again: NaN, Infinity, numbers that are too large for a float and whole numbers
    of more than 4,300 digits, which Python does not read, cannot.
    """
    record = json.loads(text)
    if not isinstance(record, dict) or depth(record) > MAX_DEPTH + 1:
        raise ValueError("no object, or a deep one")
    value = record.pop(field, None)
    fields = json.dumps(record, ensure_ascii=False, allow_nan=False)
    # Half a character becomes \\udXXX, its escape in JSON too
    return value, fields.encode("utf-8", "backslashreplace").decode("utf-8")


def depth(value: object) -> int:
    """Count how many arrays and objects are in one another."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0
