"""Input and output files: checks before a job, output streams and gzip compression."""

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
NamedPath = tuple[str, str]  # name of a file in messages, and its path

PHRASES = "a file of tab-separated phrases (one line for all input, or one per line of src)"
SUBWORDS = "a SentencePiece model, or BPE codes from subword-nmt or fastBPE"
COUNTS = "a file with a subword and its count per line"
PAIRS = "a file of `source<TAB>target` lines"
CONTENTS = {  # required content of input files, by option
    "src": "a text file with one sentence per line",
    "tgt": "a text file with one line per line of src",
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


def check_inputs(named: Iterable[NamedPath], error_type: type[OnmtLiteError] = FileError) -> None:
    """Check that input files exist and are readable, without opening them.

    Opening a FIFO would take its only reader away.

    Args:
        named: Options and paths; - is skipped.
        error_type: Error to raise.

    Raises:
        OnmtLiteError: A file is missing, a directory or not readable.
    """
    for option, path in named:
        if path == "-":
            continue
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            problem, remedy = "the file does not exist", suggest_path(option, path)
        except (OSError, ValueError) as error:
            problem, _, remedy = explain_os_error(error).partition("; ")
        else:
            if stat.S_ISDIR(mode):
                problem, remedy = "it is a directory", "use the path of a file"
            elif not os.access(path, os.R_OK):
                denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                problem, _, remedy = explain_os_error(denied).partition("; ")
            else:
                continue
        is_sentence = " " in path.strip() or path[:1].isupper() or path[-1:] in ("!", "?", "…")
        if option == "src" and is_sentence and looks_like_text([path]):
            remedy = suggest_command([path])
        what = f"{option} {format_path(path)[:200]}: {problem}"
        raise error_type(f"{what}; {option} must be {CONTENTS[option]}; {remedy}")


def suggest_path(option: str, path: str) -> str:
    """Return a remedy for a path that does not exist."""
    default = "write the phrases to a file and pass its path"
    return hint_for_path(path) or (default if CONTENTS.get(option) == PHRASES else "check the path")


def check_distinct(read: Sequence[NamedPath], written: Sequence[NamedPath]) -> None:
    """Check that no output file is also an input or another output.

    Args:
        read: Names and paths of the inputs.
        written: Names and paths of the outputs.

    Raises:
        OptionError: Two paths lead to the same file, or a path is inside the directory in which an
            unfinished output is stored.
    """
    taken = [_resolve_stream(name, path, "input") for name, path in read]
    directories: list[NamedPath] = []
    for name, path in written:
        shown, opened = _resolve_stream(name, path, "output")
        for taken_name, taken_path in taken:
            if _is_same_file(opened, taken_path):
                raise OptionError(f"{shown} is the same file as {taken_name}; choose another path")
        taken.append((shown, opened))
        if name != "log_file" and is_regular_output(path):
            directories.append((shown, get_parts_directory(path)))
    for writer, directory in directories:
        for shown, path in taken:
            if os.path.join(os.path.realpath(path), "").startswith(os.path.join(directory, "")):
                raise OptionError(
                    f"{shown} is in {format_path(directory)}, where {writer} is stored until it is "
                    "complete; choose another path"
                )


def check_directories(written: Sequence[NamedPath]) -> None:
    """Check that output files are not directories and that their directories are writable.

    Raises:
        FileError: A check fails.
    """
    for name, path in written:
        directory = os.path.dirname(os.path.realpath(path))
        shown, problem = format_path(os.path.dirname(path) or directory), ""
        if path != "-" and os.path.isdir(path):
            problem = "it is a directory; use the path of a file"
        elif not is_regular_output(path) or not os.path.basename(path):
            continue
        elif not os.path.exists(directory) and os.path.isdir(_find_nearest_existing(directory)):
            remedy = f"create it: mkdir -p {shlex.quote(shown)}"
            problem = f"the directory {shown} does not exist; {remedy}"
        elif os.path.isdir(directory) and not os.access(directory, os.W_OK) and name != "log_file":
            remedy = "change its permissions or choose another directory"
            problem = f"the directory {shown} is not writable; {remedy}"
        if problem:
            raise FileError(f"cannot write {format_path(path)}: {problem}")


def _find_nearest_existing(directory: str) -> str:
    """Return the closest existing parent of a directory, or the directory itself."""
    while not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    return directory


def _resolve_stream(name: str, path: str, stream: str) -> NamedPath:
    """Return the name of a file in messages and the path that is opened.

    Args:
        name: The option.
        path: The path; - is standard input or output.
        stream: "input" or "output".

    Returns:
        Name and path.
    """
    if path == "-":
        return f"standard {stream}", f"/dev/std{stream.removesuffix('put')}"
    return f"{name} {format_path(path)}", path


def _is_same_file(a: str, b: str) -> bool:
    try:
        same = os.path.samestat(os.stat(a), os.stat(b))
        # Devices such as /dev/null may be written to twice
        return same and stat.S_ISREG(os.stat(a).st_mode)
    except (OSError, ValueError):
        return os.path.realpath(a) == os.path.realpath(b)


def format_path(path: str) -> str:
    """Return a printable form of a path, for any locale and any bytes in its name."""
    printable = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "standard output" if path == "-" else printable


def is_regular_output(output: str) -> bool:
    """Return True unless an output is a stream or a device; then it appears when complete."""
    is_file = os.path.isfile(output) or not os.path.exists(output)
    return output != "-" and not is_device(output) and is_file


def is_rereadable(src: str) -> bool:
    """Return True if an input can be read a second time: it is not a stream or a device."""
    return is_regular_output(src) or os.path.isdir(src)


def get_parts_directory(output: str) -> str:
    """Return the directory that stores an output until it is complete.

    It is next to the file, or next to the target of a link.
    """
    return f"{os.path.realpath(output)}.parts"


def is_device(path: str) -> bool:
    """Return True if a path leads through /dev or /proc, to a device or an open file.

    Such a path is written to directly, because a rename would replace it.
    """
    return any(
        re.match(r"/(dev(?!/shm\b)|proc)(/|$)", directory) for directory, _ in _follow_links(path)
    )


def find_descriptor(path: str) -> int | None:
    """Return N if a path leads to /dev/fd/N, as /dev/stdout does; None otherwise.

    Opening such a path again would write from the start of the file, even if the shell appends.
    """
    descriptors = os.path.realpath("/dev/fd")
    for directory, name in _follow_links(path):
        if directory == descriptors and name.isdecimal():
            return int(name)
    return None


def _follow_links(path: str) -> Iterator[tuple[str, str]]:
    """Yield directory and name of a path, then of its link target, and so on."""
    for _ in range(40):  # links may form a cycle
        directory, name = os.path.split(path)
        yield os.path.realpath(directory), name
        if not os.path.islink(path):
            return
        path = os.path.join(directory, os.readlink(path))


class OutputStream:
    """Standard output, a device or a pipe, as a context manager that closes it."""

    def __init__(self, path: str):
        """Open the stream.

        Args:
            path: The path; - is standard output.

        Raises:
            FileError: The stream cannot be opened.
        """
        self.path = path
        if path == "-":
            if sys.stdout is None:
                closed = "cannot write standard output: it is closed; open it or use -output FILE"
                raise FileError(closed)
            self.file: IO[bytes] = sys.stdout.buffer
            return
        with wrap_os_errors(f"write {path}"):
            if os.path.isdir(path):
                raise FileError(f"cannot write {path}: it is a directory; use the path of a file")
            fd = find_descriptor(path)
            # Do not truncate: the path may be a file that another process has open
            fd = os.open(path, os.O_WRONLY | os.O_APPEND) if fd is None else os.dup(fd)
            self.file = open(fd, "wb", buffering=0)

    def __enter__(self) -> "OutputStream":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # keep the original error
            self._close()

    def append(self, data: bytes) -> None:
        """Write data without buffering, so that every error is reported.

        Raises:
            FileError: Writing fails.
            Interrupted: The reader of a pipe has closed it.
        """
        try:
            self.file.flush()  # earlier output of the program
            write_all(self.file.fileno(), data)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise Interrupted(signal.SIGPIPE) from None
            reason = explain_os_error(error, "write")
            raise FileError(f"cannot write {format_path(self.path)}: {reason}") from None

    def finish(self) -> None:
        """Close the stream; some file systems report a full disk only now.

        Raises:
            FileError: Closing fails.
        """
        with wrap_os_errors(f"write {self.path}"):
            self._close()

    def _close(self) -> None:
        if self.path != "-":
            self.file.close()


class GzipCompressor:
    """Compresses an output with gzip.

    The result depends only on the data, not on how it is split into calls, unless `flushes` is set.
    Then each call returns all of its data, for a reader that waits.
    """

    def __init__(self, flushes: bool = False):
        self.flushes, self._waiting = flushes, b""
        self._gzip = zlib.compressobj(wbits=31)  # the header has no name and time

    def compress(self, data: bytes) -> bytes:
        """Compress data and return the bytes that are ready to be written."""
        data = self._waiting + data
        if self.flushes:
            return self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        n_whole = len(data) - len(data) % GZIP_CHUNK
        self._waiting = data[n_whole:]
        starts = range(0, n_whole, GZIP_CHUNK)
        return b"".join(self._gzip.compress(data[i : i + GZIP_CHUNK]) for i in starts)

    def finish(self) -> bytes:
        """Return the remaining bytes."""
        return self._gzip.compress(self._waiting) + self._gzip.flush()


def check_writable(path: str) -> None:
    """Check that a file can be created at a path, before work is done for it.

    Raises:
        FileError: The file cannot be created.
    """
    with wrap_os_errors(f"write {path}"):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_regular_output(path):
            with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
                pass


def write_text(text: str, path: str = "-") -> None:
    """Replace a file atomically, or write to a stream.

    Raises:
        FileError: Writing fails.
        Interrupted: The reader of a pipe has closed it.
    """
    data = text.encode("utf-8", "backslashreplace")  # regardless of the locale
    if is_regular_output(path):
        with wrap_os_errors(f"write {path}"):
            replace_file(os.path.realpath(path), data)
    else:
        with OutputStream(path) as stream:
            stream.append(data)
            stream.finish()
