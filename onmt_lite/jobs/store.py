"""The store of a job: the directory that contains a file until it is complete.

`OUT.parts`, next to OUT:

    manifest.json   the job: everything that its output depends on
    machine.json    device and precision, written by the first process that translates
    000000 ...      partial files, one per input range: complete or missing
    output          the file itself, while partial files are concatenated or a stream is translated
    .lock           locked by the job (flock); contains its process and host

The process that translates a range writes its partial file: this process, a worker or a Ray actor.
No process waits for another, and writing a partial file twice changes nothing.  OUT appears when
all partial files are concatenated.

Partial files and JSON files are sealed: a line with the CRC-32 of the rest, a record in JSON, and
the data.  A torn or damaged file counts as missing.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from onmt_lite.config.files import format_path, get_parts_directory
from onmt_lite.errors import FileError, OptionError, wrap_os_errors
from onmt_lite.inference.records import Trace
from onmt_lite.jobs.fingerprint import LABEL, Job, hash_job, list_differences
from onmt_lite.jobs.reports import Summary, read_summary
from onmt_lite.system.atomic_files import (
    copy_mode_and_sync,
    create_temporary,
    rename_and_sync,
    replace_file,
    write_all,
)
from onmt_lite.system.log import LOG

MANIFEST, MACHINE, OUTPUT, LOCK = "manifest.json", "machine.json", "output", ".lock"
STORE_NAMES = re.compile(rf"\d+|{MANIFEST}|{MACHINE}|{OUTPUT}|{LOCK}|\..*\.tmp")
LOCK_BYTES = 256  # bytes of the lock file
DIRECTORY_MODE = 0o1700  # mode that marks our directory while it is empty
CHUNK = 1 << 20

Record = dict[str, Any]


@dataclass(frozen=True)
class BucketResult:
    """The result of translating a bucket.

    Attributes:
        number: position of the bucket in the job.
        n_lines: lines.
        data: output of these lines; b"" if stored as a partial file.
        summary: counts and warnings.
        report: lines of -report; b"" if stored as a partial file.
        log: log lines.
        seconds: time spent on each phase.
        traces: search steps of traced lines.
    """

    number: int
    n_lines: int
    data: bytes
    summary: Summary
    report: bytes = b""
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)


class ResultParts:
    """Writes and reads the partial files of a job, in any process."""

    def __init__(self, path: str, job: Job):
        self.path, self.directory = path, get_parts_directory(path)
        self.job, self.job_id = job, hash_job(job)

    def write(self, done: BucketResult) -> None:
        """Write a partial file and sync it to disk.  Raises FileError."""
        record = {"job": self.job_id, "number": done.number}
        record |= {"summary": asdict(done.summary), "report": done.report.decode("ascii")}
        with wrap_os_errors(f"write {self.path}"):
            replace_file(self._name(done.number), seal(record, done.data))

    def read(self, number: int) -> BucketResult | None:
        """Return the partial file of a bucket; None if missing, damaged or of a different job."""
        record, data = read_sealed(self._name(number))
        if (record.get("job"), record.get("number")) != (self.job_id, number):
            return None
        summary = read_summary(record["summary"])
        return BucketResult(
            number, summary.n_lines, data, summary, record["report"].encode("ascii")
        )

    def claim_device(self, machine: dict[str, str]) -> None:
        """Record device and precision, or compare them with those that started the job.

        Raises:
            OptionError: if they differ.
            FileError: if the file cannot be written or read.
        """
        path = os.path.join(self.directory, MACHINE)
        if not read_sealed(path)[0]:
            temporary = os.path.join(self.directory, f".{MACHINE}.{os.urandom(6).hex()}.tmp")
            with wrap_os_errors(f"write {self.path}"):
                replace_file(temporary, seal({"machine": machine}))
                try:
                    os.link(temporary, path)  # of several processes, the first one wins
                    os.unlink(temporary)
                except FileExistsError:
                    os.unlink(temporary)
                except OSError:  # no links on this file system
                    os.replace(temporary, path)
        if not (before := read_sealed(path)[0]):
            raise FileError(
                f"cannot write {self.path}: {path} is damaged; start over without -resume"
            )
        check_same(before, {"machine": machine})

    def _name(self, number: int) -> str:
        return os.path.join(self.directory, f"{number:06}")


class Store:
    """The store of a file, locked against other jobs; a context.

    Attributes:
        path: the output as given.
        target: its real path.
        directory: the store.
        crc: CRC-32 of what was appended.
    """

    def __init__(self, path: str):
        self.path, self.target, self.directory = (
            path,
            os.path.realpath(path),
            get_parts_directory(path),
        )
        self.crc = 0
        self._lock_fd = self._fd = -1
        self._removed = False

    def __enter__(self) -> "Store":
        """Lock the store.

        Raises:
            FileError: if the file cannot be written, another job is writing it, or a foreign file
                exists.
        """
        if not os.path.basename(self.path):
            raise FileError(f"cannot write {self.path}: it is a directory; use the path of a file")
        with wrap_os_errors(f"write {self.path}"):
            while not self._lock():
                pass  # the previous job has just removed it
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the store, and remove it if it is of no use to a later run."""
        with contextlib.suppress(OSError):  # keep the original error
            if self._fd >= 0:
                self._close()
                self._unlink({OUTPUT})
            if not self._removed and set(os.listdir(self.directory)) <= {LOCK}:
                self.remove()
        os.close(self._lock_fd)

    def _lock(self) -> bool:
        """Create and lock the store; return False if it was removed meanwhile."""
        lock = os.path.join(self.directory, LOCK)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory, DIRECTORY_MODE)
        try:
            self._check_directory()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock_fd = os.open(lock, flags, 0o600)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock_fd), os.lstat(lock)):
                    owner = f"process {os.getpid()} on {os.uname().nodename}"
                    os.pwrite(self._lock_fd, owner.encode()[:LOCK_BYTES].ljust(LOCK_BYTES), 0)
                    return True
        except BlockingIOError:
            owner = os.pread(self._lock_fd, LOCK_BYTES, 0).decode("ascii", "replace").rstrip()
            os.close(self._lock_fd)
            by = f" ({owner})" if owner and owner.isprintable() else ""
            raise FileError(
                f"cannot write {self.path}: another job is writing it{by}; wait until it "
                "ends or choose another output"
            ) from None
        except OSError:
            self.__exit__()
            raise
        os.close(self._lock_fd)
        return False

    def _check_directory(self) -> None:
        """Raise FileError unless the directory and everything in it belong to this program."""
        status = os.lstat(self.directory)
        if not stat.S_ISDIR(status.st_mode):
            raise self._make_foreign_error(self.directory)
        for entry in os.scandir(self.directory):
            if not STORE_NAMES.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                raise self._make_foreign_error(entry.path)
            if (
                entry.name == LOCK and entry.stat().st_nlink > 1
            ):  # a hard link: writing would change another file
                raise self._make_foreign_error(entry.path)
        # A copied store may have a different mode
        if stat.S_IMODE(status.st_mode) != DIRECTORY_MODE and not self._manifest():
            raise self._make_foreign_error(self.directory)

    def _make_foreign_error(self, path: str) -> FileError:
        return FileError(
            f"cannot write {self.path}: {path} already exists and was not created by "
            f"onmt_lite; move or remove {path}"
        )

    def compare(self, job: Job) -> None:
        """Raise OptionError if the store belongs to a different job."""
        if before := self._manifest():
            check_same(before["job"], job)

    def begin(self, job: Job, is_resumed: bool) -> None:
        """Prepare the store for a job.

        Args:
            job: fingerprint of the job.
            is_resumed: keep the partial files; otherwise remove them.

        Raises:
            FileError: if the store cannot be written.
        """
        with wrap_os_errors(f"write {self.path}"):
            leftovers = set(os.listdir(self.directory)) - {LOCK}
            if is_resumed:
                unfinished = {n for n in leftovers if n == OUTPUT or n.endswith(".tmp")}
                if not read_sealed(os.path.join(self.directory, MACHINE))[0]:
                    unfinished |= leftovers & {MACHINE}
                self._unlink(unfinished)
            elif leftovers:
                LOG.info(
                    "NOTE: overwriting %s, which an interrupted job left",
                    format_path(self.directory),
                )
                self._unlink(leftovers)
            if not self._manifest():
                replace_file(os.path.join(self.directory, MANIFEST), seal({"job": job}))

    def _manifest(self) -> Record:
        """Return the record of the job that created the store; {} if there is none."""
        return read_sealed(os.path.join(self.directory, MANIFEST))[0]

    def clear(self) -> None:
        """Remove the contents of the store.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            self._unlink(set(os.listdir(self.directory)) - {LOCK})

    def append(self, data: bytes) -> None:
        """Append to the file before it is published.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            self._open()
            write_all(self._fd, data)
        self.crc = zlib.crc32(data, self.crc)

    def finish(self, job: Job | None = None, summary: Summary | None = None) -> None:
        """Publish the file.

        Args:
            job: fingerprint, stored with the file as a label; None: no label.
            summary: counts and warnings for the label.

        Raises:
            FileError: if writing fails.
        """
        with wrap_os_errors(f"write {self.path}"):
            self._open()
            if job is not None and summary is not None:
                label = {"job": hash_job(job), "crc": self.crc, "summary": asdict(summary)}
                with contextlib.suppress(
                    OSError, AttributeError
                ):  # extended attributes are not supported
                    os.setxattr(self._fd, LABEL, json.dumps(label).encode("ascii"))
            copy_mode_and_sync(self._fd, self.target)
            rename_and_sync(os.path.join(self.directory, OUTPUT), self.target)
            self._close()

    def read_label(self, job: Job) -> Summary | None:
        """Return the summary if the file is the complete output of this job, else None."""
        crc = 0
        try:
            label = json.loads(os.getxattr(self.target, LABEL))
            with open(self.target, "rb") as file:
                while chunk := file.read(CHUNK):
                    crc = zlib.crc32(chunk, crc)
        except (OSError, ValueError, AttributeError):  # no file, or no extended attributes
            return None
        is_complete = (label["job"], label["crc"]) == (hash_job(job), crc)
        return read_summary(label["summary"]) if is_complete else None

    def remove(self) -> None:
        """Remove the store.  Raises OSError."""
        self._unlink(set(os.listdir(self.directory)) - {LOCK})
        self._unlink({LOCK})
        self._removed = True
        with contextlib.suppress(OSError):  # another job has just started
            os.rmdir(self.directory)

    def _open(self) -> None:
        if self._fd < 0:
            self._fd = create_temporary(os.path.join(self.directory, OUTPUT), self.target)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _unlink(self, names: set[str]) -> None:
        for name in sorted(names):
            os.unlink(os.path.join(self.directory, name))


# -- formats --------------------------------------------------------------------------------------


def seal(record: Record, data: bytes = b"") -> bytes:
    """Return the bytes of a sealed file: checksum, record and data."""
    body = json.dumps(record).encode("ascii") + b"\n" + data
    return b"%08x\n" % zlib.crc32(body) + body


def read_sealed(path: str) -> tuple[Record, bytes]:
    """Return the record and the data of a sealed file; {} and b"" if missing or damaged."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            seal, _, body = file.read().partition(b"\n")
    except OSError:
        return {}, b""
    if seal != b"%08x" % zlib.crc32(body):
        return {}, b""
    record, _, data = body.partition(b"\n")
    return json.loads(record), data


def check_same(before: Job, now: Job) -> None:
    """Raise OptionError naming every difference to the earlier run."""
    if changes := list_differences(before, now):
        remedy = "restore it, or start over without -resume"
        raise OptionError(*(f"resume: {change}; {remedy}" for change in changes))
