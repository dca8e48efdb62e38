"""Refilled slots: a translation does not depend on the other sentences of its batch."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.api import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Example
from onmt_lite.inference.runner import merge_batches
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.beam_search import BeamBatch, decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence, fill_holes
from onmt_lite.search.spec import SentenceLimits
from onmt_lite.text.lines import Line
from tests.support import random_models, tiny
from tests.support.sweeps import mark_sweeps
from tests.support.table_models import (
    Settings,
    hypotheses,
    make_checkpoint,
    make_source,
    make_spec,
    sources,
)

FAMILIES = {
    "transformer": tiny.make_model,
    "rnn": random_models.make_rnn,
    "fconv": partial(random_models.make_fconv, **random_models.FCONVS["plain"]),
    "cnn": random_models.make_cnn,
    "copying": partial(random_models.make_copying_rnn, "general"),
    "ensemble": random_models.make_ensemble,
}
SLOTS = [(3, 1), (17, 1), (7, 2), (2, 3)]  # slots per batch, number of batches
DAILY = ["opennmt", "transformers", "fairseq", "marian", "tensor2tensor"]  # searches
EXTRA_OPTIONS = {
    "block_ngram_repeat": 2,
    "repetition_penalty": 1.3,
    "min_length": 2,
    "tgt_file_prefix": True,
    "do_sample": True,
}


def translate(translator, lines, refills, prefixes, **options):
    """Return tokens, ended and score of all hypotheses by line.

    Args:
        translator: the translator.
        lines: source lines.
        refills: True: waiting sentences take the slots of finished sentences.
        prefixes: target prefixes, or None.
        options: options of the search.
    """
    translator.pipeline.runner.refills = refills
    return [
        [(h.tokens, h.ended, pytest.approx(h.score, abs=1e-5)) for h in t.hyps]
        for t in translator.translate(lines, prefixes, batch_type="sents", **options)
    ]


@pytest.mark.parametrize("name", mark_sweeps(sorted(set(PRESETS) - {"opennmt-2018"}), DAILY))
@settings(deadline=None, max_examples=12)
@given(
    group=st.lists(sources(vocab_sizes=[5], holes=False), min_size=6, max_size=12),
    n_slots=st.integers(1, 4),
    chosen=st.sets(st.sampled_from(sorted(EXTRA_OPTIONS))),
)
def test_every_search_in_any_batch_equals_batch_size_1(name, group, n_slots, chosen):
    translator = Translator(make_checkpoint(group), TranslateOptions.of(device="cpu"))
    lines = [" ".join([f"s{i}"] * source.length) for i, source in enumerate(group)]
    options = {o: EXTRA_OPTIONS[o] for o in chosen if o in PRESETS[name].options}
    prefixes = (
        [" a b"[: i % 3 * 2] for i in range(len(lines))]
        if options.pop("tgt_file_prefix", 0)
        else None
    )
    options |= dict(search=name, beam_size=3, n_best=2, max_length=6)
    alone = translate(translator, lines, False, prefixes, batch_size=1, **options)
    assert translate(translator, lines, True, prefixes, batch_size=n_slots, **options) == alone
    assert translate(translator, lines, False, prefixes, batch_size=n_slots + 1, **options) == alone


@pytest.fixture
def uninitialized_memory_is_nan():
    """Fill uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("n_slots, n_batches", mark_sweeps(SLOTS, [(17, 1), (2, 3)]))
@pytest.mark.parametrize("family", FAMILIES)
def test_refill_in_every_family_equals_single_sentence(
    family, n_slots, n_batches, uninitialized_memory_is_nan
):
    """Sentences finish at different steps; with 17 slots the batch shrinks before a refill."""
    model = FAMILIES[family]()
    spec = replace(make_spec(Settings(beam_size=3, max_length=0)), bos_id=2)
    generator = torch.Generator().manual_seed(1)
    lengths = [9 - i // 3 for i in range(26)]
    waiting = [
        Sentence(
            torch.randint(4, 34, (n,), generator=generator).tolist(), SentenceLimits(2 + i % 7)
        )
        for i, n in enumerate(lengths)
    ]
    start_steps: list[int] = []

    def record(batch: BeamBatch, chosen: object) -> None:
        start_steps.append(max(slot.start_step for slot in batch.slots))

    found = dict(decode(model, waiting, spec, n_slots, record, n_batches))
    assert len(set(start_steps)) > 1
    for i, sentence in enumerate(waiting):
        ((_, alone),) = decode(model, [sentence], spec)
        for hyp, other in zip(hypotheses(found[i]), hypotheses(alone), strict=True):
            assert (hyp.tokens, hyp.ended) == (other.tokens, other.ended)
            assert hyp.score == pytest.approx(other.score, abs=1e-5)


def test_refill_keeps_all_slots_busy_while_sentences_wait():
    """Sentences of 1 to 8 tokens in four slots."""
    source = make_source({}, [0.0, 1.0, 0.5])
    waiting = [Sentence([0, 0], SentenceLimits(1 + i % 8)) for i in range(32)]
    model, spec = (
        TableModel([source], 3),
        make_spec(Settings(beam_size=1, max_length=0, banned=(0,))),
    )
    running: list[int] = []
    for _ in decode(
        model, waiting, spec, 4, lambda batch, chosen: running.append(len(batch.slots))
    ):
        pass
    assert sum(running) == sum(s.limits.max_steps for s in waiting)
    assert running[: -max(s.limits.max_steps for s in waiting)] == [4] * (len(running) - 8)


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)), st.integers(0, 5))
    )
)
def test_fill_holes_moves_at_most_one_sentence_per_hole(case):
    n_old, holes, n_joining = case
    kept = sorted(set(range(n_old)) - holes)
    joining = range(n_old, n_old + min(n_joining, len(holes)))
    order = fill_holes(kept, joining)
    assert sorted(order) == sorted([*kept, *joining])
    moved = [b for to, b in enumerate(order) if b != to and b < n_old]
    assert len(moved) <= len(holes) - len(joining)


def test_merge_batches_groups_at_most_twice_the_width():
    class Line:
        def __init__(self, n):
            self.src_ids = [0] * n

    batches = [[Line(n)] * 2 for n in (40, 39, 21, 20, 19, 11, 9, 5, 4)]
    buckets = merge_batches(batches)
    widths = [[len(e.src_ids) for e in bucket[::2]] for bucket, _ in buckets]
    assert widths == [[40, 39, 21, 20], [19, 11], [9, 5], [4]]
    assert [n for _, n in buckets] == [2, 2, 2, 2]


def test_merge_batches_starts_new_bucket_at_wider_batch():
    """Lines without a prefix follow the lines with one and start with the widest again."""
    examples = [Example(Line(i, ""), [0] * n, n) for i, n in enumerate([9, 8, 12, 11])]
    batches = [[replace(e, prefix_ids=(5,)) for e in examples[:2]], examples[2:]]
    assert [len(bucket[0].src_ids) for bucket, _ in merge_batches(batches)] == [9, 12]
