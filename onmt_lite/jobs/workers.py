"""The engine of -workers N: processes that translate, and a parent that never loads torch.

The parent starts a fork server (`onmt_lite.jobs.worker`), which loads the models once; the workers
are its forks and share the memory of the models.  A worker has one bucket at a time.  Results are
passed on in the order of the buckets, whichever worker is first.  A worker that dies, or gives no
sign of life, is replaced, and its bucket is translated again.

Threads of the parent read the input and listen to the workers, one each, so that neither a slow
input nor a worker that is stopped in the middle of a message holds up the others.
"""

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import WorkerLost
from onmt_lite.jobs.buckets import Bucket, Progress
from onmt_lite.jobs.forkserver import MAX_DEATHS, ForkServer, how_it_ended, restored
from onmt_lite.jobs.reports import LOG

PATIENCE = 15.0  # seconds without a sign of life after which a worker is given up
PATIENCE_AT_START = 300.0  # a GPU may take its time
MAX_OPEN = 2  # buckets per worker that are handed out and whose results are not taken yet
READ_AHEAD = 2  # buckets
START = -1  # stands for the number of a bucket where a worker dies before it has one

Heard = SimpleQueue[tuple[object, str, Any]]  # who, what, and a value that belongs to it


class Workers:
    """An engine of n processes; see `onmt_lite.jobs.buckets.Engine`."""

    task = ("onmt_lite.jobs.work", "translate_bucket")  # what they do: module and function

    def __init__(self, options: TranslateOptions, n: int, patience: float = PATIENCE):
        """`patience`: seconds without a sign of life after which a worker is given up."""
        self.n, self.patience = n, patience
        self.notes: list[str] = []
        self.machine: dict[str, str] = {}
        self._server = ForkServer((options, n, *self.task), patience)
        self._workers: list[Worker] = []
        self._heard: Heard = SimpleQueue()
        self._read: deque[Bucket] = deque()  # and not handed out yet
        self._again: list[Bucket] = []  # of workers that died
        self._outcomes: dict[int, Any | Exception] = {}  # by number of the bucket
        self._deaths: Counter[int] = Counter()  # by number of the bucket
        self._reader: Reader | None = None  # of the buckets that are being translated
        self._looked = time.monotonic()

    def __enter__(self) -> "Workers":
        """Load the models and start the workers.  Raises what loading raises, and WorkerLost."""
        try:
            self._renew()
            while not self.machine:
                self._listen(lambda n_lines, n_tokens: None)
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
            worker.close()
        self._workers = []

    def run(self, buckets: Iterable[Bucket], progress: Progress) -> Generator[Any, None, None]:
        """Yield what the task makes of each bucket, in the order of the buckets.

        Raises what translating a bucket raises, once the results of the buckets before it are
        taken; WorkerLost where several workers have died of one bucket.  However it ends, other
        buckets can be run then, of other numbers.
        """
        order: deque[int] = deque()  # numbers of the buckets whose results are not taken yet
        self._renew()
        self._reader = reader = Reader(buckets, self._heard)
        try:
            while order or self._read or not reader.ended:
                self._hand_out(order, reader)
                if order and order[0] in self._outcomes:
                    outcome = self._outcomes.pop(order.popleft())
                    if isinstance(outcome, Exception):
                        raise outcome
                    yield outcome
                else:
                    self._listen(progress)
        finally:
            reader.stop()
            self._rest()
        if reader.error is not None:
            raise reader.error

    def _rest(self) -> None:
        """Forget the buckets that are not done; the workers that have them are of no use."""
        self._reader = None
        for worker in self._workers:
            if worker.bucket is not None:
                worker.kill()
        for left in (self._read, self._again, self._outcomes, self._deaths):
            left.clear()

    def _hand_out(self, order: deque[int], reader: "Reader") -> None:
        """Give a bucket to each worker that has none; after an error, no new ones."""
        failed = any(isinstance(outcome, Exception) for outcome in self._outcomes.values())
        for worker in self._workers:
            if worker.bucket is not None or not worker.ready:
                continue
            if self._again:
                worker.take(self._again.pop())
            elif self._read and len(order) < MAX_OPEN * self.n and not failed:
                bucket = self._read.popleft()
                order.append(bucket.number)
                worker.take(bucket)
                reader.room.release()

    def _listen(self, progress: Progress) -> None:
        """Wait, a second at most, for what the reader and the workers have to say."""
        with suppress(Empty):
            who, what, value = self._heard.get(timeout=min(1.0, self.patience / 3))
            if isinstance(who, Reader):
                if what == "ended":
                    who.ended, who.error = True, value
                elif who is self._reader:
                    self._read.append(value)
            elif who in self._workers:
                self._take_in(who, what, value, progress)
        self._look_for_silence(progress)

    def _take_in(self, worker: "Worker", what: str, value: Any, progress: Progress) -> None:
        """Take in what a worker says."""
        if what == "ready":
            worker.ready = True
            self.notes, self.machine = value
            self._deaths[START] = 0
        elif what == "progress":
            worker.n_lines, worker.n_tokens = worker.n_lines + value[0], worker.n_tokens + value[1]
            progress(*value)
        elif what == "done":
            self._outcomes[value.number], worker.bucket = value, None
            self._deaths.pop(value.number, None)
            self._server.n_starts = 0
        elif what == "failed":  # it has ended with that
            self._end(worker)
            error = restored(*value)
            if worker.bucket is None:
                raise error
            self._outcomes[worker.bucket.number] = error
        elif what == "gone":
            self._replace(worker, progress)

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
        exit_code, bucket = self._end(worker), worker.bucket
        is_own = how or exit_code is not None  # and not that of the fork server
        how = how or how_it_ended(exit_code)
        number, where = START, "before it was ready"
        if bucket is not None:
            number, where = bucket.number, bucket.where
            progress(-worker.n_lines, -worker.n_tokens)
        self._deaths[number] += bool(is_own)
        if self._deaths[number] < MAX_DEATHS:
            LOG.info("NOTE: a worker %s, %s; another one takes over", how, where)
            if bucket is not None:
                self._again.append(bucket)
                self._again.sort(key=lambda bucket: -bucket.number)
            self._start(worker.place)
            return
        error = WorkerLost(
            f"{MAX_DEATHS} workers died {where}, the last {how}; "
            "give fewer -workers or a smaller -batch_size"
        )
        if bucket is None:
            raise error
        self._outcomes[bucket.number] = error

    def _renew(self) -> None:
        """Have a worker without a bucket in each place."""
        for worker in [worker for worker in self._workers if worker.bucket is not None]:
            self._end(worker)
        taken = {worker.place for worker in self._workers}
        for place in range(self.n):
            if place not in taken:
                self._start(place)

    def _start(self, place: int) -> None:
        pid, pipe = self._server.fork(place)
        self._workers.append(Worker(place, pid, pipe, self._heard))

    def _end(self, worker: "Worker") -> int | None:
        """End a worker, which may be dead.  Returns its exit code, if that is known."""
        self._workers.remove(worker)
        exit_code = self._server.end(worker.pid)
        if exit_code is None:
            worker.kill()
        worker.close()
        return exit_code


