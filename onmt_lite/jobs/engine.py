"""Engines that run the tasks of a job: this process, worker processes, or the pool of a Translator.

Nothing here needs torch until an `InProcessEngine` loads a model.
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

MAX_WORKERS = 256  # upper limit of -workers
# A worker that finishes early takes another call; with four calls each, 1.03 times as long
CALLS_PER_WORKER = 2
FULL_BATCH_LINES = 64  # do not split finer than this unless workers would be idle


def choose_engine(options: TranslateOptions, n_buckets: int | None) -> Engine:
    """Return the engine for a job.

    Args:
        options: options of the job.
        n_buckets: number of buckets, None if they cannot be counted.
    """
    n = options.n_workers
    if n is None:
        n = choose_worker_count(options, n_buckets)
        if n > 1:
            notice = f"using {n} workers with one thread each; set -workers 1 for a single process"
            LOG.info("NOTE: %s", notice, extra=DETAIL)
    return Workers(options, n) if n > 1 else InProcessEngine(options)


def choose_worker_count(options: TranslateOptions, n_buckets: int | None) -> int:
    """Return the default number of workers: one per core on a CPU, with at least one bucket each.

    Starting workers is cheap: the parent needs no torch, and the workers share one copy that is
    loaded once.  With the shipped model and 8, 64 and 256 lines, two workers took 2.6, 3.1 and 5.2
    s of CPU time in total; one process took 3.2, 3.4 and 5.4 s.  So the minimum bucket size
    decides, see `inputs.py`.

    A single process handles streams, because their lines may arrive slowly; jobs with -threads;
    jobs that may use a GPU; and everything outside Linux, where forking a process with torch may
    fail.
    """
    if n_buckets is None or options.speed.threads or sys.platform != "linux":
        return 1
    if options.speed.expects_gpu:
        return 1
    limit = min(count_usable_cores(), get_omp_threads(), count_workers_in_memory(), MAX_WORKERS)
    return max(1, int(min(limit, n_buckets)))


# -- workers of a Translator ----------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineCall:
    """A task of a Translator: a Pipeline method, applied to some of the lines."""

    number: int
    method: str
    lines: Sequence[Line]
    tgt_lines: Sequence[Line] | None
    options: TranslateOptions
    prefixes: Sequence[Line] | None

    @property
    def where(self) -> str:
        """Lines of the call, for messages."""
        if not self.lines:
            return "in a call without lines"
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"

    def do(self, engine: InProcessEngine, progress: ProgressDelta) -> tuple[int, Sequence[Any]]:
        """Return the number of the call and the result for each of its lines."""
        pipeline, lines, tgt_lines = engine.pipeline, self.lines, self.tgt_lines
        if self.method == "option_notices":
            return self.number, pipeline.option_notices(self.options)
        arguments = self.options, progress, self.prefixes
        return self.number, pipeline.translate_lines(lines, tgt_lines, *arguments)


class WorkerPool(Engine):
    """Worker processes of a Translator with `workers`; has the methods of a Pipeline.

    The calling process loads no model, and its earlier use of torch does not matter.
    """

    def __init__(self, options: TranslateOptions):
        """Start the workers.  Raises OptionError, CheckpointError or WorkerLost."""
        self.options = options
        self.process = os.getpid()
        self._lock = threading.Lock()  # calls of several threads run one after the other
        self._caller: int | None = None  # the thread whose call is running
        self._workers = Workers(options, options.n_workers or 1)
        self._end = weakref.finalize(self, close_workers, self._workers, self.process)
        self._workers.__enter__()
        self.machine = self._workers.machine

    def close(self) -> None:
        """End the workers.  Later calls raise ValueError."""
        self._end()

    def translate_lines(self, lines: Sequence[Line], *arguments: Any) -> list[Translation]:
        """Translate lines; arguments as in `Pipeline.translate_lines`."""
        return self._run_calls("translate_lines", lines, *arguments)

    def option_notices(self, options: TranslateOptions) -> list[str]:
        """Return notices about options without effect."""
        return self._run_calls("option_notices", [], None, options)

    def _run_calls(
        self,
        method: str,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: ProgressDelta = lambda *added: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Any]:
        """Split the lines into calls and return the results of all lines in order.

        Args:
            method: name of a Pipeline method.
            lines: source lines.
            tgt_lines: reference lines, None without references.
            options: default: the options of the pool.
            progress: callback for added lines and target tokens.
            prefixes: target prefixes, None without prefixes.
        """
        options, n = options or self.options, len(lines)
        # Results depend on the composition of batches: do not split
        is_batch_dependent = PRESETS[options.search.search].policy.depends_on_batch
        size = max(1, n) if is_batch_dependent else choose_call_size(n, self._workers.n)
        calls = []
        for number, start in enumerate(range(0, max(1, n), size)):
            rows = slice(start, start + size)
            call_prefixes, call_targets = (
                None if result is None else result[rows] for result in (prefixes, tgt_lines)
            )
            calls.append(
                PipelineCall(number, method, lines[rows], call_targets, options, call_prefixes)
            )
        with closing(self.run(calls, progress)) as results:
            results_by_number = dict(results)
        return [
            result for number in sorted(results_by_number) for result in results_by_number[number]
        ]

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """Run tasks.  Raises ValueError if closed, or if called from its own progress callback."""
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
    """Return the lines per call: several calls for each worker, but full batches first."""
    full = min(FULL_BATCH_LINES, math.ceil(n_lines / n_workers))
    return min(
        BUCKET_LINES["cpu"], max(1, full, math.ceil(n_lines / (CALLS_PER_WORKER * n_workers)))
    )


def close_workers(workers: Workers, process: int) -> None:
    """Close the workers, unless this is a fork of the process that started them."""
    if os.getpid() == process:
        workers.__exit__()
