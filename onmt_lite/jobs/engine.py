"""Who does the tasks of a job: this process, worker processes, or those of a Translator.

What is here needs no torch until an `InProcessEngine` loads a model.
"""

import math
import os
import sys
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import ProgressDelta, Translation
from onmt_lite.jobs.inputs import BUCKET_LINES
from onmt_lite.jobs.reports import DETAIL
from onmt_lite.jobs.tasks import Engine, InProcessEngine
from onmt_lite.jobs.workers import Workers
from onmt_lite.search.presets import PRESETS
from onmt_lite.system.log import LOG
from onmt_lite.system.resources import count_usable_cores, count_workers_in_memory, get_omp_threads
from onmt_lite.text.lines import Line

MAX_WORKERS = 256  # as -workers takes
# Of a call, for each worker: who is done early takes another; four take 1.03 times as long
CALLS_PER_WORKER = 2
FULL_BATCH_LINES = (
    64  # lines that make a good batch, below which a part is not cut more than workers need
)


def choose_engine(options: TranslateOptions, n_buckets: int | None) -> Engine:
    """What does the tasks of a job, of so many buckets; None if they cannot be counted."""
    n = options.n_workers
    if n is None:
        n = choose_worker_count(options, n_buckets)
        if n > 1:
            note = f"{n} workers, of one thread each; -workers 1 is one process"
            LOG.info("NOTE: %s", note, extra=DETAIL)
    return Workers(options, n) if n > 1 else InProcessEngine(options)


def choose_worker_count(options: TranslateOptions, n_buckets: int | None) -> int:
    """How many workers a job gets if nobody says: one per core on a CPU, a bucket each at least.

    A start costs nothing: the parent needs no torch, and the workers share one that is loaded once.
    With the shipped model and 8, 64 and 256 lines two workers took 2.6, 3.1 and 5.2 s of processor
    time in all, one process 3.2, 3.4 and 5.4.  So the least size of a bucket decides, see
    `inputs.py`.  One process does a stream, whose lines may trickle; a job with -threads; what may
    run on a GPU; and all outside of Linux, where forks of a process with torch may fail.
    """
    if n_buckets is None or options.speed.threads or sys.platform != "linux":
        return 1
    if options.speed.expects_gpu:
        return 1
    most = min(count_usable_cores(), get_omp_threads(), count_workers_in_memory(), MAX_WORKERS)
    return max(1, int(min(most, n_buckets)))


# -- the workers of a Translator ------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineCall:
    """A part of a call: a method of a Pipeline with some of the lines."""

    number: int
    method: str
    lines: Sequence[Line]
    tgt_lines: Sequence[Line] | None
    options: TranslateOptions
    prefixes: Sequence[Line] | None

    @property
    def where(self) -> str:
        if not self.lines:
            return "in a call without lines"
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"

    def do(self, place: InProcessEngine, progress: ProgressDelta) -> tuple[int, Sequence[Any]]:
        """The number of the part, and the result of each of its lines."""
        pipeline, lines, tgt_lines = place.pipeline, self.lines, self.tgt_lines
        if self.method == "notes_on":
            return self.number, pipeline.option_notices(self.options)
        more = self.options, progress, self.prefixes
        return self.number, pipeline.translate_lines(lines, tgt_lines, *more)


class WorkerPool(Engine):
    """The processes of a Translator with `workers`, which has the methods of a Pipeline.  That of
    the caller loads no model, and what it has done with torch before does not matter."""

    def __init__(self, options: TranslateOptions):
        """Start the workers.  Raises OptionError, CheckpointError or WorkerLost."""
        self.options = options
        self.process = os.getpid()
        self._lock = threading.Lock()  # the workers do the calls of several threads in turn
        self._caller: int | None = None  # the thread whose call is being done
        self._workers = Workers(options, options.n_workers or 1)
        self._end = weakref.finalize(self, close_workers, self._workers, self.process)
        self._workers.__enter__()
        self.machine = self._workers.machine

    def close(self) -> None:
        """End the workers.  A call that comes later is a ValueError."""
        self._end()

    def translate_lines(self, lines: Sequence[Line], *more: Any) -> list[Translation]:
        return self._joined("translate_lines", lines, *more)

    def option_notices(self, options: TranslateOptions) -> list[str]:
        return self._joined("notes_on", [], None, options)

    def _joined(
        self,
        method: str,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: ProgressDelta = lambda *added: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Any]:
        """The results of all lines, in order, each part of which is a Call."""
        options, n = options or self.options, len(lines)
        # It matters what shares a batch
        alone = PRESETS[options.search.search].policy.depends_on_batch
        size = max(1, n) if alone else choose_call_size(n, self._workers.n)
        calls = []
        for number, start in enumerate(range(0, max(1, n), size)):
            part = slice(start, start + size)
            begin, tgt = (None if each is None else each[part] for each in (prefixes, tgt_lines))
            calls.append(PipelineCall(number, method, lines[part], tgt, options, begin))
        with closing(self.run(calls, progress)) as results:
            parts = dict(results)
        return [each for number in sorted(parts) for each in parts[number]]

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """ValueError if the workers have ended, or from the progress callback of a call."""
        if not self._end.alive:
            raise ValueError("this Translator is closed")
        if self._caller == threading.get_ident():
            raise ValueError(
                "Translator is not re-entrant: do not call it from its own progress callback"
            )
        with self._lock, closing(self._workers.run(tasks, progress)) as results:
            self._caller = threading.get_ident()
            try:
                yield from results
            finally:
                self._caller = None


def choose_call_size(n_lines: int, n_workers: int) -> int:
    """Lines of a part: several parts for each worker, but full batches first."""
    full = min(FULL_BATCH_LINES, math.ceil(n_lines / n_workers))
    return min(
        BUCKET_LINES["cpu"], max(1, full, math.ceil(n_lines / (CALLS_PER_WORKER * n_workers)))
    )


def close_workers(workers: Workers, process: int) -> None:
    """End workers, unless this is a fork of the process that started them."""
    if os.getpid() == process:
        workers.__exit__()
