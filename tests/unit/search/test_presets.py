"""Properties of every preset, and options that only some systems support."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.config.options import OPTIONS, TranslateOptions
from onmt_lite.errors import OptionError
from onmt_lite.inference.search_setup import make_search_config
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.beam_search import BeamBatch
from onmt_lite.search.policy import FILTERS
from onmt_lite.search.presets import PRESETS, SWITCHES
from tests.support.table_models import logits, make_checkpoint, make_source, sources

# No limits, no length penalty, no masks: all searches are equivalent
PLAIN = dict(max_length_ratio=0, length_penalty="none")

# By option: a value that has an effect, and the options that it requires
SWITCHED_ON = {
    "min_length": (3, {}),
    "coverage_penalty": ("wu", {"beta": 1.0}),
    "beta": (1.0, {"coverage_penalty": "wu"}),
    "stepwise_penalty": (True, {"coverage_penalty": "wu", "beta": 1.0}),
    "block_ngram_repeat": (2, {}),
    "force_words": ("phrases.txt", {}),
    "ban_words": ("phrases.txt", {}),
    "ignore_when_blocking": (("a",), {"block_ngram_repeat": 2}),
    "repetition_penalty": (1.3, {}),
    "ban_unk_token": (True, {}),
    "early_stopping": ("true", {}),
    "patience": (2.0, {}),
    "ratio": (1.5, {}),
    "tgt_file_prefix": (True, {"tgt": "prefixes.txt"}),
    "beam_groups": (2, {"beam_size": 4}),
    "diversity_rate": (0.5, {"beam_groups": 2, "beam_size": 4}),
    "do_sample": (True, {}),
    "random_sampling_temp": (0.5, {"do_sample": True}),
    "random_sampling_topk": (2, {"do_sample": True}),
    "random_sampling_topp": (0.5, {"do_sample": True}),
}

# Presets with a separate greedy loop, and their values of early_stopping
GREEDY = {
    "transformers-2": ("true", "false"),
    "transformers": ("true", "false", "never"),
    "transformers-5": ("true", "false", "never"),
}


def make_translator(group) -> Translator:
    return Translator(make_checkpoint(group), TranslateOptions.of(device="cpu"))


def make_lines(group) -> list[str]:
    return [" ".join([f"s{i}"] * source.length) for i, source in enumerate(group)]


class TestEveryPreset:
    @pytest.mark.parametrize("name", PRESETS)
    @settings(deadline=None, max_examples=15)
    @given(source=sources(vocab_sizes=[4, 5], holes=False))
    def test_beam_size_1_is_greedy_search(self, name, source):
        minimum = {"min_length": 0} if "min_length" in PRESETS[name].options else {}
        (found,) = make_translator([source]).translate(
            make_lines([source]), search=name, beam_size=1, max_length=6, **PLAIN, **minimum
        )
        tokens: tuple[int, ...] = ()
        words = "$ a b c d e f".split()
        while len(tokens) < len(found.hyps[0].tokens):
            row = source.logits(tokens)
            tokens += (row.index(max(row)),)
        assert found.hyps[0].tokens == [words[y] for y in tokens]

    @pytest.mark.parametrize("name", PRESETS)
    @settings(deadline=None, max_examples=15)
    @given(source=sources(vocab_sizes=[4, 5], holes=False))
    def test_n_best_scores_are_sorted_and_match_reference_scores(self, name, source):
        translator, (line,) = make_translator([source]), make_lines([source])
        (found,) = translator.translate([line], search=name, beam_size=3, n_best=3, max_length=5)
        assert [h.score for h in found.hyps] == sorted((h.score for h in found.hyps), reverse=True)
        for hyp in found.hyps:
            (gold,) = translator.score([line], [hyp.text])
            scored = hyp.token_log_probs[: len(hyp.tokens)]
            assert len(hyp.token_log_probs) == len(hyp.tokens) + hyp.ended
            assert hyp.log_prob == pytest.approx(sum(hyp.token_log_probs), abs=1e-5)
            if hyp.ended:
                assert hyp.log_prob == pytest.approx(gold, abs=1e-4)
            else:
                assert sum(scored) >= gold - 1e-4

    @pytest.mark.parametrize("name", PRESETS)
    def test_step_never_waits_for_the_device(self, name, monkeypatch):
        """New rows are chosen on the device; see also test_simulated_gpu.py."""
        calls, steps = [], []
        for method in ("tolist", "item", "__bool__", "__int__", "__float__", "numpy", "cpu"):
            original = getattr(torch.Tensor, method)

            def record(self, *args, _original=original, _method=method):
                calls.append(_method)
                return _original(self, *args)

            monkeypatch.setattr(torch.Tensor, method, record)
        step, model_step = BeamBatch.step, TableModel.step

        def record_step(self, *args):
            calls.clear()
            chosen = step(self, *args)
            steps.append(list(calls))
            return chosen

        def ignore_model(self, *args):
            before = list(calls)
            result = model_step(self, *args)
            calls[:] = before
            return result

        monkeypatch.setattr(BeamBatch, "step", record_step)
        monkeypatch.setattr(TableModel, "step", ignore_model)
        rows = {f"*{n}": logits(0.2, 0.41 + n / 50, 0.29 - n / 50, 0.1) for n in range(6)}
        group = [make_source(rows, [0.0] * 4) for _ in range(3)]
        ngrams = {"block_ngram_repeat": 2} if "min_length" in PRESETS[name].options else {}
        search(group, search=name, beam_size=2, max_length=6, **ngrams)
        assert steps and not any(steps)


class TestOptions:
    @pytest.mark.parametrize("switch", SWITCHES)
    @pytest.mark.parametrize("name", PRESETS)
    def test_option_unsupported_by_original_is_rejected_by_name(self, name, switch):
        value, needed = SWITCHED_ON[switch]
        if switch in PRESETS[name].options:
            assert TranslateOptions.of(search=name, **{switch: value}, **needed)
        else:
            with pytest.raises(OptionError, match=f"{switch}: is not supported by search={name} "):
                TranslateOptions.of(search=name, **{switch: value}, **needed)

    @pytest.mark.parametrize(
        "name, options, expected",
        [
            ("opennmt-3", {}, {"length_penalty": "avg", "alpha": 1.0, "max_length_ratio": 1.25}),
            ("opennmt-2018", {}, {"length_penalty": "none", "alpha": 0.0, "max_length": 100}),
            ("fairseq", {}, {"min_length": 1, "alpha": 1.0, "max_length": 200, "beam_size": 5}),
            ("transformers", {}, {"early_stopping": "false", "alpha": 1.0}),
            ("transformers", {"do_sample": True}, {"random_sampling_topk": 50}),
            ("ctranslate2", {}, {"beam_size": 2, "min_length": 1, "patience": 1.0}),
            ("marian", {}, {"beam_size": 12, "alpha": 0.0, "max_length_ratio": 3.0}),
            ("marian", {"max_length": 9}, {"max_length": 9, "max_length_ratio": 0.0}),
            ("tensor2tensor", {"alpha": 1}, {"beam_size": 4, "alpha": 1.0}),
            ("fairseq", {"min_length": 0, "alpha": 0.5}, {"min_length": 0, "alpha": 0.5}),
        ],
    )
    def test_preset_defaults_equal_original(self, name, options, expected):
        resolved = TranslateOptions.of(search=name, **options)
        values = {**vars(resolved.search), **vars(resolved.sampling)}
        assert {key: values[key] for key in expected} == expected

    def test_changing_search_changes_defaults_but_keeps_given_options(self):
        options = TranslateOptions.of(search="fairseq", alpha=0.5)
        changed = options.updated(search="ctranslate2")
        assert (changed.search.beam_size, changed.search.alpha) == (2, 0.5)
        assert options.updated(beam_size=3).search.min_length == 1

    @pytest.mark.parametrize(
        "options, message",
        [
            (dict(search="transformers-2", early_stopping="never"), "use true or false"),
            (dict(search="fairseq", length_penalty="wu"), "use none or avg"),
            (dict(search="tensorflow", length_penalty="avg"), "use none or wu"),
            (dict(search="ctranslate2", coverage_penalty="summary"), "coverage_penalty=summary"),
            (dict(search="transformers", beam_groups=2), "does not divide beam_size=5"),
            (
                dict(search="transformers", beam_groups=5, do_sample=True),
                "cannot be combined with sampling",
            ),
            (dict(search="transformers", diversity_rate=1.0), "requires beam_groups"),
            (dict(search="transformers", random_sampling_topk=3), "require do_sample"),
            (dict(random_sampling_temp=0.5), "requires do_sample"),
            (dict(search="ctranslate2", n_best=3), "more than beam_size=2"),
            (dict(search="transformer"), "did you mean transformers"),
        ],
    )
    def test_contradictory_options_are_rejected(self, options, message):
        with pytest.raises(OptionError, match=message):
            TranslateOptions.of(**options)

    def test_every_switch_is_an_option_with_a_test_case(self):
        assert set(SWITCHED_ON) == set(SWITCHES) <= set(OPTIONS)
        for preset in PRESETS.values():
            assert preset.options <= set(SWITCHES)
            filters = preset.sampling.filters if preset.sampling else ()
            assert set(filters) == preset.options & {*FILTERS}
        for value, expected in [(True, "true"), (False, "false"), ("never", "never")]:
            options = TranslateOptions.of(search="transformers", early_stopping=value)
            assert options.search.early_stopping == expected


def search(group, **options):
    found = make_translator(group).translate(make_lines(group), max_length_ratio=0, **options)
    return [[(" ".join(h.tokens), round(h.score, 4)) for h in t.hyps] for t in found]


class TestSwitches:
    TABLE = make_source({"": logits(0.1, 0.6, 0.3)}, logits(0.9, 0.06, 0.04))

    def test_beam_groups_with_diversity_rate_0_are_identical(self):
        options = dict(search="transformers", beam_size=4, n_best=4, max_length=5)
        (found,) = search([self.TABLE], beam_groups=2, **options)
        (half,) = search([self.TABLE], **{**options, "beam_size": 2, "n_best": 2})
        assert found == half  # duplicates are dropped

    @pytest.mark.parametrize(
        "name, options",
        [
            *((name, dict(early_stopping=early)) for name in GREEDY for early in GREEDY[name]),
            ("ctranslate2", dict(min_length=0, patience=3.0)),
            ("ctranslate2", dict(min_length=0, patience=0.3)),
        ],
    )
    @pytest.mark.filterwarnings("ignore::onmt_lite.OptionWarning")
    @settings(deadline=None, max_examples=20)
    @given(
        source=sources(vocab_sizes=[3, 4], holes=False),
        alpha=st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
        limit=st.integers(1, 6),
    )
    def test_greedy_search_stops_at_first_eos(self, name, options, source, alpha, limit):
        """Whatever the stop rule is: the greedy loops of the originals stop there."""
        (found,) = make_translator([source]).translate(
            make_lines([source]),
            search=name,
            beam_size=1,
            alpha=alpha,
            max_length=limit + name.startswith("transformers"),  # start token included
            max_length_ratio=0,
            **options,
        )
        words, tokens = "$ a b c d e f".split(), list[int]()
        while len(tokens) < limit and (not tokens or tokens[-1] != 0):
            row = source.logits(tuple(tokens))
            tokens.append(row.index(max(row)))
        ended = tokens[-1] == 0
        (hyp,) = found.hyps
        assert hyp.ended == ended
        assert hyp.tokens == [words[y] for y in tokens[: len(tokens) - ended]]

    @pytest.mark.parametrize("name", GREEDY)
    def test_repetition_penalty_scales_log_probability_of_seen_tokens(self, name):
        """A penalty of 2 doubles the log-probability of "a": 2 * log .6 < log .38."""
        source = make_source({}, logits(0.02, 0.6, 0.38))
        options = dict(search=name, beam_size=1, max_length=3)
        texts = [search([source], repetition_penalty=x, **options)[0][0][0] for x in (1.0, 2.0)]
        assert texts == ["a a", "a b"]

    def test_forced_eos_is_free_in_transformers_and_costs_in_fairseq(self):
        source = make_source({}, logits(0.1, 0.9))
        checkpoint = make_checkpoint([source])
        forced = replace(checkpoint, forced_eos=True)
        options = dict(max_length_ratio=0, beam_size=1, length_penalty="none")
        free = Translator(forced, TranslateOptions.of(device="cpu"))
        (hyp,) = free.translate(["s0 s0"], search="transformers", max_length=4, **options)[0].hyps
        assert (hyp.tokens, hyp.ended) == (["a", "a"], True)
        assert hyp.score == pytest.approx(2 * math.log(0.9), abs=1e-5)
        assert hyp.log_prob == pytest.approx(2 * math.log(0.9) + math.log(0.1), abs=1e-5)
        (paid,) = free.translate(["s0 s0"], search="fairseq", max_length=2, **options)[0].hyps
        assert (paid.tokens, paid.ended) == (["a", "a"], True)
        assert paid.score == pytest.approx(2 * math.log(0.9) + math.log(0.1), abs=1e-5)

    def test_coverage_penalty_in_ctranslate2_skips_unattended_tokens(self):
        source = make_source({}, logits(0.9, 0.1), {"": [1.0, 0.0], "1": [1.0, 0.0]})
        options = dict(search="ctranslate2", beam_size=1, min_length=0, alpha=0.0, max_length=5)
        (found,) = search([source], coverage_penalty="wu", beta=2.0, **options)
        assert found == [("", round(math.log(0.9), 4))]
        half = make_source({}, logits(0.9, 0.1))
        (found,) = search([half], coverage_penalty="wu", beta=2.0, **options)
        assert found == [("", round(math.log(0.9) + 2 * 2 * math.log(0.5), 4))]


def test_stop_rule_condition_accepts_every_zero():
    """CTranslate2 stops early if alpha and beta are 0, also as int or as -0.0."""
    checkpoint = make_checkpoint([make_source({}, logits(0.5, 0.5))])
    usual = TranslateOptions.of(search="ctranslate2", alpha=0.0, length_penalty="avg")
    stop = make_search_config(usual, checkpoint).spec.stop_rule
    for alpha, beta in [(-0.0, -0.0), (0, 0), (-0.0, 0), (0.0, -0.0)]:
        zeros = dict(alpha=alpha, beta=beta, coverage_penalty="wu")
        same = replace(usual, search=replace(usual.search, **zeros))
        assert make_search_config(same, checkpoint).spec.stop_rule == stop
        same = TranslateOptions.of(search="ctranslate2", length_penalty="avg", **zeros)
        assert make_search_config(same, checkpoint).spec.stop_rule == stop
    other = TranslateOptions.of(search="ctranslate2", alpha=1e-9, length_penalty="avg")
    assert make_search_config(other, checkpoint).spec.stop_rule != stop
