"""-dump_beam: recorded steps, back-pointers and reasons."""

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


def translate_traced(translator, options, lines=LINES):
    """Translate lines with a trace of each.

    Args:
        translator: the translator.
        options: TranslateOptions.
        lines: texts.
    """
    numbered = [Line(i, text, traced=True) for i, text in enumerate(lines)]
    return translator.pipeline.translate_lines(numbered, None, options)


def read_hypotheses(dumped, line, eos):
    """Yield tokens and log_prob of all hypotheses of a line, from the JSON only.

    Args:
        dumped: the parsed JSON.
        line: index of the line.
        eos: the EOS token.
    """
    tokens, parents = dumped["predicted_ids"][line], dumped["beam_parent_ids"][line]
    log_probs = dumped["log_probs"][line]
    for t, row in enumerate(tokens):
        for k, token in enumerate(row):
            if token == eos or t == len(tokens) - 1:
                words, values, parent = [], [], k
                for u in range(t, -1, -1):
                    words.append(tokens[u][parent])
                    values.append(log_probs[u][parent])
                    parent = parents[u][parent]
                if None not in values:
                    words = words[::-1][:-1] if token == eos else words[::-1]
                    yield words, sum(values[::-1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case.values())))
def test_dump_beam_parents_lead_back_to_every_hypothesis(de_en, case):
    options = TranslateOptions.of(**case)
    found = translate_traced(de_en, options)
    assert found == de_en.pipeline.translate_lines(
        [Line(i, text) for i, text in enumerate(LINES)], None, options
    )  # tracing changes no result
    empty_line = found.pop(2)
    assert empty_line.trace is None
    dumped = json.loads(to_json([t.trace for t in found]))
    vocab = de_en.checkpoint.tgt_vocab
    for i, translation in enumerate(found):
        hyps = list(read_hypotheses(dumped, i, vocab.tokens[vocab.eos_id]))
        for hyp in translation.hyps:
            assert (hyp.tokens, hyp.log_prob) in hyps
        check_trace(translation)


def check_trace(translation):
    """Check that path and finished hypotheses of a trace match the translation."""
    trace, hyp = translation.trace, translation.hyps[0]
    best, rows = trace.hypotheses[0], []
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
    for cells, pruned in zip(trace.steps, trace.pruned):
        assert len(cells) >= trace.beam_size
        assert all(cell.why for cell in pruned)


@pytest.mark.parametrize("search", ["opennmt", "transformers", "ctranslate2", "fairseq"])
def test_dump_beam_with_tgt_file_prefix_explains_forced_tokens(de_en, search):
    options = TranslateOptions.of(search=search, tgt="prefixes", tgt_file_prefix=True)
    lines = [Line(i, text, traced=True) for i, text in enumerate(LINES)]
    prefixes = [Line(i, text) for i, text in enumerate(["Where", "Where", "", ""])]
    found = de_en.pipeline.translate_lines(lines, None, options, prefixes=prefixes)
    del found[2]
    dumped = json.loads(to_json([t.trace for t in found]))
    for i, translation in enumerate(found):
        hyps = list(read_hypotheses(dumped, i, "</s>"))
        assert (translation.hyps[0].tokens, translation.hyps[0].log_prob) in hyps
    whys = {c.why for cells in found[0].trace.pruned[:1] for c in cells}
    if search in ("opennmt", "fairseq"):  # in other searches a forced token has no cost
        assert any("another token is forced here" in why for why in whys)


class TestReasons:
    """Reasons for pruned continuations of the toy model (docs/design.md describes its search)."""

    def find_pruned(self, step, **options):
        resolved = TranslateOptions.of(**{"beam_size": 2, **options})
        (found,) = translate_traced(
            Translator.from_pretrained("data/toy.json"), resolved, ["katze"]
        )
        return {(c.parent, c.text): c for c in found.trace.pruned[step - 1]}, found.trace

    def test_block_ngram_repeat_is_named_as_reason(self, de_en):
        options = TranslateOptions.of(beam_size=2, block_ngram_repeat=1)
        (found,) = translate_traced(de_en, options, ["Das ist sehr, sehr, sehr gut."])
        blocked = [c for cells in found.trace.pruned for c in cells if c.state == "blocked"]
        why = "blocked: it would repeat a token (block_ngram_repeat)"
        assert {(c.text, c.why) for c in blocked} == {("▁very", why), (",", why)}

    def test_min_length_is_named_as_reason(self):
        pruned, _ = self.find_pruned(3, min_length=4)
        assert "EOS before the minimum length" in pruned[0, "</s>"].why

    def test_continuation_outside_top_k_has_score_of_last_row(self):
        pruned, trace = self.find_pruned(1, beam_size=1)
        assert pruned[0, "a"].why == "not among the best 1; the last of these has score -0.6606"
        assert math.isclose(pruned[0, "a"].score, -0.9606, abs_tol=1e-4)
        assert [c.text for (c,) in trace.steps] == ["the", "cat", "</s>"]

    @pytest.mark.parametrize("search, beam_size", [("tensorflow", 5), ("fairseq", 3)])
    def test_missing_candidate_does_not_hide_finished_hypothesis(self, search, beam_size):
        """A vocabulary smaller than the number of candidates leaves duplicates with score -inf."""
        _, trace = self.find_pruned(1, search=search, beam_size=beam_size, max_length=2)
        states = {cell.text: cell.state for cell in trace.steps[-1]}
        assert states["</s>"] == "finished"

    def test_stop_reason_names_rule_or_limit(self):
        assert self.find_pruned(1)[1].stop.startswith("2 hypotheses had finished")
        assert self.find_pruned(1, max_length=2)[1].stop == "the limit of 2 tokens was reached"
