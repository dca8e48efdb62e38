"""The fork server, as the parent of the workers knows it: a process that has loaded the models."""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from onmt_lite.config.console import SIGNALS, raise_pending
from onmt_lite.errors import WorkerLost

MAX_DEATHS = 3  # after which a process is not started again

# sys.path comes first: nothing is to be imported from a folder that happens to be the current one
PROGRAM = """\
import sys; sys.path[:] = {path!a}
from onmt_lite.config.environment import importing, prepare_environment; prepare_environment()
with importing():
    from onmt_lite.jobs.worker import serve
serve({fd}, {parent})"""


class ForkServer:
    """The process that loads the models and forks workers, as its parent knows it.

    The fork server of multiprocessing does not fit: it takes nothing by which to load a model, and
    a parent that is killed leaves its socket in the temporary folder.
    """

    def __init__(self, task: tuple[object, ...], patience: float):
        """`task` is what `onmt_lite.jobs.worker.serve` asks for, `patience` how many seconds a fork
        may take."""
        self.task, self.patience = task, patience
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Connection | None = None
        self.n_starts = 0
        self._started = threading.Event()

    def start(self) -> None:
        """Load the models, in a new process.  Raises what loading raises, and WorkerLost."""
        self.close()
        if self.n_starts == MAX_DEATHS:
            raise WorkerLost(f"the process that forks the workers died {MAX_DEATHS} times")
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
            how = "did not start" if self.process is None else how_it_ended(self.process.wait())
            raise WorkerLost(f"the process that loads the model {how}") from None
        if failure is not None:
            raise restored(*failure)
        self.channel = here

    def _open(self, there: Connection) -> None:
        """Start the process, with one end of a pipe.  Raises WorkerLost.

        The system kills a process when the thread ends that has started it, so a thread starts it
        that lives as long: whoever calls may end before.  `close` finds the process even if a
        signal ends the call meanwhile, in which case nobody else would know it.
        """
        # 0, 1 and 2 may be free in this process; in the other one they are not
        fd = fcntl.fcntl(there.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        there.close()
        program = PROGRAM.format(path=list(map(str, sys.path)), fd=fd, parent=os.getpid())
        problems: list[OSError] = []

        def live() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # and for ever in the process
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    pass_fds=[fd],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=None if sys.stderr else subprocess.DEVNULL,
                )
            except OSError as error:
                problems.append(error)
            finally:
                os.close(fd)
                self._started.set()
            if self.process is not None:
                self.process.wait()

        self._started = threading.Event()
        threading.Thread(target=live, daemon=True).start()
        self._started.wait()
        if problems:
            raise cannot_start(problems[0])

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
                raise cannot_start(answer)

    def end(self, pid: int) -> int | None:
        """Kill a worker if it still lives.  Returns its exit code, -N for signal N; None if it is
        not known any more."""
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
            pass
        self.close()
        return None

    def close(self) -> None:
        """End the process, which ends its workers."""
        if self.n_starts:
            self._started.wait(self.patience)
        if self.process is None:
            return
        if self.channel is not None:
            self.channel.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        self.process.kill()
        self.process.wait()
        self.process = self.channel = None


def new_pipe(patience: float | None) -> tuple[Connection, Connection]:
    """Two ends.  At the first one, sending or receiving fails (OSError) when the other one is
    silent for so many seconds: the process there may have been stopped amid a message."""
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise cannot_start(error) from None
    if patience is not None:
        timeval = struct.pack("@ll", int(patience), int(patience % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, timeval)
    return Connection(ours.detach()), Connection(theirs.detach())


def cannot_start(error: OSError) -> WorkerLost:
    return WorkerLost(f"cannot start a process: {error.strerror}; give fewer -workers")


def restored(error: Exception, traceback: str) -> Exception:
    """An error of another process; with a `traceback` if it is a defect."""
    error.__cause__ = RuntimeError(traceback) if traceback else None
    return error


def how_it_ended(exit_code: int | None) -> str:
    """Of a process, in words."""
    if exit_code is None:
        return "was lost with the process that forked it"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    known = {s.value: s.name for s in signal.Signals}
    name = known.get(-exit_code, f"signal {-exit_code}")
    likely = ", likely out of memory" if -exit_code == signal.SIGKILL else ""
    return f"was killed ({name}){likely}"
