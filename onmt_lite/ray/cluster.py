"""The engine of a Ray cluster: actors run the tasks.

An actor that dies, with its machine or without, is replaced as soon as the cluster has room.  Its
task is repeated by the next idle actor.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from onmt_lite.errors import CheckpointError, OnmtLiteError, OptionError
from onmt_lite.jobs.dispatcher import Dispatcher, Event, TaskSource, WorkerHandle
from onmt_lite.jobs.fingerprint import compute_fingerprint, list_differences
from onmt_lite.jobs.progress import log_machine
from onmt_lite.jobs.tasks import BucketResult, InProcessEngine, Task
from onmt_lite.ray.options import ClusterOptions
from onmt_lite.system.log import LOG
from onmt_lite.system.resources import ROOT, prepare_environment
from onmt_lite.system.terminal import Interrupted, stop_on_signals

OBJECT_STORE = 256 << 20  # bytes, for a private Ray: tasks are small and contain no text


class Cluster(Dispatcher):
    """Engine of a job on Ray."""

    singular, plural = "an actor", "actors"
    remedy = (
        "check these lines, give actors more memory, install onmt_lite on all machines, or look "
        "into Ray's logs"
    )

    def __init__(self, ray: Any, cluster: ClusterOptions, n_buckets: int):
        """Prepare the engine; `__enter__` starts the actors.

        Args:
            ray: the ray module.
            cluster: options of the cluster.
            n_buckets: number of tasks; more actors would be idle.
        """
        super().__init__(n_buckets, read_ahead=n_buckets)
        self.ray, self.cluster = ray, cluster
        self._closing = contextlib.ExitStack()
        self._actors: dict[WorkerHandle, Any] = {}
        self._pending: dict[Future[Any], WorkerHandle] = {}
        self._logged_notices: set[str] = set()  # every actor returns the same

    def __enter__(self) -> "Cluster":
        """Connect to a cluster, or start a private Ray, and start the actors."""
        with contextlib.ExitStack() as stack:
            # Ray prints long messages about dead workers to stdout
            sink = open(os.devnull, "w", encoding="utf-8", newline="")
            stack.enter_context(sink)
            stack.enter_context(contextlib.redirect_stdout(sink))
            is_private = stack.enter_context(connect(self.ray, self.cluster))
            self.n = choose_actors(self.ray, self.cluster, self.n, is_private)
            for index in range(self.n):
                self.start(index)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.close()

    def start(self, index: int) -> None:
        worker = WorkerHandle(index)
        actor = self.ray.remote(TranslateBucket).options(
            num_cpus=self.cluster.cpus_per_actor,
            num_gpus=self.cluster.gpus_per_actor,
            **build_actor_environment(),
        )
        self._actors[worker] = actor.remote()
        self._pending[self._actors[worker].begin.remote().future()] = worker
        self.workers.append(worker)

    def assign(self, worker: WorkerHandle) -> None:
        self._pending[self._actors[worker].do.remote(worker.task).future()] = worker

    def wait_for_events(self, source: TaskSource | None) -> Iterator[Event]:
        while source is not None and source.wakeup.poll():
            source.wakeup.recv_bytes()
        # Not ray.wait, which turns the exception of a signal handler into a SystemError
        ready, _ = wait(self._pending, timeout=1, return_when=FIRST_COMPLETED)
        for future in ready:
            worker = self._pending.pop(future)
            try:
                result = future.result()
            except self.ray.exceptions.RayActorError:
                self.ray.kill(self._actors.pop(worker))  # it may be alive but unreachable
                yield worker, "died", ("was lost", True)
                continue
            if worker.task is None:
                yield worker, "ready", None
            else:
                yield from self._unpack_result(worker, *result)
        yield WorkerHandle(0), "progress", (0, 0)  # redraws the clock of the progress bar

    def _unpack_result(
        self, worker: WorkerHandle, done: Any, notes: list[str], machine: Any
    ) -> Iterator[Event]:
        """Yield the events of a finished task or of its error.

        Args:
            worker: the WorkerHandle of the actor.
            done: the BucketResult or the error.
            notes: notices about options without effect.
            machine: device and precision of the actor.
        """
        if isinstance(done, OnmtLiteError):
            yield worker, "failed", done
            return
        if self.machine is None:
            self.machine = machine
            log_machine(machine)
        for note in notes:
            if note not in self._logged_notices:
                LOG.info("NOTE: %s", note)
                self._logged_notices.add(note)
        yield worker, "progress", (done.n_lines, done.summary.n_words)
        yield worker, "done", done


@contextlib.contextmanager
def connect(ray: Any, cluster: ClusterOptions) -> Iterator[bool]:
    """Connect to a Ray cluster, or start a private one that ends with the job.

    Yields:
        True for a private Ray.

    Raises:
        OptionError: if the cluster cannot be reached.
    """
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = {}
    if not address:
        n_cpus = max(os.cpu_count() or 1, (cluster.actors or 1) * cluster.cpus_per_actor)
        settings = dict(num_cpus=n_cpus, object_store_memory=OBJECT_STORE, include_dashboard=False)
    try:
        if address:
            check_reachable(address)
        with silence_stderr():
            ray.init(address or "local", logging_level="error", log_to_driver=False, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        target = f"the Ray cluster at {address}" if address else "a local Ray"
        reason = next((line for line in str(error).split("\n") if line.strip()), "no reason given")
        raise OptionError(
            f"address: cannot reach {target} ({reason}); check it with: ray status"
        ) from None
    except SystemExit:
        raise Interrupted(signal.SIGTERM) from None  # Ray exits on SIGTERM
    try:
        stop_on_signals()  # replaces Ray's handlers
        yield not address
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise OSError if HOST:PORT accepts no connection; Ray would retry for an hour."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Discard stderr while Ray starts, because it prints how its logging is configured."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # closed by the shell
            before = os.dup(2)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, 2)
            stack.enter_context(sink := open(os.devnull, "wb"))
            os.dup2(sink.fileno(), 2)
        yield


def choose_actors(ray: Any, cluster: ClusterOptions, n_buckets: int, is_private: bool) -> int:
    """Return the number of actors: as many as fit, and no more than buckets.

    Args:
        ray: the ray module, connected.
        cluster: options of the cluster.
        n_buckets: number of tasks.
        is_private: whether this Ray was started for the job.

    Raises:
        OptionError: if no actor can run on a private Ray.
    """
    total = ray.cluster_resources()
    room = int(total.get("CPU", 0) // cluster.cpus_per_actor)
    if cluster.gpus_per_actor:
        room = min(room, int(total.get("GPU", 0) / cluster.gpus_per_actor + 1e-6))
    if room == 0 and is_private:
        raise OptionError("gpus_per_actor: Ray finds no GPU on this machine; set it to 0")
    n_actors = cluster.actors or max(1, room)
    if n_actors > room:
        LOG.info("NOTE: actors %d: the cluster has room for only %d at the moment", n_actors, room)
    return min(n_actors, n_buckets)


class TranslateBucket:
    """Ray actor that runs tasks, as a worker process does.

    The model is loaded with the first task: an actor that dies while loading counts as having died
    at this task.
    """

    def __init__(self) -> None:
        self.engine: InProcessEngine | None = None

    def begin(self) -> None:
        """Return when the actor has started."""

    def do(
        self, task: Task
    ) -> tuple[BucketResult | OnmtLiteError, list[str], dict[str, str] | None]:
        """Run a task.

        Returns:
            The result, or the error that ends the job; notices about options without effect; device
            and precision.
        """
        try:
            if self.engine is None:
                self.engine = load_engine(task)
            done = task.do(self.engine, lambda *added: None)
            return done, self.engine.notes, self.engine.machine
        except OnmtLiteError as error:
            return error, [], None


def build_actor_environment() -> dict[str, Any]:
    """Return the actor options that put this checkout on PYTHONPATH; {} if installed."""
    if not os.path.exists(os.path.join(ROOT, "translate.py")):
        return {}
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def load_engine(task: Task) -> InProcessEngine:
    """Load the engine of this actor.

    Raises:
        CheckpointError: if files or versions differ from the machine that started the job.
        OptionError: if device or precision differ.
    """
    prepare_environment()
    assert task.parts is not None
    started = task.parts.job
    here = compute_fingerprint(task.options, {})
    here["files"] = {**started["files"], **here["files"]}  # inputs are checked when ranges are read
    if changes := list_differences(started, here):
        raise CheckpointError(
            f"{socket.gethostname()} differs from the machine that started the job "
            f"({'; '.join(changes)}); "
            "install the same versions and copy the same files there"
        )
    engine = InProcessEngine(task.options).__enter__()
    task.parts.claim_device(engine.pipeline.machine)
    return engine
