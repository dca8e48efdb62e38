"""Reads table models: the format is described in `onmt_lite.models.table`."""

import json
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.description import shown
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import CheckpointError
from onmt_lite.models.table import TableModel, TableSource
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

FORMAT = "onmt_lite-table-1"
# What reading a file of another form raises
MALFORMED = (
    *(OSError, ValueError, OverflowError, RecursionError),
    *(KeyError, TypeError, AttributeError),
)
NO_START = -1  # the start token is not in the vocabulary


def recognises(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as f:
        return f.read(64).lstrip()[:1] == b"{"


def load(path: Path) -> Checkpoint:
    try:
        table = json.loads(path.read_bytes())
        if table["format"] != FORMAT:
            raise ValueError(f"format {shown(table['format'])} is not {FORMAT!r}")
        vocab = table["vocab"]
        if not isinstance(vocab, list) or not all(isinstance(token, str) for token in vocab):
            raise ValueError("vocab is not a list of texts")
        "".join(vocab).encode("utf-8")  # a lone surrogate could not be written
        sources = {name: _read_source(name, s, len(vocab)) for name, s in table["sources"].items()}
        if not vocab or not sources:
            raise ValueError("needs a vocabulary and a source")
    except MALFORMED as error:
        raise CheckpointError(f"{path}: not a table model: {error}") from None
    return Checkpoint(
        TableModel(list(sources.values()), len(vocab)),
        src_vocab=Vocab(list(sources)),
        tgt_vocab=Vocab(vocab, eos_id=0),
        tokenizers={"space": SpaceTokenizer()},
        start_id=NO_START,
        version=f"(format {FORMAT})",
    )


def _read_source(name: str, source: dict[str, Any], vocab_size: int) -> TableSource:
    length = source["length"]
    if type(length) is not int or length < 1:
        raise ValueError(f"source {name}: length {shown(length)} is not a positive whole number")
    uniform = [1 / length] * length
    table = TableSource(
        length,
        {key: _numbers(row) for key, row in source["rows"].items()},
        _numbers(source["default"]),
        {key: _numbers(row) for key, row in source.get("attn", {}).items()},
        _numbers(source.get("attn_default", uniform)),
    )
    rows = [*table.rows.values(), table.default]
    attn = [*table.attn.values(), table.attn_default]
    if any(len(row) != vocab_size for row in rows) or any(len(row) != length for row in attn):
        raise ValueError(
            f"source {name}: a row does not have {vocab_size} logits or {length} attention weights"
        )
    return table


def _numbers(row: Any) -> list[float]:
    if not isinstance(row, list) or not all(type(x) in (int, float) for x in row):
        raise ValueError(f"{str(row)[:50]} is not a list of numbers")
    return [float(x) for x in row]
