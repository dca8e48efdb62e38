"""-n_best_unique against all sequences of table models in which two tokens have the same text."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onmt_lite import OptionError, Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.runner import Runner
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.tokenizers import SpaceTokenizer
from tests.support import table_models

LIMIT = 3  # tokens, EOS included
PROBABILITIES = (0.3, 0.36, 0.24, 0.1)  # of EOS and three tokens
SAME_TEXT = 2  # this token has the text of token 1


class SameTextTokenizer(SpaceTokenizer):
    """A tokenizer that detokenizes two tokens to the same text."""

    def decode(self, tokens):
        return " ".join(
            table_models.WORDS[1] if t == table_models.WORDS[SAME_TEXT] else t for t in tokens
        )


def list_texts():
    """Return the log-probabilities of all sequences within the limit, by text."""
    logs = [*map(math.log, PROBABILITIES)]
    found = {}
    for n in range(LIMIT):
        for ids in itertools.product(range(1, len(PROBABILITIES)), repeat=n):
            text = SameTextTokenizer().decode([table_models.WORDS[i] for i in ids])
            found.setdefault(text, []).append(sum(logs[i] for i in ids) + logs[0])
    return found


def make_translator(*probabilities, rows=None, **options):
    source = table_models.make_source(rows or {}, table_models.logits(*probabilities))
    checkpoint = replace(
        table_models.make_checkpoint([source]), tokenizers={"space": SameTextTokenizer()}
    )
    defaults = dict(max_length=LIMIT, max_length_ratio=0.0, length_penalty="none") | options
    return Translator(checkpoint, TranslateOptions.of(device="cpu", **defaults))


@pytest.fixture
def translator():
    return make_translator(*PROBABILITIES)


@pytest.fixture
def sizes(monkeypatch):
    """Record the beam sizes of all searches."""
    sizes, run = [], Runner._search

    def record(self, model, group, n_slots, config):
        sizes.append(config.spec.beam_size)
        return run(self, model, group, n_slots, config)

    monkeypatch.setattr(Runner, "_search", record)
    return sizes


@pytest.mark.parametrize("n_best", [2, 3, 5, 7])
@pytest.mark.parametrize("search", ["opennmt", "fairseq", "ctranslate2", "transformers"])
def test_n_best_unique_returns_n_best_distinct_texts(translator, search, n_best):
    options = dict(n_best=n_best, beam_size=n_best, search=search)
    if search == "transformers":
        options["max_length"] = LIMIT + 1
    (found,) = translator.translate(["s0"], n_best_unique=True, **options)
    texts = [hyp.text for hyp in found.hyps]
    assert len(texts) == n_best == len(set(texts))
    scores = [hyp.score for hyp in found.hyps]
    assert scores == sorted(scores, reverse=True)
    known = list_texts()
    for hyp in found.hyps:
        if hyp.ended and hyp.text in known:
            assert min(abs(hyp.log_prob - x) for x in known[hyp.text]) < 1e-5


@pytest.mark.parametrize("search", ["ctranslate2", "opennmt-3", "tensorflow", "tensor2tensor"])
@settings(deadline=None, max_examples=40)
@given(
    weights=st.lists(st.integers(1, 99), min_size=4, max_size=4),
    n_best=st.integers(2, 7),
    wider=st.integers(0, 3),
)
@example([20, 5, 1, 1], 4, 0)
@example([20, 5, 1, 1], 4, 1)
def test_n_best_unique_with_early_stop_finds_all_texts(search, weights, n_best, wider):
    """Stop rules that need fewer than k hypotheses, or lose open rows, wait in a wider beam."""
    translator = make_translator(*(w / sum(weights) for w in weights))
    options = dict(search=search, n_best=n_best, beam_size=n_best + wider, n_best_unique=True)
    if search == "ctranslate2":  # as in the other searches: an empty text counts
        options["min_length"] = 0
    (found,) = translator.translate(["s0"], **options)
    texts = {hyp.text for hyp in found.hyps}
    assert len(found.hyps) == len(texts) == min(n_best, len(list_texts()))


@pytest.mark.parametrize("search", ["opennmt", "opennmt-3", "fairseq", "ctranslate2"])
def test_n_best_unique_stops_widening_when_all_hypotheses_are_found(search, sizes):
    """Three hypotheses with two texts fit into a beam of 30."""
    end = table_models.logits(1.0, 0.0, 0.0)
    plain = make_translator(0.4, 0.3, 0.3, rows={"1": end, "2": end}, max_length=LIMIT + 1)
    plain.translate(["s0"], search=search, n_best=30, beam_size=30, n_best_unique=True)
    assert sizes == [30, 60]


def test_n_best_unique_returns_only_existing_texts(translator):
    """Without the option, the n-best list contains duplicates."""
    (found,) = translator.translate(["s0"], n_best=5, beam_size=5)
    assert len({hyp.text for hyp in found.hyps}) < 5
    (found,) = translator.translate(["s0"], n_best=40, beam_size=40, n_best_unique=True)
    assert {hyp.text for hyp in found.hyps if hyp.ended} == set(list_texts())
    assert len(found.hyps) < 40


def test_n_best_unique_searches_again_only_if_texts_are_missing(translator, sizes):
    plain, options = make_translator(0.3, 0.6, 0.0, 0.1), dict(n_best=3, beam_size=4)
    assert plain.translate(["s0"], n_best_unique=True, **options) == plain.translate(
        ["s0"], **options
    )
    assert sizes == [4, 4]
    translator.translate(["s0"], n_best_unique=True, n_best=5, beam_size=5)
    assert sizes[2:4] == [5, 10]


def test_n_best_unique_out_of_memory_keeps_texts_found_so_far(translator, monkeypatch):
    options = dict(n_best=5, beam_size=5)
    run = Runner._search

    def fail_above_5(self, model, group, n_slots, config):
        if config.spec.beam_size > 5:
            raise MemoryExhausted("out of memory")
        return run(self, model, group, n_slots, config)

    monkeypatch.setattr(Runner, "_search", fail_above_5)
    (found,) = translator.translate(["s0"], n_best_unique=True, **options)
    texts = [hyp.text for hyp in found.hyps]
    assert 0 < len(texts) < 5 and len(set(texts)) == len(texts)


@pytest.mark.parametrize("search", PRESETS)
def test_n_best_unique_in_every_search_returns_distinct_texts(translator, search):
    options = dict(n_best=4, beam_size=4, n_best_unique=True, search=search)
    lines = ["s0", "s0 ", "s0  "]  # different lines, so that all are searched
    found = translator.translate(lines, **options)
    for translation in found:
        texts = [hyp.text for hyp in translation.hyps]
        assert texts and len(set(texts)) == len(texts) <= 4


def test_n_best_unique_with_sampling_is_rejected():
    with pytest.raises(OptionError, match="n_best_unique cannot be combined with sampling"):
        TranslateOptions.of(n_best=2, n_best_unique=True, do_sample=True)
