"""-deterministic: bit-identical scores in every batch, order and number of threads."""

import json
import random
from pathlib import Path

import pytest
import torch

import translate
from onmt_lite import Translator
from onmt_lite.inference.runtime import thread_settings
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.search import slots
from onmt_lite.search.beam_search import BeamBatch
from onmt_lite.search.presets import PRESETS
from tests.support import cases

SAMPLE = Path(__file__).parents[3] / "data" / "sample.de.txt"
LINES = [line for line in SAMPLE.read_text("utf-8").split("\n") if line]
LINES += [" ".join(LINES[:3]), LINES[1], "", "Ja."]  # a long line, a duplicate, an empty line


@pytest.fixture
def run(tmp_path):
    """Return a function that translates lines and returns the bytes of the output."""

    def run_once(argv: str, lines: list[str] = LINES) -> bytes:
        (tmp_path / "src").write_text("\n".join(lines) + "\n", "utf-8")
        words = f"-src {tmp_path}/src -output {tmp_path}/out -output_format jsonl -n_best 3 -quiet"
        assert translate.main(f"{words} -device cpu -batch_type sents {argv}".split()) == 0
        return (tmp_path / "out").read_bytes()

    return run_once


@pytest.fixture
def batch_dependent_sums(monkeypatch):
    """Make sums over a sentence depend on its batch, as is possible without kernels."""
    monkeypatch.setattr(kernels, "get_library", lambda: None)
    monkeypatch.setitem(slots.SRC_MULTIPLES, "cpu", 1)


def test_deterministic_output_is_independent_of_batch_order_and_threads(
    run, tmp_path, batch_dependent_sums
):
    (tmp_path / "tgt").write_text("\n".join(reversed(LINES)) + "\n", "utf-8")
    base = f"-deterministic -tgt {tmp_path}/tgt"
    expected = run(f"{base} -batch_size 1 -threads 1")
    assert run(f"{base} -batch_size 7") == expected
    assert run(f"{base} -batch_size 64 -threads 2") == expected
    assert run(f"{base} -bucket_lines 5") == expected
    mixed = random.Random(5).sample(LINES, 9)
    found = run("-deterministic -batch_size 64 -threads 2", mixed).decode("utf-8").split("\n")
    hyps = {r["src"]: r["hyps"] for r in map(json.loads, expected.decode("utf-8").splitlines())}
    for line, record in zip(mixed, map(json.loads, found[:-1]), strict=True):
        assert record["hyps"] == hyps[line]  # Python's float repr round-trips


def test_output_without_deterministic_depends_on_batch(run, batch_dependent_sums):
    """Otherwise the test above could not fail."""
    assert len({run(f"-batch_size {size}") for size in (1, 7, 64)}) == 3


@pytest.mark.parametrize("name", PRESETS)
def test_deterministic_runs_one_sentence_per_batch_in_every_search(name, monkeypatch):
    """Even if waiting sentences could fill free slots."""
    translator = cases.make_translator(cases.make_varied_transformer())
    translator.pipeline.runner.refills = True
    n_running, original = [], BeamBatch.step

    def step(batch, *args):
        n_running.append(len(batch.slots) + batch.n_slots)
        return original(batch, *args)

    monkeypatch.setattr(BeamBatch, "step", step)
    found = cases.translate(translator, search=name, deterministic=True)
    assert set(n_running) == {2}
    single = [cases.translate(translator, [line], search=name)[0].hyps for line in cases.LINES]
    assert [t.hyps for t in found] == single


def test_deterministic_scores_references_one_by_one():
    model, targets = cases.make_varied_transformer(), [f"w20 w{21 + i}" for i in range(6)]
    translator = cases.make_translator(model)
    one_by_one = [translator.score([line], [tgt])[0] for line, tgt in zip(cases.LINES, targets)]
    deterministic = Translator(
        translator.checkpoint, translator.options.updated(deterministic=True)
    )
    assert deterministic.score(cases.LINES, targets) == one_by_one


def test_deterministic_restores_threads_and_algorithms(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    options = cases.make_translator(cases.make_varied_transformer()).options.updated(
        deterministic=True, threads=2
    )
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with thread_settings(options.speed, torch.device("cuda")):
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    assert before == (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
