"""What can go wrong that is not a bug: each error knows the exit code of the command line."""

import contextlib
from collections.abc import Iterator


class OnmtLiteError(Exception):
    """A problem the user can act on: what (where); what to do."""

    exit_code = 1
    goes_on = False  # whether the same command with -resume goes on from what is written
    kept = ""  # how far the work was, and what is left of it


class OptionError(OnmtLiteError):
    """Options or configuration.  `problems` lists every one found, not only the first."""

    exit_code = 2

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems


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
    """A process that a job needs cannot be started, or dies again and again."""


@contextlib.contextmanager
def refused(deed: str) -> Iterator[None]:
    """Raise FileError ("cannot write out: No space left on device") if an operation on a file
    fails; nothing else belongs within."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot {deed}: {reason}") from None
