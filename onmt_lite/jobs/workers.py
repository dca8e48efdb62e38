"""The engine of -workers N: processes that translate, and a parent that never loads torch.

The parent starts a fork server (`worker.py`), which loads the models once; the workers are its
forks and share the memory of the models.  A worker has one task at a time.  One that dies, or gives
no sign of life, is replaced, and its task is done again.

The parent waits for all of them in one place.  A message that does not come to its end fails after
a while (see `new_pipe`), so that a worker that is stopped in the middle of one is found, too.  The
input alone is read in a thread: a line may be typed, or trickle from a pipe.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from onmt_lite.config.interrupt import raise_pending
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import WorkerLost
from onmt_lite.jobs.forkserver import MAX_DEATHS, ForkServer, how_it_ended, restored
from onmt_lite.jobs.reports import LOG
from onmt_lite.jobs.tasks import Progress

PATIENCE = 15.0  # seconds without a sign of life after which a worker is given up
PATIENCE_AT_START = 300.0  # a GPU may take its time
MAX_OPEN = 2  # tasks per worker that are handed out from the first on that is not done
READ_AHEAD = 2  # tasks
START = -1  # stands for the place of a task if a worker dies before it has one


class Workers:
    """An engine of n processes; see `onmt_lite.jobs.engine.Engine`."""

    def __init__(self, options: TranslateOptions, n: int, patience: float = PATIENCE):
        """`patience`: seconds without a sign of life after which a worker is given up."""
        self.n, self.patience = n, patience
        self.notes: list[str] = []
        self.machine: dict[str, str] | None = None
        self._server = ForkServer((options, n), patience)
        self._workers: list[Worker] = []
        self._again: list[tuple[int, Any]] = []  # tasks of workers that died, by their place
        self._failed: dict[int, Exception] = {}  # by the place of the task
        self._deaths: Counter[int] = Counter()  # by the place of the task
        self._looked = time.monotonic()

    def __enter__(self) -> "Workers":
        """Load the models and start the workers.  Raises what loading raises, and WorkerLost."""
        try:
            self._renew()
            while self.machine is None:
                for _ in self._listen([], lambda n_lines, n_tokens: None):
                    pass
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.kill()
        self._server.close()
        for worker in self._workers:
            worker.pipe.close()
        self._workers = []

    def run(self, tasks: Iterable[Any], progress: Progress) -> Generator[Any, None, None]:
        """Yield what the tasks return, as they are done.

        Raises what a task raises, once all tasks before it are done; WorkerLost if several workers
        have died of one task.  However it ends, other tasks can be run then.
        """
        self._renew()
        source = Source(tasks)
        try:
            while True:
                self._hand_out(source)
                left = self._open()
                if self._failed and min(self._failed) < min(left, default=source.n_taken):
                    raise self._failed[min(self._failed)]
                if source.ended and not source.waiting and not left:
                    break
                yield from self._listen([source], progress)
        finally:
            source.stop()
            self._rest()
        if source.error is not None:
            raise source.error

    def _busy(self) -> list["Worker"]:
        return [worker for worker in self._workers if worker.task is not None]

    def _open(self) -> list[int]:
        """The places of the tasks that are handed out and not done."""
        return [worker.at for worker in self._busy()] + [at for at, _ in self._again]

    def _rest(self) -> None:
        """Forget the tasks that are not done; the workers that have them are of no use."""
        for worker in self._busy():
            worker.kill()
        for left in (self._again, self._failed, self._deaths):
            left.clear()

    def _hand_out(self, source: "Source") -> None:
        """Give a task to each worker that has none; after an error, no new ones."""
        for worker in self._workers:
            if worker.task is not None or not worker.ready:
                continue
            if self._again:
                self._again.sort(key=lambda again: -again[0])
                worker.take(*self._again.pop())
            elif source.waiting and not self._failed:
                first = min(self._open(), default=source.n_taken)
                if source.n_taken - first < MAX_OPEN * self.n:
                    worker.take(*source.take())

    def _listen(self, sources: list["Source"], progress: Progress) -> Iterator[Any]:
        """Wait, a second at most, for what the input and the workers have to say; yield results."""
        bells = [source.bell for source in sources if not source.ended]
        pipes = {worker.pipe: worker for worker in self._workers}
        for ready in wait([*bells, *pipes], timeout=min(1.0, self.patience / 3)):
            if ready in bells:
                sources[0].answer()
            elif (worker := pipes[ready]) in self._workers:  # type: ignore[index]
                yield from self._hear(worker, progress)
        raise_pending()
        self._look_for_silence(progress)

    def _hear(self, worker: "Worker", progress: Progress) -> Iterator[Any]:
        """Take in what a worker says; yield a result."""
        try:
            what, value = worker.pipe.recv()
        except BlockingIOError:
            self._replace(worker, progress, f"gave no sign of life for {self.patience:g} s")
            return
        except (EOFError, OSError):
            self._replace(worker, progress)
            return
        worker.heard_at = time.monotonic()
        if what == "ready":
            worker.ready = True
            self.notes, self.machine = value
            self._deaths[START] = 0
        elif what == "progress":
            worker.n_lines, worker.n_tokens = worker.n_lines + value[0], worker.n_tokens + value[1]
            progress(*value)
        elif what == "done":
            self._deaths.pop(worker.at, None)
            worker.task = None
            self._server.n_starts = 0
            yield value
        elif what == "failed":  # it has ended with that
            self._end(worker)
            error = restored(*value)
            if worker.task is None:
                raise error
            self._failed[worker.at] = error

    def _look_for_silence(self, progress: Progress) -> None:
        """Replace workers that have been silent for too long."""
        now = time.monotonic()
        if now - self._looked > self.patience / 2:  # this process was stopped itself, or writing
            for worker in self._workers:
                worker.heard_at = now
        self._looked = now
        for worker in list(self._workers):
            patience = self.patience if worker.ready else PATIENCE_AT_START
            if now - worker.heard_at > patience:
                self._replace(worker, progress, f"gave no sign of life for {patience:g} s")

    def _replace(self, worker: "Worker", progress: Progress, how: str = "") -> None:
        """Start another worker in the place of one that is dead or silent."""
        exit_code, task = self._end(worker), worker.task
        is_own = how or exit_code is not None  # and not that of the fork server
        how = how or how_it_ended(exit_code)
        at, where = START, "before it was ready"
        if task is not None:
            at, where = worker.at, task.where
            progress(-worker.n_lines, -worker.n_tokens)
        self._deaths[at] += bool(is_own)
        if self._deaths[at] < MAX_DEATHS:
            LOG.info("NOTE: a worker %s, %s; another one takes over", how, where)
            if task is not None:
                self._again.append((at, task))
            self._start(worker.place)
            return
        error = WorkerLost(
            f"{MAX_DEATHS} workers died {where}, the last {how}; "
            "give fewer -workers or a smaller -batch_size"
        )
        if task is None:
            raise error
        self._failed[at] = error

    def _renew(self) -> None:
        """Have a worker without a task in each place."""
        for worker in self._busy():
            self._end(worker)
        taken = {worker.place for worker in self._workers}
        for place in range(self.n):
            if place not in taken:
                self._start(place)

    def _start(self, place: int) -> None:
        pid, pipe = self._server.fork(place)
        self._workers.append(Worker(place, pid, pipe))

    def _end(self, worker: "Worker") -> int | None:
        """End a worker, which may be dead.  Returns its exit code, if that is known."""
        self._workers.remove(worker)
        exit_code = self._server.end(worker.pid)
        if exit_code is None:
            worker.kill()
        worker.pipe.close()
        return exit_code


class Worker:
    """A worker as its parent knows it.

    task               what it does, and `at`: its place among the tasks
    n_lines, n_tokens  what of that is translated
    ready              whether it takes tasks
    heard_at           when it gave the last sign of life
    """

    def __init__(self, place: int, pid: int, pipe: Connection):
        self.place, self.pid, self.pipe = place, pid, pipe
        self.task: Any = None
        self.at = START
        self.n_lines = self.n_tokens = 0
        self.ready = False
        self.heard_at = time.monotonic()

    def take(self, at: int, task: Any) -> None:
        """Do a task."""
        self.at, self.task, self.n_lines, self.n_tokens = at, task, 0, 0
        with suppress(OSError):  # it is dead, or stopped, and will be found so
            self.pipe.send(task)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Source:
    """Tasks, read in a thread a little ahead of the workers.

    waiting  tasks that are there
    n_taken  those that were taken
    ended    no more will come; `error`: by which the input ended
    bell     can be read from when there is something to `answer`
    """

    def __init__(self, tasks: Iterable[Any]):
        self.waiting: list[Any] = []
        self.n_taken = 0
        self.ended = self._stopped = False
        self.error: Exception | None = None
        self.bell, self._ring = Pipe(duplex=False)
        self._read_already: SimpleQueue[Any] = SimpleQueue()
        self._room = threading.Semaphore(READ_AHEAD)
        threading.Thread(target=self._read, args=(tasks,), daemon=True).start()

    def answer(self) -> None:
        """Take in what was read."""
        self.bell.recv_bytes()
        what, value = self._read_already.get()
        if what == "task":
            self.waiting.append(value)
        else:
            self.ended, self.error = True, value

    def take(self) -> tuple[int, Any]:
        """The next task, and its place."""
        self._room.release()
        self.n_taken += 1
        return self.n_taken - 1, self.waiting.pop(0)

    def stop(self) -> None:
        """Read nothing more."""
        self._stopped = True
        self._room.release()

    def _read(self, tasks: Iterable[Any]) -> None:
        error = None
        try:
            for task in tasks:
                self._say("task", task)
                self._room.acquire()
                if self._stopped:
                    return
        except Exception as found:
            error = found
            raise SystemExit from None  # a thread ends so without a word
        finally:
            self._say("end", error)

    def _say(self, what: str, value: object) -> None:
        self._read_already.put((what, value))
        with suppress(OSError):
            self._ring.send_bytes(b".")
