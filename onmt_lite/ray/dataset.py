"""Translate a Ray Dataset: `translate_dataset`, from rows to lines and back to columns."""

import math
from typing import Any

import pyarrow
from ray.data import ActorPoolStrategy, Dataset

from onmt_lite.config.options import OPTIONS as TRANSLATE
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OptionError
from onmt_lite.inference.records import EMPTY_HYPOTHESIS, Hypothesis
from onmt_lite.jobs.inputs import BUCKET_LINES
from onmt_lite.ray.cluster import build_actor_environment
from onmt_lite.ray.options import SHARED_NAMES, ClusterOptions, adapt_to_actors
from onmt_lite.text.lines import Line, decode_line, truncate_line

NEW_COLUMNS = {
    "translation": pyarrow.string(),
    "score": pyarrow.float64(),
    "notes": pyarrow.list_(pyarrow.string()),
}


def translate_dataset(
    ds: Dataset,
    column: str = "text",
    actors: int = 1,
    cpus_per_actor: int = 1,
    gpus_per_actor: float = 0,
    bucket_lines: int | None = None,
    **options: Any,
) -> Dataset:
    """Translate a column of a Ray Dataset.

    Adds the columns translation (string), score (None for an empty line) and notes (names of
    warnings). Ray and the caller are responsible for the order of rows, their numbers and
    checkpoints.

    Args:
        ds: the dataset.
        column: the column to translate; null counts as an empty line.
        actors: number of processes that load the model.
        cpus_per_actor: CPUs per process.
        gpus_per_actor: GPUs per process.
        bucket_lines: rows per task; default: 1,024 without a GPU, 8,192 with one.
        options: translation options, as for `Translator.from_pretrained`.

    Returns:
        The dataset with the new columns.

    Raises:
        OptionError: for invalid options, for a missing column, and if a new column exists already;
            column errors may be raised when the dataset is executed.
    """
    cluster = ClusterOptions(None, actors, cpus_per_actor, gpus_per_actor)
    allowed = set(SHARED_NAMES) - {"report", "resume"}
    if names := [name for name in options if name in TRANSLATE and name not in allowed]:
        raise OptionError(f"{', '.join(names)}: only supported by the command line; remove it")
    parsed = TranslateOptions.of(**options)
    if parsed.search.n_best > 1:
        raise OptionError(
            f"n_best {parsed.search.n_best}: each row has one translation; set n_best=1"
        )
    schema = ds.schema(fetch_if_missing=False)
    if schema is not None and isinstance(schema.base_schema, pyarrow.Schema):
        check_columns(schema.base_schema, column)
    device = "cuda" if gpus_per_actor else "cpu"
    return ds.map_batches(
        TranslateRows,
        batch_size=bucket_lines or BUCKET_LINES[device],
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=cpus_per_actor,
        num_gpus=gpus_per_actor,
        fn_constructor_kwargs={
            "options": adapt_to_actors(parsed.with_models(), cluster),
            "column": column,
        },
        **build_actor_environment(),
    )


class TranslateRows:
    """Ray actor that adds the translation columns to tables."""

    def __init__(self, options: TranslateOptions, column: str):
        from onmt_lite.inference.pipeline import Pipeline  # only actors need torch

        self.options, self.column = options, column
        self.pipeline = Pipeline.load(options)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        check_columns(table.schema, self.column)
        translations = self.pipeline.translate_lines(
            make_lines(table, self.column), None, self.options
        )
        best = [
            translation.hyps[0] if translation.hyps else EMPTY_HYPOTHESIS
            for translation in translations
        ]
        values = {
            "translation": [hyp.text for hyp in best],
            "score": [hyp.score if is_scored(hyp) else None for hyp in best],
            "notes": [list(translation.notes) for translation in translations],
        }
        for name, arrow_type in NEW_COLUMNS.items():
            table = table.append_column(name, pyarrow.array(values[name], arrow_type))
        return table


def is_scored(hyp: Hypothesis) -> bool:
    """Return True if a hypothesis has a score; empty lines have none."""
    return bool(hyp.token_log_probs) and math.isfinite(hyp.score)


def check_columns(columns: pyarrow.Schema, column: str) -> None:
    """Raise OptionError unless `column` exists, contains text and no new column exists already."""
    if columns.names.count(column) != 1 or not _is_text(columns.field(column).type):
        shown = ", ".join(f"{field.name} ({field.type})" for field in columns) or "none"
        raise OptionError(
            f"column: the dataset has no text column {column}; its columns are {shown}"
        )
    if existing := [name for name in NEW_COLUMNS if name in columns.names]:
        raise OptionError(
            f"column {existing[0]} already exists in the dataset and is needed for the output; "
            "rename it first"
        )


def _is_text(arrow_type: pyarrow.DataType) -> bool:
    types = pyarrow.types
    arrow_type = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(test(arrow_type) for test in tests)


def make_lines(table: pyarrow.Table, column: str) -> list[Line]:
    """Build a line from each row, numbered from 0; null becomes an empty line."""
    texts = table[column]
    if pyarrow.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    # As bytes: Arrow does not guarantee valid UTF-8
    values = texts.cast(pyarrow.large_binary()).to_pylist()
    raw_lines = [truncate_line(value or b"", False) for value in values]
    return [
        decode_line(raw, number, is_truncated)
        for number, (raw, is_truncated) in enumerate(raw_lines)
    ]
