"""The kernel library: finds the installed file, or compiles it once in a checkout.

There is one library for each instruction set.  `pip install .` builds all of them for the platform;
a checkout compiles only the best set of this CPU.  The environment variable ONMT_LITE_KERNELS
selects another set, or `none`.

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
from typing import NamedTuple

from onmt_lite.errors import OptionError
from onmt_lite.system.log import LOG
from onmt_lite.system.processor import read_cpu_flags

VARIABLE = "ONMT_LITE_KERNELS"
SOURCE = Path(__file__).with_name("kernels.c")
SOURCES = (SOURCE, SOURCE.with_name("simd.h"))
FLAGS = (
    *("-O3", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    "-ffp-contract=off",  # fused multiply-adds only where the source has them
)
LIBRARIES = ("-lm",)
COMPILE_TIMEOUT = 300  # seconds


class InstructionSet(NamedTuple):
    """Instructions that the kernels can use.

    Attributes:
        library: name of the library; its macro is SET_ and this name in uppercase.
        machines: values of `platform.machine`.
        cpu_flags: required words of /proc/cpuinfo.
        uses_amx: whether the library may use AMX tiles.
    """

    library: str
    machines: tuple[str, ...]
    cpu_flags: frozenset[str]
    uses_amx: bool = False


AVX2 = frozenset(("avx2", "fma"))
AVX512 = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"))
SETS = {  # best first
    "amx": InstructionSet("avx512", ("x86_64",), AVX512 | {"amx_tile", "amx_int8"}, uses_amx=True),
    "avx512": InstructionSet("avx512", ("x86_64",), AVX512),
    "avxvnni": InstructionSet("avxvnni", ("x86_64",), AVX2 | {"avx_vnni"}),
    "avx2": InstructionSet("avx2", ("x86_64",), AVX2),
    "neon": InstructionSet("neon", ("aarch64", "arm64"), frozenset({"asimddp"})),
}
COMPILER_FLAGS = {"neon": ("-march=armv8.2-a+dotprod",)}  # old versions of clang need the flag


class KernelLibrary(NamedTuple):
    """A loaded library and the name of its instruction set."""

    functions: ctypes.CDLL
    instruction_set: str


@cache
def load_library() -> KernelLibrary | None:
    """Load the library for the best instruction set of this CPU.

    Returns:
        The library, or None if there is none or ONMT_LITE_KERNELS is `none`.

    Raises:
        OptionError: ONMT_LITE_KERNELS names a set that does not exist or that the CPU lacks.
    """
    for name in list_candidate_sets():
        path = find_set(name)
        with contextlib.suppress(OSError):
            if path is not None:
                functions = ctypes.CDLL(str(path))
                if enabled := functions.enable(SETS[name].uses_amx):
                    has_amx = enabled == 2
                    return KernelLibrary(functions, "amx" if has_amx else SETS[name].library)
    return None


def needs_compiling() -> bool:
    """Return True if this CPU could use kernels, and no library for it is compiled yet."""
    return bool(list_candidate_sets()) and find_library(compiles=False) is None


def describe_kernels() -> str:
    """Return the instruction set in use, or why torch is used instead; never compile."""
    if needs_compiling():
        return "not compiled yet"
    library = load_library()
    return library.instruction_set if library else "none; torch computes the layers"


def list_supported_sets() -> tuple[str, ...]:
    """Return the instruction sets of this CPU, best first."""
    flags, machine = read_cpu_flags(), platform.machine()
    if sys.platform not in ("linux", "darwin"):
        return ()
    sets = {name: s for name, s in SETS.items() if machine in s.machines}
    if sys.platform == "darwin":  # no /proc/cpuinfo; `enable` checks the CPU
        return tuple(name for name in sets if name in ("avx2", "neon"))
    return tuple(name for name, s in sets.items() if s.cpu_flags <= flags)


def list_candidate_sets() -> tuple[str, ...]:
    """Return the instruction sets to try, best first.  Raises OptionError as `load_library`."""
    wanted, supported = os.environ.get(VARIABLE, ""), list_supported_sets()
    if not wanted:
        return supported
    if wanted == "none":
        return ()
    if wanted not in SETS:
        raise OptionError(f"{VARIABLE}: {wanted} does not exist; use {', '.join(SETS)} or none")
    if wanted not in supported:
        available = ", ".join((*supported, "none"))
        raise OptionError(f"{VARIABLE}: this CPU does not support {wanted}; use {available}")
    return (wanted,)


def find_library(compiles: bool = True) -> Path | None:
    """Return the path of the best library of this CPU, or None if there is none.

    Args:
        compiles: compile the library if it is missing
    """
    paths = (find_set(name, compiles) for name in list_candidate_sets())
    return next(filter(None, paths), None)


def find_set(name: str, compiles: bool = True) -> Path | None:
    """Return the path of the library of an instruction set, or None if it cannot be compiled.

    Args:
        name: instruction set
        compiles: compile the library if it is missing
    """
    library = SETS[name].library
    installed = sorted(SOURCE.parent.glob(f"library_{library}*.so"))
    if installed:
        return installed[0]
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None or not SOURCE.is_file():
        return None
    try:
        return find_or_compile(create_cache_directory(), compiler, library, compiles)
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


def find_or_compile(
    directory: Path, compiler: str, library: str, compiles: bool = True
) -> Path | None:
    """Return the path of the library for this source and compiler, compiled if it is missing.

    Args:
        directory: the cache directory
        compiler: path of the C compiler
        library: name of the library
        compiles: False: only look in the cache

    Returns:
        The path, or None if there is no library.
    """
    command = (compiler, *FLAGS, f"-DSET_{library.upper()}", *COMPILER_FLAGS.get(library, ()))
    inputs = [path.read_bytes() for path in SOURCES]
    inputs += [str(command[1:]).encode(), os.path.realpath(compiler).encode()]
    name = f"kernels-{library}-{hash_bytes(b' '.join(inputs))}"
    if (found := find_intact(directory, name)) or not compiles:
        return found
    with open(directory / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one process compiles
        return find_intact(directory, name) or compile_into(directory, name, command)


def find_intact(directory: Path, name: str) -> Path | None:
    """Return a library of this name whose content matches the hash in its file name, or None."""
    for path in directory.glob(f"{name}-*.so"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if path.name == f"{name}-{hash_bytes(file.read())}.so":
                    return path
    return None


def compile_into(directory: Path, name: str, command: tuple[str, ...]) -> Path | None:
    """Compile the library.

    Args:
        directory: the cache directory
        name: start of the file name
        command: compiler and flags

    Returns:
        The path, or None if the compiler failed.
    """
    detail = {"detail": sys.stderr is None or not sys.stderr.isatty()}  # shown to interactive users
    LOG.info("compiling the kernels for this CPU; this takes a few seconds, once", extra=detail)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        library = Path(temporary) / "library.so"
        arguments = [*command, str(SOURCE), "-o", str(library), *LIBRARIES]
        try:
            subprocess.run(arguments, check=True, capture_output=True, timeout=COMPILE_TIMEOUT)
        except (subprocess.SubprocessError, OSError):
            LOG.info("%s could not compile the kernels; using torch", command[0], extra=detail)
            return None
        path = directory / f"{name}-{hash_bytes(library.read_bytes())}.so"
        os.replace(library, path)
        return path


def hash_bytes(data: bytes) -> str:
    """Return 24 hexadecimal digits of the SHA-256 of data."""
    return hashlib.sha256(data).hexdigest()[:24]
