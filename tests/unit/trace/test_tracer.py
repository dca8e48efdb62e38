"""-dump_beam: the trace is what the search did, and says why."""

import json
import math

import pytest

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.lines import Line
from onmt_lite.trace.page import to_json

LINES = ["Guten Morgen!", "Wo ist der Bahnhof, bitte?", "", "Das Haus ist alt und sehr klein ."]
CASES = [{"search": name, "beam_size": 4} for name in PRESETS] + [
    {"beam_size": 1},
    {"n_best": 5, "block_ngram_repeat": 1, "min_length": 6},
    {"max_length": 3},
    {"search": "fairseq", "max_length": 3},
    {"search": "transformers", "beam_size": 4, "beam_groups": 2, "diversity_rate": 0.7},
    {"search": "ctranslate2", "coverage_penalty": "wu", "beta": 0.3, "max_length": 4},
    {"search": "opennmt-2018", "coverage_penalty": "wu", "beta": 0.3, "n_best": 3},
    {"coverage_penalty": "summary", "beta": 0.3, "stepwise_penalty": True},
    {"search": "transformers", "repetition_penalty": 1.7},
    {"random_sampling_topk": 20, "n_best": 2},
    {"search": "transformers-5", "do_sample": True, "beam_size": 3},
]


@pytest.fixture(scope="module")
def de_en():
    return Translator.from_pretrained("de-en", precision="fp32")


def traced(translator, options, lines=LINES):
    numbered = [Line(i, text, traced=True) for i, text in enumerate(lines)]
    return translator.pipeline.translate_lines(numbered, None, options)


def walked_back(dumped, line, eos):
    """Tokens and log_prob of all hypotheses of a line, read off the JSON alone."""
    tokens, parents = dumped["predicted_ids"][line], dumped["beam_parent_ids"][line]
    log_probs = dumped["log_probs"][line]
    for t, row in enumerate(tokens):
        for k, token in enumerate(row):
            if token == eos or t == len(tokens) - 1:
                words, values, at = [], [], k
                for u in range(t, -1, -1):
                    words.append(tokens[u][at])
                    values.append(log_probs[u][at])
                    at = parents[u][at]
                if None not in values:
                    words = words[::-1][:-1] if token == eos else words[::-1]
                    yield words, sum(values[::-1])


@pytest.mark.parametrize("given", CASES, ids=lambda given: " ".join(map(str, given.values())))
def test_parents_lead_back_to_each_hypothesis(de_en, given):
    options = TranslateOptions.of(**given)
    found = traced(de_en, options)
    assert found == de_en.pipeline.translate_lines(
        [Line(i, text) for i, text in enumerate(LINES)], None, options
    )  # nothing changes
    blank = found.pop(2)
    assert blank.trace is None
    dumped = json.loads(to_json([t.trace for t in found]))
    vocab = de_en.checkpoint.tgt_vocab
    for i, translation in enumerate(found):
        hyps = list(walked_back(dumped, i, vocab.tokens[vocab.eos_id]))
        for hyp in translation.hyps:
            assert (hyp.tokens, hyp.log_prob) in hyps
        check(translation)


def check(translation):
    """The path and the endings of a trace are those of the translation."""
    trace, hyp = translation.trace, translation.hyps[0]
    best, rows = trace.endings[0], []
    assert (best.score, best.log_prob) == (hyp.score, hyp.log_prob)
    for t, k in enumerate(trace.path):
        cell = trace.steps[t][k]
        assert cell.state in ("open", "finished")
        assert t == 0 or cell.parent == trace.path[t - 1]
        rows.append(cell.text)
    assert rows == best.tokens
    assert len(trace.attention) == len(rows)
    assert all(len(row) == len(trace.src_tokens) for row in trace.attention)
    assert all(sum(row) < 1.001 for row in trace.attention)
    for cells, others in zip(trace.steps, trace.others):
        assert len(cells) >= trace.beam_size
        assert all(cell.why for cell in others)


@pytest.mark.parametrize("search", ["opennmt", "transformers", "ctranslate2", "fairseq"])
def test_with_a_forced_beginning(de_en, search):
    options = TranslateOptions.of(search=search, tgt="prefixes", tgt_file_prefix=True)
    lines = [Line(i, text, traced=True) for i, text in enumerate(LINES)]
    prefixes = [Line(i, text) for i, text in enumerate(["Where", "Where", "", ""])]
    found = de_en.pipeline.translate_lines(lines, None, options, prefixes=prefixes)
    del found[2]
    dumped = json.loads(to_json([t.trace for t in found]))
    for i, translation in enumerate(found):
        hyps = list(walked_back(dumped, i, "</s>"))
        assert (translation.hyps[0].tokens, translation.hyps[0].log_prob) in hyps
    whys = {c.why for cells in found[0].trace.others[:1] for c in cells}
    if search in ("opennmt", "fairseq"):  # elsewhere a forced token costs nothing
        assert any("another token is forced here" in why for why in whys)


class TestReasons:
    """On the toy model, whose search docs/design.md tells."""

    def others(self, step, **given):
        options = TranslateOptions.of(**{"beam_size": 2, **given})
        (found,) = traced(Translator.from_pretrained("data/toy.json"), options, ["katze"])
        return {(c.parent, c.text): c for c in found.trace.others[step - 1]}, found.trace

    def test_a_banned_repetition_is_named(self, de_en):
        options = TranslateOptions.of(beam_size=2, block_ngram_repeat=1)
        (found,) = traced(de_en, options, ["Das ist sehr, sehr, sehr gut."])
        blocked = [c for cells in found.trace.others for c in cells if c.state == "blocked"]
        assert {(c.text, c.why) for c in blocked} == {
            ("▁very", "blocked: it would repeat a token (block_ngram_repeat)")
        }

    def test_too_early_an_end(self):
        others, _ = self.others(3, min_length=4)
        assert "EOS before the minimum length" in others[0, "</s>"].why

    def test_what_is_not_among_the_best(self):
        others, trace = self.others(1, beam_size=1)
        assert others[0, "a"].why == "not among the best 1, the last of which has -0.6606"
        assert math.isclose(others[0, "a"].score, -0.9606, abs_tol=1e-4)
        assert [c.text for (c,) in trace.steps] == ["the", "cat", "</s>"]

    @pytest.mark.parametrize("given", [("tensorflow", 5), ("fairseq", 3)])
    def test_a_candidate_that_does_not_exist_hides_no_hypothesis(self, given):
        """With fewer words than candidates, places without one repeat a row and a token."""
        search, beam_size = given
        _, trace = self.others(1, search=search, beam_size=beam_size, max_length=2)
        states = {cell.text: cell.state for cell in trace.steps[-1]}
        assert states["</s>"] == "finished"

    def test_why_it_stopped(self):
        assert self.others(1)[1].stop.startswith("2 hypotheses had finished")
        assert self.others(1, max_length=2)[1].stop == "the limit of 2 tokens was reached"
