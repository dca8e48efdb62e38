"""Files that are complete when they get their name: written aside, synced, renamed."""

import contextlib
import errno
import os
import select
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from onmt_lite.errors import wrap_os_errors

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace all files, or none: no file gets its name before all are on the disk.

    Raises FileError.
    """
    asides: dict[str, str] = {}
    try:
        for name, data in files.items():
            with wrap_os_errors(f"write {folder / name}"):
                asides[name] = write_temporary(str(folder / name), data)
        for name in files:
            with wrap_os_errors(f"write {folder / name}"):
                rename_and_sync(asides[name], str(folder / name))
                del asides[name]
    finally:
        for aside in asides.values():
            with contextlib.suppress(OSError):  # the error that led here counts
                os.unlink(aside)


def replace_file(target: str, data: bytes) -> None:
    """Replace a file, or leave the old one; a link is replaced itself.  Raises OSError."""
    aside = write_temporary(target, data)
    with remove_on_error(aside):
        rename_and_sync(aside, target)


def write_temporary(target: str, data: bytes) -> str:
    """Write the replacement of `target` to the disk; return its path.  Raises OSError."""
    folder, name = os.path.split(target)
    aside = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    fd = create_temporary(aside, target)
    try:
        with remove_on_error(aside):
            write_all(fd, data)
            copy_mode_and_sync(fd, target)
    finally:
        os.close(fd)
    return aside


def create_temporary(aside: str, target: str) -> int:
    """Open a new file that is to replace `target`, and is as private until then."""
    return os.open(aside, NEW, 0o600 if os.path.exists(target) else 0o666)


def copy_mode_and_sync(fd: int, target: str) -> None:
    """Give a file the mode, owner and group of `target`, which it is to replace, if that is
    permitted and the file system has them, and sync it to the disk."""
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(target)
        for uid, gid in ((-1, old.st_gid), (old.st_uid, -1)):
            with contextlib.suppress(OSError):
                os.fchown(fd, uid, gid)
        with contextlib.suppress(OSError):
            os.fchmod(fd, stat.S_IMODE(old.st_mode))  # after the owner, whose change clears bits
    os.fsync(fd)


def rename_and_sync(aside: str, target: str) -> None:
    """Rename a file; the new name outlasts a power cut, if the file system can."""
    os.replace(aside, target)
    with contextlib.suppress(PermissionError):  # a folder to write, not to read
        fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes.  Raises OSError; then some of them may be written."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # of a pipe or terminal that another program has set so
            waiting = select.poll()
            waiting.register(fd, select.POLLOUT)
            waiting.poll()


@contextlib.contextmanager
def remove_on_error(path: str) -> Iterator[None]:
    """Remove a file that is not in its place yet if an error comes."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the error that led here counts
            os.unlink(path)
        raise
