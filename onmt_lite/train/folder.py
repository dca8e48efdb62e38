"""The directory of a run: the names of its files, checks before they are written, its lock."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.shipped import model_files
from onmt_lite.config.files import check_paths
from onmt_lite.errors import FileError, OptionError, refused
from onmt_lite.train.options import TrainOptions

STATE, LOG_FILE, CONFIG = "train_state.pt", "train.log", "train.yaml"
TABLE, PLOT = "train.csv", "train.svg"
OWN = (STATE, LOG_FILE, CONFIG, TABLE, PLOT, native.MANIFEST, native.WEIGHTS, native.PIECES)


def check_files(options: TrainOptions) -> None:
    """Raise OptionError or FileError if files are missing, in the way or cannot be written."""
    data, log_file, out = options.data, options.learning.log_file, Path(options.data.output)
    given = {"train": data.train, "valid": data.valid, "train_same": data.train_same}
    read = [(name, path) for name, paths in given.items() for path in paths]
    paths = dict.fromkeys(path for _, path in read)
    if problems := [problem for problem in map(unreadable, paths) if problem]:
        if data.init_from is not None and not os.path.exists(data.init_from):
            problems.append(f"{data.init_from} (no such model)")
        raise FileError(f"cannot read {', '.join(problems)}")
    if data.init_from:
        files = [Path(data.init_from), *model_files(Path(data.init_from))]
        read += [("init_from", str(file)) for file in files]
    own = [("output", data.output), *(("output", str(out / name)) for name in OWN)]
    check_paths(read, [*own, *([("log_file", log_file)] if log_file else [])])
    check_begun(out, options.learning.resume)
    check_writable(out)
    if log_file is not None and Path(log_file).absolute().parent != out.absolute():
        check_file_writable(log_file)


def check_begun(out: Path, resume: bool) -> None:
    """Raise OptionError unless `out` holds a run to resume, or nothing that a new run replaces."""
    begun = (out / STATE).exists()
    if begun and not resume:
        raise OptionError(f"output: {out} holds a run already; go on with -resume")
    if not begun and resume:
        raise OptionError(f"resume: {out} holds no {STATE}; leave -resume out to begin there")
    if not begun and native.recognises(out):
        raise OptionError(f"output: {out} holds a model already; choose another directory")


def unreadable(path: str) -> str:
    """A path and the reason why it cannot be read; "" if it can."""
    if os.path.isdir(path):
        return f"{path} (a directory)"
    if not os.path.exists(path):
        return f"{path} (no such file)"
    return "" if os.access(path, os.R_OK) else f"{path} (permission denied)"


def check_file_writable(path: str) -> None:
    """Raise FileError unless a file can be made at `path`, or replaced there."""
    folder = Path(path).absolute().parent
    if os.path.isdir(path):
        raise FileError(f"cannot write {path}: it is a directory")
    if not folder.is_dir():
        raise FileError(f"cannot write {path}: there is no directory {folder}")
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raise FileError unless files can be made in `folder`, or in the nearest parent there is."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    with refused(f"write {folder}"):
        os.rmdir(tempfile.mkdtemp(dir=there))


@contextlib.contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Lock the directory of a run inside the block.  Raises OptionError if another run has it."""
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise OptionError(f"output: another run writes to {out}; choose another path") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(folder)
