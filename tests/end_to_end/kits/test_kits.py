"""The kits find injected bugs, and a small sample of them finds none in the program."""

import sys
from pathlib import Path
from random import Random

import pytest

from tests.end_to_end.kits import kills, places, texts
from tests.end_to_end.kits.__main__ import KITS
from tests.support.forked_jobs import WarmStarter
from tests.support.job_runner import Bench, ColdStarter
from tests.support.sweeps import mark_sweeps

TOY = Path(__file__).parent / "toy.py"

# What a toy breaks -> the kits that must find it, with how many trials
FOUND = {
    "direct": [(kills.k1, 2), (places.k4, 2)],
    "drop": [(kills.k2, 2)],
    "linger": [(kills.k2, 1)],
    "mute": [(kills.k2, 1)],
    "trust": [(kills.k1, 5), (kills.k3, 10)],
    "deaf": [(kills.k11, 1)],
    "swallow": [(places.k4, 2)],
    "clobber": [(places.k5, 2)],
    "splitlines": [(texts.k9, 1)],
}


def toy(folder, *argv):
    return Bench(folder, ColdStarter([sys.executable, str(TOY), *argv]), n_lines=200, simple=True)


def problems(kit, bench, n, seed=1, argv=()):
    return [(row.action, row.problem) for row in kit(bench, Random(seed), n, *argv) if row.problem]


WHOLE = sorted({k for ks in FOUND.values() for k in ks}, key=str)
BROKEN = [(broken, *kit) for broken, kits in FOUND.items() for kit in kits]


@pytest.mark.parametrize("kit, n", mark_sweeps(WHOLE, WHOLE[::4]))
def test_kits_report_nothing_for_correct_toy(kit, n, tmp_path):
    assert problems(kit, toy(tmp_path), n) == []


@pytest.mark.parametrize("broken, kit, n", mark_sweeps(BROKEN, BROKEN[::3]))
def test_kits_find_each_injected_bug(broken, kit, n, tmp_path):
    """In one of several rounds, because a kill may miss the moment of the bug."""
    rounds = range(1, 6)
    assert any(problems(kit, toy(tmp_path / f"{k}", "-break", broken), n, k) for k in rounds)


@pytest.fixture(scope="module")
def warm():
    with WarmStarter() as warm:
        yield warm


# Trials of each kit that run in the suite; the others need processes of their own, or hours
SAMPLE = {"K1": 5, "K2": 2, "K3": 5, "K4": 2, "K5": 6, "K6": 20, "K7": 8, "K8": 20, "K9": 4}
SAMPLE |= {"K11": 1, "faults": 5}


@pytest.mark.parametrize("name", mark_sweeps(SAMPLE, ["K1", "K4", "K6", "K9"]))
def test_kits_sample_reports_nothing(name, warm, tmp_path):
    kit, _, own_process = KITS[name]
    assert not own_process
    assert problems(kit, Bench(tmp_path, warm, n_lines=300), SAMPLE[name]) == []


@pytest.mark.sweep
def test_memory_does_not_grow_with_input(warm, tmp_path):
    """With ten times as many lines, and a correct output."""
    assert problems(texts.k15, Bench(tmp_path, warm, n_lines=300), 10_000) == []
