"""Files that are complete when they get their name: written aside, synced, renamed."""

import contextlib
import errno
import os
import select
import stat
from collections.abc import Iterator

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(target: str, data: bytes) -> None:
    """Write a file, or leave what is there as it is.  Raises OSError.

    A link is replaced; give what it points to if that is to be written.
    """
    folder, name = os.path.split(target)
    aside = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    fd = create(aside, target)
    try:
        with removed_on_error(aside):
            write_all(fd, data)
            put_in_place(fd, aside, target)
    finally:
        os.close(fd)


def create(aside: str, target: str) -> int:
    """Open a new file that is to replace `target`, and is as private until then."""
    return os.open(aside, NEW, 0o600 if os.path.exists(target) else 0o666)


def put_in_place(fd: int, aside: str, target: str) -> None:
    """Sync the open file `aside` to the disk and rename it to `target`, whose rights it takes
    over."""
    with contextlib.suppress(FileNotFoundError):
        take_over_rights(fd, os.stat(target))
    os.fsync(fd)
    os.replace(aside, target)
    sync_folder(os.path.dirname(target))


def take_over_rights(fd: int, replaced: os.stat_result) -> None:
    """Give a file the mode and, as far as that is permitted, the owner and group of another one.

    Some file systems have none of these, and nothing is lost if the file stays private.
    """
    for uid, gid in ((-1, replaced.st_gid), (replaced.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.fchown(fd, uid, gid)
    with contextlib.suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(replaced.st_mode))  # after the owner, whose change clears bits


def sync_folder(folder: str) -> None:
    """Let the names in a folder outlast a power cut, if the file system can."""
    with contextlib.suppress(PermissionError):  # a folder to write, not to read
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
def removed_on_error(path: str) -> Iterator[None]:
    """Remove a file that is not in its place yet if an error comes."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the error that led here counts
            os.unlink(path)
        raise
