"""Stop jobs with signals, in this process and in others."""

import contextlib
import signal

import pytest

from onmt_lite.jobs.store import ResultParts
from onmt_lite.system.terminal import SIGNALS, Interrupted


def restore_default_signals():
    """Restore default handlers: a process that inherits ignored signals would not end."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


@contextlib.contextmanager
def stop_before_part(n, error=None):
    """Stop a job of this process when it has written n partial files."""
    write, written = ResultParts.write, []

    def until(self, *given):
        if len(written) == n:
            raise error or Interrupted(signal.SIGTERM)
        write(self, *given)
        written.append(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultParts, "write", until)
        yield
