"""The kernels compiled for each instruction set of this machine: equal to the last bit."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from onmt_lite.errors import OptionError
from onmt_lite.models.kernels import bindings, build
from tests.support import kernel_digests
from tests.support.kernel_recorder import Recorder
from tests.support.sweeps import mark_sweep

ROOT = Path(__file__).parents[3]
TILES = ROOT / "tests/support/emulated_tiles.h"
REPLAY = ROOT / "tests/support/replay_kernels.c"
SIZES, ROWS = ((3, 17), (64, 100), (100, 65)), (1, 7, 33)  # of the recorded linear layers
SETS = build.list_supported_sets()
pytestmark = pytest.mark.skipif(
    not SETS or build.load_library() is None, reason="this machine has no kernels"
)


@cache
def compute_digests(instruction_set, compiler="", cache_home="", torch_set=""):
    """Run the kernels with an instruction set in another process; return digests by case.

    Args:
        instruction_set: a key of build.SETS
        compiler: compile the kernels with this command
        cache_home: store them in this directory
        torch_set: value of ATEN_CPU_CAPABILITY, the instruction set that torch may use
    """
    environment = {**os.environ, build.VARIABLE: instruction_set}
    environment |= {"ATEN_CPU_CAPABILITY": torch_set} if torch_set else {}
    environment |= {"CC": compiler, "XDG_CACHE_HOME": cache_home} if compiler else {}
    command = [sys.executable, "-m", "tests.support.kernel_digests"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


@pytest.mark.parametrize("instruction_set", SETS[1:] or SETS)
def test_instruction_sets_give_the_same_bits(instruction_set):
    """As on another processor: torch uses no vector instructions."""
    expected = compute_digests(SETS[0])
    digests = compute_digests(instruction_set, torch_set="default")
    assert len(expected) > 2000
    assert [case for case in expected if digests[case] != expected[case]] == []


@pytest.mark.parametrize("instruction_set", SETS)
def test_extreme_int8_products_are_exact(instruction_set):
    """Sums of products that 16 bits cannot hold."""
    digests = compute_digests(instruction_set)
    cases = [case.removeprefix("exact-") for case in digests if case.startswith("exact-")]
    assert len(cases) == 350
    assert [c for c in cases if digests[f"extreme-{c}"] != digests[f"exact-{c}"]] == []


def test_amx_gives_the_same_bits_as_vnni(tmp_path):
    """With emulated tiles, on any processor that has AVX-512."""
    if "avx512" not in SETS:
        pytest.skip("no AVX-512")
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec cc -include {TILES} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    digests = compute_digests("avx512", str(compiler), str(tmp_path))
    expected = compute_digests("avx512")
    assert [case for case in expected if digests[case] != expected[case]] == []


def find_program(*names):
    """Return the path of the first installed program; skip the test if there is none."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"{' or '.join(names)} is not installed")
    return path


@pytest.mark.parametrize("machine", ["native", mark_sweep("aarch64")])
def test_recorded_calls_give_the_same_bits_in_c(machine, tmp_path):
    """Record calls of every kernel, and repeat them in C: here, or on an emulated ARM processor."""
    compiler, library, options, run = "cc", build.SETS[SETS[0]].library, [], []
    if machine == "aarch64":
        compiler, library, options = "aarch64-linux-gnu-gcc", "neon", ["-static"]
        run = [find_program("qemu-aarch64-static", "qemu-aarch64")]
    options += [flag for flag in build.FLAGS if flag != "-shared"]
    options += [f"-DSET_{library.upper()}", *build.COMPILER_FLAGS.get(library, ())]
    options += [f"-I{build.SOURCE.parent}", str(REPLAY), "-o", str(tmp_path / "replay")]
    command = [find_program(compiler), *options, *build.LIBRARIES]
    subprocess.run(command, check=True)

    with open(tmp_path / "recording", "wb") as file, pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(file)
        recorder.activate(patch)
        cases = [*kernel_digests.linear_layers(SIZES, ROWS), *kernel_digests.attention()]
        recorder.finish()
    assert len(cases) > 500 and set(recorder.calls) == set(bindings.SIGNATURES)
    with open(tmp_path / "recording", "rb") as file:
        command = [*run, str(tmp_path / "replay")]
        output = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, check=True).stdout
    assert recorder.find_differences(output) == []


def test_kernels_variable_selects_a_set(monkeypatch):
    for name in SETS:
        monkeypatch.setenv(build.VARIABLE, name)
        assert build.list_candidate_sets() == (name,)
    monkeypatch.setenv(build.VARIABLE, "none")
    assert build.list_candidate_sets() == () and build.find_library() is None


@pytest.mark.parametrize(
    ("name", "message"),
    [("sse", "sse does not exist; use amx, avx512,"), ("neon", "this CPU does not support neon")],
)
def test_kernels_variable_rejects_other_sets(monkeypatch, name, message):
    if name in SETS:
        pytest.skip(f"this machine has {name}")
    monkeypatch.setenv(build.VARIABLE, name)
    with pytest.raises(OptionError, match=message):
        build.list_candidate_sets()
