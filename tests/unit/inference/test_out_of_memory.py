"""Batches that do not fit in memory: no line is lost, and no failed size is tried again."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference import runner as runner_module
from onmt_lite.inference import runtime as budget_module
from onmt_lite.inference.records import Example
from onmt_lite.inference.runner import get_longer_side, get_source_length
from onmt_lite.inference.runtime import OomRetry, is_out_of_memory
from onmt_lite.search.teacher_forcing import score_targets
from onmt_lite.text.lines import Line
from tests.support import random_models, tiny
from tests.support.sweeps import mark_sweeps

LINES = [f"{a} {b}" for a in tiny.SENTENCES[0].split() for b in "abcd"]

MESSAGES = [
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 400000000 bytes. Error code 12 (Cannot allocate memory)",
    "[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried "
    "to allocate 400000000 bytes.",
    "CUDA error: out of memory",
    "HIP out of memory. Tried to allocate 2.00 GiB",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "std::bad_alloc",
    # oneDNN under `ulimit -v`, in a matmul of packed weights
    "could not create a primitive",
    "could not create a memory object",
]
OTHER_MESSAGES = [
    "could not create a primitive descriptor for the matmul primitive. Run workload with "
    "environment variable ONEDNN_VERBOSE=all to get additional diagnostic information.",
    "CUDA error: an illegal memory access was encountered",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
]
ERRORS = [MemoryError(), torch.OutOfMemoryError(), *map(RuntimeError, MESSAGES)]

FAMILIES = {
    "transformer": tiny.make_model,
    "rnn": random_models.make_rnn,
    "cnn": random_models.make_cnn,
    "fconv": lambda: random_models.make_fconv(**random_models.FCONVS["uneven"]),
    "copying": lambda: random_models.make_copying_rnn("general"),
    "ensemble": random_models.make_ensemble,
}


@pytest.fixture
def fresh(translator):
    """A Translator that has not run out of memory yet."""
    return Translator(translator.checkpoint, TranslateOptions.of(device="cpu"))


def make_examples(lengths, first):
    return [Example(Line(i, ""), [7] * n, n) for i, n in enumerate(lengths, first)]


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=40), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(20, 200),
    st.integers(1, 40),
    st.integers(0, 3),
)
def test_oom_retry_loses_nothing_and_fails_rarely(
    batches, max_rows, max_tokens, n_at_once, n_before
):
    """Memory fits limited rows and tokens; it fails after `n_before` results."""
    retry, failed, done = OomRetry(""), [], []

    def work(group, n):
        size = n * max(map(get_source_length, group))
        fails = n > max_rows or size > max_tokens
        for i, example in enumerate(group[:n_before] if fails else group):
            done.append(example.line.id)
            yield i, example.line.id
        if fails:
            failed.append(size)
            raise MemoryError

    n_lines = 0
    for lengths in batches:
        examples = sorted(make_examples(lengths, n_lines), key=lambda e: -e.n_src_tokens)
        n_lines += len(lengths)
        places = [e.line.id for e in examples]
        assert retry.run(examples, n_at_once, get_source_length, work) == places
    assert sorted(done) == list(range(n_lines))  # each example once
    # Each failure reduces the size to at most two thirds
    assert all(b <= a * 2 / 3 + 1 for a, b in zip(failed, failed[1:]))
    assert len(failed) <= 1 + math.log(800, 1.5)


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=30), min_size=1, max_size=6),
    st.integers(1, 40),
    st.dictionaries(st.integers(0, 15), st.integers(0, 5), max_size=4),
    st.randoms(use_true_random=False),
)
def test_oom_retry_halves_after_each_failure(batches, n_at_once, fails, dice):
    """Random attempts fail, after random results in random order."""
    retry, done, tried, most = OomRetry(""), [], [], math.inf

    def work(group, n):
        nonlocal most
        widths = [e.n_src_tokens for e in group]
        assert 1 <= n <= max(1, min(n_at_once, most // max(widths)))
        order = dice.sample(range(len(group)), len(group))
        fail, n_results = len(tried) in fails, fails.get(len(tried), len(group))
        tried.append(n)
        for i in order[:n_results]:
            done.append(group[i].line.id)
            yield i, group[i].line.id
        if fail:  # possibly after the last result
            most = (n + 1) // 2 * max(widths[i] for i in order[n_results:] or order)
            raise MemoryError

    places = []
    try:
        for lengths in batches:
            examples = make_examples(lengths, len(places))
            places += [e.line.id for e in examples]
            assert (
                retry.run(examples, n_at_once, get_source_length, work) == places[-len(lengths) :]
            )
    except MemoryExhausted:
        assert tried[-1] == 1
    else:
        assert sorted(done) == places  # each example once


def limit_memory(monkeypatch, name, limit=2, error=None):
    """Make a runner function fail above `limit` sentences; return the sizes it was called with."""
    sizes, function = [], getattr(runner_module, name)

    def limited(model, sentences, *args, **named):
        sizes.append(len(sentences))
        if len(sentences) > limit:
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        return function(model, sentences, *args, **named)

    monkeypatch.setattr(runner_module, name, limited)
    return sizes


def texts(translations):
    return [[hyp.text for hyp in t.hyps] for t in translations]


@pytest.mark.parametrize("error", mark_sweeps(ERRORS, ERRORS[:3]), ids=range(len(ERRORS)))
def test_failed_batch_size_is_not_tried_again(fresh, translator, monkeypatch, error):
    assert is_out_of_memory(error)
    expected = translator.translate(LINES, beam_size=2, n_best=2)
    sizes = limit_memory(monkeypatch, "decode", error=error)
    options = dict(beam_size=2, n_best=2, batch_type="sents", batch_size=8)
    found = fresh.translate(LINES, **options)
    assert [t.src for t in found] == LINES
    assert texts(found) == texts(expected)
    n_failed = sum(n > 2 for n in sizes)
    # 8, 4, and narrower examples that were still too many
    assert sizes[0] == 8 and 2 <= n_failed <= 4
    assert texts(fresh.translate(LINES, **options)) == texts(expected)
    assert sum(n > 2 for n in sizes) == n_failed
    assert sum(n for n in sizes if n <= 2) == 2 * len(LINES)


@pytest.mark.parametrize("name, hint", [("score_targets", "shorten"), ("decode", "lower")])
def test_sentence_that_does_not_fit_is_named_in_error(fresh, monkeypatch, name, hint):
    sizes = limit_memory(monkeypatch, name, 0)
    with pytest.raises(MemoryExhausted, match=f"out of memory at line 2 in a batch of one; {hint}"):
        if name == "decode":
            fresh.translate(["", "a"])
        fresh.score(["", "a"], ["", "red"])
    assert sizes == [1]


@pytest.mark.parametrize("message", OTHER_MESSAGES)
def test_other_errors_are_not_out_of_memory(fresh, monkeypatch, message):
    assert not is_out_of_memory(ValueError(MESSAGES[0]))
    sizes = limit_memory(monkeypatch, "decode", 0, RuntimeError(message))
    with pytest.raises(RuntimeError, match=re.escape(message)):
        fresh.translate(LINES)
    assert len(sizes) == 1


def test_failed_scoring_size_is_not_tried_again(fresh, translator, monkeypatch):
    expected = translator.score(LINES, LINES)
    sizes = limit_memory(monkeypatch, "score_targets")
    assert fresh.score(LINES, LINES) == pytest.approx(expected, abs=1e-4)
    n_failed = sum(n > 2 for n in sizes)
    assert 2 <= n_failed <= 10
    fresh.score(LINES, LINES)
    assert sum(n > 2 for n in sizes) == n_failed


class FailingModel:
    """A model whose calls raise errors.

    `at` selects the calls by number; `n_encoded` lists the number of sentences of each batch.
    """

    def __init__(self, patch, model, at):
        self.at, self.n_calls, self.n_encoded = at, 0, []
        for name in ("encode", "init_state", "step", "forward"):
            patch.setattr(model, name, partial(self._call, name, getattr(model, name)))

    def _call(self, name, function, *args):
        if name == "encode":
            self.n_encoded.append(len(args[0]))
        self.n_calls += 1
        if self.n_calls in self.at:
            raise self.at[self.n_calls]
        return function(*args)


@pytest.fixture(scope="module")
def translate_in_parts(translator):
    """Return the scores and translations of LINES from three calls."""

    def work(translator, scores, **options):
        for start in range(0, 24, 8):
            lines = LINES[start : start + 8]
            if scores:
                yield from translator.score(lines, lines[::-1])
            else:
                yield from texts(translator.translate(lines, beam_size=2, n_best=2, **options))

    return work, {scores: list(work(translator, scores)) for scores in (True, False)}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.integers(1, 60), st.sampled_from(ERRORS), max_size=4),
    st.integers(3, 24),
    st.booleans(),
    st.booleans(),
)
def test_out_of_memory_at_any_call_loses_no_line(
    translator, translate_in_parts, at, batch_size, refills, scores
):
    """Errors while a batch is encoded, started, decoded or scored: each line once and in order."""
    work, expected = translate_in_parts
    fresh = Translator(translator.checkpoint, TranslateOptions.of(device="cpu"))
    fresh.pipeline.runner.refills, found = refills, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget_module, "SCORED_TOKENS", 10 * batch_size)
        failing = FailingModel(patch, fresh.model, at)
        try:
            found.extend(work(fresh, scores, batch_type="sents", batch_size=batch_size))
        except MemoryExhausted as error:  # only after a batch of one failed
            assert failing.n_encoded[-1] == 1 and "batch of one" in str(error)
            return
    assert found == (pytest.approx(expected[True], abs=1e-4) if scores else expected[False])


@pytest.mark.parametrize("refills", [True, False])
def test_out_of_memory_keeps_finished_sentences(fresh, monkeypatch, refills):
    """Memory runs out when three sentences are finished and more than two are running."""
    expected = fresh.translate(LINES, beam_size=2)
    tried, decode = [], runner_module.decode

    def late(model, sentences, plan, n_slots, *others):
        tried.append((len(sentences), n_slots))
        for n_done, result in enumerate(decode(model, sentences, plan, n_slots, *others)):
            if n_slots > 2 and n_done == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            yield result

    monkeypatch.setattr(runner_module, "decode", late)
    fresh.pipeline.runner.refills = refills
    found = fresh.translate(LINES, beam_size=2, batch_type="sents", batch_size=8)
    assert texts(found) == texts(expected)
    n = len(LINES)
    assert tried[:3] == ([(n, 8), (n - 3, 4), (n - 6, 2)] if refills else [(8, 8), (4, 4), (2, 2)])
    assert all(size <= slots <= 3 for size, slots in tried[2:]) or (refills and len(tried) == 3)


def test_smaller_beam_allows_more_sentences(fresh, monkeypatch):
    options = dict(batch_type="sents", batch_size=8)
    lines = ["a" + " " * i for i in range(8)]  # no duplicates
    with monkeypatch.context() as patch:
        sizes = limit_memory(patch, "decode", 4)
        fresh.translate(lines, beam_size=4, **options)
    assert sizes == [8, 4, 4]
    sizes = limit_memory(monkeypatch, "decode", 8)
    fresh.translate(lines, beam_size=2, **options)
    assert sizes == [8]


def test_scoring_batches_count_tokens_of_both_sides(fresh, monkeypatch):
    """Short sources with long targets, and long sources with short targets."""
    widths, score = [], runner_module.score_targets

    def note(model, src, src_lengths, targets, *args):
        widths.append(src.size(0) * max(src.size(1), *(len(t) + 1 for t in targets)))
        return score(model, src, src_lengths, targets, *args)

    monkeypatch.setattr(runner_module, "score_targets", note)
    monkeypatch.setattr(budget_module, "SCORED_TOKENS", 80)
    pairs = [("a", "red " * n) for n in (1, 14, 2, 9)] * 5 + [("der see " * 6, "a")] * 5
    # No duplicates
    pairs = [(source + " " * i, target) for i, (source, target) in enumerate(pairs)]
    sources, targets = zip(*pairs)
    found = fresh.score(sources, targets)
    assert len(widths) > 5 and max(widths) <= 80
    alone = [fresh.score([source], [target])[0] for source, target in pairs]
    assert found == pytest.approx(alone, abs=1e-3)
    assert None not in found


def test_large_vocabulary_gives_smaller_scoring_batches(fresh, monkeypatch):
    """A vocabulary of 40 tokens at 20 bytes each: 8,000 bytes are the logits of ten tokens."""
    sizes = limit_memory(monkeypatch, "score_targets", 100)
    fresh.pipeline.runner.budget = replace(fresh.pipeline.runner.budget, n_bytes=8000)
    fresh.score(["a" + " " * i for i in range(6)], ["red"] * 6)  # no duplicates
    length = get_longer_side(fresh.pipeline.preprocessor.make_example(Line(0, "a"), Line(0, "red")))
    assert 2 <= length <= 5
    assert sizes[0] == 10 // length


def test_long_target_is_scored_position_by_position(fresh, translator, monkeypatch):
    """If its logits exceed the budget of a batch."""
    sources, targets = ["a", "der see"], ["red book " * 10, "red"]
    expected = translator.score(sources, targets)
    fresh.pipeline.runner.budget = replace(fresh.pipeline.runner.budget, n_bytes=8000)
    whole, forward = [], fresh.model.forward

    def noted(memory, tgt):
        whole.append(tgt.numel())
        return forward(memory, tgt)

    monkeypatch.setattr(fresh.model, "forward", noted)
    assert fresh.score(sources, targets) == pytest.approx(expected, abs=1e-4)
    assert len(whole) == 1 and whole[0] <= 10


@pytest.mark.parametrize("name", FAMILIES)
def test_scoring_position_by_position_gives_same_scores(name):
    model = FAMILIES[name]()
    src, lengths = torch.tensor([[5, 6, 7, 8], [9, 4, 3, 1]]), torch.tensor([4, 3])
    given = model, src, lengths, [[6, 7, 8, 9, 10], [4]]
    found = []
    for start in ([2], [5], [2, 5]):
        found.append(score_targets(*given, [start] * 2, 3))
        by_steps = score_targets(*given, [start] * 2, 3, max_logits=0)
        for row, wanted in zip(by_steps, found[-1], strict=True):
            assert row == pytest.approx(wanted, abs=1e-4)
    assert found[0] != found[1]
