"""A file that appears when it is complete: OUT.part and its journal until then.

OUT.part holds buckets one after the other, and OUT.part.journal says which buckets of which job:
see `onmt_lite.jobs.journal`.  At the end the part takes the place of OUT.
"""

import contextlib
import errno
import json
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import NamedTuple

from onmt_lite.errors import FileError
from onmt_lite.files import journal_of, part_of
from onmt_lite.jobs.fingerprint import LABEL, Job, digest
from onmt_lite.jobs.journal import Journal, Record, foreign, write_all
from onmt_lite.jobs.reports import LOG, Summary, read_summary

CHUNK = 1 << 20


class Bucket(NamedTuple):
    """A bucket in a part: its record, its bytes, and where the next record begins."""

    record: Record
    data: bytes
    end: int


class Part:
    """A file that takes the place of `path` when it is complete.

    summary  of a job that `is_complete`; of a file in its place, the lines that were not translated
    """

    def __init__(self, path: str):
        """Lock the file against other jobs; leave what is there as it is.

        Raises FileError where the file cannot be written, where another job writes it, or where
        something that is not ours is in the way.
        """
        self.path, self.target, self.name = path, os.path.realpath(path), str(part_of(path))
        self.fd: int | None = None
        self.summary = Summary()
        self.n_buckets = self.n_bytes = self.crc = self.journal_end = 0
        if not os.path.basename(path):
            raise FileError(f"cannot write {path}: it names a directory")
        with refused(path):
            self.replaced = os.stat(self.target) if os.path.exists(self.target) else None
            self.mode = 0o666 if self.replaced is None else 0o600  # for the eyes of its owner
            self.journal = Journal(str(journal_of(path)), path, self.mode)
            try:
                self._check_ours()
                self.journal.claim()
            except BaseException:
                if self.journal.new:
                    self.journal.remove()
                self.journal.close()
                raise

    def _check_ours(self) -> None:
        """A part is ours where a journal is; it would be cut under its other names too."""
        if os.path.lexists(self.name):
            status = os.lstat(self.name)
            alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            if self.journal.empty or not alone:
                raise foreign(self.name, self.path)

    # -- what earlier runs have written -----------------------------------------------------------

    def is_complete(self, job: Job) -> bool:
        """Whether all of the job is written, to the part or already to the file itself."""
        if not self.journal.job:
            return self._is_labelled(job)
        if not any("end" in record for record, _ in self.journal.lines()):
            return False
        there = self.name if os.path.lexists(self.name) else self.target
        for bucket in self._checked(there):
            if "end" in bucket.record:
                return True
            self.keep(bucket)
            if "summary" in bucket.record:  # a report has none
                self.summary.join(read_summary(bucket.record["summary"]))
        return False

    def buckets(self) -> Iterator[Bucket]:
        """Yield the buckets that the part holds as the journal says."""
        return (bucket for bucket in self._checked(self.name) if "end" not in bucket.record)

    def keep(self, bucket: Bucket) -> None:
        """Count the next of `buckets` as written."""
        self._count(bucket.data)
        self.journal_end = bucket.end

    def _checked(self, name: str) -> Iterator[Bucket]:
        """Yield buckets whose bytes are in the file `name`, and the end if nothing follows."""
        self.n_buckets = self.n_bytes = self.crc = 0
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            for record, end in self.journal.lines():
                data = file.read(record["bytes"])
                if zlib.crc32(data) != record["crc32"] or ("end" in record and file.read(1)):
                    return
                yield Bucket(record, data, end)

    def _is_labelled(self, job: Job) -> bool:
        """Whether the file is complete, of this job and as it was made."""
        n_bytes, crc = 0, 0
        try:
            label, _, told = os.getxattr(self.target, LABEL).partition(b"\n")
            with open(self.target, "rb") as file:
                while chunk := file.read(CHUNK):
                    n_bytes, crc = n_bytes + len(chunk), zlib.crc32(chunk, crc)
        except (OSError, AttributeError):  # no file, or no such attributes on this system
            return False
        if label != label_of(job, n_bytes, crc):
            return False
        self.summary = read_summary(json.loads(told)) if told else Summary()
        return True

    # -- writing ----------------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """Begin anew.  Raises FileError."""
        if self.journal.job:
            LOG.info("NOTE: %s, left by a stopped job, is written anew", self.name)
        with refused(self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.name)
            self.journal.begin(job)
            sync_folder(self.name)  # before the part, which nobody would know for ours
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = os.open(self.name, flags, self.mode)

    def go_on(self) -> None:
        """Go on behind the buckets that are kept.  Raises FileError."""
        with refused(self.path):
            self.fd = os.open(self.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.ftruncate(self.fd, self.n_bytes)
            os.lseek(self.fd, 0, os.SEEK_END)
            self.journal.cut(self.journal_end)

    def append(self, data: bytes, record: Record) -> None:
        """Write a bucket; of a job that can be resumed, the bucket and its record are on the disk
        when this returns.  Raises FileError."""
        assert self.fd is not None, "not begun"
        with refused(self.path):
            write_all(self.fd, data)
            if self.journal.job:
                os.fsync(self.fd)
                facts = {"bucket": self.n_buckets, "bytes": len(data), "crc32": zlib.crc32(data)}
                self.journal.add({**facts, **record})
        self._count(data)

    def end(self) -> None:
        """Say that no bucket follows.  Raises FileError."""
        if self.journal.job:
            with refused(self.path):
                self.journal.add({"end": self.n_buckets, "bytes": 0, "crc32": 0})

    def place(self, job: Job, summary: Summary) -> None:
        """Let the part take the place of the file.  Raises FileError."""
        if not os.path.lexists(self.name):  # an earlier run was stopped right after that
            return
        with refused(self.path):
            if self.fd is None:
                self.fd = os.open(self.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if job:
                with contextlib.suppress(OSError, AttributeError):  # there are no attributes
                    told = json.dumps(asdict(summary.of_untranslated())).encode()
                    label = label_of(job, self.n_bytes, self.crc)
                    os.setxattr(self.fd, LABEL, label + b"\n" + told)
            if self.replaced is not None:
                take_over_rights(self.fd, self.replaced)
            os.fsync(self.fd)
            os.replace(self.name, self.target)
            sync_folder(self.target)

    def remove(self) -> None:
        """Remove the part and its journal.  Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name)
        self.journal.remove()

    def close(self) -> None:
        """Let other jobs write the file.  Raises OSError."""
        try:
            if self.fd is not None:
                os.close(self.fd)
            elif self.journal.new:  # the job has ended before it wrote
                self.journal.remove()
        finally:
            self.journal.close()

    def _count(self, data: bytes) -> None:
        self.n_buckets += 1
        self.n_bytes += len(data)
        self.crc = zlib.crc32(data, self.crc)


def label_of(job: Job, n_bytes: int, crc: int) -> bytes:
    """What a complete file is known by, whatever machine has made the file."""
    what = {section: values for section, values in job.items() if section != "machine"}
    return f"{digest(what)} {n_bytes} {crc:08x}".encode()


@contextlib.contextmanager
def refused(path: str) -> Iterator[None]:
    """FileError where an operation on the file fails; nothing else belongs within."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise FileError(f"cannot write {path}: {reason}") from None


def sync_folder(path: str) -> None:
    """Let the names in the folder of a file outlast a power cut, where the file system can."""
    with contextlib.suppress(PermissionError):  # a folder to write, not to read
        fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def take_over_rights(fd: int, replaced: os.stat_result) -> None:
    """Mode and, as far as that is permitted, owner and group of the file that is replaced.

    Some file systems have none of these, and nothing is lost where they stay private.
    """
    for uid, gid in ((-1, replaced.st_gid), (replaced.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.fchown(fd, uid, gid)
    with contextlib.suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(replaced.st_mode))  # after the owner, whose change clears bits
