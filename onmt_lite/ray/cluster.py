"""The engine of a cluster: actors of Ray do the tasks.

An actor has one task at a time.  One that dies, with its machine or alone, is replaced as soon as
there is room for another, and its task is done again by whoever is free.
"""

import contextlib
import os
import signal
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from onmt_lite.config.interrupt import Interrupted, raise_pending, stop_on_signals
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OnmtLiteError, OptionError, WorkerLost
from onmt_lite.jobs.reports import LOG
from onmt_lite.jobs.tasks import Done, Progress, Task
from onmt_lite.ray.actors import TranslateBucket, where_we_are
from onmt_lite.ray.options import ClusterOptions

OBJECT_STORE = 256 << 20  # bytes of a Ray of ours: tasks are small, and text never gets there
MAX_DEATHS = 3  # so many actors may die of one task
START = -1  # stands for the number of a task if an actor dies before it has one


class Cluster:
    """The engine of a job on Ray; see `onmt_lite.jobs.engine.Engine`."""

    notes: list[str] = []  # actors have them
    machine = None  # actors settle that among them

    def __init__(
        self, ray: Any, options: TranslateOptions, cluster: ClusterOptions, n_buckets: int
    ):
        self.ray, self.options, self.cluster, self.n_buckets = ray, options, cluster, n_buckets
        self._closing = contextlib.ExitStack()
        self._running: dict[Future[Any], tuple[Any, Task | None]] = {}  # an actor, what it does
        self._idle: list[Any] = []  # actors
        self._deaths: Counter[int] = Counter()  # by the number of the task
        self._said: set[str] = set()  # notes, of which each actor has the same

    def __enter__(self) -> "Cluster":
        """Connect, to a cluster or to a Ray of this job alone, and start the actors."""
        with contextlib.ExitStack() as stack:
            # Ray prints there, at length, that a worker has died
            nothing = open(os.devnull, "w", encoding="utf-8", newline="")
            stack.enter_context(nothing)
            stack.enter_context(contextlib.redirect_stdout(nothing))
            own = stack.enter_context(running(self.ray, self.cluster))
            n = choose_actors(self.ray, self.cluster, self.n_buckets, own)
            for _ in range(n):
                self._start()
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.close()

    def run(self, tasks: Iterable[Task], progress: Progress) -> Iterator[Done]:
        """Yield results as they come.  WorkerLost if actors die again and again."""
        waiting = deque(tasks)
        while waiting or any(task for _, task in self._running.values()):
            while waiting and self._idle:
                actor, task = self._idle.pop(), waiting.popleft()
                self._running[actor.do.remote(task).future()] = actor, task
            # Not ray.wait, in which the exception of a signal becomes a SystemError
            ready, _ = wait(self._running, timeout=1, return_when=FIRST_COMPLETED)
            raise_pending()
            progress(0, 0)  # time passes
            for promise in ready:
                actor, task = self._running.pop(promise)
                try:
                    found = promise.result()
                except self.ray.exceptions.RayActorError as error:
                    self._count_death(task, error)
                    self.ray.kill(actor)  # it may be out of reach and alive
                    self._start()
                    waiting.extendleft([task] if task is not None else [])
                    continue
                self._idle.append(actor)
                if task is not None:
                    yield self._taken(*found, progress)

    def _taken(self, found: Done | OnmtLiteError, notes: list[str], progress: Progress) -> Done:
        if isinstance(found, OnmtLiteError):
            raise found
        for note in notes:
            if note not in self._said:
                LOG.info("NOTE: %s", note)
                self._said.add(note)
        progress(found.n_lines, found.summary.n_words)
        return found

    def _start(self) -> None:
        """Have one more actor, as soon as there is room for it."""
        actor = (
            self.ray.remote(TranslateBucket)
            .options(
                num_cpus=self.cluster.cpus_per_actor,
                num_gpus=self.cluster.gpus_per_actor,
                **where_we_are(),
            )
            .remote()
        )
        self._running[actor.begin.remote().future()] = actor, None

    def _count_death(self, task: Task | None, error: Exception) -> None:
        number = START if task is None else task.number
        self._deaths[number] += 1
        if self._deaths[number] < MAX_DEATHS:
            where = "before it had a task" if task is None else task.where
            LOG.info("NOTE: an actor died, %s; another one takes over", where)
        elif task is None:
            raise WorkerLost(
                f"actors do not start ({first_line(error)}); onmt_lite must be installed on all "
                "machines, and Ray's logs say more"
            )
        else:
            raise WorkerLost(
                f"{MAX_DEATHS} actors died {task.where}; look for what is special in these lines, "
                "or give actors more memory"
            )


@contextlib.contextmanager
def running(ray: Any, cluster: ClusterOptions) -> Iterator[bool]:
    """Connected to a cluster; whether it is one of this job alone, which ends with it."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    more: dict[str, Any] = {}
    if not address:
        n_cpus = max(os.cpu_count() or 1, (cluster.actors or 1) * cluster.cpus_per_actor)
        more = dict(num_cpus=n_cpus, object_store_memory=OBJECT_STORE, include_dashboard=False)
    try:
        if address:
            knock(address)
        with silent_stderr():
            ray.init(address or "local", logging_level="error", log_to_driver=False, **more)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"the Ray cluster at {address}" if address else "a Ray on this machine"
        raise OptionError(
            f"address: cannot reach {where} ({first_line(error)}); see ray status"
        ) from None
    except SystemExit:
        raise Interrupted(signal.SIGTERM) from None  # Ray's answer to it
    try:
        stop_on_signals()  # Ray has its own handlers
        yield not address
    finally:
        ray.shutdown()


def knock(address: str) -> None:
    """OSError if nobody listens at HOST:PORT; Ray would try for an hour."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """While Ray begins, the one thing that it says is how little it will say."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # closed by the shell
            before = os.dup(2)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, 2)
            stack.enter_context(nothing := open(os.devnull, "wb"))
            os.dup2(nothing.fileno(), 2)
        yield


def choose_actors(ray: Any, cluster: ClusterOptions, n_buckets: int, own: bool) -> int:
    """How many there are to be; an idle one is of no use."""
    total = ray.cluster_resources()
    room = int(total.get("CPU", 0) // cluster.cpus_per_actor)
    if cluster.gpus_per_actor:
        room = min(room, int(total.get("GPU", 0) / cluster.gpus_per_actor + 1e-6))
    if room == 0 and own:
        raise OptionError("gpus_per_actor: this machine has no GPU that Ray finds; give 0")
    wanted = cluster.actors or max(1, room)
    if wanted > room:
        LOG.info("NOTE: actors %d: the cluster has room for %d now", wanted, room)
    return min(wanted, n_buckets)


def first_line(error: Exception) -> str:
    return next((line for line in str(error).split("\n") if line.strip()), "without a word")
