"""Files named on the command line: found wrong early, written whole or not at all."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.interrupt import Interrupted
from onmt_lite.text.lines import count_lines

MATCH = "they must match line by line"


def check_paths(src: str, tgt: str | None, output: str, log_file: str | None) -> None:
    """OptionError where one file would be read and written, or written twice."""
    part = None if output == "-" else str(part_of(output))
    written = {"output": output, "the file that output is written to first": part}
    written["log_file"] = log_file
    named = {"src": src, "tgt": tgt, **written}
    for i, (name, path) in enumerate(named.items()):
        for other, other_path in list(named.items())[i + 1 :]:
            one_is_written = name in written or other in written
            if path and other_path and "-" not in (path, other_path) and one_is_written:
                if _same_file(path, other_path):
                    raise OptionError(f"{other} is the same file as {name}; choose another")


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
        return None
    try:
        # Looked at, not opened: opening a FIFO would take its writer's only reader away
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if stat.S_ISDIR(mode):
        raise FileError(f"cannot read {path}: it is a directory")
    return count_lines(path) if stat.S_ISREG(mode) else None


@contextlib.contextmanager
def open_input(path: str) -> Iterator[int]:
    """A file descriptor to read from.

    FileError at the end if the file is no longer what it was: lines may have been lost or read
    twice.
    """
    if path == "-":
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed")
        yield sys.stdin.fileno()
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    try:
        before = os.fstat(fd)
        yield fd
        after = os.fstat(fd)
        changed = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)
        if stat.S_ISREG(before.st_mode) and changed:
            raise FileError(f"{path} was changed while it was read; translate it once more")
    finally:
        os.close(fd)


def part_of(output: str) -> Path:
    """Where an output file is written until it is complete, beside what a link points to."""
    target = Path(os.path.realpath(output))
    return target.with_name(target.name + ".part")


@contextlib.contextmanager
def open_output(path: str) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears under its name only when complete.

    Until then it is `PATH.part`, locked against a second job.
    """
    if path == "-":
        if sys.stdout is None:
            raise FileError("cannot write standard output: it is closed")
        yield sys.stdout.buffer
        return
    try:
        if os.path.isdir(path):
            raise FileError(f"cannot write {path}: it is a directory")
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb", buffering=0) as device:
                yield device
            return
        part = part_of(path)
        with _open_locked(part, path) as out:
            try:
                yield out
                out.flush()
                os.fsync(out.fileno())
                os.replace(part, os.path.realpath(path))
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise FileError(f"cannot write {path}: {reason}") from None


def _open_locked(part: Path, path: str) -> IO[bytes]:
    """An empty file that no other job writes to."""
    while True:
        out = open(part, "ab")  # not "wb": what another job has written must not be cut
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            out.close()
            raise FileError(f"cannot write {path}: another job is writing it") from None
        # That job may have renamed the file between our opening and locking it
        if part.exists() and os.path.samestat(os.fstat(out.fileno()), os.stat(part)):
            out.truncate(0)
            return out
        out.close()


def write_all(out: IO[bytes], text: str, path: str) -> None:
    """All of it, now: what is written must not wait in a buffer for a failure nobody sees."""
    data = memoryview(text.encode("utf-8"))
    try:
        while data:  # an unbuffered file may take less than it is given
            data = data[out.write(data) :]
        out.flush()
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise Interrupted(signal.SIGPIPE) from None
        name = "standard output" if path == "-" else path
        raise FileError(f"cannot write {name}: {error.strerror}") from None
