"""Cores and memory that a process may use, from files as the kernel shows them."""

import os

import pytest

from onmt_lite.config.environment import free_memory, threads_wanted, usable_cores, worker_room

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of eight cores: machine(files) -> the folder that holds its /proc and /sys."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "ascii")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        # Version 2: in a container whose group is its root, on a host, below a group with less
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
            },
            4,
        ),
        # Version 1, whose path is the host's: the container sees its own group as the root
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/0f\n2:memory:/docker/0f\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        # More than there is, and what nobody can read
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 8),
        ({"proc/self/cgroup": "nonsense\n", "sys/fs/cgroup/cpu.max": "1 1\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1\n"}, 8),
    ],
)
def test_a_quota_limits_the_cores(machine, files, expected):
    assert usable_cores(machine(files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1),
        ({"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:  {2048 << 10} kB\nSwapFree: 0 kB\n"}, 4),
        ({"proc/meminfo": "MemAvailable:  9 kB\n"}, 1),
        (
            {
                "proc/meminfo": f"MemAvailable: {99 << 20} kB\n",
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{1100 * MIB}\n",
            },
            2,
        ),
        (
            {
                "proc/meminfo": f"MemAvailable: {1600 << 10} kB\n",
                "proc/self/cgroup": "2:memory:/docker/0f\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            3,
        ),
    ],
)
def test_memory_limits_the_workers(machine, files, expected):
    assert worker_room(machine(files)) == expected


GROUP = {
    "proc/meminfo": f"MemAvailable: {5 << 20} kB\n",
    "sys/fs/cgroup/memory.max": f"{900 * MIB}\n",
    "sys/fs/cgroup/memory.current": f"{700 * MIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
    "sys/fs/cgroup/a/memory.max": "max\n",
    "sys/fs/cgroup/a/b/memory.max": f"{400 * MIB}\n",
    "sys/fs/cgroup/a/b/memory.current": f"{500 * MIB}\n",  # the limit was lowered
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{800 * MIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{700 * MIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {150 * MIB}\ninactive_file 0\n",
}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("", 5 << 30),
        ("0::/\n", 300 * MIB),
        ("0::/a\n", 300 * MIB),
        ("0::/a/b\n", 0),
        ("3:cpu:/\n2:memory:/docker/0f\n", 250 * MIB),
        ("2:memory:/\n0::/\n", 250 * MIB),
    ],
)
def test_what_the_machine_and_the_groups_have_left(machine, groups, expected):
    assert free_memory(machine(GROUP | {"proc/self/cgroup": groups})) == expected


def test_memory_that_nobody_knows(machine):
    assert free_memory(machine({})) is None


def test_the_affinity_of_this_process():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("a system without")
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "expected"), [("3", 3), ("4,2", 4), ("0", 1), ("", float("inf")), ("x", float("inf"))]
)
def test_threads_that_the_environment_wants(monkeypatch, text, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads_wanted() == expected
