"""The processes of -workers N: a fork server that loads the models, and its forks, which translate.

`workers.py` starts the fork server with SIGINT, SIGTERM and SIGHUP blocked.  They stay blocked in
the workers, because the parent decides when they end.  The fork server never touches a GPU, since
CUDA does not work in a fork of a process that has used it.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import torch

from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OnmtLiteError, WorkerLost
from onmt_lite.inference.loading import LoadedFiles, load_files
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.inference.runtime import count_threads_per_process, move_to, resolve_device
from onmt_lite.jobs.tasks import InProcessEngine
from onmt_lite.system.resources import get_free_memory, release_freed_memory

HEARTBEAT_INTERVAL = 1.0  # seconds
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1  # from linux/prctl.h

Machine = tuple[torch.device, str]


def serve(fd: int, parent: int) -> None:
    """Load the models, then fork and kill workers on request until the parent closes the channel.

    The parent first sends the options and the number of workers.  Then it sends ("fork", worker
    index) and a pipe, which returns the process id, or ("end", process id), which returns the exit
    code.

    Args:
        fd: file descriptor of the channel to the parent.
        parent: process id of the parent.
    """
    die_with_parent(parent)
    channel = Connection(fd)
    options, n = channel.recv()
    try:
        shared = load_shared(options, n)
    except Exception as error:
        channel.send(make_picklable(error))
        raise SystemExit from None
    channel.send(None)
    gc.freeze()  # a collection would write to shared pages, which copies them
    pids: set[int] = set()
    with suppress(EOFError, OSError):
        while True:
            what, number = channel.recv()
            if what == "end":
                channel.send(kill_worker(number, pids))
            else:
                channel.send(fork_worker(shared, number, channel, pids))
    for pid in list(pids):
        kill_worker(pid, pids)


@dataclass(frozen=True)
class SharedModel:
    """What all workers share.

    Attributes:
        options: options of the job, with the threads of one worker.
        parts: models in main memory, tokenizers and phrases.
        machines: device and precision of each worker.
        free: bytes of free memory for each worker, None if unknown.
    """

    options: TranslateOptions
    parts: LoadedFiles
    machines: list[Machine]
    free: int | None


def load_shared(options: TranslateOptions, n: int) -> SharedModel:
    """Load the models for n workers.  Raises what `Pipeline.load` raises."""
    speed = replace(options.speed, threads=count_threads_per_process(options.speed, n))
    options = replace(options, speed=speed)
    torch.set_num_threads(1)  # a fork keeps only the calling thread
    machines = resolve_machines(options)
    device, precision = machines[0]
    release = device.type == "cpu"  # a GPU needs the weights
    parts = load_files(options, torch.device("cpu"), precision, release)
    release_freed_memory()  # used while loading
    free = get_free_memory()
    return SharedModel(options, parts, machines * n, None if free is None else free // n)


def resolve_machines(options: TranslateOptions) -> list[Machine]:
    """Return device and precision: one for each GPU of -gpu, otherwise one for all workers.

    A fork detects the GPUs, so that this process never touches them.  Raises OptionError or
    WorkerLost.
    """
    parent_end, child_end = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        speed = options.speed
        try:
            speeds = [replace(speed, gpu=(number,)) for number in speed.gpu] or [speed]
            child_end.send([resolve_device(speed, options.is_exact) for speed in speeds])
        except Exception as error:
            child_end.send(error)
            raise
        finally:
            os._exit(0)
    child_end.close()
    try:
        reply = parent_end.recv()
    except EOFError:
        reply = None
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if reply is None:
        killed = exit_code == -signal.SIGKILL
        reason = (
            "was killed (SIGKILL), likely out of memory" if killed else f"ended with {exit_code}"
        )
        remedy = "free some memory or set device to cpu"
        reply = WorkerLost(f"the process that detects GPUs {reason}; {remedy}", killed)
    if isinstance(reply, Exception):
        raise reply
    return reply


def fork_worker(
    shared: SharedModel, index: int, channel: Connection, pids: set[int]
) -> int | OSError:
    """Fork a worker, whose pipe arrives through the channel.

    Args:
        shared: the loaded models.
        index: position of the worker.
        channel: connection to the parent.
        pids: process ids of all workers; the new one is added.

    Returns:
        The process id, or the error that prevented the fork.
    """
    server, fd = os.getpid(), recv_handle(channel)
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        return error
    if pid == 0:
        try:
            die_with_parent(server)
            channel.close()
            run_worker(shared, index, Connection(fd))
        finally:
            os._exit(0)
    os.close(fd)
    pids.add(pid)
    return pid


def kill_worker(pid: int, pids: set[int]) -> int | None:
    """Kill a worker if it is alive; return its exit code (-N for signal N), None if unknown."""
    if pid not in pids:
        return None
    pids.remove(pid)
    os.kill(pid, signal.SIGKILL)  # harmless if it is dead: its id is not reused before waitpid
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_worker(shared: SharedModel, index: int, pipe: Connection) -> None:
    """Run the tasks that arrive through a pipe until the parent closes it.

    Args:
        shared: the loaded models.
        index: position of the worker.
        pipe: connection to the parent, for tasks and messages.
    """
    lock = threading.Lock()

    def send(what: str, value: object = None) -> None:
        try:
            with lock:
                pipe.send((what, value))
        except OSError:  # the parent is gone
            os._exit(0)

    def send_heartbeats() -> None:
        while True:
            send("beat")
            time.sleep(HEARTBEAT_INTERVAL)

    threading.Thread(target=send_heartbeats, daemon=True).start()
    try:
        with InProcessEngine(shared.options, build_pipeline(shared, index)) as engine:
            send("ready", (engine.notes, engine.machine))
            while True:
                try:
                    task = pipe.recv()
                except (EOFError, OSError):
                    return
                send("done", task.do(engine, lambda *added: send("progress", added)))
    except Exception as error:
        send("failed", make_picklable(error))
        raise


def build_pipeline(shared: SharedModel, index: int) -> Pipeline:
    """Build the Pipeline of a worker; on a CPU it shares the weights with the others."""
    (device, precision), (checkpoint, tokenizer, phrases) = shared.machines[index], shared.parts
    move_to(checkpoint.model, device, precision, in_place=True)
    speed = replace(shared.options.speed, device=str(device), gpu=())
    return Pipeline(
        checkpoint, replace(shared.options, speed=speed), tokenizer, phrases, shared.free
    )


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent dies; elsewhere a closed pipe ends it."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died already
        os._exit(0)


def make_picklable(error: Exception) -> tuple[Exception, str]:
    """Return an error that the parent can unpickle, and the traceback if it is a bug.

    The parent imports `onmt_lite.errors` but not torch, so other classes become a RuntimeError.
    """
    if isinstance(error, OnmtLiteError):
        return error, ""
    if type(error).__module__ == "builtins":
        return error, traceback.format_exc()
    return RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc()
