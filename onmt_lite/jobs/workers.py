"""The engine of -workers N: processes that translate, and a parent that never loads torch.

The parent starts a fork server (`worker.py`), which loads the models once; the workers are its
forks and share the memory of the models.  One that dies, or gives no sign of life, is replaced.

The parent waits for all of them in one place.  A message that does not come to its end fails after
a while (see `new_pipe`), so that a worker that is stopped in the middle of one is found, too.
"""

import os
import signal
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from onmt_lite.config.console import raise_pending
from onmt_lite.config.options import TranslateOptions
from onmt_lite.jobs.crew import Crew, Event, Hand, Source
from onmt_lite.jobs.forkserver import ForkServer, how_it_ended, restored
from onmt_lite.jobs.tasks import Progress

PATIENCE = 15.0  # seconds without a sign of life after which a worker is given up
PATIENCE_AT_START = 300.0  # a GPU may take its time


@dataclass(eq=False, kw_only=True)
class Worker(Hand):
    """A worker as its parent knows it; `heard_at`: when it gave the last sign of life."""

    pid: int
    pipe: Connection
    heard_at: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Workers(Crew[Worker]):
    """An engine of n processes; see `onmt_lite.jobs.engine.Engine`."""

    def __init__(self, options: TranslateOptions, n: int, patience: float = PATIENCE):
        """`patience`: seconds without a sign of life after which a worker is given up."""
        super().__init__(n)
        self.patience = patience
        self.notes: list[str] = []
        self.machine: dict[str, str] | None = None
        self._server = ForkServer((options, n), patience)
        self._looked = time.monotonic()

    def __enter__(self) -> "Workers":
        """Load the models and start the workers.  Raises what loading raises, and WorkerLost."""
        try:
            self._renew()
            while self.machine is None:
                for event in self.listen(None):
                    list(self.take_in(*event, lambda n_lines, n_tokens: None))
                raise_pending()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        for worker in self.hands:
            worker.kill()
        self._server.close()
        for worker in self.hands:
            worker.pipe.close()
        self.hands = []

    def run(self, tasks: Iterable[Any], progress: Progress) -> Generator[Any, None, None]:
        """As of a Crew.  However it ends, other tasks can be run then."""
        self._renew()
        try:
            yield from super().run(tasks, progress)
        finally:
            for worker in self.busy():  # whose results nobody wants any more
                worker.kill()

    def start(self, place: int) -> None:
        pid, pipe = self._server.fork(place)
        self.hands.append(Worker(place, pid=pid, pipe=pipe))

    def give(self, hand: Worker) -> None:
        with suppress(OSError):  # it is dead, or stopped, and will be found so
            hand.pipe.send(hand.task)

    def listen(self, source: Source | None) -> Iterator[Event[Worker]]:
        bells = [] if source is None or source.ended else [source.bell]
        pipes = {worker.pipe: worker for worker in self.hands}
        for ready in wait([*bells, *pipes], timeout=min(1.0, self.patience / 3)):
            if source is not None and ready in bells:
                source.answer()
            else:
                yield from self._hear(pipes[ready])  # type: ignore[index]
        yield from self._look_for_silence()

    def _hear(self, worker: Worker) -> Iterator[Event[Worker]]:
        """What a worker says."""
        try:
            what, value = worker.pipe.recv()
        except BlockingIOError:
            yield self._given_up(worker, self.patience)
            return
        except (EOFError, OSError):
            exit_code = self._end(worker)
            # None: it died with the fork server
            yield worker, "died", (how_it_ended(exit_code), exit_code is not None)
            return
        worker.heard_at = time.monotonic()
        if what == "ready":
            self.notes, self.machine = value
        elif what == "done":
            self._server.n_starts = 0
        elif what == "failed":  # it has ended with that
            self._end(worker)
            self.hands.remove(worker)
            value = restored(*value)
        if what != "beat":
            yield worker, what, value

    def _look_for_silence(self) -> Iterator[Event[Worker]]:
        """Give up workers that have been silent for too long."""
        now = time.monotonic()
        if now - self._looked > self.patience / 2:  # this process was stopped itself, or writing
            for worker in self.hands:
                worker.heard_at = now
        self._looked = now
        for worker in list(self.hands):
            patience = self.patience if worker.ready else PATIENCE_AT_START
            if now - worker.heard_at > patience:
                yield self._given_up(worker, patience)

    def _given_up(self, worker: Worker, patience: float) -> Event[Worker]:
        self._end(worker)
        return worker, "died", (f"gave no sign of life for {patience:g} s", True)

    def _renew(self) -> None:
        """Have a worker without a task in each place."""
        for worker in list(self.hands):
            if worker.task is not None:
                self._end(worker)
                self.hands.remove(worker)
        taken = {worker.place for worker in self.hands}
        for place in range(self.n):
            if place not in taken:
                self.start(place)

    def _end(self, worker: Worker) -> int | None:
        """End a worker, which may be dead.  Returns its exit code, if that is known."""
        exit_code = self._server.end(worker.pid)
        if exit_code is None:
            worker.kill()
        worker.pipe.close()
        return exit_code
