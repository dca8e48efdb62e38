"""Tasks for workers that fail in a chosen way.

The directory in the environment variable INJECTED_FAULTS contains a file for each bucket that
fails, named by its number.  The file lists one fault per attempt, and each attempt removes the
first one.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from onmt_lite.errors import DataError
from onmt_lite.jobs.tasks import Task


@dataclass(frozen=True)
class FaultyTask(Task):
    """A task that first triggers its injected fault."""

    def do(self, engine, progress):
        return run_with_fault(self, engine, progress, super().do)


def run_with_fault(task, engine, progress, do):
    """Trigger the fault of a task, then run it.

    Args:
        task: the task
        engine: the engine that runs it
        progress: the progress callback
        do: runs the task

    Returns:
        The result of `do`.
    """
    fault = take_fault(task.work.number)
    if fault.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault))
        time.sleep(60)  # wait until the signal takes effect
    if fault == "exit":
        os._exit(3)
    if fault == "data":
        raise DataError("line 7: bad")
    if fault == "bug":
        raise KeyError("seven")
    if fault == "wait":
        release = get_fault_directory() / "continue"
        while not release.exists():
            time.sleep(0.01)
    result = do(engine, progress)
    if fault == "late":  # after it has reported progress
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def take_fault(number: int) -> str:
    """Remove and return the next fault of a bucket, or "" if there is no fault left."""
    path = get_fault_directory() / str(number)
    if not path.exists():
        return ""
    fault, _, rest = path.read_text("utf-8").partition(" ")
    path.write_text(rest, "utf-8")
    return fault


def get_fault_directory() -> Path:
    return Path(os.environ["INJECTED_FAULTS"])
