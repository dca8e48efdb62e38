"""Files named on the command line: which are streams, and which must not be written to."""

import contextlib
import errno
import os
import re
import shlex
import signal
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from onmt_lite.errors import (
    FileError,
    OnmtLiteError,
    OptionError,
    explain_os_error,
    hint_for_path,
    wrap_os_errors,
)
from onmt_lite.system.atomic_files import replace_file, write_all
from onmt_lite.system.terminal import Interrupted, looks_like_text, suggest_command

GZIP_CHUNK = 1 << 16  # bytes
NamedPath = tuple[str, str]  # what to call a file in a message, and its path

PHRASES = "a file of phrases (TAB between phrases; one line for all of src, or one for each line)"
SUBWORDS = "a sentencepiece model or BPE codes of subword-nmt or fastBPE"
COUNTS = "a file with a subword and its count in each line"
PAIRS = "a file of `source<TAB>target` lines"
CONTENTS = {  # the content of the files that options name
    "src": "a text file with one sentence per line",
    "tgt": "a text file with one line for each line of src",
    "force_words": PHRASES,
    "ban_words": PHRASES,
    "phrase_table": "a file of `source|||target` lines",
    "src_subword_model": SUBWORDS,
    "tgt_subword_model": SUBWORDS,
    "src_subword_vocab": COUNTS,
    "tgt_subword_vocab": COUNTS,
    "train": PAIRS,
    "valid": PAIRS,
}


def check_inputs(named: Iterable[NamedPath], kind: type[OnmtLiteError] = FileError) -> None:
    """Raise an error of this kind, with its option, for a file that is missing, a directory or not
    readable.  Files are looked at, not opened: opening a FIFO would take its only reader away."""
    for option, path in named:
        if path == "-":
            continue
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            problem, remedy = "there is no such file", suggest_path(option, path)
        except (OSError, ValueError) as error:
            problem, _, remedy = explain_os_error(error).partition("; ")
        else:
            if stat.S_ISDIR(mode):
                problem, remedy = "it is a directory", "give the path of a file"
            elif not os.access(path, os.R_OK):
                denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                problem, _, remedy = explain_os_error(denied).partition("; ")
            else:
                continue
        reads_so = " " in path.strip() or path[:1].isupper() or path[-1:] in ("!", "?", "…")
        if option == "src" and reads_so and looks_like_text([path]):
            remedy = suggest_command([path])
        what = f"{option} {format_path(path)[:200]}: {problem}"
        raise kind(f"{what}; {option} takes {CONTENTS[option]}; {remedy}")


def suggest_path(option: str, path: str) -> str:
    """Return what to do if nothing is at a path."""
    at_worst = "write the phrases to a file and give its path"
    return hint_for_path(path) or (
        at_worst if CONTENTS.get(option) == PHRASES else "check the path"
    )


def check_distinct(read: Sequence[NamedPath], written: Sequence[NamedPath]) -> None:
    """Raise OptionError if a file would be written that is read, or written twice."""
    taken = [_resolve_stream(name, path, "input") for name, path in read]
    folders: list[NamedPath] = []
    for name, path in written:
        shown, opened = _resolve_stream(name, path, "output")
        for other, other_path in taken:
            if _is_same_file(opened, other_path):
                raise OptionError(f"{shown} is the same file as {other}; choose another")
        taken.append((shown, opened))
        if name != "log_file" and is_regular_output(path):
            folders.append((shown, get_parts_directory(path)))
    for writer, folder in folders:
        for shown, path in taken:
            if os.path.join(os.path.realpath(path), "").startswith(os.path.join(folder, "")):
                raise OptionError(
                    f"{shown} is in {format_path(folder)}, where {writer} is kept until it is "
                    "complete; choose another"
                )


def check_directories(written: Sequence[NamedPath]) -> None:
    """Raise FileError for a path of a file to be written that is a directory, or in a directory
    that does not exist or cannot be written to."""
    for name, path in written:
        folder = os.path.dirname(os.path.realpath(path))
        shown, problem = format_path(os.path.dirname(path) or folder), ""
        if path != "-" and os.path.isdir(path):
            problem = "it is a directory; give the path of a file"
        elif not is_regular_output(path) or not os.path.basename(path):
            continue
        elif not os.path.exists(folder) and os.path.isdir(_nearest_existing(folder)):
            remedy = f"make it: mkdir -p {shlex.quote(shown)}"
            problem = f"the directory {shown} does not exist; {remedy}"
        elif os.path.isdir(folder) and not os.access(folder, os.W_OK) and name != "log_file":
            remedy = "change its permissions or choose another directory"
            problem = f"the directory {shown} cannot be written to; {remedy}"
        if problem:
            raise FileError(f"cannot write {format_path(path)}: {problem}")


