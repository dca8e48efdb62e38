"""Everything that a GPU computes, held against the CPU.

    python -m pytest tests/gpu --durations=10

Where there is no GPU, one case of each test runs on the CPU, to see that it runs, and with
ONMT_LITE_TEST_DEVICE=cpu all of them do; what only a GPU has is skipped then.
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
    lively_transformer,
    make_translator,
    translate,
)

DEVICE = os.environ.get("ONMT_LITE_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
CUDA = DEVICE.startswith("cuda")
ROOT = Path(__file__).resolve().parents[2]
SAMPLE = [s for s in (ROOT / "data" / "sample.de.txt").read_text("utf-8").split("\n") if s]

pytestmark = pytest.mark.requires_cuda
on_a_gpu = pytest.mark.skipif(not CUDA, reason="not without a GPU")

ATOL = 1e-3  # of scores in fp32; hypotheses with scores so close may change places
# Of log-probabilities in half precision: of tokens by random weights, of shipped translations
HALF_ATOL = {"bf16": 0.6, "fp16": 0.1}
SHIPPED_ATOL = {"bf16": 0.15, "fp16": 0.03}
MOST_DIFFERENT = {"bf16": 0.25, "fp16": 0.1}  # translations of the sample
SPECIAL = {"<unk>", "<blank>", "<s>", "</s>"}


@pytest.fixture(scope="module", autouse=True)
def full_fp32():
    """TF32 rounds the inputs of products to 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module")
def on_cpu() -> Translator:
    return Translator.from_pretrained(device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def expected(on_cpu):
    """N-best lists of the sample."""
    return on_cpu.translate(SAMPLE, n_best=5)


@pytest.fixture(scope="module")
def on_gpu() -> Translator:
    return Translator.from_pretrained(device=DEVICE, precision="fp32")


def assert_same(found: list, expected: list) -> None:
    """Equal scores at each rank, and equal tokens where the neighbours' scores are apart."""
    for f, e in zip(found, expected, strict=True):
        scores = [h.score for h in e.hyps]
        assert [h.score for h in f.hyps] == pytest.approx(scores, abs=ATOL)
        for i, (ours, theirs) in enumerate(zip(f.hyps, e.hyps)):
            others = scores[max(0, i - 1) : i] + scores[i + 1 : i + 2]
            if all(abs(scores[i] - other) > ATOL for other in others):
                assert (ours.tokens, ours.ended) == (theirs.tokens, theirs.ended)


def errors(found: list, on_cpu: Translator, **options: Any) -> list[float]:
    """How far the log-probability of each token is from what the CPU gives the same tokens: the
    hypotheses come back as prefixes, as far as they can be written as text."""
    vocab = on_cpu.checkpoint.tgt_vocab.ids.keys() - SPECIAL
    hyps = [(t.src, h) for t in found for h in t.hyps]
    texts = [" ".join(itertools.takewhile(vocab.__contains__, h.tokens)) for _, h in hyps]
    again = on_cpu.translate([src for src, _ in hyps], prefixes=texts, **options)
    return [
        abs(one - other)
        for (_, h), text, t in zip(hyps, texts, again, strict=True)
        for one, other, _ in zip(h.token_log_probs, t.hyps[0].token_log_probs, text.split())
    ]


class TestFamilies:
    """Each family with random weights."""

    @pytest.mark.parametrize("name", FAMILIES)
    def test_fp32(self, name):
        expected = translate(make_translator(FAMILIES[name]()), n_best=BEAM)
        assert_same(translate(make_translator(FAMILIES[name](), DEVICE), n_best=BEAM), expected)

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    @pytest.mark.parametrize("name", [name for name in FAMILIES if name != "table"])
    def test_half_precision(self, name, precision):
        half = make_translator(FAMILIES[name](), DEVICE, precision)
        found = translate(half, n_best=BEAM)
        off = errors(found, make_translator(FAMILIES[name]()), beam_size=1)
        assert len(off) > 10 and max(off) < HALF_ATOL[precision]

    def test_scores_of_given_targets(self):
        targets = [" ".join(f"w{20 + i + j}" for j in range(i + 1)) for i in range(len(LINES))]
        for name in ("transformer_default", "rnn_lstm", "cnn_plain", "copy_general", "ensemble"):
            one, other = (make_translator(FAMILIES[name](), d) for d in ("cpu", DEVICE))
            assert other.score(LINES, targets) == pytest.approx(one.score(LINES, targets), abs=ATOL)


class TestSearches:
    """Each search with each of its options."""

    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls):
        return tuple(make_translator(lively_transformer(), d) for d in ("cpu", DEVICE))

    @pytest.mark.parametrize("search, options", CASES.values(), ids=CASES)
    def test_fp32(self, pair, search, options):
        one, other = pair
        expected = translate(one, search=search, **options)
        assert_same(translate(other, search=search, **options), expected)

    @pytest.mark.parametrize("search, options", CASES.values(), ids=CASES)
    def test_no_step_waits(self, pair, search, options, monkeypatch):
        """One transfer to the host per step; all others are made when sentences join, or for
        scores that a beam corrects."""
        calls: Counter[str] = Counter()
        waiting = [(StepLog, "send"), (StepLog, "wait_for_events")]
        waiting += [(Scheduler, "admit"), (BeamBatch, "__init__")]
        if search == "opennmt-2018" or "beam_groups" in options:
            waiting += [(Rows, "correct_scores")]
        for owner, name in waiting:
            monkeypatch.setattr(owner, name, allowed_to_wait(getattr(owner, name), calls))
        model = pair[1].pipeline.runner.searched
        graphs = getattr(model, "graphs", None)
        if graphs is not None:
            monkeypatch.setattr(graphs, "capture", allowed_to_wait(graphs.capture, calls))
        monkeypatch.setattr(model, "step", counted(model.step, calls))
        with waits("error"):
            translate(pair[1], search=search, **options)
        assert calls["send"] == calls["step"] > 0


