"""The journal of a file that is being written: who writes it, for which job, what is done of it.

`OUT.part.journal` has one JSON object per line:

    {"onmt_lite_journal": 1, "pid": 4711, "host": "node7"}         who writes; of HEAD bytes
    {"job": {...}, "crc": "9ae0daaf"}                              see `onmt_lite.jobs.fingerprint`
    {"bucket": 0, "lines": 1024, "bytes": 40961, ..., "crc": ...}  one for each bucket in the file
    {"end": 20, "crc": ...}                                        there are no more than 20 buckets

`crc` is the CRC-32 of the line before it: a line that a power cut or a full disk has cut off, and
all behind it, does not count.  A lock (flock) on the journal is the lock of the job; the kernel
lifts the lock of a process that is killed.
"""

import contextlib
import fcntl
import json
import os
import select
import stat
import zlib
from collections.abc import Iterator
from typing import Any

from onmt_lite.errors import FileError

MARK = b'{"onmt_lite_journal": 1, '
HEAD = 256
CRC = ', "crc": "%08x"}\n'
MAX_LINE = 1 << 24  # bytes; longer lines are none of a journal

Record = dict[str, Any]


class Journal:
    """The journal at a path, locked until `close`.

    new   there was none before, and there is one now
    job   what the job line says; None where there is none
    """

    def __init__(self, path: str, writes: str, mode: int):
        """Open the journal, or make one that is empty.

        writes  the file that the journal is about, for messages
        mode    rights of a new journal

        Raises FileError for a file that is no journal, and where another job holds the lock;
        OSError where the file cannot be opened.
        """
        self.path, self.writes = path, writes
        self.fd, self.new = self._locked(mode)
        try:
            self.empty = os.fstat(self.fd).st_size < HEAD
            first, _ = next(self._records(), ({}, 0))
            self.job: Record | None = first.get("job")
        except BaseException:
            if self.new:
                self.remove()
            self.close()
            raise

    def claim(self) -> None:
        """Say that this process writes."""
        host = "".join(c for c in os.uname().nodename if c.isalnum() or c in "-._")[:100]
        head = MARK + f'"pid": {os.getpid()}, "host": "{host}"}}'.encode("ascii", "replace")
        os.pwrite(self.fd, head.ljust(HEAD - 1) + b"\n", 0)

    def begin(self, job: Record) -> None:
        """Forget all that was written, and begin with this job."""
        os.ftruncate(self.fd, HEAD)
        self.add({"job": job})
        self.job = job

    def add(self, record: Record) -> None:
        """Append a line, on the disk when this returns."""
        os.lseek(self.fd, 0, os.SEEK_END)
        write_all(self.fd, line_of(record))
        os.fsync(self.fd)

    def lines(self) -> Iterator[tuple[Record, int]]:
        """Yield the records of buckets, each with where the next line begins; then perhaps that of
        the end.  They stop where a line is damaged or out of order."""
        records = self._records()
        if "job" not in next(records, ({}, 0))[0]:
            return
        for n, (record, end) in enumerate(records):
            if n in (record.get("bucket"), record.get("end")):
                yield record, end
            if record.get("bucket") != n:
                return

    def cut(self, size: int) -> None:
        """Forget the lines behind the first `size` bytes."""
        os.ftruncate(self.fd, size)

    def remove(self) -> None:
        os.unlink(self.path)
        self.new = False

    def close(self) -> None:
        os.close(self.fd)

    def _records(self) -> Iterator[tuple[Record, int]]:
        """Whole lines behind the head, each with where the next one begins."""
        with open(self.path, "rb") as lines:
            lines.seek(HEAD)
            while (line := lines.readline(MAX_LINE)) and (record := record_of(line)) is not None:
                yield record, lines.tell()

    def _locked(self, mode: int) -> tuple[int, bool]:
        """A descriptor that holds the lock, and whether the file is new."""
        while True:
            fd, new = self._open(mode)
            try:
                self._lock(fd, new)
                # The job that held the lock may have removed the file that was opened
                if os.path.samestat(os.fstat(fd), os.lstat(self.path)):
                    return fd, new
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _open(self, mode: int) -> tuple[int, bool]:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(self.path, flags | os.O_CREAT | os.O_EXCL, mode), True
        except FileExistsError:
            pass
        if not stat.S_ISREG(os.lstat(self.path).st_mode):
            raise foreign(self.path, self.writes)
        fd = os.open(self.path, flags)
        if os.pread(fd, len(MARK), 0) not in (MARK, b""):
            os.close(fd)
            raise foreign(self.path, self.writes)
        return fd, False

    def _lock(self, fd: int, new: bool) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = ""
            with contextlib.suppress(ValueError, KeyError):  # still without a head
                head = json.loads(os.pread(fd, HEAD, 0))
                holder = f" (process {head['pid']} on {head['host']})"
            raise FileError(
                f"cannot write {self.writes}: another job is writing it{holder}"
            ) from None
        except OSError as error:
            if new:
                os.unlink(self.path)
            raise FileError(
                f"cannot write {self.writes}: its file system has no locks ({error.strerror}); "
                "write elsewhere, or to standard output"
            ) from None


def foreign(path: str, writes: str) -> FileError:
    return FileError(
        f"cannot write {writes}: {path} is there already and is no file of onmt_lite; "
        f"move or remove {path}"
    )


def line_of(record: Record) -> bytes:
    text = json.dumps(record)[:-1]  # ASCII, without the last brace
    return (text + CRC % zlib.crc32(text.encode())).encode()


def record_of(line: bytes) -> Record | None:
    """The record of a line that is whole."""
    text = line[: -len(CRC % 0)]
    if line[len(text) :] != (CRC % zlib.crc32(text)).encode():
        return None
    record: Record = json.loads(text + b"}")
    return record


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
