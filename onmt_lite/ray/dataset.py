"""Translate a Dataset of Ray: `translate_dataset`, from rows to lines and back to columns."""

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

NEW_COLUMNS = {  # columns that a translation adds
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
    """A Ray Dataset with the columns translation (text), score (None for a blank line) and notes
    (a list of names) besides those of `ds`.

    column          what to translate; rows without a text count as blank lines
    actors          processes that load the model, each with so many CPUs and GPUs
    bucket_lines    rows that an actor takes at a time: 1,024 without a GPU, 8,192 with one
    options         of a translation, by name, as in `Translator.from_pretrained`

    Order, numbers and checkpoints of rows are Ray's and the caller's.  Raises OptionError for wrong
    options and for a column that is not there or is there already, the latter when `ds` is run
    unless its columns are known before.
    """
    cluster = ClusterOptions(None, actors, cpus_per_actor, gpus_per_actor)
    taken = set(SHARED_NAMES) - {"report", "resume"}
    if names := [name for name in options if name in TRANSLATE and name not in taken]:
        raise OptionError(f"{', '.join(names)}: of the command line only; leave it out here")
    given = TranslateOptions.of(**options)
    if given.search.n_best > 1:
        raise OptionError(f"n_best {given.search.n_best}: a row has one translation; give n_best 1")
    known = ds.schema(fetch_if_missing=False)
    if known is not None and isinstance(known.base_schema, pyarrow.Schema):
        check_columns(known.base_schema, column)
    device = "cuda" if gpus_per_actor else "cpu"
    return ds.map_batches(
        TranslateRows,
        batch_size=bucket_lines or BUCKET_LINES[device],
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=cpus_per_actor,
        num_gpus=gpus_per_actor,
        fn_constructor_kwargs={
            "options": adapt_to_actors(given.with_models(), cluster),
            "column": column,
        },
        **build_actor_environment(),
    )


class TranslateRows:
    """Adds the columns of a translation to tables.  An instance is an actor."""

    def __init__(self, options: TranslateOptions, column: str):
        from onmt_lite.inference.pipeline import Pipeline  # late: actors alone need torch

        self.options, self.column = options, column
        self.pipeline = Pipeline.load(options)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        check_columns(table.schema, self.column)
        made = self.pipeline.translate_lines(make_lines(table, self.column), None, self.options)
        best = [
            translation.hyps[0] if translation.hyps else EMPTY_HYPOTHESIS for translation in made
        ]
        values = {
            "translation": [hyp.text for hyp in best],
            "score": [hyp.score if is_scored(hyp) else None for hyp in best],
            "notes": [list(translation.notes) for translation in made],
        }
        for name, kind in NEW_COLUMNS.items():
            table = table.append_column(name, pyarrow.array(values[name], kind))
        return table


def is_scored(hyp: Hypothesis) -> bool:
    """Return whether a hypothesis has a score: a blank line was never scored."""
    return bool(hyp.token_log_probs) and math.isfinite(hyp.score)


def check_columns(columns: pyarrow.Schema, column: str) -> None:
    """Raise OptionError unless a dataset has a column of text of this name and room for ours."""
    if columns.names.count(column) != 1 or not _is_text(columns.field(column).type):
        shown = ", ".join(f"{field.name} ({field.type})" for field in columns) or "none"
        raise OptionError(
            f"column: the dataset has no column of text {column}; its columns are {shown}"
        )
    if clash := [made for made in NEW_COLUMNS if made in columns.names]:
        raise OptionError(
            f"the dataset has a column {clash[0]} already, which would hold the {clash[0]} of a "
            "translation; rename the column first"
        )


def _is_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(test(kind) for test in tests)


def make_lines(table: pyarrow.Table, column: str) -> list[Line]:
    """Make a line of each row, numbered from 0; a row without a text is an empty line."""
    texts = table[column]
    if pyarrow.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    # As bytes: Arrow does not promise that they are UTF-8
    values = texts.cast(pyarrow.large_binary()).to_pylist()
    cut = [truncate_line(value or b"", False) for value in values]
    return [decode_line(raw, number, is_cut) for number, (raw, is_cut) in enumerate(cut)]
