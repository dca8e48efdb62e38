"""What can go wrong that is not a bug: each error knows the exit code of the command line."""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Iterator

# What to do about an operating system error, by its number
REMEDIES = {
    errno.EACCES: "change its permissions or those of its directory",
    errno.EPERM: "change its permissions or those of its directory",
    errno.ENOTDIR: "check the path: a part of it is a file, not a directory",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "free some space or choose another disk",
    errno.EDQUOT: "free some space or choose another disk",
    errno.EROFS: "choose another place",
    errno.ENOLCK: "choose another place, whose file system has locks",
    errno.ENOSYS: "choose another place, whose file system has locks",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or choose another place",
    errno.EIO: "check the disk and the path",
    errno.EBADF: "check the path",
    errno.ELOOP: "check the links in the path",
}


class Message(str):
    """A text in the words of the command line.

    Attributes:
        keywords: the same text for Python, where options are keyword arguments.
    """

    keywords: str

    @classmethod
    def of(cls, template: str, *texts: str, **options: object) -> "Message":
        """Fill in options: `Message.of("{n_best} needs -{search}", n_best=9, search="x")` is
        "n_best 9 needs -search x", and for Python "n_best=9 needs search=x".

        Args:
            template: `{name}` stands for an option with its value, `{0}` for the first text.
            texts: further texts.
            options: the values of the options by name; "" names the option only.

        Returns:
            The text.
        """
        words = {n: str(v).lower() if isinstance(v, bool) else v for n, v in options.items()}
        message = cls(template.format(*texts, **{n: f"{n} {v}".rstrip() for n, v in words.items()}))
        message.keywords = template.replace("-{", "{").format(
            *map(to_keyword_style, texts), **{n: f"{n}={v}" for n, v in options.items()}
        )
        return message


def to_keyword_style(text: str) -> str:
    """Return a text as Python has it."""
    return getattr(text, "keywords", text)


@contextlib.contextmanager
def use_keyword_style() -> Iterator[None]:
    """Let errors name options as Python does."""
    try:
        yield
    except OnmtLiteError as error:
        error.args = tuple(map(to_keyword_style, error.args))
        raise


class OnmtLiteError(Exception):
    """Base class of the errors that a user can act on.  The text is one line: what (where); what
    to do.

    Attributes:
        exit_code: int, with which the command line ends.
        can_resume: bool, whether the same command with -resume goes on from what is written.
        status: str, how far the work was, and what is left of it; "" if nothing was begun.
    """

    exit_code = 1
    can_resume = False
    status = ""


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
def wrap_os_errors(action: str) -> Iterator[None]:
    """Raise FileError ("cannot write out: No space left on device") if an operation on a file
    fails; nothing else belongs within."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise FileError(f"cannot {action}: {explain_os_error(error, action)}") from None


def explain_os_error(error: Exception, action: str = "") -> str:
    """Return the reason and the remedy of a failed operation on a file: "No space left on device;
    free some space or choose another disk".  `action` begins with "write" if a file was written."""
    number = getattr(error, "errno", None) or 0
    writes = action.startswith("write")
    known = {
        **REMEDIES,
        errno.ENOENT: "create its directory first" if writes else "check the path",
        errno.EISDIR: f"give the path of a file{' in it' if writes else ''}",
    }
    return f"{getattr(error, 'strerror', None) or error}; {known.get(number, 'check the path')}"


def hint_for_path(path: str) -> str:
    """Return why nothing may be at a path: its near name, or what no program replaces in it; ""
    if neither is known."""
    if near := find_similar_path(path):
        return f"did you mean {near}?"
    if re.search(r"^~|\$\w|\$\{\w|%\w+%", path):
        return "write the path out: variables and ~ are not replaced in it"
    if not path.isprintable():
        return f"the path is {path!r}: in YAML, write / or use single quotes"
    return ""


def find_similar_path(path: str) -> str:
    """Return an existing path that is spelled like `path`, "" if there is none."""
    found = ""
    if not path:
        return ""
    for part in path.split(os.sep):
        there = os.path.join(found, part) if found or part else os.sep
        if not os.path.lexists(there):
            try:
                names = [n for n in os.listdir(found or ".") if n[0] != "." or part[:1] == "."]
                near = difflib.get_close_matches(part, names, 1, 0.7)
            except (OSError, ValueError):
                near = []
            if not near:
                return ""
            there = os.path.join(found, near[0])
        found = there
    return found if found != path else ""