class Worker:
    """A worker as its parent knows it.

    bucket             what it translates
    n_lines, n_tokens  what of that is translated
    ready              whether it takes buckets
    heard_at           when it gave the last sign of life
    """

    def __init__(self, place: int, pid: int, pipe: Connection, heard: Heard):
        self.place, self.pid, self.pipe = place, pid, pipe
        self.bucket: Bucket | None = None
        self.n_lines = self.n_tokens = 0
        self.ready = False
        self.heard_at = time.monotonic()
        self._listener = in_thread(self._listen, heard)
        self._sender = self._listener

    def take(self, bucket: Bucket) -> None:
        """Translate a bucket."""
        self.bucket, self.n_lines, self.n_tokens = bucket, 0, 0
        self._sender = in_thread(self._send, bucket)  # who is stopped does not read

    def _send(self, bucket: Bucket) -> None:
        with suppress(OSError):  # the listener notices, too
            self.pipe.send(bucket)

    def _listen(self, heard: Heard) -> None:
        try:
            while True:
                what, value = self.pipe.recv()
                self.heard_at = time.monotonic()
                if what != "beat":
                    heard.put((self, what, value))
        except (EOFError, OSError):
            heard.put((self, "gone", None))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipe of a worker that has been ended, unless the system cannot end it."""
        threads = self._sender, self._listener
        for thread in threads:
            thread.join(1)
        if not any(thread.is_alive() for thread in threads):
            self.pipe.close()


class Reader:
    """Reads the input in a thread, a little ahead of the workers."""

    def __init__(self, buckets: Iterable[Bucket], heard: Heard):
        self.ended = self.stopped = False
        self.error: Exception | None = None  # by which the input ended
        self.room = threading.Semaphore(READ_AHEAD)
        in_thread(self._read, buckets, heard)

    def stop(self) -> None:
        """Read nothing more."""
        self.stopped = True
        self.room.release()

    def _read(self, buckets: Iterable[Bucket], heard: Heard) -> None:
        try:
            for bucket in buckets:
                heard.put((self, "read", bucket))
                self.room.acquire()
                if self.stopped:
                    return
        except Exception as error:
            heard.put((self, "ended", error))
            raise SystemExit from None  # a thread ends so without a word
        heard.put((self, "ended", None))


def in_thread(work: Any, *args: Any) -> threading.Thread:
    """Start a thread that does not hold up the end of the process."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread
