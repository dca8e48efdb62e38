"""The engine of -workers N: worker processes, and a parent process that never loads torch.

The parent starts a fork server (`worker.py`), which loads the models once.  The workers are forks
of the server and share its memory.  A worker that dies or sends no heartbeat is replaced.

The parent waits for all workers in one call.  Reading an incomplete message times out (see
`make_pipe`), so a worker that was stopped in the middle of sending one is noticed as well.
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

WORKER_TIMEOUT = 15.0  # seconds without a heartbeat
KILLED = -signal.SIGKILL  # exit code after the kernel's out-of-memory killer
STARTUP_TIMEOUT = 300.0  # seconds; starting a GPU may be slow

# sys.path comes first: import nothing from the current directory by accident
FORK_SERVER_PROGRAM = """\
import sys; sys.path[:] = {path!a}
from onmt_lite.system.resources import speed_up_imports, prepare_environment; prepare_environment()
with speed_up_imports():
    from onmt_lite.jobs.worker import serve
serve({fd}, {parent})"""


@dataclass(eq=False, kw_only=True)
class WorkerProcess(WorkerHandle):
    """A worker process; `last_heartbeat` is on the monotonic clock."""

    pid: int
    pipe: Connection
    last_heartbeat: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        """Kill the process if it is alive."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Workers(Dispatcher):
    """Engine of n worker processes on this machine."""

    def __init__(self, options: TranslateOptions, n: int, timeout: float = WORKER_TIMEOUT):
        """Prepare the engine; `__enter__` starts the workers.

        Args:
            options: options of the job; the models are loaded with them.
            n: number of workers.
            timeout: seconds without a heartbeat after which a worker is replaced.
        """
        super().__init__(n)
        self.timeout = timeout
        self._server = ForkServer(options, n, timeout)
        self._last_check = time.monotonic()

    def __enter__(self) -> "Workers":
        """Load the models and start the workers.

        Raises:
            OptionError, CheckpointError: from loading the models.
            WorkerLost: if a process cannot be started or keeps dying.
        """
        find_library()  # compile the kernels here, where messages are seen
        try:
            self._fill_slots()
            while self.machine is None:
                for event in self.wait_for_events(None):
                    list(self.handle_event(*event, lambda *added: None))
                raise_pending()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.kill()
        self._server.close()
        for worker in self.workers:
            worker.pipe.close()
        self.workers = []

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """Run tasks; however this ends, the workers can be used again."""
        self._fill_slots()
        try:
            yield from super().run(tasks, progress)
        finally:
            for worker in self.workers:
                if worker.task is not None:  # its result is no longer needed
                    worker.kill()

    def start(self, index: int) -> None:
        pid, pipe = self._server.fork(index)
        self.workers.append(WorkerProcess(index, pid=pid, pipe=pipe))

    def assign(self, worker: WorkerProcess) -> None:
        with suppress(OSError):  # dead or stopped: noticed by `wait_for_events`
            worker.pipe.send(worker.task)

    def wait_for_events(self, source: TaskSource | None) -> Iterator[Event]:
        wakeups = [] if source is None or source.is_exhausted else [source.wakeup]
        pipes = {worker.pipe: worker for worker in self.workers}
        for ready in wait([*wakeups, *pipes], timeout=min(1.0, self.timeout / 3)):
            if source is not None and ready in wakeups:
                source.wakeup.recv_bytes()
            else:
                yield from self._receive(pipes[ready])
        now = time.monotonic()
        # This process itself may have been suspended or busy writing
        if now - self._last_check > self.timeout / 2:
            for worker in self.workers:
                worker.last_heartbeat = now
        self._last_check = now
        for worker in list(self.workers):
            timeout = self.timeout if worker.is_ready else STARTUP_TIMEOUT
            if now - worker.last_heartbeat > timeout:
                yield self._report_timeout(worker, timeout)

    def _receive(self, worker: WorkerProcess) -> Iterator[Event]:
        """Receive a message of a worker; yield it as an event unless it is a heartbeat."""
        try:
            what, value = worker.pipe.recv()
        except BlockingIOError:
            yield self._report_timeout(worker, self.timeout)
            return
        except (EOFError, OSError):
            exit_code = self._kill(worker)
            # Without an exit code, it died with the fork server
            death = describe_exit(exit_code), exit_code is not None, exit_code == KILLED
            yield worker, "died", death
            return
        worker.last_heartbeat = time.monotonic()
        if what == "ready":
            self.notes, self.machine = value
        elif what == "done":
            self._server.n_starts = 0
        elif what == "failed":  # the worker exits after this message
            self._kill(worker)
            self.workers.remove(worker)
            value = restore_error(*value)
        if what != "beat":
            yield worker, what, value

    def _report_timeout(self, worker: WorkerProcess, timeout: float) -> Event:
        self._kill(worker)
        return worker, "died", (f"sent no heartbeat for {timeout:g} s", True)

    def _fill_slots(self) -> None:
        """Make sure that there is an idle worker for every index."""
        for worker in list(self.workers):
            if worker.task is not None:
                self._kill(worker)
                self.workers.remove(worker)
        occupied = {worker.index for worker in self.workers}
        for index in range(self.n):
            if index not in occupied:
                self.start(index)

    def _kill(self, worker: WorkerProcess) -> int | None:
        """Kill a worker that may be dead already; return its exit code if known."""
        exit_code = self._server.end(worker.pid)
        if exit_code is None:
            worker.kill()
        worker.pipe.close()
        return exit_code


