"""Batch sizes as a function of model, beam size and free memory."""

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference import runner as runner_module
from onmt_lite.inference import runtime as budget
from onmt_lite.inference.runtime import (
    MAX_BATCH_BYTES,
    SMALLEST_BATCH,
    BatchBudget,
    BatchLimit,
    MemoryEstimate,
    estimate_batch_bytes,
)
from onmt_lite.jobs import worker
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits

GIB, MIB = 1 << 30, 1 << 20
BASE = MemoryEstimate(1, 32_000, past=2 * 6 * 512, source=2 * 6 * 512 + 7168, heads=16, longest=512)
RANGES = [(1, 4), (5, 300_000), (0, 100_000), (0, 100_000), (0, 32), (1, 5_000)]
SIZES = st.builds(
    MemoryEstimate, *(st.integers(*least_most) for least_most in RANGES), st.sampled_from([2, 4])
)


@given(SIZES, st.integers(1, 64), st.sampled_from(["cpu", "cuda"]), st.integers(0, 64 * GIB))
def test_batch_limit_is_default_or_repeated_half(size, beam, device, free):
    n_bytes = estimate_batch_bytes(device, free)
    limit = BatchBudget(size, device, n_bytes).limit(beam)
    most = BatchBudget(size, device, 1 << 60).limit(beam)
    halves = [most]
    while halves[-1] != SMALLEST_BATCH:
        before = halves[-1]
        halves.append(BatchLimit(max(64, before.tokens // 2), max(1, before.sentences // 2)))
    assert limit in halves
    assert limit == SMALLEST_BATCH or limit.bytes(size, beam) <= n_bytes
    if limit != most:  # twice the batch would not fit
        assert halves[halves.index(limit) - 1].bytes(size, beam) > n_bytes
    usual = BatchBudget(size, device, estimate_batch_bytes(device, None))
    assert bool(BatchBudget(size, device, n_bytes).notices(beam)) == (limit != usual.limit(beam))


@given(st.sampled_from(["cpu", "cuda"]), st.integers(0, 64 * GIB), st.integers(0, 64 * GIB))
def test_batch_bytes_depend_on_free_memory_only_if_short(device, free, more):
    n_bytes, rich = estimate_batch_bytes(device, free), estimate_batch_bytes(device, free + more)
    assert n_bytes <= rich <= estimate_batch_bytes(device, None) == MAX_BATCH_BYTES[device]
    if free >= 2 * MAX_BATCH_BYTES[device]:
        assert n_bytes == MAX_BATCH_BYTES[device]
    elif free >= 32 * MIB:
        assert free / 4 < n_bytes <= free / 2
    assert n_bytes & (n_bytes - 1) == 0  # stable under small changes of free memory


def test_memory_estimate_worked_example():
    """Model base, beam 5: 64 sentences of 48 tokens, each with 5 rows and up to 101 target tokens.

    Logits of 5 x 32,000 twice; 8 x 101 keys and values in 6 layers of size 512; 48 source tokens.
    """
    mine = 2 * 5 * 32_000 * 4 + 4 * (8 * 101 * 6144 + 48 * 13_312 + 48 * 48 * 16)
    assert BASE.bytes(1, 48, 5) == mine
    assert BatchBudget(BASE, "cpu", 2 * GIB).limit(5) == BatchLimit(1536, 64)
    most = BatchLimit(1536, 64).bytes(BASE, 5)
    assert BatchBudget(BASE, "cpu", most - 1).limit(5) == BatchLimit(768, 32)
    wide = replace(BASE, d_model=512)
    assert BatchBudget(wide, "cpu", 2 * GIB).limit(5) == BatchLimit(1536, 32)
    assert BatchBudget(BASE, "cpu", 2 * GIB).limit(1) == BatchLimit(3072, 320)
    assert BatchBudget(BASE, "cpu", 0).limit(5) == SMALLEST_BATCH


@pytest.mark.parametrize("vocab, d, n_layers", [(8000, 16, 1), (60, 64, 3)])
@pytest.mark.parametrize("beam", [1, 5])
def test_memory_estimate_is_close_to_profiler(vocab, d, n_layers, beam):
    """At most the estimate and at least a sixth of it, by the torch profiler."""
    sizes = dict(src_vocab_size=vocab, tgt_vocab_size=vocab, d_model=d, d_ff=2 * d, heads=2)
    model = Transformer(
        TransformerConfig(**sizes, enc_layers=n_layers, dec_layers=n_layers, max_positions=99)
    ).eval()
    model.requires_grad_(False)
    torch.manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    preset = PRESETS["opennmt"]
    spec = SearchSpec(
        preset.policy, next(iter(preset.stop_rules.values())), beam, bos_id=1, eos_id=2
    )
    n, width = 8, 12
    steps = 2 * width + 5
    sentences = [Sentence([3 + i] * width, SentenceLimits(steps, steps + 1)) for i in range(n)]
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        assert len(list(decode(model, sentences, spec))) == n
    found = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    found.sort(key=lambda e: e.start_ns())
    most = max(accumulate(event.nbytes() for event in found))
    estimate = MemoryEstimate.of([model]).bytes(n, width, beam)
    assert estimate / 6 < most < estimate


SHORT = ["der hund", "die katze sieht den see", "ein kind"]
LINES = [line + " " * i for i in range(20) for line in SHORT]  # no duplicates


@pytest.fixture
def batches(monkeypatch):
    """Return the list of the number of sentences in each decoded batch."""
    sizes, decode_all = [], runner_module.decode

    def noted(model, sentences, *args, **named):
        sizes.append(len(sentences))
        return decode_all(model, sentences, *args, **named)

    monkeypatch.setattr(runner_module, "decode", noted)
    return sizes


def test_little_memory_gives_small_batches_and_notice(translator, batches, monkeypatch):
    monkeypatch.setattr(budget, "MIN_BATCH_BYTES", MIB)
    usual = translator.translate(LINES, beam_size=2)
    assert len(batches) == 1
    poor = Translator(translator.checkpoint, TranslateOptions.of(device="cpu"), free_bytes=4 * MIB)
    mine, rich = poor.pipeline.runner.budget, translator.pipeline.runner.budget
    limit = mine.limit(2)
    assert 1 < limit.sentences < 60 and limit.bytes(mine.size, 2) <= 2 * MIB
    del batches[:]
    found = poor.translate(LINES, beam_size=2)
    assert len(batches) > 1 and max(batches) <= limit.sentences
    assert [t.text for t in found] == [t.text for t in usual]
    assert "instead of 160 and 3072" in mine.notices(2)[0] and not rich.notices(2)


def test_workers_share_free_memory(monkeypatch):
    monkeypatch.setattr(worker, "load_files", lambda *args, **more: None)
    for free, share in ((6 * GIB, 2 * GIB), (None, None)):
        monkeypatch.setattr(worker, "get_free_memory", lambda free=free: free)
        shared = worker.load_shared(TranslateOptions.of(device="cpu"), 3)
        assert shared.free == share and len(shared.machines) == 3
