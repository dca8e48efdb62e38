"""The engine of -workers N: processes that translate, and a parent that never loads torch.

The parent starts a fork server (`worker.py`), which loads the models once; the workers are its
forks and share the memory of the models.  One that dies, or gives no sign of life, is replaced.

The parent waits for all of them in one place.  A message that does not come to its end fails after
a while (see `new_pipe`), so that a worker that is stopped in the middle of one is found, too.
"""

import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import WorkerLost
from onmt_lite.inference.records import ProgressDelta
from onmt_lite.jobs.dispatcher import MAX_DEATHS, Dispatcher, Event, TaskSource, WorkerHandle
from onmt_lite.models.kernels.build import find_library
from onmt_lite.system.terminal import SIGNALS, raise_pending

WORKER_TIMEOUT = 15.0  # seconds without a sign of life after which a worker is given up
KILLED = -signal.SIGKILL  # the exit code of a process that the kernel ends if memory is short
STARTUP_TIMEOUT = 300.0  # a GPU may take its time

# sys.path comes first: nothing is to be imported from a folder that happens to be the current one
FORK_SERVER_PROGRAM = """\
import sys; sys.path[:] = {path!a}
from onmt_lite.system.resources import speed_up_imports, prepare_environment; prepare_environment()
with speed_up_imports():
    from onmt_lite.jobs.worker import serve
serve({fd}, {parent})"""


@dataclass(eq=False, kw_only=True)
class WorkerProcess(WorkerHandle):
    """A worker as its parent knows it; `heard_at`: when it gave the last sign of life."""

    pid: int
    pipe: Connection
    heard_at: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Workers(Dispatcher):
    """An engine of n processes."""

    def __init__(self, options: TranslateOptions, n: int, patience: float = WORKER_TIMEOUT):
        """`patience`: seconds without a sign of life after which a worker is given up."""
        super().__init__(n)
        self.patience = patience
        self._server = ForkServer(options, n, patience)
        self._looked = time.monotonic()

    def __enter__(self) -> "Workers":
        """Load the models and start the workers.  Raises what loading raises, and WorkerLost."""
        find_library()  # if it must be compiled, this process says so
        try:
            self._renew()
            while self.machine is None:
                for event in self.listen(None):
                    list(self.take_in(*event, lambda *added: None))
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

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """As of a Dispatcher; however it ends, other tasks can be run then."""
        self._renew()
        try:
            yield from super().run(tasks, progress)
        finally:
            for worker in self.hands:
                if worker.task is not None:  # whose result nobody wants any more
                    worker.kill()

    def start(self, place: int) -> None:
        pid, pipe = self._server.fork(place)
        self.hands.append(WorkerProcess(place, pid=pid, pipe=pipe))

    def give(self, hand: WorkerProcess) -> None:
        with suppress(OSError):  # it is dead, or stopped, and will be found so
            hand.pipe.send(hand.task)

    def listen(self, source: TaskSource | None) -> Iterator[Event]:
        wakeups = [] if source is None or source.ended else [source.wakeup]
        pipes = {worker.pipe: worker for worker in self.hands}
        for ready in wait([*wakeups, *pipes], timeout=min(1.0, self.patience / 3)):
            if source is not None and ready in wakeups:
                source.wakeup.recv_bytes()
            else:
                yield from self._hear(pipes[ready])
        now = time.monotonic()
        if now - self._looked > self.patience / 2:  # this process was stopped itself, or writing
            for worker in self.hands:
                worker.heard_at = now
        self._looked = now
        for worker in list(self.hands):
            patience = self.patience if worker.ready else STARTUP_TIMEOUT
            if now - worker.heard_at > patience:
                yield self._given_up(worker, patience)

    def _hear(self, worker: WorkerProcess) -> Iterator[Event]:
        """What a worker says."""
        try:
            what, value = worker.pipe.recv()
        except BlockingIOError:
            yield self._given_up(worker, self.patience)
            return
        except (EOFError, OSError):
            exit_code = self._end(worker)
            # None: it died with the fork server
            ending = describe_exit(exit_code), exit_code is not None, exit_code == KILLED
            yield worker, "died", ending
            return
        worker.heard_at = time.monotonic()
        if what == "ready":
            self.notes, self.machine = value
        elif what == "done":
            self._server.n_starts = 0
        elif what == "failed":  # it has ended with that
            self._end(worker)
            self.hands.remove(worker)
            value = restore_error(*value)
        if what != "beat":
            yield worker, what, value

    def _given_up(self, worker: WorkerProcess, patience: float) -> Event:
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

    def _end(self, worker: WorkerProcess) -> int | None:
        """End a worker, which may be dead; return its exit code, if that is known."""
        exit_code = self._server.end(worker.pid)
        if exit_code is None:
            worker.kill()
        worker.pipe.close()
        return exit_code


# -- the process that forks them -----------------------------------------------------------------


