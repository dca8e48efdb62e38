"""Who does the tasks of a job: this process, workers, or the workers of a Translator."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from onmt_lite.config.environment import importing, threads_wanted, usable_cores, worker_room
from onmt_lite.config.options import TranslateOptions
from onmt_lite.jobs.inputs import expects_gpu
from onmt_lite.jobs.reports import LOG
from onmt_lite.jobs.tasks import Done, Progress, Task
from onmt_lite.jobs.workers import Workers

MAX_WORKERS = 256  # as -workers takes


class Engine(Protocol):
    """Does tasks, in this process or in others; a context in which models are loaded.

    notes    what the options change nothing about with this model
    machine  names of what results may depend on: device, precision; None if that differs
    """

    notes: list[str]

    @property
    def machine(self) -> dict[str, str] | None: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...

    def run(self, tasks: Iterable[Task], progress: Progress) -> Iterator[Done]:
        """Yield results, in any order.

        `progress` is called with the lines and target tokens that are added.  What a task raises is
        raised when all tasks before it are done.
        """
        ...


class Idle:
    """The engine of a job of which nothing is left to do."""

    notes: list[str] = []
    machine = None

    def __enter__(self) -> "Idle":
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def run(self, tasks: Iterable[Task], progress: Progress) -> Iterator[Done]:
        return iter(())


def choose_engine(options: TranslateOptions, n_buckets: int | None) -> Engine:
    """What does the tasks of a job, of so many buckets; None if they cannot be counted."""
    n = options.n_workers
    if n is None:
        n = workers_that_pay(options, n_buckets)
        if n > 1:
            LOG.info("NOTE: %d workers, of one thread each; -workers 1 is one process", n)
    if n > 1:
        return Workers(options, n)
    with importing():
        from onmt_lite.jobs.inprocess import InProcess  # late: torch takes seconds
    return InProcess(options)


def workers_that_pay(options: TranslateOptions, n_buckets: int | None) -> int:
    """How many workers a job gets if nobody says: one per core on a CPU, a bucket each at least.

    A start costs nothing: the parent needs no torch, and the workers share one that is loaded once.
    With the shipped model and 8, 64 and 256 lines two workers took 2.6, 3.1 and 5.2 s of processor
    time in all, one process 3.2, 3.4 and 5.4.  So the least size of a bucket decides, see
    `inputs.py`.  One process does a stream, whose lines may trickle; a job with -threads; what may
    run on a GPU; and all outside of Linux, where forks of a process with torch may fail.
    """
    if n_buckets is None or options.speed.threads or sys.platform != "linux":
        return 1
    if expects_gpu(options):
        return 1
    most = min(usable_cores(), threads_wanted(), worker_room(), MAX_WORKERS)
    return max(1, int(min(most, n_buckets)))
