"""Signals that end a job in good order: files are closed and nothing half-written stays."""

import signal


class Interrupted(BaseException):
    """Raised where a signal arrives; no `except Exception` takes it for an error."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.exit_code = 128 + signum


def stop_on_signals() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise Interrupted, those that are not ignored."""

    stopped = False

    def stop(signum: int, frame: object) -> None:
        nonlocal stopped
        if not stopped:  # a second signal must not break into the clean-up after the first
            stopped = True
            raise Interrupted(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup means it
            signal.signal(signum, stop)
