"""How many processes may work on this machine: its cores and memory, without torch.

Containers count: a control group may grant less than the machine has.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

WORKER_BYTES = 512 << 20  # of its own: 60 to 250 MB were seen, with room for a large vocabulary
# A GPU shows as one of these: of NVIDIA, of AMD, of Windows
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may keep busy: its affinity, within the quota of its
    control groups, rounded up.  `root` holds /proc and /sys."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, math.ceil(min([own or 1, *cpu_quotas(root)])))


def threads_wanted() -> float:
    """Return how many threads OMP_NUM_THREADS allows, read as torch reads it."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else math.inf


def worker_room(root: Path = Path("/")) -> int:
    """Return how many workers main memory has room for, at least 1."""
    limits = [limit for limit, _ in memory_limits(root)] + available_memory(root)
    return max(1, min(limits) // WORKER_BYTES) if limits else 1


def free_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes of main memory the machine and the control groups of this process have
    left; None if unknown."""
    left = [max(0, limit - used) for limit, used in memory_limits(root)] + available_memory(root)
    return min(left, default=None)


def available_memory(root: Path) -> list[int]:
    """Return how many bytes the machine has left; an empty list if the kernel does not say."""
    with suppress(OSError, ValueError):
        found = re.search(r"(?m)^MemAvailable: *(\d+)", read(root / "proc/meminfo"))
        return [int(found[1]) << 10] if found else []
    return []


def may_have_gpu() -> bool:
    return any(map(os.path.exists, GPU_FILES))


def cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the processor seconds per second that control groups grant, of version 2 and 1."""
    for folder in control_groups(root, ""):
        with suppress(OSError, ValueError):  # "max 100000" is no limit
            quota, period = map(int, read(folder / "cpu.max").split())
            yield quota / period
    for folder in control_groups(root, "cpu"):
        with suppress(OSError, ValueError):
            quota = int(read(folder / "cpu.cfs_quota_us"))
            if quota > 0:  # -1 is no limit
                yield quota / int(read(folder / "cpu.cfs_period_us"))


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the bytes of main memory that control groups grant, of version 2 and 1, and the bytes
    in use, without cached files, which the kernel takes back."""
    versions = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for controller, limit, usage, kept in versions:
        for folder in control_groups(root, controller):
            with suppress(OSError, ValueError):  # "max" is no limit
                granted, used = int(read(folder / limit)), 0
                with suppress(OSError, ValueError):
                    used = int(read(folder / usage))
                    stat = read(folder / "memory.stat").strip().split("\n")
                    fields = dict(line.split() for line in stat)
                    used -= int(fields.get(kept, 0))
                yield granted, used


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of the groups above it, as in a
    container only the upper ones may be mounted.

    controller  of version 1, such as cpu; "" is version 2
    """
    with suppress(OSError, ValueError):
        for line in read(root / "proc/self/cgroup").split("\n"):
            _, names, path = line.split(":", 2)
            if controller not in names.split(","):
                continue
            mounts = [names, controller] if controller else ["", "unified"]
            group = Path(path.lstrip("/"))
            for mount in dict.fromkeys(mounts):
                for part in (group, *group.parents):
                    yield root / "sys/fs/cgroup" / mount / part


def read(path: Path) -> str:
    return path.read_text(encoding="ascii")
