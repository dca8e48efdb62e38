"""Tables of Arrow: rows to lines, translations to columns."""

import json
from collections.abc import Iterator

import pyarrow

from onmt_lite.errors import OptionError
from onmt_lite.text.lines import Line, shorten, to_line

MADE = {  # columns that a translation adds
    "translation": pyarrow.string(),
    "score": pyarrow.float64(),
    "notes": pyarrow.list_(pyarrow.string()),
}


def check_columns(columns: pyarrow.Schema, column: str) -> None:
    """Raise OptionError unless a dataset has a column of text of this name and room for ours."""
    if column not in columns.names:
        shown = ", ".join(columns.names) or "none"
        raise OptionError(f"column: the dataset has no column {column}; its columns are {shown}")
    if columns.names.count(column) > 1 or not _is_text(columns.field(column).type):
        kind = columns.field(columns.get_all_field_indices(column)[0]).type
        raise OptionError(f"column: {column} of the dataset is {kind}; name one of text")
    if clash := [made for made in MADE if made in columns.names]:
        raise OptionError(
            f"the dataset has a column {clash[0]} already, which would hold the {clash[0]} of a "
            "translation; rename the column first"
        )


def _is_text(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    types = pyarrow.types
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(test(kind) for test in tests)


def lines_of(table: pyarrow.Table, column: str) -> list[Line]:
    """Make a line of each row, numbered from 0; a row without a text is an empty line."""
    lines = []
    for number, text in enumerate(_texts(table[column])):
        raw, cut = shorten(text, False)
        lines.append(to_line(raw, number, cut))
    return lines


def _texts(column: pyarrow.ChunkedArray) -> Iterator[bytes]:
    """The bytes of each text: Arrow does not promise that they are UTF-8."""
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    for chunk in column.cast(pyarrow.large_binary()).chunks:
        yield from (value.as_py() or b"" for value in chunk)


def with_translations(table: pyarrow.Table, jsonl: bytes) -> pyarrow.Table:
    """The table with a column for each of MADE, from a JSONL record per row."""
    records = [json.loads(line) for line in jsonl.split(b"\n")[:-1]]
    best = [record["hyps"][0] if record["hyps"] else None for record in records]
    values = {
        "translation": [hyp["text"] if hyp else "" for hyp in best],
        "score": [hyp["score"] if hyp and hyp["token_log_probs"] else None for hyp in best],
        "notes": [record["notes"] for record in records],
    }
    for name, kind in MADE.items():
        table = table.append_column(name, pyarrow.array(values[name], kind))
    return table
