"""Jobs that are stopped, in this process and in others."""

import contextlib
import signal

import pytest

from onmt_lite.jobs.store import ResultParts
from onmt_lite.system.terminal import SIGNALS, Interrupted


def heed_signals():
    """For a process that is started: who ignores signals, as nohup does, and a program that has
    ended in this process, leaves that to it; then it would not end."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


@contextlib.contextmanager
def stopped_before_part(n, error=None):
    """Within, a job of one process is stopped when n of its parts are written."""
    write, written = ResultParts.write, []

    def until(self, *given):
        if len(written) == n:
            raise error or Interrupted(signal.SIGTERM)
        write(self, *given)
        written.append(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultParts, "write", until)
        yield
