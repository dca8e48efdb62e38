"""Terminal and signals.

Writing to stderr never fails, typed input is recognized, and signals end the program cleanly: files
are closed and nothing half-written remains.
"""

import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Console:
    """Replaces sys.stderr: a full disk or a closed pipe must not end a job whose output is fine."""

    encoding = "utf-8"  # read by tqdm

    def write(self, text: str) -> None:
        """Write and flush; ignore errors."""
        if sys.stderr is None:  # closed by the shell: 2>&-
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # Otherwise the interpreter would fail at exit, when it flushes the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def flush(self) -> None:
        """Do nothing: `write` flushes."""

    def isatty(self) -> bool:
        """Return True if stderr is a terminal."""
        return sys.stderr is not None and sys.stderr.isatty()


CONSOLE = Console()


def looks_like_text(words: Sequence[str]) -> bool:
    """Return True if arguments of the command line look like text instead of a file name."""
    text = " ".join(words)
    exists = any(map(os.path.lexists, (text, *words[:1])))
    is_name = " " not in text.strip() and re.search(r"[./\\]", text.rstrip("."))
    return not exists and not is_name and re.search(r"[^\W\d]", text) is not None


def suggest_command(words: Sequence[str]) -> str:
    """Return the command that translates arguments given without an option: text or a file."""
    if not looks_like_text(words):
        output = len(words) == 2 and not os.path.lexists(words[1])
        src = shlex.join([words[0], *(["-output", words[1]] if output else [])])
        return f"to translate a file: {get_program_command()} -src {src}"
    text = " ".join(words)
    quoted = shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'
    return f"to translate text: echo {quoted} | {get_program_command()}"


def get_program_command() -> str:
    """Return the command that started this program as it was typed, without arguments."""
    path = Path(sys.argv[0])
    if path.name == "translate.py" or path.parent.name == "onmt_lite":
        return shlex.join(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    return path.name if path.name == "onmt_lite" else "python -m onmt_lite"


def is_typed(src: str) -> bool:
    """Return True if a person types the lines of `src` and sees standard error."""
    return src == "-" and sys.stdin is not None and sys.stdin.isatty() and CONSOLE.isatty()


class Interrupted(BaseException):
    """A signal has arrived.  Not an Exception, so `except Exception` does not catch it.

    Attributes:
        signal: signal.Signals, the signal.
        exit_code: int, exit code of the command line.
        status: str, how far the job was and what happened to its output.
        can_resume: bool, whether the same command with -resume continues.
    """

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signal = signal.Signals(signum)
        self.exit_code = 128 + signum
        self.status = ""
        self.can_resume = False


pending_signals: list[int] = []  # the signal that was raised and not handled yet


def stop_on_signals() -> None:
    """Raise Interrupted on SIGINT, SIGTERM and SIGHUP from now on, unless they are ignored."""
    received: list[int] = []
    pending_signals.clear()  # left by an earlier program in this process

    def stop(signum: int, frame: object) -> None:
        received.append(signum)
        if len(received) == 1:  # a second signal must not interrupt the clean-up
            pending_signals.append(signum)
            raise Interrupted(signum)

    handle_signals(stop)


def handle_signals(handler: Callable[[int, Any], None]) -> dict[int, Any]:
    """Install a handler for the signals that are not ignored (nohup ignores SIGHUP).

    Returns:
        The previous handlers.
    """
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    handled = {number: h for number, h in handlers.items() if h is not signal.SIG_IGN}
    for number in handled:
        signal.signal(number, handler)
    return handled


def raise_pending() -> None:
    """Raise Interrupted again if a signal has arrived and the program still runs.

    Python drops exceptions of signal handlers that run inside a finalizer or an import callback
    ("Exception ignored in ...").  A loop that does not check would then run forever.
    """
    if pending_signals:
        raise Interrupted(pending_signals[0])


def ignore_signals() -> None:
    """Ignore signals from now on: at exit, Python would restore the default handlers."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextlib.contextmanager
def stop_after_signal(callback: Callable[[int], None]) -> Iterator[None]:
    """Pass the first signal to `callback`; the second one ends the process at once."""
    received: list[int] = []

    def handle(signum: int, frame: object) -> None:
        if received:
            os._exit(128 + signum)
        received.append(signum)
        callback(signum)

    handlers = handle_signals(handle)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
