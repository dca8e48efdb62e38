"""Files named on the command line: found wrong early, written whole or not at all."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.interrupt import Interrupted
from onmt_lite.text.lines import count_ahead, count_lines
from onmt_lite.text.stream import STANDARD_INPUT

MATCH = "they must match line by line"

Named = tuple[str, str]  # what to call a file in a message, and its path


def check_paths(read: Sequence[Named], output: str, log_file: str | None) -> None:
    """OptionError where a file would be written that is read, or written twice.

    `read`: what the job reads; of a directory, every file in it.
    """
    written = [("output", "/dev/stdout" if output == "-" else output)]
    if replaces_a_file(output):
        written.append(("the file that output is written to first", str(part_of(output))))
    if log_file is not None:
        written.append(("log_file", log_file))
    for i, (name, path) in enumerate(written):
        for other, other_path in [*_with_files_inside(read), *written[:i]]:
            if _same_file(path, other_path):
                raise OptionError(f"{name} is the same file as {other}; choose another")


def _with_files_inside(named: Sequence[Named]) -> Iterator[Named]:
    for name, path in named:
        yield name, "/dev/stdin" if path == "-" else path
        with contextlib.suppress(OSError, ValueError):  # not a directory, or not there
            yield from ((f"{entry.name} of {name}", entry.path) for entry in os.scandir(path))


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


def name_of(output: str) -> str:
    """As it can be printed, whatever the locale or the bytes of a path."""
    printable = os.fsencode(output).decode("utf-8", "backslashreplace")
    return "standard output" if output == "-" else printable


def replaces_a_file(output: str) -> bool:
    """Whether `output` is a file that appears when it is complete, not a stream or a device."""
    if output == "-" or descriptor_of(output) is not None:
        return False
    return os.path.isfile(output) or not os.path.exists(output)


def part_of(output: str) -> Path:
    """Where an output file is written until it is complete, beside what a link points to."""
    target = Path(os.path.realpath(output))
    return target.with_name(target.name + ".part")


def descriptor_of(path: str) -> int | None:
    """N where a path leads to /dev/fd/N, as /dev/stdout does: what this process has open already.

    It is written to as it is.  Opened once more, a file would be written from its start, even
    where the shell appends to it.
    """
    for _ in range(40):  # links that go round in a circle
        folder, name = os.path.split(path)
        if name.isdecimal() and os.path.realpath(folder) == os.path.realpath("/dev/fd"):
            return int(name)
        if not os.path.islink(path):
            break
        path = os.path.join(folder, os.readlink(path))
    return None


@contextlib.contextmanager
def open_output(path: str) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears under its name only when complete.

    Until then it is `PATH.part`, locked against a second job.  FileError where a file operation
    fails; an error of what is done within stays itself.
    """
    if path == "-":
        if sys.stdout is None:
            raise FileError("cannot write standard output: it is closed")
        yield sys.stdout.buffer
        return
    with _refused(path):
        if os.path.isdir(path):
            raise FileError(f"cannot write {path}: it is a directory")
        replaces = replaces_a_file(path)
    with _replacement(path) if replaces else _device(path) as out:
        yield out


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    """FileError where an operation on the file fails; nothing else belongs within."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise FileError(f"cannot write {path}: {reason}") from None


@contextlib.contextmanager
def _device(path: str) -> Iterator[IO[bytes]]:
    """A device, a pipe or what this process has open already: written to as it is."""
    with _refused(path):
        fd = descriptor_of(path)
        out = open(path if fd is None else os.dup(fd), "wb", buffering=0)
    try:
        yield out
    except BaseException:
        with contextlib.suppress(OSError):  # the error that led here counts
            out.close()
        raise
    with _refused(path):
        out.close()  # some file systems tell only now that a disk is full


@contextlib.contextmanager
def _replacement(path: str) -> Iterator[IO[bytes]]:
    """A file beside `path` that takes its place at the end, or is removed where that fails."""
    with _refused(path):
        part, target = part_of(path), os.path.realpath(path)
        replaced = os.stat(target) if os.path.exists(target) else None
        out = _open_locked(part, path, private=replaced is not None)
    try:
        yield out
        with _refused(path):
            if replaced is not None:
                _take_over_rights(out.fileno(), replaced)
            os.fsync(out.fileno())
            os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the error that led here counts
            part.unlink(missing_ok=True)
        raise
    finally:
        with contextlib.suppress(OSError):  # all of it is on the disk, or removed
            out.close()


def _open_locked(part: Path, path: str, private: bool) -> IO[bytes]:
    """An empty file that no other job writes to; `private`: for the eyes of its owner."""
    # Nothing is cut before the lock is there: another job may be writing
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    while True:
        out = open(os.open(part, flags, 0o600 if private else 0o666), "ab", buffering=0)
        try:
            _lock(out, path)
            # That job may have renamed the file between our opening and locking it
            if os.path.samestat(os.fstat(out.fileno()), os.stat(part)):
                out.truncate(0)
                if private:
                    with contextlib.suppress(OSError):  # some file systems keep no modes
                        os.fchmod(out.fileno(), 0o600)
                return out
        except FileNotFoundError:
            pass
        except BaseException:
            out.close()
            raise
        out.close()


def _lock(out: IO[bytes], path: str) -> None:
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise FileError(f"cannot write {path}: another job is writing it") from None
    except OSError as error:
        if os.fstat(out.fileno()).st_size == 0:
            part_of(path).unlink(missing_ok=True)
        raise FileError(
            f"cannot write {path}: its file system has no locks ({error.strerror}); write "
            "elsewhere, or to standard output"
        ) from None


def _take_over_rights(fd: int, replaced: os.stat_result) -> None:
    """Mode and, as far as that is permitted, owner and group of the file that is replaced.

    Some file systems have none of these, and nothing is lost where they stay private.
    """
    for uid, gid in ((-1, replaced.st_gid), (replaced.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.fchown(fd, uid, gid)
    with contextlib.suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(replaced.st_mode))  # after the owner, whose change clears bits


def write_all(out: IO[bytes], data: bytes, path: str) -> None:
    """All of it, now: what is written must not wait in a buffer for a failure nobody sees."""
    left = memoryview(data)
    try:
        out.flush()  # what the program itself has printed
        while left:
            try:
                left = left[os.write(out.fileno(), left) :]
            except BlockingIOError:  # of a pipe or terminal that another program has set so
                waiting = select.poll()
                waiting.register(out, select.POLLOUT)
                waiting.poll()
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise Interrupted(signal.SIGPIPE) from None
        raise FileError(f"cannot write {name_of(path)}: {error.strerror}") from None
