"""Tables of Arrow: rows to lines, translations to columns."""

import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import parquet

from onmt_lite.errors import FileError, OptionError
from onmt_lite.ray.inputs import Range, changed, open_table
from onmt_lite.text.line import Line
from onmt_lite.text.lines import shorten, to_line

MADE = {  # columns that a translation adds
    "translation": pyarrow.string(),
    "score": pyarrow.float64(),
    "notes": pyarrow.list_(pyarrow.string()),
}


def check_columns(columns: pyarrow.Schema, text_field: str, name: str) -> None:
    """OptionError unless a table, `name` in messages, has a column of text and room for ours."""
    if text_field not in columns.names:
        shown = ", ".join(columns.names) or "none"
        raise OptionError(f"text_field: {name} has no column {text_field}; its columns are {shown}")
    if columns.names.count(text_field) > 1 or not _is_text(columns.field(text_field).type):
        kind = columns.field(columns.get_all_field_indices(text_field)[0]).type
        raise OptionError(f"text_field: column {text_field} of {name} is {kind}; name one of text")
    if clash := [column for column in MADE if column in columns.names]:
        raise OptionError(
            f"{name} has a column {clash[0]} already, which would hold the {clash[0]} of a "
            "translation; rename the column first"
        )


def _is_text(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    types = pyarrow.types
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(test(kind) for test in tests)


def read_rows(wanted: Range) -> pyarrow.Table:
    """The rows of a range.  Of its row group no more is in memory at once.  FileError where the
    file is no longer what it was."""
    end = wanted.start + wanted.n_lines
    seen, found = 0, []
    with open_table(wanted.path) as table:
        if not wanted.n_lines:
            return table.schema_arrow.empty_table()
        if (
            os.path.getsize(wanted.path) != wanted.file_bytes
            or wanted.group >= table.num_row_groups
        ):
            raise changed(wanted)
        try:
            for batch in table.iter_batches(wanted.n_lines, row_groups=[wanted.group]):
                low, high = (min(max(n - seen, 0), len(batch)) for n in (wanted.start, end))
                if low < high:
                    found.append(batch.slice(low, high - low))
                seen += len(batch)
                if seen >= end:
                    return pyarrow.Table.from_batches(found)
        except (pyarrow.ArrowException, OSError) as error:
            raise FileError(f"cannot read {wanted.path}: {error}; check the file") from None
    raise changed(wanted)


def lines_of(table: pyarrow.Table, text_field: str, first: int, with_fields: bool) -> list[Line]:
    """A line of each row, numbered from `first`; no text is an empty line.  `with_fields`: with the
    other columns as an object of JSON."""
    others = table.drop_columns([text_field])
    fields = map(_object, others.to_pylist()) if with_fields else iter([None] * len(table))
    return [
        _line(raw, number, more)
        for number, (raw, more) in enumerate(zip(_texts(table[text_field]), fields), first)
    ]


def _texts(column: pyarrow.ChunkedArray) -> Iterator[bytes]:
    """The bytes of each text: Arrow does not promise that they are UTF-8."""
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    for chunk in column.cast(pyarrow.large_binary()).chunks:
        yield from (value.as_py() or b"" for value in chunk)


def _line(raw: bytes, number: int, fields: str | None) -> Line:
    line = to_line(*_at(shorten(raw, False), number))
    return Line(line.id, line.text, line.notes, fields)


def _at(shortened: tuple[bytes, bool], number: int) -> tuple[bytes, int, bool]:
    raw, cut = shortened
    return raw, number, cut


def _object(row: dict[str, Any]) -> str:
    return json.dumps(_plain(row), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """What JSON has: a number that is none becomes null, a date and the like its text."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def of_lines(lines: Sequence[Line], text_field: str) -> pyarrow.Table:
    """A table of lines of text: their text, and the other fields of JSON objects as JSON."""
    columns = {text_field: pyarrow.array([line.text for line in lines], pyarrow.string())}
    if text_field != "fields":
        fields = [line.fields for line in lines]
        columns["fields"] = pyarrow.array(fields, pyarrow.string())
    return pyarrow.table(columns)


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


def to_bytes(table: pyarrow.Table) -> bytes:
    """A Parquet file of one row group."""
    out = io.BytesIO()
    parquet.write_table(table, out, row_group_size=max(1, len(table)))
    return out.getvalue()
