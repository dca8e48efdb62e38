"""The dispatcher: assigns tasks to workers one at a time and repeats a task if its worker dies.

Both local processes and Ray actors are driven this way.  Only the input is read in a thread,
because its lines may be typed or arrive slowly through a pipe.
"""

import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from queue import Queue
from typing import Any

from onmt_lite.errors import WorkerLost
from onmt_lite.inference.records import ProgressDelta
from onmt_lite.jobs.tasks import Engine
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import raise_pending

MAX_DEATHS = 3  # workers that may die at the same task, or fork servers
# Tasks per worker that may be assigned, counted from the first unfinished one
MAX_OPEN_TASKS = 2
READ_AHEAD = 2  # tasks
NO_TASK_YET = -1  # task number of a worker that dies before its first task


@dataclass(eq=False)
class WorkerHandle:
    """The dispatcher's view of a worker process or actor.

    Attributes:
        index: int, position among the workers; a replacement gets the same one.
        task: the current task, None if idle.
        task_number: int, position of the task in the input.
        n_lines: int, lines of the task that are translated so far.
        n_tokens: int, target tokens of these lines.
        is_ready: bool, whether the model is loaded.
    """

    index: int
    task: Any = None
    task_number: int = NO_TASK_YET
    n_lines: int = 0
    n_tokens: int = 0
    is_ready: bool = False


# The worker, what happened ("ready", "progress", "done", "failed", "died"), and its value
Event = tuple[Any, str, Any]


class Dispatcher(Engine):
    """Engine that runs tasks on several workers.

    Attributes:
        singular, plural: what messages call the workers.
        remedy: what to do about workers that die.
    """

    singular, plural = "a worker", "workers"
    remedy = "use fewer workers or a smaller batch_size"

    def __init__(self, n: int, read_ahead: int = READ_AHEAD):
        self.n, self._read_ahead = n, read_ahead
        self.workers: list[Any] = []
        # All by task number
        self._retries: dict[int, Any] = {}  # tasks of dead workers
        self._failures: dict[int, Exception] = {}
        self._deaths: Counter[int] = Counter()

    def start(self, index: int) -> None:
        """Start a worker."""
        raise NotImplementedError

    def assign(self, worker: Any) -> None:
        """Send a worker its task."""
        raise NotImplementedError

    def wait_for_events(self, source: "TaskSource | None") -> Iterator[Event]:
        """Wait up to a second for input or messages from workers; yield what happened."""
        raise NotImplementedError

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """Yield results as every engine does.

        Raises:
            WorkerLost: if several workers died at the same task.
        """
        source = TaskSource(tasks, self._read_ahead)
        try:
            while True:
                self._assign_tasks(source)
                left = self._open_tasks()
                if self._failures and min(self._failures) < min(left, default=source.n_taken):
                    raise self._failures[min(self._failures)]
                if source.is_exhausted and not source.has_task() and not left:
                    break
                for event in self.wait_for_events(source):
                    yield from self.handle_event(*event, progress)
                raise_pending()
        finally:
            source.stop()
            self._retries, self._failures, self._deaths = {}, {}, Counter()
        if source.error is not None:
            raise source.error

    def _open_tasks(self) -> list[int]:
        """Return the numbers of the tasks that are assigned but not done."""
        return [
            *self._retries,
            *(worker.task_number for worker in self.workers if worker.task is not None),
        ]

    def _assign_tasks(self, source: "TaskSource") -> None:
        """Assign tasks to idle workers, repeated tasks first.  After an error, start none."""
        for worker in self.workers:
            if worker.task is not None or not worker.is_ready:
                continue
            if self._retries:
                worker.task_number = min(self._retries)
                worker.task = self._retries.pop(worker.task_number)
            elif source.has_task() and not self._failures:
                first = min(self._open_tasks(), default=source.n_taken)
                if source.n_taken - first >= MAX_OPEN_TASKS * self.n:
                    return
                worker.task_number, worker.task = source.take()
            else:
                return
            worker.n_lines, worker.n_tokens = 0, 0
            self.assign(worker)

    def handle_event(
        self, worker: Any, what: str, value: Any, progress: ProgressDelta
    ) -> Iterator[Any]:
        """Update the state after an event; yield the result of a finished task.

        Args:
            worker: the WorkerHandle that the event is about.
            what: "ready", "progress", "done", "failed" or "died".
            value: for "progress", lines and tokens; for "done", the result; for "failed", the
                error; for "died", the arguments of `_replace`.
            progress: callback for added lines and target tokens; negative if work is lost.
        """
        if what == "ready":
            worker.is_ready = True
            self._deaths[NO_TASK_YET] = 0
        elif what == "progress":
            n_lines, n_tokens = value
            worker.n_lines, worker.n_tokens = worker.n_lines + n_lines, worker.n_tokens + n_tokens
            progress(*value)
        elif what == "done":
            self._deaths.pop(worker.task_number, None)
            worker.task = None
            yield value
        elif what == "failed":
            if worker.task is None:
                raise value
            self._failures[worker.task_number], worker.task = value, None
        elif what == "died":
            self.workers.remove(worker)
            progress(-worker.n_lines, -worker.n_tokens)
            self._replace(worker, *value)

    def _replace(
        self, worker: Any, reason: str, is_own_fault: bool, is_out_of_memory: bool = False
    ) -> None:
        """Replace a worker that died.  After MAX_DEATHS at the same task, fail the task instead.

        Args:
            worker: the WorkerHandle.
            reason: how it died, a verb phrase for messages.
            is_own_fault: whether it died by itself or of its task, and not with another process.
            is_out_of_memory: whether memory was probably short.
        """
        is_idle = worker.task is None
        task_number, location = (
            (NO_TASK_YET, "before it was ready")
            if is_idle
            else (worker.task_number, worker.task.where)
        )
        self._deaths[task_number] += is_own_fault
        if self._deaths[task_number] < MAX_DEATHS:
            LOG.info("NOTE: %s %s, %s; starting a replacement", self.singular, reason, location)
            if not is_idle:
                self._retries[task_number] = worker.task
            self.start(worker.index)
            return
        location = location.replace("it was", "they were")
        problem = (
            f"{MAX_DEATHS} {self.plural} died {location} (the last one {reason}); {self.remedy}"
        )
        error = WorkerLost(problem, is_out_of_memory)
        if is_idle:
            raise error
        self._failures[task_number] = error