@contextlib.contextmanager
def waits(mode: str) -> Iterator[None]:
    """What becomes of operations for which the host waits: "error" or "default"."""
    if not CUDA:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def counted(function: Callable, calls: Counter[str]) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[function.__name__] += 1
        return function(*args, **kwargs)

    return call


def allowed_to_wait(function: Callable, calls: Counter[str]) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[getattr(function, "__name__", "")] += 1
        with waits("default"):
            return function(*args, **kwargs)

    return call


class TestShippedModel:
    @pytest.mark.parametrize("refills", [True, False])
    @pytest.mark.parametrize("batch_size", [1, 7, 64])
    def test_batches_of_any_size_that_refill_or_shrink(self, on_gpu, expected, batch_size, refills):
        before, on_gpu.pipeline.runner.refills = on_gpu.pipeline.runner.refills, refills
        options = dict(n_best=5, batch_size=batch_size, batch_type="sents")
        found = on_gpu.translate(SAMPLE * 6, **options)
        on_gpu.pipeline.runner.refills = before
        assert_same(found, expected * 6)

    def test_samples_are_those_of_the_cpu(self, on_cpu, on_gpu):
        options = dict(do_sample=True, n_best=3, seed=5)
        tokens = [
            [[h.tokens for h in t.hyps] for t in each.translate(SAMPLE, **options)]
            for each in (on_cpu, on_gpu)
        ]
        assert tokens[0] == tokens[1]
        assert tokens[0] != [[h.tokens for h in t.hyps] for t in on_cpu.translate(SAMPLE, n_best=3)]

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_half_precision(self, on_cpu, expected, precision):
        found = Translator.from_pretrained(device=DEVICE, precision=precision).translate(SAMPLE)
        targets = [t.hyps[0].text for t in found]
        for t, score in zip(found, on_cpu.score(SAMPLE, targets), strict=True):
            (hyp,) = t.hyps
            assert hyp.ended and abs(hyp.log_prob - score) < SHIPPED_ATOL[precision]
        different = sum(f.hyps[0].text != e.hyps[0].text for f, e in zip(found, expected))
        assert different <= MOST_DIFFERENT[precision] * len(SAMPLE)

    @on_a_gpu
    def test_bf16_is_the_default(self):
        translator = Translator.from_pretrained(device=DEVICE)
        assert {p.dtype for p in translator.model.parameters()} == {torch.bfloat16}
        assert translator.device.type == "cuda" and translator.pipeline.runner.refills


