"""What runs in the actors of Ray: the model, and buckets through it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from onmt_lite.config.environment import ROOT, prepare_environment
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OnmtLiteError, WorkerLost
from onmt_lite.jobs.buckets import Bucket, Done
from onmt_lite.jobs.fingerprint import Job, differences, fingerprint
from onmt_lite.ray.folder import MAX_ATTEMPTS, Folder, begin_attempt, finish_part
from onmt_lite.ray.inputs import Range, read_lines
from onmt_lite.text.line import Line

if TYPE_CHECKING:
    import pyarrow

    from onmt_lite.inference.translator import Translator


@dataclass(frozen=True)
class Task:
    """What all actors of a job do.

    options     of the Translator
    kind        of the inputs: text or jsonl
    text_field  of objects
    folder      for the parts
    job         what the machine must have: see `onmt_lite.jobs.fingerprint`
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
        self.notes: list[str] = []

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """`batch` has one range: see `onmt_lite.ray.inputs.Range`.

        Gives one row, without a text: bucket, lines, tokens, `log` (lines of it) and, where the job
        is to end, `code` and `error`, since Ray wraps what is raised.
        """
        bucket = unpacked({name: values.tolist()[0] for name, values in batch.items()})
        row: dict[str, Any] = {"bucket": bucket.number, "lines": bucket.n_lines, "tokens": 0}
        row |= {"log": "", "code": 0, "error": ""}
        try:
            done = self.translate(bucket)
            row |= {"tokens": done.summary.n_words, "log": "\n".join([*self.notes, *done.log])}
        except OnmtLiteError as error:
            row |= {"code": error.exit_code, "error": printable(str(error))}
        return {name: [value] for name, value in row.items()}

    def translate(self, bucket: Range) -> Done:
        """Write the part of a bucket."""
        task = self.task
        if not begin_attempt(task.folder, bucket.number):
            raise died(bucket)
        if self.translator is None:
            self.translator, self.notes = load(task)
        lines = read_lines(bucket, task.kind, task.text_field)
        done = translate_lines(self.translator, task.options, lines, bucket.number)
        finish_part(task.folder, bucket.number, done.data, done.summary.notes)
        return done


class TranslateRows:
    """Adds the columns of a translation to tables.  An instance is an actor."""

    def __init__(self, options: TranslateOptions, column: str):
        from onmt_lite.inference.translator import Translator

        self.options, self.column = options, column
        self.translator = Translator.load(options)

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        from onmt_lite.ray import tables

        tables.check_columns(table.schema, self.column)
        lines = tables.lines_of(table, self.column)
        done = translate_lines(self.translator, self.options, lines, 0)
        return tables.with_translations(table, done.data)


def where_we_are() -> dict[str, Any]:
    """What `map_batches` must be told so that actors find this package: where it is a checkout, to
    look at the same path."""
    if not os.path.exists(os.path.join(ROOT, "translate.py")):
        return {}
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def packed(bucket: Range) -> dict[str, Any]:
    """As a row, whatever the bytes of the path."""
    return {**asdict(bucket), "path": os.fsencode(bucket.path)}


def unpacked(row: dict[str, Any]) -> Range:
    return Range(**{**row, "path": os.fsdecode(row["path"])})


def printable(text: str) -> str:
    """Without the lone surrogates of a path, which Arrow refuses."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def load(task: Task) -> "tuple[Translator, list[str]]":
    """The Translator, and lines for the log.  CheckpointError where this machine has other files or
    versions than the one that began."""
    prepare_environment()
    from onmt_lite.inference.search_setup import model_notes
    from onmt_lite.inference.translator import Translator

    if found := differences(task.job, fingerprint(task.options)):
        raise CheckpointError(
            f"{socket.gethostname()} is not like the machine of the job ({'; '.join(found)}); "
            "install and copy the same there"
        )
    translator = Translator.load(task.options)
    notes = model_notes(task.options, translator.checkpoint, translator.device)
    return translator, [f"NOTE: {note}" for note in notes]


def translate_lines(
    translator: "Translator", options: TranslateOptions, lines: list[Line], number: int
) -> Done:
    from onmt_lite.jobs.work import translate_bucket

    return translate_bucket(translator, options, Bucket(number, lines), lambda *more: None)


def died(bucket: Range) -> WorkerLost:
    last = bucket.first + bucket.n_lines
    return WorkerLost(
        f"{MAX_ATTEMPTS} actors died of bucket {bucket.number}, lines {bucket.first + 1} to {last} "
        f"of the inputs (in {bucket.path}); look for what is special in these lines, or give "
        "actors more memory"
    )
