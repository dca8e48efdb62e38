"""The store of a job: the folder in which a file is kept until it is complete.

`OUT.parts`, beside OUT:

    manifest.json   the job: what its output depends on
    machine.json    the device and precision of who translates, written by the first who knows
    000000 ...      parts, one for each range of the input: complete, or not there
    output          the file itself, while its parts are joined or a stream is translated
    .lock           locked by the job (flock), with its process and host

Whoever has a range writes its part: this process, a worker, an actor of Ray.  Nobody waits for
anybody, and to write a part twice changes nothing.  OUT appears when all parts are joined.

Parts and JSON files are sealed: a line with the CRC-32 of all that follows, a record in JSON, and
the data.  A torn or damaged file counts as missing.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.shipped import find_model, get_model_paths, list_model_files
from onmt_lite.config.files import format_path, get_parts_directory
from onmt_lite.config.options import GROUPS, TranslateOptions
from onmt_lite.errors import FileError, OptionError, wrap_os_errors
from onmt_lite.inference.records import Trace
from onmt_lite.jobs.reports import Summary, read_summary
from onmt_lite.system.atomic_files import (
    copy_mode_and_sync,
    create_temporary,
    rename_and_sync,
    replace_file,
    write_all,
)
from onmt_lite.system.log import LOG
from onmt_lite.version import __version__

MANIFEST, MACHINE, OUTPUT, LOCK = "manifest.json", "machine.json", "output", ".lock"
STORE_NAMES = re.compile(rf"\d+|{MANIFEST}|{MACHINE}|{OUTPUT}|{LOCK}|\..*\.tmp")
LABEL = "user.onmt_lite.job"  # an extended attribute of outputs that are complete
LOCK_BYTES = 256  # bytes of the lock
DIRECTORY_MODE = 0o1700  # by which a folder is known for ours before anything is in it
CHUNK = 1 << 20

# Options that name a file to read, besides models and configurations: line by line, and others
LINE_INPUTS = ("src", "tgt", "force_words", "ban_words")
SUBWORD_FILES = ("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab")
OTHER_FILES = ("phrase_table", *SUBWORD_FILES)

# Options that may differ when a job goes on, and why
IGNORED_OPTIONS = {
    **dict.fromkeys(
        ("model", *LINE_INPUTS, *OTHER_FILES), "names files, whose contents are compared"
    ),
    "output": "the store lies beside it",
    **dict.fromkeys(("device", "gpu"), "the device that was chosen is compared"),
    **dict.fromkeys(("threads", "workers"), "says who works, not what comes out"),
    **dict.fromkeys(("quiet", "verbose", "report_time"), "is for the log alone"),
    **dict.fromkeys(("log_file", "log_file_level"), "is for the log alone"),
    "dump_beam": "watches and changes nothing",
    "print_model": "does no job",
    "resume": "asks for the comparison",
}

Job = dict[str, dict[str, Any]]
Record = dict[str, Any]


@dataclass(frozen=True)
class BucketResult:
    """A bucket that is translated."""

    number: int
    n_lines: int
    data: bytes  # its share of the output, whole lines; b"" if that is kept as a part
    summary: Summary
    report: bytes = b""  # its share of -report, likewise
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # that each phase took
    traces: list[Trace] = field(default_factory=list)  # of its lines that are traced


class ResultParts:
    """Writes and reads the parts of a job, in any process; `path` is that of the output."""

    def __init__(self, path: str, job: Job):
        self.path, self.directory = path, get_parts_directory(path)
        self.job, self.job_id = job, hash_job(job)

    def write(self, done: BucketResult) -> None:
        """Write a part; it is on the disk when this returns.  Raises FileError."""
        record = {"job": self.job_id, "number": done.number}
        record |= {"summary": asdict(done.summary), "report": done.report.decode("ascii")}
        with wrap_os_errors(f"write {self.path}"):
            replace_file(self._name(done.number), seal(record, done.data))

    def read(self, number: int) -> BucketResult | None:
        """Return a part of this job; None if it is not there or damaged."""
        record, data = read_sealed(self._name(number))
        if (record.get("job"), record.get("number")) != (self.job_id, number):
            return None
        summary = read_summary(record["summary"])
        return BucketResult(
            number, summary.n_lines, data, summary, record["report"].encode("ascii")
        )

    def claim_device(self, machine: dict[str, str]) -> None:
        """Raise OptionError if a machine of another kind has begun the job.  FileError."""
        path = os.path.join(self.directory, MACHINE)
        if not read_sealed(path)[0]:
            aside = os.path.join(self.directory, f".{MACHINE}.{os.urandom(6).hex()}.tmp")
            with wrap_os_errors(f"write {self.path}"):
                replace_file(aside, seal({"machine": machine}))
                try:
                    os.link(aside, path)  # of several who begin together, the first one counts
                    os.unlink(aside)
                except FileExistsError:
                    os.unlink(aside)
                except OSError:  # a file system without links
                    os.replace(aside, path)
        if not (before := read_sealed(path)[0]):
            raise FileError(f"cannot write {self.path}: {path} cannot be read; leave out -resume")
        check_same(before, {"machine": machine})

    def _name(self, number: int) -> str:
        return os.path.join(self.directory, f"{number:06}")


class Store:
    """The store of a file, which it locks against other jobs; a context."""

    def __init__(self, path: str):
        self.path, self.target, self.directory = (
            path,
            os.path.realpath(path),
            get_parts_directory(path),
        )
        self.crc = 0  # of what is appended
        self._lock_fd = self._fd = -1
        self._removed = False

    def __enter__(self) -> "Store":
        """Lock the store.  Raises FileError if the file cannot be written, another job writes it,
        or a foreign file is in the way."""
        if not os.path.basename(self.path):
            raise FileError(
                f"cannot write {self.path}: it names a directory; give the path of a file"
            )
        with wrap_os_errors(f"write {self.path}"):
            while not self._lock():
                pass  # the job that held it has just removed it
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the store, and remove it if nothing in it is of use to another run."""
        with contextlib.suppress(OSError):  # the error that led here counts
            if self._fd >= 0:
                self._close()
                self._unlink({OUTPUT})
            if not self._removed and set(os.listdir(self.directory)) <= {LOCK}:
                self.remove()
        os.close(self._lock_fd)

    def _lock(self) -> bool:
        """Lock the store, made if need be; False if it was removed meanwhile."""
        lock = os.path.join(self.directory, LOCK)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.directory, DIRECTORY_MODE)
        try:
            self._check_ours()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock_fd = os.open(lock, flags, 0o600)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock_fd), os.lstat(lock)):
                    holder = f"process {os.getpid()} on {os.uname().nodename}"
                    os.pwrite(self._lock_fd, holder.encode()[:LOCK_BYTES].ljust(LOCK_BYTES), 0)
                    return True
        except BlockingIOError:
            holder = os.pread(self._lock_fd, LOCK_BYTES, 0).decode("ascii", "replace").rstrip()
            os.close(self._lock_fd)
            by = f" ({holder})" if holder and holder.isprintable() else ""
            raise FileError(
                f"cannot write {self.path}: another job is writing it{by}; wait for its end or "
                "choose another output"
            ) from None
        except OSError:
            self.__exit__()
            raise
        os.close(self._lock_fd)
        return False

    def _check_ours(self) -> None:
        """Raise FileError unless the folder, and all that is in it, is ours."""
        status = os.lstat(self.directory)
        if not stat.S_ISDIR(status.st_mode):
            raise self._foreign(self.directory)
        for entry in os.scandir(self.directory):
            if not STORE_NAMES.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                raise self._foreign(entry.path)
            if entry.name == LOCK and entry.stat().st_nlink > 1:  # it is written to
                raise self._foreign(entry.path)
        # A copy of a store has another mode
        if stat.S_IMODE(status.st_mode) != DIRECTORY_MODE and not self._manifest():
            raise self._foreign(self.directory)

    def _foreign(self, path: str) -> FileError:
        return FileError(
            f"cannot write {self.path}: {path} is there already and is no file of onmt_lite; "
            f"move or remove {path}"
        )

    def compare(self, job: Job) -> None:
        """Raise OptionError if another job has left the store."""
        if before := self._manifest():
            check_same(before["job"], job)

    def begin(self, job: Job, is_resumed: bool) -> None:
        """Make the store one of this job, which may go on with its parts.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            left = set(os.listdir(self.directory)) - {LOCK}
            if is_resumed:
                unfinished = {n for n in left if n == OUTPUT or n.endswith(".tmp")}
                if not read_sealed(os.path.join(self.directory, MACHINE))[0]:
                    unfinished |= left & {MACHINE}
                self._unlink(unfinished)
            elif left:
                LOG.info(
                    "NOTE: %s, left by a stopped job, is written anew", format_path(self.directory)
                )
                self._unlink(left)
            if not self._manifest():
                replace_file(os.path.join(self.directory, MANIFEST), seal({"job": job}))

    def _manifest(self) -> Record:
        """Return the record of the job that has begun here; {} for none."""
        return read_sealed(os.path.join(self.directory, MANIFEST))[0]

    def clear(self) -> None:
        """Remove the contents of the store.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            self._unlink(set(os.listdir(self.directory)) - {LOCK})

    def append(self, data: bytes) -> None:
        """Write to the end of the file, which is not in its place yet.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            self._open()
            write_all(self._fd, data)
        self.crc = zlib.crc32(data, self.crc)

    def finish(self, job: Job | None = None, summary: Summary | None = None) -> None:
        """Put the file in its place, labelled as all of a `job`.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            self._open()
            if job is not None and summary is not None:
                label = {"job": hash_job(job), "crc": self.crc, "summary": asdict(summary)}
                with contextlib.suppress(OSError, AttributeError):  # there are no attributes
                    os.setxattr(self._fd, LABEL, json.dumps(label).encode("ascii"))
            copy_mode_and_sync(self._fd, self.target)
            rename_and_sync(os.path.join(self.directory, OUTPUT), self.target)
            self._close()

    def labelled(self, job: Job) -> Summary | None:
        """Return what was counted if the file is all of this job, else None."""
        crc = 0
        try:
            label = json.loads(os.getxattr(self.target, LABEL))
            with open(self.target, "rb") as file:
                while chunk := file.read(CHUNK):
                    crc = zlib.crc32(chunk, crc)
        except (OSError, ValueError, AttributeError):  # no file, or no attributes on this system
            return None
        is_complete = (label["job"], label["crc"]) == (hash_job(job), crc)
        return read_summary(label["summary"]) if is_complete else None

    def remove(self) -> None:
        """Remove the store.  Raises OSError."""
        self._unlink(set(os.listdir(self.directory)) - {LOCK})
        self._unlink({LOCK})
        self._removed = True
        with contextlib.suppress(OSError):  # another job has just begun here
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
    body = json.dumps(record).encode("ascii") + b"\n" + data
    return b"%08x\n" % zlib.crc32(body) + body


