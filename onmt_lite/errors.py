"""What can go wrong that is not a bug: each error knows the exit code of the command line."""

import contextlib
from collections.abc import Iterator


class OnmtLiteError(Exception):
    """Base class of the errors that a user can act on.  The text is one line: what (where); what
    to do.

    Attributes:
        exit_code: int, with which the command line ends.
        goes_on: bool, whether the same command with -resume goes on from what is written.
        kept: str, how far the work was, and what is left of it; "" if nothing was begun.
    """

    exit_code = 1
    goes_on = False
    kept = ""


class OptionError(OnmtLiteError):
    """Options or a configuration that cannot be.

    Args:
        problems: str, every problem found, not only the first; the text has a line for each.
    """

    exit_code = 2

    def __init__(self, *problems: str):
        super().__init__(*problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """Every problem found."""
        return self.args

    def __str__(self) -> str:
        return "\n".join(self.args)


class OptionWarning(UserWarning):
    """An option that changes nothing where it is given, and why: the note of the command line."""


class DataError(OnmtLiteError):
    """Input that cannot be translated as it stands."""

    exit_code = 3


class CheckpointError(OnmtLiteError):
    """A model that is missing, damaged or of a kind that is not read."""

    exit_code = 4


class FileError(OnmtLiteError):
    """Reading the input or writing the output failed."""

    exit_code = 5


class MemoryExhausted(OnmtLiteError):
    """One sentence alone, or the model, does not fit into memory."""

    exit_code = 6


class Untranslated(OnmtLiteError):
    """A job is complete, but for lines that could not be translated and are blank."""

    exit_code = 7


class WorkerLost(OnmtLiteError):
    """A process that a job needs cannot be started, or dies again and again.

    Args:
        problem: str, the text.
        by_memory: bool, whether memory was probably short, which sets the exit code.
    """

    def __init__(self, problem: str, by_memory: bool = False):
        super().__init__(problem)
        if by_memory:
            self.exit_code = MemoryExhausted.exit_code


@contextlib.contextmanager
def refused(deed: str) -> Iterator[None]:
    """Raise FileError ("cannot write out: No space left on device") if an operation on a file
    fails; nothing else belongs within."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot {deed}: {reason}") from None
