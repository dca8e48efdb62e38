"""The terminal: standard error that cannot fail, and whether a person types the input."""

import os
import sys


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


def is_typed(src: str) -> bool:
    """Return whether a person types the lines of `src` and sees standard error."""
    return src == "-" and sys.stdin is not None and sys.stdin.isatty() and CONSOLE.isatty()
