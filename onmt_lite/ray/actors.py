"""What runs in the actors of Ray: the model, and buckets through it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onmt_lite.buckets import Bucket, Done
from onmt_lite.environment import ROOT, prepare_environment
from onmt_lite.errors import CheckpointError, OnmtLiteError, WorkerLost
from onmt_lite.fingerprint import Job, differences, fingerprint
from onmt_lite.options import TranslateOptions
from onmt_lite.ray.folder import MAX_ATTEMPTS, Folder, begin_attempt, finish_part
from onmt_lite.ray.inputs import Range, read_lines
from onmt_lite.records import Line

if TYPE_CHECKING:
    import pyarrow

    from onmt_lite.translator import Translator


@dataclass(frozen=True)
class Task:
    """What all actors of a job do.

    options     of the Translator
    kind        of the inputs: text, jsonl or parquet
    text_field  of objects and rows
    folder      for the parts
    job         what the machine must have: see `onmt_lite.fingerprint`
    """

    options: TranslateOptions
    kind: str
    text_field: str
    folder: Folder
    job: Job


class TranslateBucket:
    """Turns a range of an input into a part file.  An instance is an actor.

    The model is loaded with the first bucket, whose attempts are counted: an actor that dies of
    the model ends the job, too.
    """

    def __init__(self, task: Task):
        self.task = task
        self.translator: Translator | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """`batch` has one range: see `onmt_lite.ray.inputs.Range`.

        Gives one row: bucket, lines, tokens and, where the job is to end, `code` and `error`, since
        Ray wraps what is raised; never a text.
        """
        bucket = Range(**{name: values.tolist()[0] for name, values in batch.items()})
        row: dict[str, Any] = {"bucket": bucket.number, "lines": bucket.n_lines, "tokens": 0}
        row |= {"code": 0, "error": ""}
        try:
            row["tokens"] = self.translate(bucket)
        except OnmtLiteError as error:
            row |= {"code": error.exit_code, "error": str(error)}
        return {name: [value] for name, value in row.items()}

    def translate(self, bucket: Range) -> int:
        """Write the part of a bucket; the number of tokens of its translations."""
        task = self.task
        if not begin_attempt(task.folder, bucket.number):
            raise died(bucket)
        self.translator = self.translator or load(task)
        table, lines = read(bucket, task)
        done = translate_lines(self.translator, task.options, lines, bucket.number)
        data = done.data
        if task.folder.kind == "parquet":
            from onmt_lite.ray import tables

            table = table or tables.of_lines(lines, task.text_field)
            data = tables.to_bytes(tables.with_translations(table, data))
        finish_part(task.folder, bucket.number, data, done.summary.notes)
        return done.summary.n_words


class TranslateRows:
    """Adds the columns of a translation to tables.  An instance is an actor."""

    def __init__(self, options: TranslateOptions, column: str):
        from onmt_lite.translator import Translator

        self.options, self.column = options, column
        self.translator = Translator.load(options)

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        from onmt_lite.ray import tables

        tables.check_columns(table.schema, self.column, "the dataset")
        lines = tables.lines_of(table, self.column, 0, with_fields=False)
        done = translate_lines(self.translator, self.options, lines, 0)
        return tables.with_translations(table, done.data)


def where_we_are() -> dict[str, Any]:
    """What `map_batches` must be told so that actors find this package: where it is a checkout, to
    look at the same path."""
    if not os.path.exists(os.path.join(ROOT, "translate.py")):
        return {}
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def load(task: Task) -> "Translator":
    """CheckpointError where this machine has other files or versions than the one that began."""
    prepare_environment()
    from onmt_lite.translator import Translator

    if found := differences(task.job, fingerprint(task.options)):
        raise CheckpointError(
            f"{socket.gethostname()} is not like the machine of the job ({'; '.join(found)}); "
            "install and copy the same there"
        )
    return Translator.load(task.options)


def read(bucket: Range, task: Task) -> "tuple[pyarrow.Table | None, list[Line]]":
    """The lines of a bucket, and the table whose rows they are, if there is one."""
    if task.kind != "parquet":
        return None, read_lines(bucket, task.kind, task.text_field)
    from onmt_lite.ray import tables

    table = tables.read_rows(bucket)
    with_fields = task.folder.kind == "jsonl"
    return table, tables.lines_of(table, task.text_field, bucket.first, with_fields)


def translate_lines(
    translator: "Translator", options: TranslateOptions, lines: list[Line], number: int
) -> Done:
    from onmt_lite.work import translate_bucket

    return translate_bucket(translator, options, Bucket(number, lines), lambda *more: None)


def died(bucket: Range) -> WorkerLost:
    last = bucket.first + bucket.n_lines
    return WorkerLost(
        f"{MAX_ATTEMPTS} actors died of bucket {bucket.number}, lines {bucket.first + 1} to {last} "
        f"of the inputs (in {bucket.path}); look for what is special in these lines, or give "
        "actors more memory"
    )
