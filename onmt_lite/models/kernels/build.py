"""The kernel library: finds the installed file, or compiles it once in a checkout.

This module does not import torch.  The name of a compiled library in the user's cache contains a
hash of the source and compiler command and a hash of the library itself, so that an outdated,
truncated or modified file is never loaded.
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
COMPILE_TIMEOUT = 300  # seconds


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the library; None if it is missing or the CPU lacks its instructions."""
    path = find_library()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    return library if library.supported() else None


def find_library(compiles: bool = True) -> Path | None:
    """Return the path of the library; None if it is missing and cannot be compiled.

    Args:
        compiles: compile the library if it is missing
    """
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
    except OSError:  # no home, full or read-only disk, unsafe directory
        return None


def create_cache_directory() -> Path:
    """Create the cache directory.  Raises OSError if other users can write to it."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(home) / "onmt_lite"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    shared = stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or shared:
        raise PermissionError(f"{directory} is writable by other users")
    return directory


def find_or_compile(directory: Path, compiler: str, compiles: bool = True) -> Path | None:
    """Return the path of the library for this source and compiler, compiled if it is missing.

    Args:
        directory: the cache directory
        compiler: path of the C compiler
        compiles: False: only look in the cache

    Returns:
        The path, or None if there is no library.
    """
    inputs = (SOURCE.read_bytes(), str(FLAGS).encode(), os.path.realpath(compiler).encode())
    name = f"kernels-{hash_bytes(b' '.join(inputs))}"
    if (found := find_intact(directory, name)) or not compiles:
        return found
    with open(directory / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one process compiles
        return find_intact(directory, name) or compile_into(directory, name, compiler)


def find_intact(directory: Path, name: str) -> Path | None:
    """Return a library of this name whose content matches the hash in its file name, or None."""
    for path in directory.glob(f"{name}-*.so"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if path.name == f"{name}-{hash_bytes(file.read())}.so":
                    return path
    return None


def compile_into(directory: Path, name: str, compiler: str) -> Path | None:
    """Compile the library.

    Args:
        directory: the cache directory
        name: start of the file name
        compiler: path of the C compiler

    Returns:
        The path, or None if the compiler failed.
    """
    detail = {"detail": sys.stderr is None or not sys.stderr.isatty()}  # shown to interactive users
    LOG.info("compiling the kernels for this CPU; this takes a few seconds, once", extra=detail)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        library = Path(temporary) / "library.so"
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(library), *LIBRARIES]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT)
        except (subprocess.SubprocessError, OSError):
            LOG.info("%s could not compile the kernels; using torch", compiler, extra=detail)
            return None
        path = directory / f"{name}-{hash_bytes(library.read_bytes())}.so"
        os.replace(library, path)
        return path


def hash_bytes(data: bytes) -> str:
    """Return 24 hexadecimal digits of the SHA-256 of data."""
    return hashlib.sha256(data).hexdigest()[:24]
