"""Stop jobs with signals, in this process and in others."""

import contextlib
import signal

import pytest

from onmt_lite.jobs.store import ResultParts
from onmt_lite.system.terminal import SIGNALS, Interrupted


def restore_default_signals():
    """Restore default handlers, because ignored signals are inherited."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


@contextlib.contextmanager
def stop_before_part(n, error=None):
    """Stop a job of this process when it has written n partial files."""
    write, written = ResultParts.write, []

    def write_or_stop(self, *args):
        if len(written) == n:
            raise error or Interrupted(signal.SIGTERM)
        write(self, *args)
        written.append(args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultParts, "write", write_or_stop)
        yield
