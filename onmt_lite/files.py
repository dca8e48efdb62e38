"""Files named on the command line: found wrong early, counted and opened for reading."""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.text.lines import count_ahead, count_lines
from onmt_lite.text.stream import GZIP, STANDARD_INPUT

MATCH = "they must match line by line"

Named = tuple[str, str]  # what to call a file in a message, and its path


def check_paths(read: Sequence[Named], written: Sequence[Named]) -> None:
    """OptionError where a file would be written that is read, or written twice."""
    taken = list(read)
    for named in written:
        own = list(_with_parts(named))
        for name, path in own:
            for other, other_path in taken:
                if _same_file(_opened(path, "/dev/stdout"), _opened(other_path, "/dev/stdin")):
                    shown = _called(other, other_path, "standard input")
                    raise OptionError(
                        f"{_called(name, path, 'standard output')} is the same file as {shown}; "
                        "choose another"
                    )
        taken += [(name, _opened(path, "/dev/stdout")) for name, path in own]


def _with_parts(named: Named) -> Iterator[Named]:
    """A file, and those in which it is written until it is complete."""
    name, path = named
    yield named
    if name != "log_file" and replaces_a_file(path):
        yield f"{name}'s unfinished", str(part_of(path))
        yield f"{name}'s journal", str(journal_of(path))


def _opened(path: str, standard: str) -> str:
    return standard if path == "-" else path


def _called(name: str, path: str, standard: str) -> str:
    return standard if path == "-" else f"{name} {name_of(path)}"


def _same_file(a: str, b: str) -> bool:
    try:
        same = os.path.samestat(os.stat(a), os.stat(b))
        # Devices such as /dev/null take everything without harm
        return same and stat.S_ISREG(os.stat(a).st_mode)
    except (OSError, ValueError):
        return os.path.realpath(a) == os.path.realpath(b)


def count_input(src: str, tgt: str | None) -> int | None:
    """Lines of src, None for a stream.  DataError where tgt is known to have more or fewer."""
    n_src = _count(src)
    n_tgt = None if tgt is None else _count(tgt)
    if n_src is not None and n_tgt is not None and n_src != n_tgt:
        raise DataError(f"src has {n_src} lines, tgt has {n_tgt}; {MATCH}")
    return n_src


def _count(path: str) -> int | None:
    if path == "-":
        return _count_standard_input()
    try:
        # Looked at, not opened: opening a FIFO would take its writer's only reader away
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if stat.S_ISDIR(mode):
        raise FileError(f"cannot read {path}: it is a directory")
    return count_lines(path) if stat.S_ISREG(mode) else None


def _count_standard_input() -> int | None:
    """Lines of a file that the shell has opened; None for a stream."""
    if sys.stdin is None:
        return None
    fd = sys.stdin.fileno()
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    start = os.lseek(fd, 0, os.SEEK_CUR)
    n = count_ahead(fd, STANDARD_INPUT)
    os.lseek(fd, start, os.SEEK_SET)
    return n


class Inputs:
    """Files that a job reads line by line, perhaps several times, and that must stay as they are
    until it ends.

    As a context, checks them at its end.  Streams are left alone, and so are files that are
    removed: what is open is still there.
    """

    def __init__(self, *paths: str | None):
        self.states = {path: _state_of(path) for path in paths if path is not None}

    def __enter__(self) -> "Inputs":
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        if error is None or isinstance(error, DataError):  # lines that do not match, say
            self.check()

    def check(self) -> None:
        """FileError for a file that was written since: lines would be lost, or read twice."""
        for path, before in self.states.items():
            if before is not None and _state_of(path) not in (before, None):
                name = STANDARD_INPUT if path == "-" else path
                raise FileError(
                    f"{name} was changed while it was read; put it back as it was, or translate it "
                    "once more"
                )


def _state_of(path: str) -> tuple[int, int] | None:
    """What changes when a regular file is written; None for anything else."""
    try:
        found = os.stat(sys.stdin.fileno() if path == "-" and sys.stdin else path)
    except (OSError, ValueError):
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


@contextlib.contextmanager
def open_input(path: str) -> Iterator[int]:
    """A file descriptor to read from.  FileError, also at the end for a file that has changed."""
    if path == "-":
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed")
        yield sys.stdin.fileno()
        return
    with Inputs(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
        try:
            yield fd
        finally:
            os.close(fd)


def is_packed(path: str) -> bool:
    """Whether a file is gzip data.  A pipe, whose data are gone, counts as text."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(len(GZIP)) == GZIP
    return False


def name_of(output: str) -> str:
    """As it can be printed, whatever the locale or the bytes of a path."""
    printable = os.fsencode(output).decode("utf-8", "backslashreplace")
    return "standard output" if output == "-" else printable


def replaces_a_file(output: str) -> bool:
    """Whether `output` is a file that appears when it is complete, not a stream or a device."""
    if output == "-" or is_device(output):
        return False
    return os.path.isfile(output) or not os.path.exists(output)


def rereads(src: str) -> bool:
    """Whether another run of the job can read `src` from its start: no stream, no device."""
    there = os.path.exists(src) and not os.path.isdir(src)
    return src != "-" and not is_device(src) and (os.path.isfile(src) or not there)


def part_of(output: str) -> Path:
    """Where an output file is written until it is complete, beside what a link points to."""
    target = Path(os.path.realpath(output))
    return target.with_name(target.name + ".part")


def journal_of(output: str) -> Path:
    """What is said of the part, beside it."""
    part = part_of(output)
    return part.with_name(part.name + ".journal")


def is_device(path: str) -> bool:
    """Whether a path leads through /dev or /proc: to a device, or to what a process has open.

    It is written to as it is: renamed onto, it would be replaced.
    """
    return any(
        folder in ("/dev", "/proc") or re.match(r"/dev/(?!shm\b)|/proc/", folder)
        for folder, _ in _links(path)
    )


def descriptor_of(path: str) -> int | None:
    """N where a path leads to /dev/fd/N, as /dev/stdout does: what this process has open already.

    It is written to as it is.  Opened once more, a file would be written from its start, even
    where the shell appends to it.
    """
    own = os.path.realpath("/dev/fd")
    return next(
        (int(name) for folder, name in _links(path) if folder == own and name.isdecimal()), None
    )


def _links(path: str) -> Iterator[tuple[str, str]]:
    """The folder and name of a path, then of what it links to, and so on."""
    for _ in range(40):  # links that go round in a circle
        folder, name = os.path.split(path)
        yield os.path.realpath(folder), name
        if not os.path.islink(path):
            return
        path = os.path.join(folder, os.readlink(path))