def _nearest_existing(folder: str) -> str:
    """Return the nearest folder above that exists, or this one."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder


def _resolve_stream(name: str, path: str, stream: str) -> NamedPath:
    """What to call a file, and the path that is opened: - is standard input or output."""
    if path == "-":
        return f"standard {stream}", f"/dev/std{stream.removesuffix('put')}"
    return f"{name} {format_path(path)}", path


def _is_same_file(a: str, b: str) -> bool:
    try:
        same = os.path.samestat(os.stat(a), os.stat(b))
        # Devices such as /dev/null take everything without harm
        return same and stat.S_ISREG(os.stat(a).st_mode)
    except (OSError, ValueError):
        return os.path.realpath(a) == os.path.realpath(b)


def format_path(path: str) -> str:
    """Return a path as it can be printed, whatever the locale or the bytes of its name."""
    printable = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "standard output" if path == "-" else printable


def is_regular_output(output: str) -> bool:
    """Return whether `output` is a file that appears when it is complete: no stream, no device."""
    kept = os.path.isfile(output) or not os.path.exists(output)
    return output != "-" and not is_device(output) and kept


def is_rereadable(src: str) -> bool:
    """Return whether `src` can be read again from its start: no stream, no device."""
    return is_regular_output(src) or os.path.isdir(src)


def get_parts_directory(output: str) -> str:
    """Return the folder in which an output is kept until it is complete: beside the file, or
    beside what a link points to."""
    return f"{os.path.realpath(output)}.parts"


def is_device(path: str) -> bool:
    """Return whether a path leads through /dev or /proc: to a device, or to what a process has
    open.  It is written to as it is: renamed onto, it would be replaced."""
    return any(re.match(r"/(dev(?!/shm\b)|proc)(/|$)", folder) for folder, _ in _follow_links(path))


def find_descriptor(path: str) -> int | None:
    """Return N if a path leads to /dev/fd/N, as /dev/stdout does: what this process has open.
    Opened once more, a file would be written from its start, even if the shell appends to it."""
    own = os.path.realpath("/dev/fd")
    for folder, name in _follow_links(path):
        if folder == own and name.isdecimal():
            return int(name)
    return None


def _follow_links(path: str) -> Iterator[tuple[str, str]]:
    """The folder and name of a path, then of what it links to, and so on."""
    for _ in range(40):  # links that go round in a circle
        folder, name = os.path.split(path)
        yield os.path.realpath(folder), name
        if not os.path.islink(path):
            return
        path = os.path.join(folder, os.readlink(path))


class OutputStream:
    """Standard output, a device or a pipe: written to as it is.  A context that closes it."""

    def __init__(self, path: str):
        """Raises FileError."""
        self.path = path
        if path == "-":
            if sys.stdout is None:
                closed = "cannot write standard output: it is closed; open it or give -output FILE"
                raise FileError(closed)
            self.file: IO[bytes] = sys.stdout.buffer
            return
        with wrap_os_errors(f"write {path}"):
            if os.path.isdir(path):
                raise FileError(f"cannot write {path}: it is a directory; give the path of a file")
            fd = find_descriptor(path)
            # Nothing is cut: what another process has open may be a file
            fd = os.open(path, os.O_WRONLY | os.O_APPEND) if fd is None else os.dup(fd)
            self.file = open(fd, "wb", buffering=0)

    def __enter__(self) -> "OutputStream":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # the error that led here counts
            self._close()

    def append(self, data: bytes) -> None:
        """Write all of it, now: what waits in a buffer may fail when nobody sees.  Raises
        FileError, and Interrupted if nobody reads a pipe any more."""
        try:
            self.file.flush()  # what the program itself has printed
            write_all(self.file.fileno(), data)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise Interrupted(signal.SIGPIPE) from None
            reason = explain_os_error(error, "write")
            raise FileError(f"cannot write {format_path(self.path)}: {reason}") from None

    def finish(self) -> None:
        """Close it: some file systems tell only now that a disk is full.  Raises FileError."""
        with wrap_os_errors(f"write {self.path}"):
            self._close()

    def _close(self) -> None:
        if self.path != "-":
            self.file.close()


class GzipCompressor:
    """Compress an output with gzip.  The bytes depend only on the data, not on how it is split,
    unless `flushes` is set: then a waiting reader gets each share at once."""

    def __init__(self, flushes: bool = False):
        self.flushes, self._waiting = flushes, b""
        self._gzip = zlib.compressobj(wbits=31)  # a header without name and time

    def pack(self, data: bytes) -> bytes:
        """Return the bytes that can be written now."""
        data = self._waiting + data
        if self.flushes:
            return self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        n_whole = len(data) - len(data) % GZIP_CHUNK
        self._waiting = data[n_whole:]
        starts = range(0, n_whole, GZIP_CHUNK)
        return b"".join(self._gzip.compress(data[i : i + GZIP_CHUNK]) for i in starts)

    def finish(self) -> bytes:
        return self._gzip.compress(self._waiting) + self._gzip.flush()


def check_writable(path: str) -> None:
    """Raise FileError if a file cannot be made at the path, before work is done for it."""
    with wrap_os_errors(f"write {path}"):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_regular_output(path):
            with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
                pass


def write_text(text: str, path: str = "-") -> None:
    """Write all of a file, or leave what is there; to a stream as it is.  Raises FileError, and
    Interrupted if nobody reads a pipe."""
    data = text.encode("utf-8", "backslashreplace")  # whatever the locale
    if is_regular_output(path):
        with wrap_os_errors(f"write {path}"):
            replace_file(os.path.realpath(path), data)
    else:
        with OutputStream(path) as stream:
            stream.append(data)
            stream.finish()