class ForkServer:
    """The process that loads the models and forks workers, as its parent knows it.

    The fork server of multiprocessing does not fit: it takes nothing by which to load a model, and
    a parent that is killed leaves its socket in the temporary folder.
    """

    def __init__(self, options: TranslateOptions, n: int, patience: float):
        """For n workers; a fork may take `patience` seconds."""
        self.task, self.patience = (options, n), patience
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Connection | None = None
        self.n_starts = 0
        self.exit_code: int | None = None  # of the last process, if it died by itself
        # The system kills a process when the thread ends that has started it: this one lives as
        # long as its owner.  Signals are blocked in it, and for ever in the process
        self._thread = ThreadPoolExecutor(
            1, "", signal.pthread_sigmask, (signal.SIG_BLOCK, SIGNALS)
        )
        self._starting: Future[subprocess.Popen[bytes]] | None = None

    def start(self) -> None:
        """Load the models, in a new process.  Raises what loading raises, and WorkerLost."""
        self.close()
        if self.n_starts == MAX_DEATHS:
            problem = f"the process that forks the workers died {MAX_DEATHS} times"
            if self.exit_code is not None:
                problem += f", the last {describe_exit(self.exit_code)}"
            raise WorkerLost(f"{problem}; {Workers.remedy}", self.exit_code == KILLED)
        self.n_starts += 1
        here, there = new_pipe(None)
        try:
            self._open(there)
            here.send(self.task)
            # Loading may take minutes, and a signal may have been dropped: see `raise_pending`
            while not here.poll(1):
                raise_pending()
            failure = here.recv()
        except (EOFError, OSError):
            exit_code = None if self.process is None else self.process.wait()
            how = "did not start" if exit_code is None else describe_exit(exit_code)
            if by_memory := exit_code == KILLED:
                how += "; free memory or choose a smaller model"
            raise WorkerLost(f"the process that loads the model {how}", by_memory) from None
        if failure is not None:
            raise restore_error(*failure)
        self.channel = here

    def _open(self, there: Connection) -> None:
        """Start the process, with one end of a pipe.  Raises WorkerLost."""
        # 0, 1 and 2 may be free in this process; in the other one they are not
        fd = fcntl.fcntl(there.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        there.close()
        program = FORK_SERVER_PROGRAM.format(
            path=list(map(str, sys.path)), fd=fd, parent=os.getpid()
        )
        self._starting = self._thread.submit(
            subprocess.Popen,
            [sys.executable, "-c", program],
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if sys.stderr else subprocess.DEVNULL,
        )
        self._starting.add_done_callback(lambda started: os.close(fd))
        try:
            self.process = self._starting.result()
        except OSError as error:
            raise start_error(error) from None

    def fork(self, place: int) -> tuple[int, Connection]:
        """A new worker: its process id, and a pipe to it.  Starts the process if need be."""
        while True:
            if self.channel is None:
                self.start()
            here, there = new_pipe(self.patience)
            with there:
                answer = self._ask(("fork", place), there.fileno())
            if isinstance(answer, int):
                return answer, here
            here.close()
            if isinstance(answer, OSError):
                raise start_error(answer)

    def end(self, pid: int) -> int | None:
        """Kill a worker if it still lives; return its exit code, -N for signal N, if known."""
        answer = self._ask(("end", pid))
        return answer if isinstance(answer, int) else None

    def _ask(self, request: tuple[str, int], fd: int | None = None) -> object:
        """The answer to a request; None, and the process is ended, if none comes."""
        if self.channel is None or self.process is None:
            return None
        try:
            self.channel.send(request)
            if fd is not None:
                send_handle(self.channel, fd, self.process.pid)
            if self.channel.poll(self.patience):
                return self.channel.recv()
        except (EOFError, OSError):
            self.exit_code = None
            with suppress(subprocess.TimeoutExpired):
                self.exit_code = self.process.wait(1)
        self.close()
        return None

    def close(self) -> None:
        """End the process, which ends its workers."""
        if self._starting is not None:
            with suppress(OSError):  # a signal may have ended `_open` before it knew the process
                self.process = self._starting.result()
        if self.process is None:
            return
        if self.channel is not None:
            self.channel.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        self.process.kill()
        self.process.wait()
        self.process = self.channel = self._starting = None


def new_pipe(patience: float | None) -> tuple[Connection, Connection]:
    """Two ends.  At the first, sending or receiving fails (OSError) when the other is silent for so
    many seconds: the process there may have been stopped amid a message."""
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise start_error(error) from None
    if patience is not None:
        timeval = struct.pack("@ll", int(patience), int(patience % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, timeval)
    return Connection(ours.detach()), Connection(theirs.detach())


def start_error(error: OSError) -> WorkerLost:
    problem = f"cannot start a process: {error.strerror}; give fewer workers"
    return WorkerLost(problem, error.errno == errno.ENOMEM)


def restore_error(error: Exception, traceback: str) -> Exception:
    """An error of another process; with a `traceback` if it is a defect."""
    error.__cause__ = RuntimeError(traceback) if traceback else None
    return error


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "was lost with the process that forked it"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = {s.value: s.name for s in signal.Signals}.get(-exit_code, f"signal {-exit_code}")
    return f"was killed ({name})" + ", likely out of memory" * (name == "SIGKILL")
