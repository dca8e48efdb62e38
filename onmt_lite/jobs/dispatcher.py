"""The dispatcher: hands out tasks one at a time, and repeats them if a worker or an actor dies.

Processes of this machine and actors of Ray are such crews.  The input alone is read in a thread: a
line may be typed, or trickle from a pipe.
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

MAX_DEATHS = 3  # of one task, or of the process that forks workers
MAX_OPEN_TASKS = 2  # tasks per hand that are handed out from the first on that is not done
READ_AHEAD = 2  # tasks
NO_TASK_YET = -1  # stands for the place of a task if a hand dies before it has one


@dataclass(eq=False)
class WorkerHandle:
    """A member of a crew: a worker or an actor, in its place among its fellows."""

    place: int
    task: Any = None
    at: int = NO_TASK_YET  # the place of the task among all
    n_lines: int = 0  # of the task, translated already
    n_tokens: int = 0
    ready: bool = False  # to take tasks


Event = tuple[Any, str, Any]  # who, what (ready, progress, done, failed, died), and its value


class Dispatcher(Engine):
    """An engine of several hands."""

    one, many = "a worker", "workers"
    remedy = "give fewer workers or a smaller batch_size"

    def __init__(self, n: int, read_ahead: int = READ_AHEAD):
        self.n, self._read_ahead = n, read_ahead
        self.hands: list[Any] = []
        self._again: dict[int, Any] = {}  # tasks of dead hands, by their place
        self._failed: dict[int, Exception] = {}  # by the place of the task
        self._deaths: Counter[int] = Counter()  # by the place of the task

    def start(self, place: int) -> None:
        """Add a hand."""
        raise NotImplementedError

    def give(self, hand: Any) -> None:
        """Send a hand its task."""
        raise NotImplementedError

    def listen(self, source: "TaskSource | None") -> Iterator[Event]:
        """Wait, a second at most, for the input and the hands; yield what happens."""
        raise NotImplementedError

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """As of all engines; WorkerLost if several hands have died of one task."""
        source = TaskSource(tasks, self._read_ahead)
        try:
            while True:
                self._hand_out(source)
                left = self._open()
                if self._failed and min(self._failed) < min(left, default=source.n_taken):
                    raise self._failed[min(self._failed)]
                if source.ended and not source.has_task() and not left:
                    break
                for event in self.listen(source):
                    yield from self.take_in(*event, progress)
                raise_pending()
        finally:
            source.stop()
            self._again, self._failed, self._deaths = {}, {}, Counter()
        if source.error is not None:
            raise source.error

    def _open(self) -> list[int]:
        """The places of the tasks that are handed out and not done."""
        return [*self._again, *(hand.at for hand in self.hands if hand.task is not None)]

    def _hand_out(self, source: "TaskSource") -> None:
        """Give a task to each hand that has none; after an error, no new ones."""
        for hand in self.hands:
            if hand.task is not None or not hand.ready:
                continue
            if self._again:
                hand.at = min(self._again)
                hand.task = self._again.pop(hand.at)
            elif source.has_task() and not self._failed:
                first = min(self._open(), default=source.n_taken)
                if source.n_taken - first >= MAX_OPEN_TASKS * self.n:
                    return
                hand.at, hand.task = source.take()
            else:
                return
            hand.n_lines, hand.n_tokens = 0, 0
            self.give(hand)

    def take_in(self, hand: Any, what: str, value: Any, progress: ProgressDelta) -> Iterator[Any]:
        """Take in an event; yield a result."""
        if what == "ready":
            hand.ready = True
            self._deaths[NO_TASK_YET] = 0
        elif what == "progress":
            n_lines, n_tokens = value
            hand.n_lines, hand.n_tokens = hand.n_lines + n_lines, hand.n_tokens + n_tokens
            progress(*value)
        elif what == "done":
            self._deaths.pop(hand.at, None)
            hand.task = None
            yield value
        elif what == "failed":
            if hand.task is None:
                raise value
            self._failed[hand.at], hand.task = value, None
        elif what == "died":
            self.hands.remove(hand)
            progress(-hand.n_lines, -hand.n_tokens)
            self._replace(hand, *value)

    def _replace(self, hand: Any, how: str, is_own: bool, by_memory: bool = False) -> None:
        """Start another one in the place of a hand that died; `is_own`: by itself or its task;
        `by_memory`: probably because memory was short."""
        idle = hand.task is None
        at, where = (NO_TASK_YET, "before it was ready") if idle else (hand.at, hand.task.where)
        self._deaths[at] += is_own
        if self._deaths[at] < MAX_DEATHS:
            LOG.info("NOTE: %s %s, %s; another one takes over", self.one, how, where)
            if not idle:
                self._again[at] = hand.task
            self.start(hand.place)
            return
        where = where.replace("it was", "they were")
        problem = f"{MAX_DEATHS} {self.many} died {where}, the last {how}; {self.remedy}"
        error = WorkerLost(problem, by_memory)
        if idle:
            raise error
        self._failed[at] = error


class TaskSource:
    """Tasks, read in a thread a little ahead of the crew."""

    def __init__(self, tasks: Iterable[Any], read_ahead: int):
        self.n_taken = 0
        self.ended = self._stopped = False  # ended: no more will come
        self.error: Exception | None = None  # by which the input ended
        # Readable when a task has come, and at the end
        self.wakeup, self._woken = Pipe(duplex=False)
        self._tasks: Queue[Any] = Queue(read_ahead)
        threading.Thread(target=self._read, args=(tasks,), daemon=True).start()

    def has_task(self) -> bool:
        return not self._tasks.empty()

    def take(self) -> tuple[int, Any]:
        """The place of the next task, and the task."""
        self.n_taken += 1
        return self.n_taken - 1, self._tasks.get_nowait()

    def stop(self) -> None:
        """Read nothing more."""
        self._stopped = True
        while self.has_task():  # the reader may wait for room
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
            raise SystemExit from None  # a thread ends so without a word
        finally:
            self.ended = True
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._woken.send_bytes(b".")