@on_a_gpu
class TestGraphs:
    """Steps that are recorded, and then replayed."""

    def test_steps_are_replayed_and_say_the_same(self, on_gpu, expected):
        graphs = on_gpu.pipeline.runner.searched.graphs
        assert graphs is not None
        for _ in range(2):
            found = on_gpu.translate(SAMPLE * 6, n_best=5, batch_size=16, batch_type="sents")
            assert_same(found, expected * 6)
        assert not graphs.has_failed
        assert any(
            step is not None for buffers in graphs.buffers for step in buffers.steps.values()
        )

    def test_replays_equal_the_same_steps_without_graphs(self, on_gpu):
        options = dict(n_best=5, batch_size=16, batch_type="sents")
        replayed = on_gpu.translate(SAMPLE * 6, **options)
        graphs = on_gpu.pipeline.runner.searched.graphs
        graphs.has_failed = True
        try:
            eager = on_gpu.translate(SAMPLE * 6, **options)
        finally:
            graphs.has_failed = False
        assert_same(replayed, eager)


@on_a_gpu
class TestMemory:
    def test_nothing_is_left_after_a_job(self, on_gpu):
        used = []
        for _ in range(4):  # the first ones make what the libraries and graphs keep
            on_gpu.translate(SAMPLE, n_best=5, block_ngram_repeat=2)
            gc.collect()
            used.append(torch.cuda.memory_allocated())
        assert used[2] == used[3]

    def test_a_batch_that_does_not_fit_is_halved(self, expected):
        translator = Translator.from_pretrained(device=DEVICE, precision="fp32")
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        room = torch.cuda.memory_reserved() + 400 * 2**20  # logits of all sentences take 300 MB
        torch.cuda.set_per_process_memory_fraction(room / total)
        try:
            options = dict(n_best=5, batch_size=2000, batch_type="sents")
            found = translator.translate(SAMPLE * 160, **options)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert translator.pipeline.runner.room.most < math.inf
        assert_same(found, expected * 160)


class TestCommandLine:
    def run(self, tmp_path: Path, *words: str) -> subprocess.CompletedProcess:
        src, output = tmp_path / "src.txt", tmp_path / "out.txt"
        src.write_text("\n".join(SAMPLE) + "\n", encoding="utf-8")
        command = [sys.executable, str(ROOT / "translate.py"), "-src", str(src)]
        command += ["-output", str(output), "-quiet", "-precision", "fp32", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=250)

    def test_a_run(self, tmp_path, expected):
        done = self.run(tmp_path, *(["-gpu", "0"] if CUDA else ["-device", DEVICE]))
        assert (done.returncode, done.stderr) == (0, "")
        lines = (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1]
        clear = [
            (line, t.hyps[0].text)
            for line, t in zip(lines, expected, strict=True)
            if len(t.hyps) == 1 or t.hyps[0].score - t.hyps[1].score > ATOL
        ]
        assert len(clear) > len(SAMPLE) / 2
        assert all(line == text for line, text in clear)

    @on_a_gpu
    def test_a_gpu_too_many_is_refused(self, tmp_path):
        n = torch.cuda.device_count()
        done = self.run(tmp_path, "-gpu", str(n))
        assert done.returncode == 2
        assert f"gpu {n}" in done.stderr and done.stderr.count("\n") == 1
        assert not (tmp_path / "out.txt").exists()


def test_a_table_is_looked_up_by_the_host():
    translator = make_translator(FAMILIES["table"](), DEVICE)
    assert isinstance(translator.model, TableModel)
    assert translator.model.device.type == "cpu"
