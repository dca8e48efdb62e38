"""Environment of a process: packages, settings of torch, cores and memory."""

import contextlib
import ctypes
import gc
import math
import os
import re
import resource
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from onmt_lite.errors import MemoryExhausted

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h of glibc
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
MIN_MEMORY = 700 << 20  # bytes of address space for torch and a small model
PACKAGES = {"torch": "torch", "sentencepiece": "sentencepiece", "yaml": "PyYAML", "tqdm": "tqdm"}
WORKER_BYTES = 512 << 20  # private memory: 60 to 250 MB measured, plus a large vocabulary
NUMPY_WARNING = "Failed to initialize NumPy"  # torch works without numpy but warns at length
# Device files of a GPU: NVIDIA, AMD, Windows (WSL)
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def prepare_environment(*modules: str) -> None:
    """Set up the process.  If packages are missing, exit with code 2 and a message on stderr.

    Args:
        modules: modules of PACKAGES that are needed so far; default: all.
    """
    problem = _problem(modules or tuple(PACKAGES))
    if problem:
        print(f"onmt_lite: error: {problem}", file=sys.stderr)
        raise SystemExit(2)
    warnings.filterwarnings("ignore", message=NUMPY_WARNING)
    # Idle OpenMP threads spin, by default so long that two programs on the same cores slow each
    # other down.  A short spin costs nothing if a program runs by itself
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from onmt_lite.system.processor import read_cpu_flags

    if {"GenuineIntel", "avx512f", "avx512bw"} <= read_cpu_flags():
        # Matrix products become independent of the number of threads and rows at the same speed
        # (shipped model, 800 lines: 1.005 times the CPU time); without AVX-512 it was 1.5 times
        os.environ.setdefault("MKL_CBWR", "AVX512,STRICT")
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next allocation.

    A search allocates megabytes again and again, and mapping fresh pages takes time: with a
    threshold of 2 MiB, the model base was 10 % slower.  MALLOC_... variables of the user take
    precedence.
    """
    # Older versions accept at most 32 MiB
    set_mmap_threshold(256 << 20) or set_mmap_threshold(32 << 20)


@contextlib.contextmanager
def map_large_blocks() -> Iterator[None]:
    """Return large freed blocks to the system within the context, and keep them afterwards.

    For loading a model: the fp32 weights that kernels have copied would leave holes between small
    objects, which later allocations fill badly (35 MiB for each worker with the shipped model).
    """
    set_mmap_threshold(256 << 10)
    try:
        yield
    finally:
        keep_freed_memory()


def set_mmap_threshold(size: int) -> bool:
    """Set the bytes from which glibc maps each block by itself; return True if it was set."""
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: 0)  # glibc only
    # The trim threshold must be set, too: setting the other one disables its growth from 128 KiB
    return bool(mallopt(M_MMAP_THRESHOLD, size) and mallopt(M_TRIM_THRESHOLD, 512 << 20))


def release_freed_memory() -> None:
    """Return freed memory to the system, because a fork would duplicate its pages."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda keep: 0)(0)


def check_memory() -> None:
    """Raise MemoryExhausted if `ulimit -v` is too low for torch.

    Importing torch would otherwise abort the process.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_MEMORY:
        raise MemoryExhausted(
            f"out of memory: a process is limited to {limit >> 20} MiB (ulimit -v), but torch "
            f"needs {MIN_MEMORY >> 20} MiB; raise the limit"
        )


@contextlib.contextmanager
def speed_up_imports():
    """Disable garbage collection during imports, and exempt the imported objects for good.

    Saves a fifth of the time for importing torch, 1.2 s of CPU time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _problem(modules: tuple[str, ...]) -> str:
    """Return the missing packages and the command that installs them; "" if none is missing."""
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if not any(PACKAGES[module] in missing for module in modules):
        return ""
    command = f"{shlex.quote(sys.executable)} -m pip install {' '.join(missing)}"
    return f"missing packages: {', '.join(missing)} ({sys.executable}); run: {command}"


# -- cores and memory; a control group may grant less than the machine has ------------------------


def count_usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use.

    This is its CPU affinity, limited by the quota of its control groups, rounded up.  `root`
    contains /proc and /sys.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, math.ceil(min([affinity or 1, *read_cpu_quotas(root)])))


def get_omp_threads() -> float:
    """Return the thread limit of OMP_NUM_THREADS, parsed as torch does; infinity if unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else math.inf


def count_workers_in_memory(root: Path = Path("/")) -> int:
    """Return how many workers fit into main memory, at least 1."""
    limits = [limit for limit, _ in read_memory_limits(root)] + get_available_memory(root)
    return max(1, min(limits) // WORKER_BYTES) if limits else 1


def get_free_memory(root: Path = Path("/")) -> int | None:
    """Return the free bytes of main memory within the control groups; None if unknown."""
    available = [
        max(0, limit - used) for limit, used in read_memory_limits(root)
    ] + get_available_memory(root)
    return min(available, default=None)


def get_available_memory(root: Path) -> list[int]:
    """Return the available bytes of the machine as a list; empty if unknown."""
    with suppress(OSError, ValueError):
        match = re.search(r"(?m)^MemAvailable: *(\d+)", read_ascii(root / "proc/meminfo"))
        return [int(match[1]) << 10] if match else []
    return []


def may_have_gpu() -> bool:
    """Return True if the device file of a GPU exists."""
    return any(map(os.path.exists, GPU_FILES))


def read_cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of the control groups, in CPU seconds per second."""
    for directory in list_control_groups(root):
        with suppress(OSError, ValueError):  # "max 100000" means no limit
            quota, period = map(int, read_ascii(directory / "cpu.max").split())
            yield quota / period


def read_memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of main memory in bytes for each control group.

    Cached files are not counted as used, because the kernel can reclaim them.
    """
    for directory in list_control_groups(root):
        with suppress(OSError, ValueError):  # "max" means no limit
            granted, used = int(read_ascii(directory / "memory.max")), 0
            with suppress(OSError, ValueError):
                used = int(read_ascii(directory / "memory.current"))
                stat = read_ascii(directory / "memory.stat").strip().split("\n")
                used -= int(dict(line.split() for line in stat).get("inactive_file", 0))
            yield granted, used


def list_control_groups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's control group (version 2) and of its ancestors.

    In a container, only the upper ones may be mounted.
    """
    with suppress(OSError, ValueError):
        for line in read_ascii(root / "proc/self/cgroup").split("\n"):
            if line.startswith("0::/"):
                group = Path(line.removeprefix("0::/"))
                for ancestor in (group, *group.parents):
                    yield root / "sys/fs/cgroup" / ancestor


def read_ascii(path: Path) -> str:
    """Read a text file of the kernel."""
    return path.read_text(encoding="ascii")