def read_sealed(path: str) -> tuple[Record, bytes]:
    """Return the record and the data of a file; {} and b"" if it is not there or damaged."""
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
    """Raise OptionError that names what an earlier run did differently."""
    if found := list_differences(before, now):
        remedy = "give what it was, or leave out -resume to begin anew"
        raise OptionError(*(f"resume: {what}; {remedy}" for what in found))


# -- fingerprints: everything that the output depends on -----------------------------------------


def compute_fingerprint(options: TranslateOptions, inputs: Mapping[str, Any]) -> Job:
    """Return everything that the output depends on, except the machine.  Of files, `inputs` and
    others, that is bytes and SHA-256; None for one that cannot be read."""
    try:
        torch = metadata.version("torch")  # the import takes seconds
    except metadata.PackageNotFoundError:
        torch = "unknown"
    groups = [vars(getattr(options, group)) for group in GROUPS]
    compared = {
        n: value for group in groups for n, value in group.items() if n not in IGNORED_OPTIONS
    }
    compared["output_format"] = options.data.format
    named = (options.data.output, options.jobs.log_file, options.jobs.report)
    written = {os.path.realpath(p) for p in (*named, options.information.dump_beam) if p}
    files = {
        name: fingerprint_file(path)
        for name, path in (*list_option_files(options, OTHER_FILES), *list_all_model_files(options))
        if os.path.realpath(path) not in written
    }
    return {
        "versions": {"onmt_lite": __version__, "torch": torch},
        "options": json.loads(json.dumps(compared)),  # as they are read again: no tuples
        "files": {**inputs, **files},
    }


