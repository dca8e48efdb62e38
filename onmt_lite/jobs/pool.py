"""The worker processes of a Translator: `Translator.from_pretrained(workers=2)`.

The processes are those of -workers: one loads the model, the others are its forks.  The caller's
process loads no model, and what it has done with torch before does not matter.  A call is cut into
parts, runs of lines; a worker has one part at a time.
"""

import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.inference.records import Translation
from onmt_lite.jobs.inputs import BUCKET_LINES
from onmt_lite.jobs.tasks import Done, Place, Progress, Task
from onmt_lite.jobs.workers import Workers
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.lines import Line

PARTS = 4  # of a call, for each worker: who is done early takes another
FULL = 64  # lines that make a good batch, below which a part is not cut more than workers need


@dataclass(frozen=True)
class Call:
    """A part of a call: `method`, a function of this module, with some of the lines."""

    number: int
    method: Callable[["Call", Pipeline, Progress], list[Any]]
    lines: list[Line]
    tgt_lines: list[Line] | None
    options: TranslateOptions
    prefixes: list[Line] | None

    @property
    def where(self) -> str:
        if not self.lines:
            return "in a call without lines"
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"

    def do(self, place: Place, progress: Progress) -> tuple[int, list[Any]]:
        """The number of the part, and what has become of each of its lines."""
        return self.number, self.method(self, place.pipeline, progress)


def translate(call: Call, pipeline: Pipeline, progress: Progress) -> list[Translation]:
    return pipeline.translate_lines(
        call.lines, call.tgt_lines, call.options, progress, call.prefixes
    )


def score(call: Call, pipeline: Pipeline, progress: Progress) -> list[float | None]:
    return pipeline.score_lines(call.lines, call.tgt_lines or [])


def tell_notes(call: Call, pipeline: Pipeline, progress: Progress) -> list[str]:
    return pipeline.notes_on(call.options)


class Pool:
    """Workers that have the model and do calls, with the methods of a Pipeline."""

    def __init__(self, options: TranslateOptions):
        """Start the workers.  Raises OptionError, CheckpointError or WorkerLost."""
        self.options = options
        self.process = os.getpid()
        self._lock = threading.Lock()  # the workers do the calls of several threads in turn
        self._caller: int | None = None  # the thread whose call is being done
        self._workers = Workers(options, options.n_workers or 1)
        self._end = weakref.finalize(self, end, self._workers, self.process)
        self._workers.__enter__()
        self.machine = self._workers.machine

    def close(self) -> None:
        """End the workers.  A call that comes later is a ValueError."""
        self._end()

    def translate_lines(
        self,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: Progress = lambda n_lines, n_tokens: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Translation]:
        calls = self._calls(translate, lines, tgt_lines, options or self.options, prefixes)
        return self._joined(calls, progress)

    def score_lines(self, sources: Sequence[Line], targets: Sequence[Line]) -> list[float | None]:
        return self._joined(self._calls(score, sources, targets, self.options))

    def notes_on(self, options: TranslateOptions) -> list[str]:
        return self._joined(self._calls(tell_notes, [], None, options))

    def run(self, tasks: Iterable[Any], progress: Progress) -> Generator[Any, None, None]:
        """Yield what the tasks return, as they are done.  Raises what they raise.

        ValueError if the workers have been ended, or are those of another process.
        """
        if not self._end.alive:
            raise ValueError("this Translator is closed")
        if os.getpid() != self.process:
            raise ValueError("this Translator is of another process; make one in each")
        if self._caller == threading.get_ident():
            raise ValueError("this Translator is at work: its progress cannot call it")
        with self._lock, closing(self._workers.run(tasks, progress)) as results:
            self._caller = threading.get_ident()
            try:
                yield from results
            finally:
                self._caller = None

    def _joined(
        self, calls: Iterable[Call], progress: Progress = lambda n_lines, n_tokens: None
    ) -> list[Any]:
        """The results of all lines, in order."""
        with closing(self.run(calls, progress)) as results:
            parts = dict(results)
        return [each for number in sorted(parts) for each in parts[number]]

    def _calls(
        self,
        method: Callable[[Call, Pipeline, Progress], list[Any]],
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None,
        options: TranslateOptions,
        prefixes: Sequence[Line] | None = None,
    ) -> Iterator[Call]:
        """Lines in parts; in one part if it matters what shares a batch."""
        n, numbers = len(lines), count()
        alone = PRESETS[options.search.search].policy.as_2018
        size = max(1, n) if alone else part_size(n, self._workers.n)
        for start in range(0, max(1, n), size):
            part = slice(start, start + size)
            begin, tgt = (
                None if each is None else list(each[part]) for each in (prefixes, tgt_lines)
            )
            yield Call(next(numbers), method, list(lines[part]), tgt, options, begin)


class PoolEngine:
    """The workers of a Translator do the tasks of a job; see `onmt_lite.jobs.engine.Engine`."""

    def __init__(self, pool: Pool):
        self.pool, self.machine = pool, pool.machine
        self.notes: list[str] = []  # they are warnings of the call
        self.running: Generator[Done, None, None] | None = None

    def __enter__(self) -> "PoolEngine":
        return self

    def __exit__(self, *error: object) -> None:
        if self.running is not None:
            self.running.close()  # an error, whose traceback may live on, has left it open

    def run(self, tasks: Iterable[Task], progress: Progress) -> Iterator[Done]:
        self.running = self.pool.run(tasks, progress)
        return self.running


def part_size(n_lines: int, n_workers: int) -> int:
    """Lines of a part: several parts for each worker, but full batches first."""
    full = min(FULL, math.ceil(n_lines / n_workers))
    return min(BUCKET_LINES["cpu"], max(1, full, math.ceil(n_lines / (PARTS * n_workers))))


def end(workers: Workers, process: int) -> None:
    """End workers, unless this is a fork of the process that started them."""
    if os.getpid() == process:
        workers.__exit__()
