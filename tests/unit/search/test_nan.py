"""NaN or only -inf for one sentence does not affect other sentences of the batch."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Hypothesis, Translation
from onmt_lite.jobs.reports import format_jsonl
from onmt_lite.models.table_model import TableModel, TableSource
from onmt_lite.search.beam import NOT_A_NUMBER, SEARCH_EMPTY
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SentenceLimits
from tests.support import cases
from tests.support.model_variants import MODELS
from tests.support.sweeps import mark_sweeps
from tests.support.table_models import (
    Settings,
    hypotheses,
    logits,
    make_checkpoint,
    make_source,
    make_spec,
    sources,
)
from tests.unit.models.test_state import DAILY
from tests.unit.search.test_simulated_gpu import (
    assert_same,
    find_violations,
    move_to_gpu,
    simulate,
)

BAD = 33  # source token with a NaN embedding
NAN = [math.nan] * 3
MODELS_WITH_WEIGHTS = [name for name in MODELS if name != "table"]
GOOD = make_source({}, logits(0.2, 0.5, 0.3))
BROKEN = make_source({"1": NAN}, logits(0.1, 0.8, 0.1))


def make_translator(group: list[TableSource], **options) -> Translator:
    return Translator(make_checkpoint(group), TranslateOptions.of(**options))


def make_line(i: int, source: TableSource) -> str:
    return " ".join([f"s{i}"] * source.length)


def translate(translator, lines, **options) -> list:
    """Return translations with line number 0, because line numbers differ between runs.

    Args:
        translator: the translator.
        lines: source lines.
        options: options of the search.
    """
    translations = translator.translate(lines, batch_type="sents", **options)
    return [replace(t, id=0) for t in translations]


def is_empty(translation: Translation) -> bool:
    (hyp,) = translation.hyps
    empty = Hypothesis("", [], 0.0, 0.0, [], ended=False)
    return hyp == empty and translation.notes == (NOT_A_NUMBER,)


def add_nan(source: TableSource, at: str) -> TableSource:
    """Return the table with one NaN in the row `at`."""
    row = source.rows[at]
    return replace(source, rows={**source.rows, at: [*row[:-1], math.nan]})


class TestNanLeavesOtherSentencesUnchanged:
    @pytest.mark.parametrize("refills", mark_sweeps([False, True], [True]))
    @pytest.mark.parametrize("name", mark_sweeps(PRESETS, [*PRESETS][::2]))
    @settings(deadline=None, max_examples=12)
    @given(
        group=st.lists(sources(vocab_sizes=[5], holes=False), min_size=3, max_size=8),
        data=st.data(),
        batch_size=st.sampled_from([2, 8]),
    )
    def test_nan_in_every_search_leaves_other_sentences_unchanged(
        self, name, refills, group, data, batch_size
    ):
        """Some sentences get NaN, at the first step or later."""
        at = st.sampled_from(["", "1", "2", "1 1", "3 2", "*3"])
        bad = data.draw(st.dictionaries(st.integers(0, len(group) - 1), at, min_size=1))
        group = [add_nan(s, bad[i]) if i in bad else s for i, s in enumerate(group)]
        translator = make_translator(group, device="cpu")
        translator.pipeline.runner.refills = refills
        lines = [make_line(i, source) for i, source in enumerate(group)]
        options = dict(search=name, beam_size=3, max_length=6)
        alone = [translate(translator, [line], **options)[0] for line in lines]
        broken = [NOT_A_NUMBER in t.notes for t in alone]
        # Every search gets a NaN in the first row at its first step
        assert all(broken[i] for i, row in bad.items() if row == "")
        assert not any(broken[i] for i in range(len(group)) if i not in bad)
        assert all(is_empty(t) for t, b in zip(alone, broken) if b)

        found = translate(translator, lines, batch_size=len(lines), **options)
        others = [line for line, b in zip(lines, broken) if not b]
        expected = iter(translate(translator, others, batch_size=len(lines), **options))
        for t, b in zip(found, broken, strict=True):
            assert is_empty(t) if b else t == next(expected)
        if name != "opennmt-2018":  # results depend on the batch
            again = translate(translator, lines, batch_size=batch_size, **options)
            assert again == found

    @pytest.mark.parametrize("name", mark_sweeps(MODELS_WITH_WEIGHTS, {*DAILY} - {"table"}))
    def test_nan_in_every_family_leaves_next_sentence_in_slot_unchanged(self, name):
        """A sentence may get a slot whose old state contains NaN."""
        model, plain = MODELS[name](), MODELS[name]()
        model.encode = partial(encode_with_nan, plain.encode)
        spec = replace(make_spec(Settings(beam_size=3, max_length=0)), bos_id=2)
        generator = torch.Generator().manual_seed(1)
        waiting = [
            Sentence(torch.randint(4, BAD, (9 - i // 3,), generator=generator).tolist(), limits)
            for i, limits in enumerate(SentenceLimits(2 + i % 7) for i in range(20))
        ]
        bad = (0, 1, 4, 9, 13)
        for i in bad:
            waiting[i].src[0] = BAD
        found = dict(decode(model, waiting, spec, 3))
        for i, sentence in enumerate(waiting):
            if i in bad:
                assert (found[i].warning, hypotheses(found[i])) == (NOT_A_NUMBER, [])
                continue
            ((_, alone),) = decode(plain, [sentence], spec)
            assert found[i].warning == ""
            for hyp, other in zip(hypotheses(found[i]), hypotheses(alone), strict=True):
                assert (hyp.tokens, hyp.ended) == (other.tokens, other.ended)
                assert hyp.score == pytest.approx(other.score, abs=1e-5)

    def test_nan_on_simulated_gpu_needs_one_transfer_per_step(self):
        lines = [*cases.LINES[:3], "w27 w1", *cases.LINES[3:]]
        plain, moved = (cases.make_translator(make_model_with_nan()) for _ in range(2))
        expected = cases.translate(plain, lines)
        found, events = simulate(move_to_gpu(moved), lines)
        assert [is_empty(t) for t in found] == ["w27" in line.split() for line in lines]
        assert_same(found, expected)
        assert find_violations(events) == {}


def encode_with_nan(encode, src, *args):
    """Encode with a NaN embedding for the token BAD.

    Args:
        encode: the model's method.
        src: (B, S) source tokens.
        args: other arguments of the method.
    """
    original = torch.nn.functional.embedding

    def embed(ids, *rest, **options):
        return original(ids, *rest, **options).masked_fill((ids == BAD)[..., None], math.nan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "embedding", embed)
        return encode(src, *args)


def make_model_with_nan():
    model = cases.make_varied_transformer(share_embeddings=False)
    model.src_embedding.token.weight[cases.SRC_VOCAB.ids["w27"]] = math.nan
    return model


def make_overflowing_model(dtype: torch.dtype):
    """Return a model that overflows in float16 for the line `w27`."""
    model = cases.make_varied_transformer(share_embeddings=False)
    model.src_embedding.token.weight[cases.SRC_VOCAB.ids["w27"]] = 60000.0
    return model.to(dtype)


class TestRetryInFp32:
    LINES = ["w1 w2", "w27 w3", "w4", "w5 w27"]

    def test_fp16_overflow_gives_fp32_translation(self):
        half = cases.make_translator(make_overflowing_model(torch.float16), precision="fp16")
        exact = cases.make_translator(make_overflowing_model(torch.float16).float())
        line = torch.tensor([[cases.SRC_VOCAB.ids["w27"]]])
        assert half.model.encode(line, torch.tensor([1])).bank.isnan().any()
        found, expected = (cases.translate(t, self.LINES) for t in (half, exact))
        others = cases.translate(half, self.LINES[::2])
        assert_same(found[1::2], expected[1::2])
        assert [t.hyps for t in found[::2]] == [t.hyps for t in others]
        assert all(t.hyps[0].tokens and NOT_A_NUMBER not in t.notes for t in found)

    def test_nan_in_fp32_is_retried_once_and_left_empty(self, monkeypatch):
        calls, encode = [], TableModel.encode

        def record(self, src, *args):
            calls.append(len(src))
            return encode(self, src, *args)

        monkeypatch.setattr(TableModel, "encode", record)
        lines = ["s0 s0", "", "s1 s1", "s1  s1", "s0  s0"]
        found = make_translator([GOOD, BROKEN]).translate(lines, beam_size=2)
        assert [NOT_A_NUMBER in t.notes for t in found] == [False, False, True, True, False]
        assert calls == [4, 1, 1]

    def test_out_of_memory_in_fp32_leaves_line_empty(self, monkeypatch):
        def fail(*args):
            raise RuntimeError("out of memory")

        translator = cases.make_translator(make_overflowing_model(torch.float16), precision="fp16")
        monkeypatch.setattr("onmt_lite.inference.runtime.copy.deepcopy", fail)
        found = cases.translate(translator, self.LINES)
        assert [is_empty(t) for t in found] == [False, True, False, True]


BEST = logits(0.1, 0.8, 0.1)
COVERAGE = dict(coverage_penalty="wu", beta=0.2)
NO_ATTENTION = make_source({}, BEST, {"1": [math.nan, 0.1]})
INFINITE = make_source({"1": [0.0, math.inf, 0.0]}, BEST)
EMPTY = {
    "one NaN in a row": (make_source({"": [0.0, math.nan, 0.0]}, [0.0] * 3), {}),
    "attention": (NO_ATTENTION, COVERAGE),
    "attention at each step": (NO_ATTENTION, dict(stepwise_penalty=True, **COVERAGE)),
    "NaN after a finished hypothesis": (make_source({"": logits(0.5, 0.5, 0), "1": NAN}, NAN), {}),
    **{f"infinity {search}": (INFINITE, dict(search=search)) for search in PRESETS},
}


class TestNanSources:
    @pytest.mark.parametrize("source, options", EMPTY.values(), ids=EMPTY)
    def test_nan_or_infinite_score_gives_empty_translation(self, source, options):
        (found,) = translate(make_translator([source]), ["s0 s0"], beam_size=2, **options)
        assert is_empty(found)

    def test_infinite_score_of_unnormalized_model_gives_empty_translation(self):
        translator = make_translator([INFINITE])
        translator.pipeline.checkpoint = replace(translator.checkpoint, needs_log_softmax=False)
        (found,) = translate(translator, ["s0 s0"], beam_size=2)
        assert is_empty(found)


MASKED = [-math.inf] * 3


class TestSearchEmpty:
    @pytest.mark.parametrize("name", PRESETS)
    def test_search_empty_ends_translation_after_last_possible_token(self, name):
        """After one token, or at the first step."""
        source = make_source({"": logits(0, 0.6, 0.4), "1": MASKED, "2": MASKED}, MASKED)
        translator = make_translator([source, GOOD, make_source({}, MASKED)])
        options = dict(search=name)
        found = translate(translator, ["s0 s0", "s1 s1", "s2 s2"], beam_size=2, **options)
        assert found[0].notes == found[2].notes == (SEARCH_EMPTY,)
        assert (found[0].hyps[0].tokens, found[0].hyps[0].ended) == (["a"], False)
        assert found[1] == translate(translator, ["s1 s1"], beam_size=2, **options)[0]
        assert (found[2].text, found[2].hyps[0].tokens) == ("", [])

    def test_search_empty_after_finished_hypothesis_returns_it_without_warning(self):
        source = make_source({"": logits(0.4, 0.6, 0)}, MASKED)
        (found,) = translate(make_translator([source]), ["s0 s0"], beam_size=2)
        assert (found.notes, found.hyps[0].tokens, found.hyps[0].ended) == ((), [], True)


class TestReferences:
    def test_score_of_reference_with_nan_is_none(self):
        translator = make_translator([GOOD, BROKEN])
        lines, targets = ["s0 s0", "s1 s1", "s1 s1"], ["a", "a b", "b"]
        found = translator.score(lines, targets)
        expected = [math.log(0.5) + math.log(0.2), None, 2 * math.log(0.1)]
        assert found == [pytest.approx(e, abs=1e-6) for e in expected]

    def test_score_of_impossible_reference_is_minus_infinity(self):
        source = make_source({"": logits(0.5, 0.5, 0), "1": MASKED}, logits(1, 0, 0))
        translator = make_translator([source])
        assert translator.score(["s0 s0"] * 3, ["b", "a a", "a"]) == [-math.inf] * 3

    def test_reference_with_nan_has_warning_tgt_not_a_number(self, tmp_path):
        (tmp_path / "src").write_text("s0 s0\ns1 s1\n", "utf-8")
        (tmp_path / "tgt").write_text("a\na b\n", "utf-8")
        translator = make_translator([GOOD, BROKEN])
        options = dict(tgt=str(tmp_path / "tgt"), output_format="jsonl", max_length=1)
        translator.translate_file(tmp_path / "src", tmp_path / "out", **options)
        lines = (tmp_path / "out").read_text("utf-8").split("\n")[:-1]
        records = [json.loads(line) for line in lines]
        assert records[0]["gold_log_prob"] == pytest.approx(math.log(0.5 * 0.2), abs=1e-6)
        assert records[1]["gold_log_prob"] is None
        assert "tgt-not-a-number" in records[1]["notes"]
        assert "tgt-not-a-number" not in records[0]["notes"]

    def test_reference_that_overflows_in_fp16_is_scored_in_fp32(self):
        half = cases.make_translator(make_overflowing_model(torch.float16), precision="fp16")
        exact = cases.make_translator(make_overflowing_model(torch.float16).float())
        found, expected = (t.score(TestRetryInFp32.LINES, ["w20 w21"] * 4) for t in (half, exact))
        assert found[1::2] == pytest.approx(expected[1::2], abs=1e-5)
        assert found[0] != expected[0]


@given(st.lists(st.floats(), min_size=1, max_size=3), st.floats(), st.floats(), st.floats())
def test_jsonl_writes_null_for_numbers_that_are_not_finite(log_probs, score, log_prob, gold):
    hyp = Hypothesis("a", ["a"], score, log_prob, log_probs, True)
    text = format_jsonl(Translation(0, "x", [hyp], (), gold, True))
    record = json.loads(text, parse_constant=pytest.fail)
    found = record["hyps"][0]
    read = [found["score"], found["log_prob"], *found["token_log_probs"], record["gold_log_prob"]]
    numbers = [score, log_prob, *log_probs, gold]
    assert read == [x if math.isfinite(x) else None for x in numbers]
