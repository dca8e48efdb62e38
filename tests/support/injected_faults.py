"""Tasks for workers that do what a test wants of a bucket, each time that it is tried.

The folder of the environment's variable DEEDS has a file for each such bucket, named by its number:
the deeds, a word each, of which every try takes the first.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from onmt_lite.errors import DataError
from onmt_lite.jobs.tasks import Task


@dataclass(frozen=True)
class Acting(Task):
    """A task that does the deed first."""

    def do(self, place, progress):
        return act(self, place, progress, super().do)


def act(task, place, progress, do):
    deed = take_deed(task.work.number)
    if deed.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, deed))
        time.sleep(60)  # until a signal that stops has done so
    if deed == "exit":
        os._exit(3)
    if deed == "data":
        raise DataError("line 7: bad")
    if deed == "defect":
        raise KeyError("seven")
    if deed == "wait":
        go_on = folder() / "go on"
        while not go_on.exists():
            time.sleep(0.01)
    done = do(place, progress)
    if deed == "late":  # it has told of its progress already
        os.kill(os.getpid(), signal.SIGKILL)
    return done


def take_deed(number: int) -> str:
    path = folder() / str(number)
    if not path.exists():
        return ""
    deed, _, rest = path.read_text("utf-8").partition(" ")
    path.write_text(rest, "utf-8")
    return deed


def folder() -> Path:
    return Path(os.environ["DEEDS"])
