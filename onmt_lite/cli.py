"""What every program of the project does around its work: help, errors, signals, exit codes."""

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from onmt_lite.errors import FileError, OnmtLiteError, OptionError
from onmt_lite.interrupt import Interrupted, stop_on_signals
from onmt_lite.schema import Option, Resolved, help_text

T = TypeVar("T")


def run_program(
    argv: Sequence[str],
    options: dict[str, Option],
    usage: str,
    load: Callable[[Sequence[str]], tuple[T, Resolved]],
    run: Callable[[T], None],
) -> int:
    """Returns the exit code.

    0 done, 2 options, 3 input, 4 model, 5 files, 6 out of memory, 128+N stopped by signal N.
    """
    # torch works without numpy and says at length that it is missing
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        stop_on_signals()
        if {"-help", "--help", "-h", "-help=true", "--help=true"} & set(argv):
            print_out(help_text(options, usage) + "\n")
            return 0
        loaded, resolved = load(argv)
        if resolved.values["print_config"]:
            print_out(resolved.configuration().to_yaml())
        else:
            run(loaded)
    except OnmtLiteError as error:
        problems = error.problems if isinstance(error, OptionError) else (str(error),)
        for problem in problems if sys.stderr is not None else ():
            print(f"onmt_lite: error: {_one_line(problem)}", file=sys.stderr)
        return error.exit_code
    except Interrupted as interrupted:
        # The interpreter must not flush into a pipe that nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return interrupted.exit_code
    return 0


def print_out(text: str) -> None:
    """Standard output, failing as a job's output does."""
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed")
    try:
        print(text, end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer is lost anyway
        if error.errno == errno.EPIPE:
            raise Interrupted(signal.SIGPIPE) from None
        raise FileError(f"cannot write standard output: {error.strerror}") from None


def _one_line(problem: str) -> str:
    """Whatever a file name or a value holds, an error is one line that can be printed."""
    return " ".join(problem.encode("utf-8", "backslashreplace").decode("utf-8").split())
