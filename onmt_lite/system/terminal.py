"""The terminal and its signals: standard error that cannot fail, whether a person types the input,
and an end in good order, in which files are closed and nothing half-written stays."""

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
    """Replaces sys.stderr: a full disk, or a reader that is gone, must not end a job whose output
    is well."""

    encoding = "utf-8"  # tqdm asks

    def write(self, text: str) -> None:
        if sys.stderr is None:  # closed by the shell: 2>&-
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # The interpreter would fail at its end, at what is left in the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def flush(self) -> None:
        """`write` has done that."""

    def isatty(self) -> bool:
        return sys.stderr is not None and sys.stderr.isatty()


CONSOLE = Console()


def looks_like_text(words: Sequence[str]) -> bool:
    """Return whether words of the command line read as text rather than as the name of a file."""
    text = " ".join(words)
    named = any(map(os.path.lexists, (text, *words[:1])))
    is_name = " " not in text.strip() and re.search(r"[./\\]", text.rstrip("."))
    return not named and not is_name and re.search(r"[^\W\d]", text) is not None


def suggest_command(words: Sequence[str]) -> str:
    """Return what to type to translate what was given to no option: text, or a file."""
    if not looks_like_text(words):
        output = len(words) == 2 and not os.path.lexists(words[1])
        src = shlex.join([words[0], *(["-output", words[1]] if output else [])])
        return f"to translate a file: {get_program_command()} -src {src}"
    text = " ".join(words)
    quoted = shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'
    return f"to translate text: echo {quoted} | {get_program_command()}"


def get_program_command() -> str:
    """Return the words that started this program, up to its first argument, as they were typed."""
    path = Path(sys.argv[0])
    if path.name == "translate.py" or path.parent.name == "onmt_lite":
        return shlex.join(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    return path.name if path.name == "onmt_lite" else "python -m onmt_lite"


def is_typed(src: str) -> bool:
    """Return whether a person types the lines of `src` and sees standard error."""
    return src == "-" and sys.stdin is not None and sys.stdin.isatty() and CONSOLE.isatty()


class Interrupted(BaseException):
    """Raised when a signal arrives; no `except Exception` takes it for an error."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signal = signal.Signals(signum)
        self.exit_code = 128 + signum
        self.status = ""  # how far the work was, and what is left of it
        self.can_resume = False  # whether the same command with -resume goes on from there


pending_signals: list[int] = []  # the signal that was raised and has not been answered yet


def stop_on_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise Interrupted from now on, unless they are ignored."""
    arrived: list[int] = []
    pending_signals.clear()  # of a program that ran in this process before

    def stop(signum: int, frame: object) -> None:
        arrived.append(signum)
        if len(arrived) == 1:  # a second one must not break into the clean-up after the first
            pending_signals.append(signum)
            raise Interrupted(signum)

    handle_signals(stop)


def handle_signals(handler: Callable[[int, Any], None]) -> dict[int, Any]:
    """Handle the signals from now on, unless they are ignored: nohup means it.  Return the handlers
    so far."""
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {number: h for number, h in handlers.items() if h is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, handler)
    return taken


def raise_pending() -> None:
    """Raise Interrupted again if a signal has arrived and the program still runs.

    Python drops what a handler raises while it happens to run a finalizer or a callback of the
    import system ("Exception ignored in ..."); a loop that did not ask would run for ever.
    """
    if pending_signals:
        raise Interrupted(pending_signals[0])


def ignore_signals() -> None:
    """Ignore these signals from now on: only the end of the process is left, in which Python would
    set the default back."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextlib.contextmanager
def stop_after_signal(note: Callable[[int], None]) -> Iterator[None]:
    """Pass a first signal to `note`; a second one ends the process at once."""
    arrived: list[int] = []

    def take(signum: int, frame: object) -> None:
        if arrived:
            os._exit(128 + signum)
        arrived.append(signum)
        note(signum)

    handlers = handle_signals(take)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
