"""The folder that a job writes: its manifest, its part files, and what is known of a job that was
stopped.

    manifest.json      what the job was asked for, and of which files; written first
    part-000000.txt    the output of a bucket, complete or not there
    _SUCCESS           lines, parts, notes; written last
    .notes/000000      what was noted of the lines of a part, there before the part; until _SUCCESS
    .attempts/000000   a byte for each time that an actor began with the bucket; while the job runs
    .lock              held by the job
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from onmt_lite.errors import FileError, OptionError
from onmt_lite.jobs.fingerprint import differences
from onmt_lite.jobs.reports import LOG, Noted, Summary
from onmt_lite.ray.inputs import MANIFEST

SUCCESS, NOTES, ATTEMPTS, LOCK = "_SUCCESS", ".notes", ".attempts", ".lock"
OF_MANIFEST = {"versions", "options", "files", "asked", "inputs"}
MAX_ATTEMPTS = 3  # so many actors may die of one bucket
SUFFIX = {"text": "txt", "jsonl": "jsonl"}
# Files that are not complete yet, left behind by whoever was killed
UNFINISHED = re.compile(r"\.(manifest\.json|_SUCCESS|\d+|part-\d+\.[a-z]+)\.[^/]*\.tmp")

NotesOfPart = dict[str, Noted]  # by note
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Folder:
    """Where the parts of a job are; `kind` is what they hold."""

    path: str
    kind: str
    n_parts: int

    def part(self, number: int) -> str:
        return os.path.join(self.path, f"part-{self._shown(number)}.{SUFFIX[self.kind]}")

    def notes(self, number: int) -> str:
        return os.path.join(self.path, NOTES, self._shown(number))

    def attempts(self, number: int) -> str:
        return os.path.join(self.path, ATTEMPTS, self._shown(number))

    def _shown(self, number: int) -> str:
        """With so many digits that names in order are numbers in order."""
        return f"{number:0{max(6, len(str(self.n_parts - 1)))}}"


# -- files ----------------------------------------------------------------------------------------


def write_whole(path: str, data: bytes) -> None:
    """A file that is on the disk under its name, or not at all; one that is there is replaced.
    FileError where that fails."""
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{socket.gethostname()}.{os.getpid()}.tmp")
    with _refused(path):
        try:
            with open(part, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the error that led here counts
                os.unlink(part)
            raise
        sync_folder(folder)


def sync_folder(path: str) -> None:
    """Make new names in it last."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _refused(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def read_json(path: str) -> Any:
    """What a file of ours holds.  FileError where it cannot be read or is damaged."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise FileError(f"cannot read {path}: it is damaged; use another folder") from None


def read_manifest(path: str) -> Manifest:
    """What the job in a folder is.  FileError where another program has written the manifest."""
    manifest = read_json(os.path.join(path, MANIFEST))
    if not isinstance(manifest, dict) or not manifest.keys() >= OF_MANIFEST:
        raise FileError(
            f"cannot write {path}: its {MANIFEST} is none of a job; choose another folder"
        )
    return manifest


def to_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace")


# -- what an actor does ---------------------------------------------------------------------------


def begin_attempt(folder: Folder, number: int) -> bool:
    """Count one more attempt at a bucket; False where there have been MAX_ATTEMPTS.  FileError."""
    path = folder.attempts(number)
    with _refused(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(fd).st_size >= MAX_ATTEMPTS:
                return False
            os.write(fd, b".")
        finally:
            os.close(fd)
    return True


def finish_part(folder: Folder, number: int, data: bytes, notes: NotesOfPart) -> None:
    """Write a part, and before it what was noted of its lines.  FileError."""
    write_whole(folder.notes(number), to_json(plain(notes)))
    write_whole(folder.part(number), data)


def plain(notes: NotesOfPart) -> dict[str, Any]:
    return {name: asdict(noted) for name, noted in sorted(notes.items())}


# -- what the driver does -------------------------------------------------------------------------


@contextlib.contextmanager
def open_folder(path: str, resume: bool) -> Iterator[Manifest | None]:
    """The manifest of the job that -resume goes on with, None for a new one; within, no other job
    writes to the folder.

    FileError where the folder is not for us: written by another job, without -resume not empty,
    with it not ours.  A folder that was made here and stays empty is removed.
    """
    made = not os.path.lexists(path)
    with _refused(path):
        os.makedirs(path, exist_ok=True)
        names = set(os.listdir(path))
    theirs = sorted(name for name in names if name != LOCK and not UNFINISHED.fullmatch(name))
    if theirs and not (resume and MANIFEST in names):
        remedy = "choose another folder"
        if MANIFEST in names:
            remedy = "give -resume to go on with the job in it, or choose another folder"
        raise FileError(f"cannot write {path}: it is not empty, there is {theirs[0]}; {remedy}")
    with _locked(path):
        try:
            yield read_manifest(path) if MANIFEST in names else None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, LOCK))
            if made:
                with contextlib.suppress(OSError):  # what is in it stays
                    os.rmdir(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    lock = os.path.join(path, LOCK)
    with _refused(path):
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 500).decode("utf-8", "replace").strip()
            raise FileError(
                f"cannot write {path}: another job is writing it ({holder}); choose another folder"
            ) from None
        except OSError as error:
            LOG.info(
                "NOTE: the file system of %s has no locks (%s); no second job may write there",
                *(path, error.strerror),
            )
        with _refused(lock):
            os.ftruncate(fd, 0)
            os.write(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(fd)


def check_same(before: Manifest, now: Manifest) -> None:
    """OptionError that names what the job in the folder was asked for differently."""
    found = differences(before, {name: now[name] for name in now if name != "inputs"})
    found += changed_inputs(before.get("inputs", []), now["inputs"])
    if found:
        remedy = "do as before, or choose another folder"
        raise OptionError(*(f"resume: {difference}; {remedy}" for difference in found))


def changed_inputs(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """In words, how the inputs differ; a file may have moved."""
    found = []
    for i, (old, new) in enumerate(zip_longest(before, now), 1):
        if old is None:
            found.append(f"input {i}, {new['path']}, is new")
        elif new is None:
            found.append(f"input {i}, {old['path']}, is missing")
        elif {**old, "path": ""} != {**new, "path": ""}:
            was = "" if old["path"] == new["path"] else f" was {old['path']}, and"
            found.append(f"input {i}, {new['path']},{was} has other contents")
    return found


def begin(path: str, manifest: Manifest) -> None:
    """Write down what the job is.  FileError."""
    write_whole(os.path.join(path, MANIFEST), to_json(manifest))


def make_ready(folder: Folder) -> None:
    """For actors: attempts begin anew.  FileError."""
    shutil.rmtree(os.path.join(folder.path, ATTEMPTS), ignore_errors=True)
    with _refused(folder.path):
        for name in (ATTEMPTS, NOTES):
            os.makedirs(os.path.join(folder.path, name), exist_ok=True)


def missing_parts(folder: Folder) -> list[int]:
    """The numbers of the parts that are not there.  FileError."""
    with _refused(folder.path):
        there = {entry.name for entry in os.scandir(folder.path)}
    numbers = range(folder.n_parts)
    return [i for i in numbers if os.path.basename(folder.part(i)) not in there]


def is_complete(folder: Folder) -> bool:
    """Whether the job has said so; then the parts that are there are all."""
    return os.path.exists(os.path.join(folder.path, SUCCESS))


def collect_notes(folder: Folder) -> dict[int, NotesOfPart]:
    """What was noted of all parts that are there and have notes, by their numbers.  FileError."""
    success = os.path.join(folder.path, SUCCESS)
    told = read_json(success)["notes_of_parts"] if os.path.exists(success) else {}
    found = {}
    for number in range(folder.n_parts):
        path = folder.notes(number)
        notes = read_json(path) if os.path.exists(path) else told.get(str(number), {})
        if notes:
            found[number] = {name: Noted(**noted) for name, noted in notes.items()}
    return found


def succeed(folder: Folder, n_lines: int) -> Summary:
    """Say that all parts are there, and remove what only a job that runs needs; the notes of all
    lines.  FileError."""
    of_parts = collect_notes(folder)
    summary = Summary(n_lines)
    for notes in of_parts.values():
        summary.join(Summary(notes=notes))
    told = {
        "lines": n_lines,
        "parts": folder.n_parts,
        "notes": plain(summary.notes),
        "notes_of_parts": {number: plain(notes) for number, notes in of_parts.items()},
    }
    write_whole(os.path.join(folder.path, SUCCESS), to_json(told))
    shutil.rmtree(os.path.join(folder.path, NOTES), ignore_errors=True)
    return summary


def tidy(folder: Folder) -> None:
    """Remove attempts, and the unfinished files of actors that were killed."""
    shutil.rmtree(os.path.join(folder.path, ATTEMPTS), ignore_errors=True)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder.path):
            if UNFINISHED.fullmatch(entry.name):
                os.unlink(entry.path)


def undo(path: str) -> None:
    """Leave nothing of a job that was refused before its first part.  With parts, nothing goes."""
    names = set(os.listdir(path))
    if not any(name.startswith("part-") for name in names) and MANIFEST in names:
        for name in (NOTES, ATTEMPTS):
            shutil.rmtree(os.path.join(path, name), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, MANIFEST))
