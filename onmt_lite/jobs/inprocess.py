"""The engine of one process, which has the models."""

from collections.abc import Iterable, Iterator
from typing import Any

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.record import describe
from onmt_lite.checkpoints.shipped import model_paths
from onmt_lite.config.console import raise_pending
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.loading import fit, read_own
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs.reading import Reader
from onmt_lite.jobs.tasks import Progress


def describe_models(options: TranslateOptions) -> str:
    """What the models that the options name are, a block each, with the tokenizer that would be
    used.  Raises CheckpointError or OptionError."""
    own = read_own(options)
    blocks = [
        describe(fit(load_checkpoint(path), options, own), str(path))
        for path in model_paths(options.model.model)
    ]
    return "\n".join(blocks)


class InProcess:
    """The engine of this process; see `onmt_lite.jobs.engine.Engine`."""

    def __init__(self, options: TranslateOptions, pipeline: Pipeline | None = None):
        """With a `pipeline`, nothing is loaded."""
        self.options, self.given, self.reader = options, pipeline, Reader()

    def __enter__(self) -> "InProcess":
        self.pipeline = pipeline = self.given or Pipeline.load(self.options)
        self.machine = pipeline.machine
        self.notes = pipeline.notes_on(self.options)
        if self.options.speed.batch_size is None and not self.options.speed.deterministic:
            self.notes += pipeline.runner.budget.notes(self.options.search.beam_size)
        if self.machine["precision"] == "int8" and self.options.speed.precision == "auto":
            self.notes.append(
                "precision int8, for which this processor is made; -precision fp32 is slower and "
                "exact (docs/speed.md)"
            )
        return self

    def __exit__(self, *error: Any) -> None:
        self.reader.close()

    def run(self, tasks: Iterable[Any], progress: Progress) -> Iterator[Any]:
        """Yield what the tasks return, in their order."""
        for task in tasks:
            raise_pending()
            yield task.do(self, progress)
