"""-n_best_unique against all sequences of tables in which tokens look alike."""

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
from tests.support import tables

LIMIT = 3  # tokens, the end token counted
PROBABILITIES = (0.3, 0.36, 0.24, 0.1)  # of the end and of three tokens
ALIKE = 2  # the first two of the tokens


class Alike(SpaceTokenizer):
    """Two tokens are the same text."""

    def decode(self, tokens):
        return " ".join(tables.WORDS[1] if t == tables.WORDS[ALIKE] else t for t in tokens)


def all_texts():
    """The best log-probability of each text that ends within the limit."""
    logs = [*map(math.log, PROBABILITIES)]
    found = {}
    for n in range(LIMIT):
        for ids in itertools.product(range(1, len(PROBABILITIES)), repeat=n):
            text = Alike().decode([tables.WORDS[i] for i in ids])
            found.setdefault(text, []).append(sum(logs[i] for i in ids) + logs[0])
    return found


def translator_of(*probabilities, rows=None, **options):
    source = tables.make_source(rows or {}, tables.logits(*probabilities))
    checkpoint = replace(tables.make_checkpoint([source]), tokenizers={"space": Alike()})
    usual = dict(max_length=LIMIT, max_length_ratio=0.0, length_penalty="none") | options
    return Translator(checkpoint, TranslateOptions.of(device="cpu", **usual))


@pytest.fixture
def translator():
    return translator_of(*PROBABILITIES)


@pytest.fixture
def sizes(monkeypatch):
    """The beam sizes of all searches."""
    sizes, run = [], Runner._search

    def noted(self, model, group, n_slots, config):
        sizes.append(config.spec.beam_size)
        return run(self, model, group, n_slots, config)

    monkeypatch.setattr(Runner, "_search", noted)
    return sizes


@pytest.mark.parametrize("n_best", [2, 3, 5, 7])
@pytest.mark.parametrize("search", ["opennmt", "fairseq", "ctranslate2", "transformers"])
def test_as_many_different_texts_as_asked_for(translator, search, n_best):
    given = dict(n_best=n_best, beam_size=n_best, search=search)
    if search == "transformers":
        given["max_length"] = LIMIT + 1
    (found,) = translator.translate(["s0"], n_best_unique=True, **given)
    texts = [hyp.text for hyp in found.hyps]
    assert len(texts) == n_best == len(set(texts))
    scores = [hyp.score for hyp in found.hyps]
    assert scores == sorted(scores, reverse=True)
    known = all_texts()
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
def test_a_search_that_stops_early_finds_as_many_as_there_are(search, weights, n_best, wider):
    """Its rule needs less hypotheses than the beam has room for, or open rows are lost; in a wider
    beam it waits."""
    translator = translator_of(*(w / sum(weights) for w in weights))
    options = dict(search=search, n_best=n_best, beam_size=n_best + wider, n_best_unique=True)
    if search == "ctranslate2":  # as the others: an empty text is one
        options["min_length"] = 0
    (found,) = translator.translate(["s0"], **options)
    texts = {hyp.text for hyp in found.hyps}
    assert len(found.hyps) == len(texts) == min(n_best, len(all_texts()))


@pytest.mark.parametrize("search", ["opennmt", "opennmt-3", "fairseq", "ctranslate2"])
def test_no_beam_is_widened_in_vain(search, sizes):
    """There are three hypotheses of two texts: a beam of 30 has room for all."""
    end = tables.logits(1.0, 0.0, 0.0)
    plain = translator_of(0.4, 0.3, 0.3, rows={"1": end, "2": end}, max_length=LIMIT + 1)
    plain.translate(["s0"], search=search, n_best=30, beam_size=30, n_best_unique=True)
    assert sizes == [30, 60]


def test_no_more_than_exist(translator):
    """And not without it, where texts come twice."""
    (found,) = translator.translate(["s0"], n_best=5, beam_size=5)
    assert len({hyp.text for hyp in found.hyps}) < 5
    (found,) = translator.translate(["s0"], n_best=40, beam_size=40, n_best_unique=True)
    assert {hyp.text for hyp in found.hyps if hyp.ended} == set(all_texts())
    assert len(found.hyps) < 40


def test_what_is_enough_is_not_searched_again(translator, sizes):
    """A line whose texts differ anyway is as it was."""
    plain, given = translator_of(0.3, 0.6, 0.0, 0.1), dict(n_best=3, beam_size=4)
    assert plain.translate(["s0"], n_best_unique=True, **given) == plain.translate(["s0"], **given)
    assert sizes == [4, 4]
    translator.translate(["s0"], n_best_unique=True, n_best=5, beam_size=5)
    assert sizes[2:4] == [5, 10]


def test_a_beam_without_room_leaves_what_was_found(translator, monkeypatch):
    given = dict(n_best=5, beam_size=5)
    run = Runner._search

    def small(self, model, group, n_slots, config):
        if config.spec.beam_size > 5:
            raise MemoryExhausted("out of memory")
        return run(self, model, group, n_slots, config)

    monkeypatch.setattr(Runner, "_search", small)
    (found,) = translator.translate(["s0"], n_best_unique=True, **given)
    texts = [hyp.text for hyp in found.hyps]
    assert 0 < len(texts) < 5 and len(set(texts)) == len(texts)


@pytest.mark.parametrize("search", PRESETS)
def test_every_search_gives_different_texts(translator, search):
    given = dict(n_best=4, beam_size=4, n_best_unique=True, search=search)
    lines = ["s0", "s0 ", "s0  "]  # no copies
    found = translator.translate(lines, **given)
    for each in found:
        texts = [hyp.text for hyp in each.hyps]
        assert texts and len(set(texts)) == len(texts) <= 4


def test_not_with_drawing():
    with pytest.raises(OptionError, match="n_best_unique cannot be combined with sampling"):
        TranslateOptions.of(n_best=2, n_best_unique=True, do_sample=True)
