"""GPU results against CPU results.

    python -m pytest tests/gpu --durations=10

Without a GPU, one case of each test runs on the CPU; with ONMT_LITE_TEST_DEVICE=cpu, all cases do.
Tests of GPU features are skipped then.
"""

import contextlib
import gc
import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.beam_search import BeamBatch
from onmt_lite.search.slots import Rows, Scheduler
from onmt_lite.search.step_log import StepLog
from tests.support.cases import (
    BEAM,
    CASES,
    FAMILIES,
    LINES,
    make_translator,
    make_varied_transformer,
    translate,
)

DEVICE = os.environ.get("ONMT_LITE_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
CUDA = DEVICE.startswith("cuda")
ROOT = Path(__file__).resolve().parents[2]
SAMPLE = [s for s in (ROOT / "data" / "sample.de.txt").read_text("utf-8").split("\n") if s]

pytestmark = pytest.mark.requires_cuda
needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")

ATOL = 1e-3  # for scores in fp32; hypotheses with closer scores may be swapped
# For log-probabilities in half precision: tokens with random weights, shipped translations
HALF_ATOL = {"bf16": 0.6, "fp16": 0.1}
SHIPPED_ATOL = {"bf16": 0.15, "fp16": 0.03}
MAX_DIFFERENT = {"bf16": 0.25, "fp16": 0.1}  # share of the sample's translations
SPECIAL = {"<unk>", "<blank>", "<s>", "</s>"}


@pytest.fixture(scope="module", autouse=True)
def full_fp32():
    """Disable TF32, which rounds the inputs of matrix products to 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module")
def on_cpu() -> Translator:
    return Translator.from_pretrained(device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def expected(on_cpu):
    """N-best lists of the sample, from the CPU."""
    return on_cpu.translate(SAMPLE, n_best=5)


@pytest.fixture(scope="module")
def on_gpu() -> Translator:
    return Translator.from_pretrained(device=DEVICE, precision="fp32")


def assert_same(found: list, expected: list) -> None:
    """Check that scores are equal, and tokens too unless a neighbor has almost the same score."""
    for f, e in zip(found, expected, strict=True):
        scores = [h.score for h in e.hyps]
        assert [h.score for h in f.hyps] == pytest.approx(scores, abs=ATOL)
        for i, (ours, theirs) in enumerate(zip(f.hyps, e.hyps)):
            neighbors = scores[max(0, i - 1) : i] + scores[i + 1 : i + 2]
            if all(abs(scores[i] - score) > ATOL for score in neighbors):
                assert (ours.tokens, ours.ended) == (theirs.tokens, theirs.ended)


def compute_errors(found: list, on_cpu: Translator, **options: Any) -> list[float]:
    """Return the errors of token log-probabilities compared to the CPU.

    The hypotheses are passed as prefixes, up to the first special token.

    Args:
        found: translations from the GPU.
        on_cpu: translator on the CPU.
        options: options of the search.
    """
    vocab = on_cpu.checkpoint.tgt_vocab.ids.keys() - SPECIAL
    hyps = [(t.src, h) for t in found for h in t.hyps]
    texts = [" ".join(itertools.takewhile(vocab.__contains__, h.tokens)) for _, h in hyps]
    expected = on_cpu.translate([src for src, _ in hyps], prefixes=texts, **options)
    return [
        abs(ours - theirs)
        for (_, h), text, t in zip(hyps, texts, expected, strict=True)
        for ours, theirs, _ in zip(h.token_log_probs, t.hyps[0].token_log_probs, text.split())
    ]


class TestFamilies:
    """Each model family with random weights."""

    @pytest.mark.parametrize("name", FAMILIES)
    def test_family_in_fp32_equals_cpu(self, name):
        expected = translate(make_translator(FAMILIES[name]()), n_best=BEAM)
        assert_same(translate(make_translator(FAMILIES[name](), DEVICE), n_best=BEAM), expected)

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    @pytest.mark.parametrize("name", [name for name in FAMILIES if name != "table"])
    def test_family_in_half_precision_is_close_to_cpu(self, name, precision):
        half = make_translator(FAMILIES[name](), DEVICE, precision)
        found = translate(half, n_best=BEAM)
        errors = compute_errors(found, make_translator(FAMILIES[name]()), beam_size=1)
        assert len(errors) > 10 and max(errors) < HALF_ATOL[precision]

    def test_scores_of_references_equal_cpu(self):
        targets = [" ".join(f"w{20 + i + j}" for j in range(i + 1)) for i in range(len(LINES))]
        for name in ("transformer_default", "rnn_lstm", "cnn_plain", "copy_general", "ensemble"):
            cpu, gpu = (make_translator(FAMILIES[name](), d) for d in ("cpu", DEVICE))
            assert gpu.score(LINES, targets) == pytest.approx(cpu.score(LINES, targets), abs=ATOL)


class TestSearches:
    """Each search with each of its options."""

    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls):
        return tuple(make_translator(make_varied_transformer(), d) for d in ("cpu", DEVICE))

    @pytest.mark.parametrize("search, options", CASES.values(), ids=CASES)
    def test_search_in_fp32_equals_cpu(self, pair, search, options):
        cpu, gpu = pair
        expected = translate(cpu, search=search, **options)
        assert_same(translate(gpu, search=search, **options), expected)

    @pytest.mark.parametrize("search, options", CASES.values(), ids=CASES)
    def test_step_waits_for_one_transfer_only(self, pair, search, options, monkeypatch):
        """Other transfers happen only with new sentences or corrected scores."""
        calls: Counter[str] = Counter()
        waiting = [(StepLog, "send"), (StepLog, "wait_for_events")]
        waiting += [(Scheduler, "admit"), (BeamBatch, "__init__")]
        if search == "opennmt-2018" or "beam_groups" in options:
            waiting += [(Rows, "correct_scores")]
        for owner, name in waiting:
            monkeypatch.setattr(owner, name, allow_waiting(getattr(owner, name), calls))
        model = pair[1].pipeline.runner.search_model
        graphs = getattr(model, "graphs", None)
        if graphs is not None:
            monkeypatch.setattr(graphs, "capture", allow_waiting(graphs.capture, calls))
        monkeypatch.setattr(model, "step", count_calls(model.step, calls))
        with set_sync_mode("error"):
            translate(pair[1], search=search, **options)
        assert calls["send"] == calls["step"] > 0


@contextlib.contextmanager
def set_sync_mode(mode: str) -> Iterator[None]:
    """Set the effect of operations for which the host waits: "error" or "default"."""
    if not CUDA:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def count_calls(function: Callable, calls: Counter[str]) -> Callable:
    """Return a function that counts its calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[function.__name__] += 1
        return function(*args, **kwargs)

    return call


def allow_waiting(function: Callable, calls: Counter[str]) -> Callable:
    """Return a function that counts its calls and may wait for the device."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[getattr(function, "__name__", "")] += 1
        with set_sync_mode("default"):
            return function(*args, **kwargs)

    return call


class TestShippedModel:
    @pytest.mark.parametrize("refills", [True, False])
    @pytest.mark.parametrize("batch_size", [1, 7, 64])
    def test_any_batch_size_with_and_without_refill_equals_cpu(
        self, on_gpu, expected, batch_size, refills
    ):
        before, on_gpu.pipeline.runner.refills = on_gpu.pipeline.runner.refills, refills
        options = dict(n_best=5, batch_size=batch_size, batch_type="sents")
        found = on_gpu.translate(SAMPLE * 6, **options)
        on_gpu.pipeline.runner.refills = before
        assert_same(found, expected * 6)

    def test_samples_equal_cpu(self, on_cpu, on_gpu):
        options = dict(do_sample=True, n_best=3, seed=5)
        tokens = [
            [[h.tokens for h in t.hyps] for t in translator.translate(SAMPLE, **options)]
            for translator in (on_cpu, on_gpu)
        ]
        assert tokens[0] == tokens[1]
        assert tokens[0] != [[h.tokens for h in t.hyps] for t in on_cpu.translate(SAMPLE, n_best=3)]

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_shipped_model_in_half_precision_is_close_to_cpu(self, on_cpu, expected, precision):
        found = Translator.from_pretrained(device=DEVICE, precision=precision).translate(SAMPLE)
        targets = [t.hyps[0].text for t in found]
        for t, score in zip(found, on_cpu.score(SAMPLE, targets), strict=True):
            (hyp,) = t.hyps
            assert hyp.ended and abs(hyp.log_prob - score) < SHIPPED_ATOL[precision]
        different = sum(f.hyps[0].text != e.hyps[0].text for f, e in zip(found, expected))
        assert different <= MAX_DIFFERENT[precision] * len(SAMPLE)

    @needs_gpu
    def test_default_precision_is_bf16(self):
        translator = Translator.from_pretrained(device=DEVICE)
        assert {p.dtype for p in translator.model.parameters()} == {torch.bfloat16}
        assert translator.device.type == "cuda" and translator.pipeline.runner.refills


@needs_gpu
class TestCudaGraphs:
    """Steps that are captured and replayed."""

    def test_replayed_steps_equal_cpu(self, on_gpu, expected):
        graphs = on_gpu.pipeline.runner.search_model.graphs
        assert graphs is not None
        for _ in range(2):
            found = on_gpu.translate(SAMPLE * 6, n_best=5, batch_size=16, batch_type="sents")
            assert_same(found, expected * 6)
        assert not graphs.has_failed
        assert any(
            step is not None for buffers in graphs.buffers for step in buffers.steps.values()
        )

    def test_replayed_steps_equal_steps_without_graphs(self, on_gpu):
        options = dict(n_best=5, batch_size=16, batch_type="sents")
        replayed = on_gpu.translate(SAMPLE * 6, **options)
        graphs = on_gpu.pipeline.runner.search_model.graphs
        graphs.has_failed = True
        try:
            eager = on_gpu.translate(SAMPLE * 6, **options)
        finally:
            graphs.has_failed = False
        assert_same(replayed, eager)


@needs_gpu
class TestMemory:
    def test_job_frees_its_memory(self, on_gpu):
        used = []
        for _ in range(4):  # libraries and graphs allocate memory in the first runs
            on_gpu.translate(SAMPLE, n_best=5, block_ngram_repeat=2)
            gc.collect()
            used.append(torch.cuda.memory_allocated())
        assert used[2] == used[3]

    def test_batch_out_of_memory_is_halved(self, expected):
        translator = Translator.from_pretrained(device=DEVICE, precision="fp32")
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        limit = torch.cuda.memory_reserved() + 400 * 2**20  # logits of all sentences take 300 MB
        torch.cuda.set_per_process_memory_fraction(limit / total)
        try:
            options = dict(n_best=5, batch_size=2000, batch_type="sents")
            found = translator.translate(SAMPLE * 160, **options)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert translator.pipeline.runner.retry.max_size < math.inf
        assert_same(found, expected * 160)


class TestCommandLine:
    def run(self, tmp_path: Path, *words: str) -> subprocess.CompletedProcess:
        src, output = tmp_path / "src.txt", tmp_path / "out.txt"
        src.write_text("\n".join(SAMPLE) + "\n", encoding="utf-8")
        command = [sys.executable, str(ROOT / "translate.py"), "-src", str(src)]
        command += ["-output", str(output), "-quiet", "-precision", "fp32", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=250)

    def test_translate_file_equals_cpu(self, tmp_path, expected):
        process = self.run(tmp_path, *(["-gpu", "0"] if CUDA else ["-device", DEVICE]))
        assert (process.returncode, process.stderr) == (0, "")
        lines = (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1]
        unambiguous = [
            (line, t.hyps[0].text)
            for line, t in zip(lines, expected, strict=True)
            if len(t.hyps) == 1 or t.hyps[0].score - t.hyps[1].score > ATOL
        ]
        assert len(unambiguous) > len(SAMPLE) / 2
        assert all(line == text for line, text in unambiguous)

    @needs_gpu
    def test_unknown_gpu_is_rejected(self, tmp_path):
        n = torch.cuda.device_count()
        process = self.run(tmp_path, "-gpu", str(n))
        assert process.returncode == 2
        assert f"gpu {n}" in process.stderr and process.stderr.count("\n") == 1
        assert not (tmp_path / "out.txt").exists()


def test_table_model_stays_on_cpu():
    translator = make_translator(FAMILIES["table"](), DEVICE)
    assert isinstance(translator.model, TableModel)
    assert translator.model.device.type == "cpu"