def list_differences(old: Job, new: Job) -> list[str]:
    """Name each difference between two jobs."""
    found = []
    for section, values in new.items():
        before = old.get(section, {})
        for name in dict.fromkeys([*before, *values]):
            was, now = before.get(name), values.get(name)
            if was == now:
                continue
            if section == "files":
                state = "was changed" if was and now else "is new" if now else "is missing"
                found.append(f"{name} {state}")
            else:
                version = "version of " * (section == "versions")
                found.append(f"{version}{name} was {format_value(was)}, now {format_value(now)}")
    return found


def hash_job(job: Job) -> str:
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()


def format_value(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "none" if value is None else text[:100] or "empty"


def list_option_files(
    options: TranslateOptions, wanted: tuple[str, ...] = LINE_INPUTS + OTHER_FILES
) -> Iterator[tuple[str, str]]:
    """Each of these options that is given, and its path."""
    values = vars(options.data) | vars(options.text) | vars(options.speed) | vars(options.phrases)
    return ((name, values[name]) for name in wanted if values[name])


def list_all_model_files(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """The files that the models consist of: what to call each, and its path."""
    paths = get_model_paths(options.model.model)
    for i, path in enumerate(paths, 1):
        number = f" {i}" if len(paths) > 1 else ""
        for file in list_model_files(find_model(path)):
            if not is_labelled(file):  # the output of a job, in the directory of the model
                yield f"{file.name} of model{number}", str(file)


def is_labelled(file: Path) -> bool:
    """Return True for a complete output of a job."""
    try:
        return LABEL in os.listxattr(file)
    except (OSError, AttributeError):  # it is gone, or there are no attributes
        return False


def fingerprint_file(path: str) -> list[Any] | None:
    """Bytes and SHA-256 of a file; None for one that cannot be read, which the job will tell."""
    sha = hashlib.sha256()
    if os.path.isfile(path):  # a FIFO would make the job wait
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
            return [file.tell(), sha.hexdigest()]
    return None
