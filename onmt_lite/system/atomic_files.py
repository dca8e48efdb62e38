"""Files that appear under their name only when complete: write, sync, rename."""

import contextlib
import errno
import os
import select
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from onmt_lite.errors import wrap_os_errors

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Replace all files or none: no file is renamed before all are on disk.

    Args:
        directory: directory of the files.
        files: contents by file name.

    Raises:
        FileError: if a file cannot be written.
    """
    temporaries: dict[str, str] = {}
    try:
        for name, data in files.items():
            with wrap_os_errors(f"write {directory / name}"):
                temporaries[name] = write_temporary(str(directory / name), data)
        for name in files:
            with wrap_os_errors(f"write {directory / name}"):
                rename_and_sync(temporaries[name], str(directory / name))
                del temporaries[name]
    finally:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):  # keep the original error
                os.unlink(temporary)


def replace_file(target: str, data: bytes) -> None:
    """Replace a file, or leave the old one; a link itself is replaced.  Raises OSError."""
    temporary = write_temporary(target, data)
    with remove_on_error(temporary):
        rename_and_sync(temporary, target)


def write_temporary(target: str, data: bytes) -> str:
    """Write the replacement of `target` to disk; return its temporary path.  Raises OSError."""
    directory, name = os.path.split(target)
    temporary = os.path.join(directory, f".{name}.{os.urandom(6).hex()}.tmp")
    fd = create_temporary(temporary, target)
    try:
        with remove_on_error(temporary):
            write_all(fd, data)
            copy_mode_and_sync(fd, target)
    finally:
        os.close(fd)
    return temporary


def create_temporary(temporary: str, target: str) -> int:
    """Create a file that will replace `target`; until then it is at least as private."""
    return os.open(temporary, NEW, 0o600 if os.path.exists(target) else 0o666)


def copy_mode_and_sync(fd: int, target: str) -> None:
    """Copy mode, owner and group of `target` if possible, and sync the file to disk."""
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(target)
        for uid, gid in ((-1, old.st_gid), (old.st_uid, -1)):
            with contextlib.suppress(OSError):
                os.fchown(fd, uid, gid)
        with contextlib.suppress(OSError):
            os.fchmod(fd, stat.S_IMODE(old.st_mode))  # last: changing the owner clears bits
    os.fsync(fd)


def rename_and_sync(temporary: str, target: str) -> None:
    """Rename a file and sync the directory, so that the new name survives a power failure."""
    os.replace(temporary, target)
    with contextlib.suppress(PermissionError):  # the directory is writable but not readable
        fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes.  Raises OSError, possibly after a part."""
    remaining = memoryview(data)
    while remaining:
        try:
            remaining = remaining[os.write(fd, remaining) :]
        except BlockingIOError:  # another program made the pipe or terminal non-blocking
            waiting = select.poll()
            waiting.register(fd, select.POLLOUT)
            waiting.poll()


@contextlib.contextmanager
def remove_on_error(path: str) -> Iterator[None]:
    """Remove a temporary file if an error occurs."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # keep the original error
            os.unlink(path)
        raise
