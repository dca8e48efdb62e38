"""Errors that a user can fix, each with its exit code, and explanations of file errors."""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Iterator

# Remedies for operating system errors, by errno
REMEDIES = {
    errno.EACCES: "change its permissions or those of its directory",
    errno.EPERM: "change its permissions or those of its directory",
    errno.ENOTDIR: "check the path: a part of it is a file, not a directory",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "free some space or choose another disk",
    errno.EDQUOT: "free some space or choose another disk",
    errno.EROFS: "choose another directory",
    errno.ENOLCK: "choose a directory on a file system that supports locks",
    errno.ENOSYS: "choose a directory on a file system that supports locks",
    errno.EFBIG: "raise the file size limit (ulimit -f) or choose another directory",
    errno.EIO: "check the disk and the path",
    errno.EBADF: "check the path",
    errno.ELOOP: "check the links in the path",
}


class Message(str):
    """A message in command-line style.

    Attributes:
        keywords: the same message in Python style, with options as keyword arguments.
    """

    keywords: str

    @classmethod
    def of(cls, template: str, *texts: str, **options: object) -> "Message":
        """Fill in a template.

        `Message.of("{n_best} requires -{search}", n_best=9, search="x")` is "n_best 9 requires
        -search x", and in Python style "n_best=9 requires search=x".

        Args:
            template: Template; `{name}` is an option with its value, `{0}` is the first text.
            texts: Texts to insert.
            options: Values of the options by name; "" inserts only the name.

        Returns:
            The message.
        """
        words = {n: str(v).lower() if isinstance(v, bool) else v for n, v in options.items()}
        message = cls(template.format(*texts, **{n: f"{n} {v}".rstrip() for n, v in words.items()}))
        message.keywords = template.replace("-{", "{").format(
            *map(to_keyword_style, texts), **{n: f"{n}={v}" for n, v in options.items()}
        )
        return message


def to_keyword_style(text: str) -> str:
    """Return a message in Python style."""
    return getattr(text, "keywords", text)


@contextlib.contextmanager
def use_keyword_style() -> Iterator[None]:
    """Convert the messages of raised errors to Python style."""
    try:
        yield
    except OnmtLiteError as error:
        error.args = tuple(map(to_keyword_style, error.args))
        raise


class OnmtLiteError(Exception):
    """Base class of errors that a user can fix.

    The message is a single line: `<option or file>: <what is wrong>; <what to do>`.

    Attributes:
        exit_code: Exit code of the command line, an int.
        can_resume: Whether the same command with -resume continues from the written output.
        status: Progress of the job and state of its output; "" if nothing was started.
    """

    exit_code = 1
    can_resume = False
    status = ""


class OptionError(OnmtLiteError):
    """Invalid options or configuration.

    Args:
        problems: All problems; the message has one line per problem.
    """

    exit_code = 2

    def __init__(self, *problems: str):
        super().__init__(*problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems."""
        return self.args

    def __str__(self) -> str:
        return "\n".join(self.args)


class OptionWarning(UserWarning):
    """A notice about an option, such as an option without effect; printed on the command line."""


class DataError(OnmtLiteError):
    """Input that cannot be translated."""

    exit_code = 3


class CheckpointError(OnmtLiteError):
    """A model that is missing, damaged or in an unsupported format."""

    exit_code = 4


class FileError(OnmtLiteError):
    """Reading the input or writing the output failed."""

    exit_code = 5


class MemoryExhausted(OnmtLiteError):
    """A single sentence, or the model, does not fit in memory."""

    exit_code = 6


class Untranslated(OnmtLiteError):
    """A job is complete except for lines that could not be translated and are empty."""

    exit_code = 7


class WorkerLost(OnmtLiteError):
    """A worker process cannot be started, or keeps dying.

    Args:
        problem: The message.
        by_memory: True if the process probably ran out of memory; sets the exit code.
    """

    def __init__(self, problem: str, by_memory: bool = False):
        super().__init__(problem)
        if by_memory:
            self.exit_code = MemoryExhausted.exit_code


@contextlib.contextmanager
def wrap_os_errors(action: str) -> Iterator[None]:
    """Convert OSError and ValueError to FileError; wrap only file operations.

    Args:
        action: The operation, such as "write out.txt".

    Raises:
        FileError: Such as "cannot write out.txt: No space left on device; free some space or ...".
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise FileError(f"cannot {action}: {explain_os_error(error, action)}") from None


def explain_os_error(error: Exception, action: str = "") -> str:
    """Explain a failed file operation.

    Args:
        error: The error.
        action: The failed operation, such as "write out.txt".

    Returns:
        Reason and remedy, such as "No space left on device; free some space or choose ...".
    """
    number = getattr(error, "errno", None) or 0
    writes = action.startswith("write")
    known = {
        **REMEDIES,
        errno.ENOENT: "create its directory first" if writes else "check the path",
        errno.EISDIR: f"use the path of a file{' in it' if writes else ''}",
    }
    return f"{getattr(error, 'strerror', None) or error}; {known.get(number, 'check the path')}"


def hint_for_path(path: str) -> str:
    """Return a hint for a path that does not exist, or ""."""
    if near := find_similar_path(path):
        return f"did you mean {near}?"
    if re.search(r"^~|\$\w|\$\{\w|%\w+%", path):
        return "write the full path, because ~ and variables are not expanded"
    if not path.isprintable():
        return f"the path is {path!r}: in YAML, use / or single quotes"
    return ""


def find_similar_path(path: str) -> str:
    """Return an existing path with a similar spelling; "" if there is none."""
    prefix = ""  # the part that exists
    if not path:
        return ""
    for part in path.split(os.sep):
        extended = os.path.join(prefix, part) if prefix or part else os.sep
        if not os.path.lexists(extended):
            try:
                names = [n for n in os.listdir(prefix or ".") if n[0] != "." or part[:1] == "."]
                near = difflib.get_close_matches(part, names, 1, 0.7)
            except (OSError, ValueError):
                near = []
            if not near:
                return ""
            extended = os.path.join(prefix, near[0])
        prefix = extended
    return prefix if prefix != path else ""
