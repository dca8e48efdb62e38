"""Cores and memory available to a process, from simulated kernel files."""

import os

import pytest

from onmt_lite.system.resources import (
    count_usable_cores,
    count_workers_in_memory,
    get_free_memory,
    get_omp_threads,
)

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine({file: text}): a directory with /proc and /sys of a machine with eight cores.

    Names start with proc/ or sys/fs/cgroup/; `groups` is proc/self/cgroup.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def make(files):
        for name, text in files.items():
            full = "proc/self/cgroup" if name == "groups" else f"sys/fs/cgroup/{name}"
            path = tmp_path / ("proc/meminfo" if name == "meminfo" else full)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "ascii")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (None, {}, 8),
        # In a container whose group is its root, on a host, below a group with less
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),
        # More cores than available; unparsable values
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 8),
        ("nonsense\n", {"cpu.max": "1 1\n"}, 8),
        ("0::/\n", {"cpu.max": "1\n"}, 8),
    ],
)
def test_usable_cores_are_limited_by_quota(machine, groups, files, expected):
    assert count_usable_cores(machine(files | ({"groups": groups} if groups else {}))) == expected


@pytest.mark.parametrize(
    ("groups", "available", "limit", "expected"),
    [
        ("", 2048 * MIB, {}, 4),
        ("", 9 << 10, {}, 1),
        ("0::/\n", 99 << 30, {"memory.max": f"{1100 * MIB}\n"}, 2),
    ],
)
def test_workers_are_limited_by_memory(machine, groups, available, limit, expected):
    meminfo = f"MemTotal: 1 kB\nMemAvailable:  {available >> 10} kB\nSwapFree: 0 kB\n"
    assert (
        count_workers_in_memory(machine(limit | {"groups": groups, "meminfo": meminfo})) == expected
    )


GROUP = {
    "meminfo": f"MemAvailable: {5 << 20} kB\n",
    "memory.max": f"{900 * MIB}\n",
    "memory.current": f"{700 * MIB}\n",
    "memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
    "a/memory.max": "max\n",
    "a/b/memory.max": f"{400 * MIB}\n",
    "a/b/memory.current": f"{500 * MIB}\n",  # the limit was lowered
}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("", 5 << 30),
        ("0::/\n", 300 * MIB),
        ("0::/a\n", 300 * MIB),
        ("0::/a/b\n", 0),
        ("3:cpu:/x\n0::/a\n", 300 * MIB),
    ],
)
def test_free_memory_of_machine_and_control_groups(machine, groups, expected):
    assert get_free_memory(machine(GROUP | {"groups": groups})) == expected


def test_free_memory_unknown(machine):
    assert get_free_memory(machine({})) is None and count_workers_in_memory(machine({})) == 1


def test_usable_cores_are_limited_by_affinity():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("a system without")
    assert 1 <= count_usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "expected"), [("3", 3), ("4,2", 4), ("0", 1), ("", float("inf")), ("x", float("inf"))]
)
def test_omp_threads_are_parsed(monkeypatch, text, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert get_omp_threads() == expected
