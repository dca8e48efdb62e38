"""The library of the kernels: where it is installed, or compiled once from a checkout.

No torch here.  A compiled library lies in the user's cache under a name that holds a digest of the
source and of how it is compiled, and one of its own bytes, so that a stale, cut or foreign file is
never loaded.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from onmt_lite.system.log import LOG

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
LIBRARIES = ("-lm",)
COMPILE_TIMEOUT = 300  # seconds that a compiler may take


@cache
def load_library() -> ctypes.CDLL | None:
    """The library; None if there is none, or this processor lacks its instructions."""
    path = find_library()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    return library if library.supported() else None


def find_library(compiles: bool = True) -> Path | None:
    """The library for this machine, compiled if need be and if `compiles`; None if there is none
    and none can be made."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    installed = sorted(SOURCE.parent.glob("library*.so"))
    if installed:
        return installed[0]
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None or not SOURCE.is_file():
        return None
    try:
        return find_or_compile(create_cache_directory(), compiler, compiles)
    except OSError:  # no home, a full or read-only disk, a folder that others may write to
        return None


def create_cache_directory() -> Path:
    """The folder for compiled kernels, made if need be.  OSError unless it is the user's alone."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "onmt_lite"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    others = stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or others:
        raise PermissionError(f"{folder} may be written to by others")
    return folder


def find_or_compile(folder: Path, compiler: str, compiles: bool = True) -> Path | None:
    """The library of this source and compiler, compiled unless it is there; None if that fails or
    may not be tried."""
    described = (SOURCE.read_bytes(), str(FLAGS).encode(), os.path.realpath(compiler).encode())
    name = f"kernels-{hash_bytes(b' '.join(described))}"
    if (found := find_intact(folder, name)) or not compiles:
        return found
    with open(folder / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes one compiles
        return find_intact(folder, name) or compile_into(folder, name, compiler)


def find_intact(folder: Path, name: str) -> Path | None:
    """A library of this name whose bytes are those that its name tells."""
    for path in folder.glob(f"{name}-*.so"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if path.name == f"{name}-{hash_bytes(file.read())}.so":
                    return path
    return None


def compile_into(folder: Path, name: str, compiler: str) -> Path | None:
    detail = {"detail": sys.stderr is None or not sys.stderr.isatty()}  # who waits may want to know
    LOG.info("compiling the kernels for this processor, once, which takes seconds", extra=detail)
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        made = Path(aside) / "library.so"
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made), *LIBRARIES]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT)
        except (subprocess.SubprocessError, OSError):
            LOG.info("%s could not compile them; the model runs without", compiler, extra=detail)
            return None
        path = folder / f"{name}-{hash_bytes(made.read_bytes())}.so"
        os.replace(made, path)
        return path


def hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]
