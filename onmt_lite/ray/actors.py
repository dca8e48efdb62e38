"""What runs in the actors of Ray: the model, and buckets through it."""

import os
import socket
from typing import TYPE_CHECKING, Any

from onmt_lite.config.environment import ROOT, prepare_environment
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OnmtLiteError
from onmt_lite.jobs.fingerprint import differences, fingerprint
from onmt_lite.jobs.reading import Bucket
from onmt_lite.jobs.tasks import Done, Task, translate_bucket

if TYPE_CHECKING:
    import pyarrow

    from onmt_lite.jobs.inprocess import InProcess


class TranslateBucket:
    """Does tasks, as a worker does.  An instance is an actor.

    The model is loaded with the first task: an actor that dies of the model counts as one that
    dies of a task.
    """

    def __init__(self) -> None:
        self.engine: InProcess | None = None

    def begin(self) -> None:
        """It runs."""

    def do(self, task: Task) -> tuple[Done | OnmtLiteError, list[str]]:
        """The result of a task, or the error that ends the job; and notes on the options."""
        try:
            if self.engine is None:
                self.engine = load(task)
            return task.do(self.engine, lambda n_lines, n_tokens: None), self.engine.notes
        except OnmtLiteError as error:
            return error, []


class TranslateRows:
    """Adds the columns of a translation to tables.  An instance is an actor."""

    def __init__(self, options: TranslateOptions, column: str):
        from onmt_lite.inference.pipeline import Pipeline

        self.options, self.column = options, column
        self.pipeline = Pipeline.load(options)

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        from onmt_lite.ray import tables

        tables.check_columns(table.schema, self.column)
        bucket = Bucket(0, tables.lines_of(table, self.column))
        done = translate_bucket(self.pipeline, self.options, bucket, lambda *more: None)
        return tables.with_translations(table, done.data)


def where_we_are() -> dict[str, Any]:
    """What Ray must be told so that actors find this package: of a checkout, to look at the same
    path."""
    if not os.path.exists(os.path.join(ROOT, "translate.py")):
        return {}
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def load(task: Task) -> "InProcess":
    """The engine of this actor.  CheckpointError if this machine has other files or versions than
    the one that began, OptionError if it computes otherwise."""
    prepare_environment()
    from onmt_lite.jobs.inprocess import InProcess

    assert task.parts is not None
    began = task.parts.job
    here = fingerprint(task.options, {})
    here["files"] = {**began["files"], **here["files"]}  # inputs are read as the ranges say
    if found := differences(began, here):
        raise CheckpointError(
            f"{socket.gethostname()} is not like the machine of the job ({'; '.join(found)}); "
            "install and copy the same there"
        )
    engine = InProcess(task.options).__enter__()
    task.parts.settle(engine.machine)
    return engine
