"""What a program finds: packages, settings that torch reads, cores and memory."""

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

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
MIN_MEMORY = 700 << 20  # bytes of addresses that torch and a small model take
PACKAGES = {"torch": "torch", "sentencepiece": "sentencepiece", "yaml": "PyYAML", "tqdm": "tqdm"}
WORKER_BYTES = 512 << 20  # of its own: 60 to 250 MB were seen, with room for a large vocabulary
# A GPU shows as one of these: of NVIDIA, of AMD, of Windows
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def prepare_environment(*modules: str) -> None:
    """Set up the process; if packages are missing, end it with a line on stderr and exit code 2.

    modules  of PACKAGES, the ones that are needed so far; by default all
    """
    problem = _problem(modules or tuple(PACKAGES))
    if problem:
        print(f"onmt_lite: error: {problem}", file=sys.stderr)
        raise SystemExit(2)
    # torch works without numpy and says at length that it is missing
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    # A thread that waits for work spins, by default so long that two programs on the same cores
    # hold each other up; the short spin costs nothing where a program is alone
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from onmt_lite.system.processor import read_cpu_flags

    if {"GenuineIntel", "avx512f", "avx512bw"} <= read_cpu_flags():
        # The results of matrix products depend neither on the number of threads nor on that of
        # rows, at the same speed (shipped model, 800 lines: 1.005 times the processor time);
        # without AVX-512 they took 1.5 times as long
        os.environ.setdefault("MKL_CBWR", "AVX512,STRICT")
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next allocation.  A search allocates logits of 41 MB at
    each step, whose fresh pages took a quarter of the processor's time (6 layers of 512, 32,000
    words, int8).  If MALLOC_... variables are set, they alone count."""
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: 0)  # of glibc alone
    # Older versions take 32 MiB at most.  Without a threshold of its own it would stay at 128
    # KiB, as setting the other one ends its growing
    if mallopt(M_MMAP_THRESHOLD, 256 << 20) or mallopt(M_MMAP_THRESHOLD, 32 << 20):
        mallopt(M_TRIM_THRESHOLD, 512 << 20)


def release_freed_memory() -> None:
    """Give freed memory back to the system, before a fork whose pages would all count."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda keep: 0)(0)


def check_memory() -> None:
    """Raise MemoryExhausted if `ulimit -v` has no room for torch, whose loading would then end the
    process."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_MEMORY:
        raise MemoryExhausted(
            f"out of memory: a process may take {limit >> 20} MiB (ulimit -v), and torch alone "
            f"takes {MIN_MEMORY >> 20}; raise the limit"
        )


@contextlib.contextmanager
def speed_up_imports():
    """Import modules within for good: the garbage collector ignores their many objects, and all
    that the program made before.  Saves a fifth of the time that torch takes, 1.2 s of processor
    time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _problem(modules: tuple[str, ...]) -> str:
    """Return which packages are missing and the command that installs them; "" if none."""
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if not any(PACKAGES[module] in missing for module in modules):
        return ""
    command = f"{shlex.quote(sys.executable)} -m pip install {' '.join(missing)}"
    return f"missing packages: {', '.join(missing)} ({sys.executable}); run: {command}"


# -- cores and memory; a control group may grant less than the machine has ------------------------


def count_usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may keep busy: its affinity, within the quota of its
    control groups, rounded up.  `root` holds /proc and /sys."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, math.ceil(min([own or 1, *read_cpu_quotas(root)])))


def get_omp_threads() -> float:
    """Return how many threads OMP_NUM_THREADS allows, read as torch reads it."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else math.inf


def count_workers_in_memory(root: Path = Path("/")) -> int:
    """Return how many workers main memory has room for, at least 1."""
    limits = [limit for limit, _ in read_memory_limits(root)] + get_available_memory(root)
    return max(1, min(limits) // WORKER_BYTES) if limits else 1


def get_free_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes of main memory the machine and the control groups of this process have
    left; None if unknown."""
    left = [
        max(0, limit - used) for limit, used in read_memory_limits(root)
    ] + get_available_memory(root)
    return min(left, default=None)


def get_available_memory(root: Path) -> list[int]:
    """Return how many bytes the machine has left; an empty list if the kernel does not say."""
    with suppress(OSError, ValueError):
        found = re.search(r"(?m)^MemAvailable: *(\d+)", read_ascii(root / "proc/meminfo"))
        return [int(found[1]) << 10] if found else []
    return []


def may_have_gpu() -> bool:
    return any(map(os.path.exists, GPU_FILES))


def read_cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU seconds per second that control groups grant."""
    for folder in list_control_groups(root):
        with suppress(OSError, ValueError):  # "max 100000" is no limit
            quota, period = map(int, read_ascii(folder / "cpu.max").split())
            yield quota / period


def read_memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the bytes of main memory that control groups grant, and the bytes in use, without
    cached files, which the kernel takes back."""
    for folder in list_control_groups(root):
        with suppress(OSError, ValueError):  # "max" is no limit
            granted, used = int(read_ascii(folder / "memory.max")), 0
            with suppress(OSError, ValueError):
                used = int(read_ascii(folder / "memory.current"))
                stat = read_ascii(folder / "memory.stat").strip().split("\n")
                used -= int(dict(line.split() for line in stat).get("inactive_file", 0))
            yield granted, used


def list_control_groups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's control group (version 2) and of the groups above
    it, because in a container only the upper ones may be mounted."""
    with suppress(OSError, ValueError):
        for line in read_ascii(root / "proc/self/cgroup").split("\n"):
            if line.startswith("0::/"):
                group = Path(line.removeprefix("0::/"))
                for part in (group, *group.parents):
                    yield root / "sys/fs/cgroup" / part


def read_ascii(path: Path) -> str:
    return path.read_text(encoding="ascii")
