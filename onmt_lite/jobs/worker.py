"""What the processes of -workers N do: a fork server loads the models, and its forks translate.

`workers.py` starts the fork server with SIGINT, SIGTERM and SIGHUP blocked, which they
stay in the workers: the parent decides when they end.  No GPU is touched before a worker is forked,
since CUDA does not work in a fork of a process that has used it.
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
from onmt_lite.inference.runtime import move_to, resolve_device, threads_per_process
from onmt_lite.jobs.tasks import InProcessEngine
from onmt_lite.system.resources import get_free_memory, release_freed_memory

HEARTBEAT_INTERVAL = 1.0  # seconds between signs of life
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1  # of Linux

Machine = tuple[torch.device, str]


def serve(fd: int, parent: int) -> None:
    """Load models, then fork workers as the channel `fd` asks, until the parent closes it.

    First come the options and the number of workers.  Then ("fork", place among the workers) and a
    pipe are answered by the process id, ("end", process id) by the exit code.
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
    gc.freeze()  # a collection writes to what it visits, and memory that is written to is copied
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
    """What the workers have in common; models in main memory."""

    options: TranslateOptions
    parts: LoadedFiles
    machines: list[Machine]  # device and precision of each worker
    free: int | None  # bytes of memory for each


def load_shared(options: TranslateOptions, n: int) -> SharedModel:
    """For n workers.  Raises what a Pipeline raises."""
    speed = replace(options.speed, threads=threads_per_process(options.speed, n))
    options = replace(options, speed=speed)
    torch.set_num_threads(1)  # of several, only this one would be there in a fork
    machines = resolve_machines(options)
    _, precision = machines[0]
    parts = load_files(options, torch.device("cpu"), precision, release=True)
    release_freed_memory()  # what loading has used
    free = get_free_memory()
    return SharedModel(options, parts, machines * n, None if free is None else free // n)


def resolve_machines(options: TranslateOptions) -> list[Machine]:
    """One for each of several GPUs, else one.  A fork looks, so that this process touches no
    GPU."""
    here, there = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        speed = options.speed
        try:
            speeds = [replace(speed, gpu=(number,)) for number in speed.gpu] or [speed]
            there.send([resolve_device(each, options.is_exact) for each in speeds])
        except Exception as error:
            there.send(error)
            raise
        finally:
            os._exit(0)
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = None
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if answer is None:
        killed = exit_code == -signal.SIGKILL
        how = "was killed (SIGKILL), likely out of memory" if killed else f"ended with {exit_code}"
        remedy = "free memory, or set device to cpu"
        answer = WorkerLost(f"the process that looks for GPUs {how}; {remedy}", killed)
    if isinstance(answer, Exception):
        raise answer
    return answer


def fork_worker(
    shared: SharedModel, place: int, channel: Connection, pids: set[int]
) -> int | OSError:
    """Start a worker: its process id, or why there is none.  Its pipe comes down the channel."""
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
            run_worker(shared, place, Connection(fd))
        finally:
            os._exit(0)
    os.close(fd)
    pids.add(pid)
    return pid


def kill_worker(pid: int, pids: set[int]) -> int | None:
    """Kill a worker if it still lives: its exit code, -N for signal N; None for a stranger."""
    if pid not in pids:
        return None
    pids.remove(pid)
    os.kill(pid, signal.SIGKILL)  # does nothing to one that is dead; its id is not free yet
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_worker(shared: SharedModel, place: int, pipe: Connection) -> None:
    """Be a worker: do the tasks that come down the pipe, until the parent closes it."""
    lock = threading.Lock()

    def say(what: str, value: object = None) -> None:
        try:
            with lock:
                pipe.send((what, value))
        except OSError:  # the parent is gone
            os._exit(0)

    def live() -> None:
        while True:
            say("beat")
            time.sleep(HEARTBEAT_INTERVAL)

    threading.Thread(target=live, daemon=True).start()
    try:
        with InProcessEngine(shared.options, build_pipeline(shared, place)) as engine:
            say("ready", (engine.notes, engine.machine))
            while True:
                try:
                    task = pipe.recv()
                except (EOFError, OSError):
                    return
                say("done", task.do(engine, lambda *added: say("progress", added)))
    except Exception as error:
        say("failed", make_picklable(error))
        raise


def build_pipeline(shared: SharedModel, place: int) -> Pipeline:
    """The Pipeline of a worker: on a CPU, with the weights that all share."""
    (device, precision), (checkpoint, own, phrases) = shared.machines[place], shared.parts
    move_to(checkpoint.model, device, precision, in_place=True)
    speed = replace(shared.options.speed, device=str(device), gpu=())
    return Pipeline(checkpoint, replace(shared.options, speed=speed), own, phrases, shared.free)


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent dies; not on Linux, a closed pipe ends it."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # too late
        os._exit(0)


def make_picklable(error: Exception) -> tuple[Exception, str]:
    """An error for the parent, which knows the classes of `onmt_lite.errors` and of Python only,
    and the traceback of a defect."""
    if isinstance(error, OnmtLiteError):
        return error, ""
    if type(error).__module__ == "builtins":
        return error, traceback.format_exc()
    return RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc()
