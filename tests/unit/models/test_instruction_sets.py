"""The kernels compiled for each instruction set of this machine: equal to the last bit."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from onmt_lite.errors import OptionError
from onmt_lite.models.kernels import build

ROOT = Path(__file__).parents[3]
TILES = ROOT / "tests/support/emulated_tiles.h"
SETS = build.list_supported_sets()
pytestmark = pytest.mark.skipif(
    not SETS or build.load_library() is None, reason="this machine has no kernels"
)


@cache
def compute_digests(instruction_set, compiler="", cache_home=""):
    """Run the kernels with an instruction set in another process; return digests by case."""
    environment = {**os.environ, build.VARIABLE: instruction_set}
    environment |= {"CC": compiler, "XDG_CACHE_HOME": cache_home} if compiler else {}
    command = [sys.executable, "-m", "tests.support.kernel_digests"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


@pytest.mark.parametrize("instruction_set", SETS[1:])
def test_instruction_sets_give_the_same_bits(instruction_set):
    expected, digests = compute_digests(SETS[0]), compute_digests(instruction_set)
    assert len(expected) > 2000
    assert [case for case in expected if digests[case] != expected[case]] == []


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