# -- the fork server ------------------------------------------------------------------------------


class ForkServer:
    """The parent's view of the process that loads the models and forks workers.

    The fork server of multiprocessing does not fit: it cannot be passed what is needed to load a
    model, and if its parent is killed, it leaves its socket in the temporary directory.
    """

    def __init__(self, options: TranslateOptions, n: int, timeout: float):
        """Prepare the server; `start` starts its process.

        Args:
            options: options of the job.
            n: number of workers.
            timeout: seconds that a fork may take.
        """
        self.task, self.timeout = (options, n), timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Connection | None = None
        self.n_starts = 0
        self.exit_code: int | None = None  # of the last server, if it died by itself
        # PR_SET_PDEATHSIG kills a process when the thread that started it ends: it must live as
        # long as its owner.  The server inherits its blocked signals
        self._thread = ThreadPoolExecutor(
            1, "", signal.pthread_sigmask, (signal.SIG_BLOCK, SIGNALS)
        )
        self._starting: Future[subprocess.Popen[bytes]] | None = None

    def start(self) -> None:
        """Start the process and load the models.

        Raises:
            OptionError, CheckpointError: from loading the models.
            WorkerLost: if the process died or could not be started.
        """
        self.close()
        if self.n_starts == MAX_DEATHS:
            problem = f"the fork server of the workers died {MAX_DEATHS} times"
            if self.exit_code is not None:
                problem += f" (the last one {describe_exit(self.exit_code)})"
            raise WorkerLost(f"{problem}; {Workers.remedy}", self.exit_code == KILLED)
        self.n_starts += 1
        parent_end, child_end = make_pipe(None)
        try:
            self._open(child_end)
            parent_end.send(self.task)
            # Loading may take minutes, and a signal may have been dropped: see `raise_pending`
            while not parent_end.poll(1):
                raise_pending()
            failure = parent_end.recv()
        except (EOFError, OSError):
            exit_code = None if self.process is None else self.process.wait()
            reason = "did not start" if exit_code is None else describe_exit(exit_code)
            if is_out_of_memory := exit_code == KILLED:
                reason += "; free some memory or use a smaller model"
            raise WorkerLost(
                f"the process that loads the model {reason}", is_out_of_memory
            ) from None
        if failure is not None:
            raise restore_error(*failure)
        self.channel = parent_end

    def _open(self, child_end: Connection) -> None:
        """Start the process and pass it one end of a pipe.  Raises WorkerLost."""
        # 0, 1 and 2 may be unused here, but not in the new process
        fd = fcntl.fcntl(child_end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        child_end.close()
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
            raise make_start_error(error) from None

    def fork(self, index: int) -> tuple[int, Connection]:
        """Fork a worker; return its process id and a pipe to it.  Starts the server if needed."""
        while True:
            if self.channel is None:
                self.start()
            parent_end, child_end = make_pipe(self.timeout)
            with child_end:
                reply = self._request(("fork", index), child_end.fileno())
            if isinstance(reply, int):
                return reply, parent_end
            parent_end.close()
            if isinstance(reply, OSError):
                raise make_start_error(reply)

    def end(self, pid: int) -> int | None:
        """Kill a worker if it is alive; return its exit code (-N for signal N) if known."""
        reply = self._request(("end", pid))
        return reply if isinstance(reply, int) else None

    def _request(self, request: tuple[str, int], fd: int | None = None) -> object:
        """Send a request and return the reply; without one, close the server and return None."""
        if self.channel is None or self.process is None:
            return None
        try:
            self.channel.send(request)
            if fd is not None:
                send_handle(self.channel, fd, self.process.pid)
            if self.channel.poll(self.timeout):
                return self.channel.recv()
        except (EOFError, OSError):
            self.exit_code = None
            with suppress(subprocess.TimeoutExpired):
                self.exit_code = self.process.wait(1)
        self.close()
        return None

    def close(self) -> None:
        """End the process, and with it its workers."""
        if self._starting is not None:
            with suppress(OSError):  # a signal may have interrupted `_open` too early
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


def make_pipe(timeout: float | None) -> tuple[Connection, Connection]:
    """Create a pipe.

    Args:
        timeout: seconds after which sending or receiving at the first end fails with OSError,
            because the other process may have been stopped in the middle of a message; None: no
            limit.

    Returns:
        The end of this process and the end of the other one.
    """
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise make_start_error(error) from None
    if timeout is not None:
        timeval = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, timeval)
    return Connection(ours.detach()), Connection(theirs.detach())


def make_start_error(error: OSError) -> WorkerLost:
    """Return the error for a process that cannot be started."""
    problem = f"cannot start a process: {error.strerror}; use fewer workers"
    return WorkerLost(problem, error.errno == errno.ENOMEM)


def restore_error(error: Exception, traceback: str) -> Exception:
    """Attach the traceback of the other process to its error, if it is a bug."""
    error.__cause__ = RuntimeError(traceback) if traceback else None
    return error


def describe_exit(exit_code: int | None) -> str:
    """Describe how a process ended, as a verb phrase."""
    if exit_code is None:
        return "died with the fork server"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = {s.value: s.name for s in signal.Signals}.get(-exit_code, f"signal {-exit_code}")
    return f"was killed ({name})" + ", likely out of memory" * (name == "SIGKILL")
