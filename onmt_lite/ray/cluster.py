"""The engine of a cluster: actors of Ray do the tasks.

One that dies, with its machine or alone, is replaced as soon as there is room for another, and its
task is done again by whoever is free.
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
from onmt_lite.jobs.progress import log_machine
from onmt_lite.jobs.store import compute_fingerprint, list_differences
from onmt_lite.jobs.tasks import BucketResult, InProcessEngine, Task
from onmt_lite.ray.options import ClusterOptions
from onmt_lite.system.log import LOG
from onmt_lite.system.resources import ROOT, prepare_environment
from onmt_lite.system.terminal import Interrupted, stop_on_signals

OBJECT_STORE = 256 << 20  # bytes of a Ray of ours: tasks are small, and text never gets there


class Cluster(Dispatcher):
    """The engine of a job on Ray."""

    one, many = "an actor", "actors"
    remedy = (
        "look for what is special there, give actors more memory, install onmt_lite on all "
        "machines, or see Ray's logs"
    )

    def __init__(self, ray: Any, cluster: ClusterOptions, n_buckets: int):
        super().__init__(n_buckets, read_ahead=n_buckets)
        self.ray, self.cluster = ray, cluster
        self._closing = contextlib.ExitStack()
        self._actors: dict[WorkerHandle, Any] = {}
        self._promised: dict[Future[Any], WorkerHandle] = {}  # who does what Ray has promised
        self._said: set[str] = set()  # notes, of which each actor has the same

    def __enter__(self) -> "Cluster":
        """Connect, to a cluster or to a Ray of this job alone, and start the actors."""
        with contextlib.ExitStack() as stack:
            # Ray prints there, at length, that a worker has died
            nothing = open(os.devnull, "w", encoding="utf-8", newline="")
            stack.enter_context(nothing)
            stack.enter_context(contextlib.redirect_stdout(nothing))
            own = stack.enter_context(connect(self.ray, self.cluster))
            self.n = choose_actors(self.ray, self.cluster, self.n, own)
            for place in range(self.n):
                self.start(place)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.close()

    def start(self, place: int) -> None:
        hand = WorkerHandle(place)
        actor = self.ray.remote(TranslateBucket).options(
            num_cpus=self.cluster.cpus_per_actor,
            num_gpus=self.cluster.gpus_per_actor,
            **build_actor_environment(),
        )
        self._actors[hand] = actor.remote()
        self._promised[self._actors[hand].begin.remote().future()] = hand
        self.hands.append(hand)

    def give(self, hand: WorkerHandle) -> None:
        self._promised[self._actors[hand].do.remote(hand.task).future()] = hand

    def listen(self, source: TaskSource | None) -> Iterator[Event]:
        while source is not None and source.wakeup.poll():
            source.wakeup.recv_bytes()
        # Not ray.wait, in which the exception of a signal becomes a SystemError
        ready, _ = wait(self._promised, timeout=1, return_when=FIRST_COMPLETED)
        for promise in ready:
            hand = self._promised.pop(promise)
            try:
                found = promise.result()
            except self.ray.exceptions.RayActorError:
                self.ray.kill(self._actors.pop(hand))  # it may be out of reach and alive
                yield hand, "died", ("was lost", True)
                continue
            if hand.task is None:
                yield hand, "ready", None
            else:
                yield from self._taken(hand, *found)
        yield WorkerHandle(0), "progress", (0, 0)  # time passes

    def _taken(
        self, hand: WorkerHandle, done: Any, notes: list[str], machine: Any
    ) -> Iterator[Event]:
        """The result of a task, or its error."""
        if isinstance(done, OnmtLiteError):
            yield hand, "failed", done
            return
        if self.machine is None:
            self.machine = machine
            log_machine(machine)
        for note in notes:
            if note not in self._said:
                LOG.info("NOTE: %s", note)
                self._said.add(note)
        yield hand, "progress", (done.n_lines, done.summary.n_words)
        yield hand, "done", done


@contextlib.contextmanager
def connect(ray: Any, cluster: ClusterOptions) -> Iterator[bool]:
    """Connected to a cluster; whether it is one of this job alone, which ends with it."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    more: dict[str, Any] = {}
    if not address:
        n_cpus = max(os.cpu_count() or 1, (cluster.actors or 1) * cluster.cpus_per_actor)
        more = dict(num_cpus=n_cpus, object_store_memory=OBJECT_STORE, include_dashboard=False)
    try:
        if address:
            check_reachable(address)
        with silence_stderr():
            ray.init(address or "local", logging_level="error", log_to_driver=False, **more)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"the Ray cluster at {address}" if address else "a Ray on this machine"
        why = next((line for line in str(error).split("\n") if line.strip()), "without a word")
        raise OptionError(f"address: cannot reach {where} ({why}); see ray status") from None
    except SystemExit:
        raise Interrupted(signal.SIGTERM) from None  # Ray's answer to it
    try:
        stop_on_signals()  # Ray has its own handlers
        yield not address
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """OSError if nobody listens at HOST:PORT; Ray would try for an hour."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
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


class TranslateBucket:
    """Does tasks, as a worker does.  An instance is an actor.

    The model is loaded with the first task: an actor that dies of the model counts as one that
    dies of a task.
    """

    def __init__(self) -> None:
        self.engine: InProcessEngine | None = None

    def begin(self) -> None:
        """It runs."""

    def do(
        self, task: Task
    ) -> tuple[BucketResult | OnmtLiteError, list[str], dict[str, str] | None]:
        """The result of a task, or the error that ends the job; notes on the options; what the
        model runs on."""
        try:
            if self.engine is None:
                self.engine = load_engine(task)
            done = task.do(self.engine, lambda *added: None)
            return done, self.engine.notes, self.engine.machine
        except OnmtLiteError as error:
            return error, [], None


def build_actor_environment() -> dict[str, Any]:
    """What Ray must be told so that actors find this package: of a checkout, to look at the same
    path."""
    if not os.path.exists(os.path.join(ROOT, "translate.py")):
        return {}
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}


def load_engine(task: Task) -> InProcessEngine:
    """The engine of this actor.  CheckpointError if this machine has other files or versions than
    the one that began, OptionError if it computes otherwise."""
    prepare_environment()
    assert task.parts is not None
    began = task.parts.job
    here = compute_fingerprint(task.options, {})
    here["files"] = {**began["files"], **here["files"]}  # inputs are read as the ranges say
    if found := list_differences(began, here):
        raise CheckpointError(
            f"{socket.gethostname()} is not like the machine of the job ({'; '.join(found)}); "
            "install and copy the same there"
        )
    engine = InProcessEngine(task.options).__enter__()
    task.parts.settle(engine.pipeline.machine)
    return engine