class TaskSource:
    """Tasks, read ahead in a thread.

    Attributes:
        wakeup: pipe end that becomes readable when a task has arrived, and at the end.
        n_taken: int, tasks that were taken so far.
        is_exhausted: bool, whether the thread has read the last task.
        error: the exception that ended the input, None without one.
    """

    def __init__(self, tasks: Iterable[Any], read_ahead: int):
        self.n_taken = 0
        self.is_exhausted = self._stopped = False
        self.error: Exception | None = None
        self.wakeup, self._wakeup_writer = Pipe(duplex=False)
        self._tasks: Queue[Any] = Queue(read_ahead)
        threading.Thread(target=self._read, args=(tasks,), daemon=True).start()

    def has_task(self) -> bool:
        """Return True if a task can be taken without waiting."""
        return not self._tasks.empty()

    def take(self) -> tuple[int, Any]:
        """Return the number of the next task, and the task."""
        self.n_taken += 1
        return self.n_taken - 1, self._tasks.get_nowait()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True
        while self.has_task():  # unblock the thread if the queue is full
            self._tasks.get_nowait()

    def _read(self, tasks: Iterable[Any]) -> None:
        try:
            for task in tasks:
                self._tasks.put(task)
                if self._stopped:
                    return
                self._wake()
        except Exception as error:
            self.error = error
            raise SystemExit from None  # ends the thread without a traceback
        finally:
            self.is_exhausted = True
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._wakeup_writer.send_bytes(b".")
