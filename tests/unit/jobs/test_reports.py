"""Handmade translations and their exact output text."""

import json
import logging
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.config.text_options import DataOptions
from onmt_lite.inference import postprocess
from onmt_lite.inference.records import Hypothesis, Translation
from onmt_lite.jobs.reports import (
    WARNING_TEXTS,
    Summary,
    build_writer,
    format_averages,
    format_sentence_log,
)
from onmt_lite.system.log import LOG

# Everything that some reader takes for the end of a line: str.splitlines and \r
BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def hyp(text="a b", score=-0.25, log_prob=-0.75, tokens=None, ended=True):
    tokens = text.split(" ") if tokens is None else tokens
    return Hypothesis(text, tokens, score, log_prob, [log_prob / 3] * (len(tokens) + ended), ended)


NOTHING = hyp("", 0.0, 0.0, [], ended=False)  # what a blank line translates to


def write(translation, n_best=1, **data):
    return build_writer(DataOptions(**data), n_best)(translation)


@pytest.fixture
def log():
    """Lines logged to stderr."""
    records, handler = [], logging.Handler()
    handler.addFilter(lambda record: getattr(record, "on_stderr", True))
    handler.emit = lambda record: records.append(record.getMessage())
    before = LOG.handlers, LOG.level, LOG.propagate
    LOG.handlers, LOG.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    yield records
    LOG.handlers, LOG.propagate = before[0], before[2]
    LOG.setLevel(before[1])


TWO = Translation(3, "x", [hyp("a b"), hyp("c", -1.23456, -2.34567)])


@pytest.mark.parametrize(
    ("hyps", "n_best", "plain", "scored"),
    [
        (TWO.hyps, 2, "a b\nc\n", "a b\t-0.2500\nc\t-1.2346\n"),
        ([hyp("one")], 3, "one\n\n\n", "one\t-0.2500\n\n\n"),
        ([NOTHING], 1, "\n", "\n"),
        ([NOTHING], 3, "\n\n\n", "\n\n\n"),
        ([], 2, "\n\n", "\n\n"),
        ([hyp("")], 1, "\n", "\t-0.2500\n"),
    ],
)
def test_text_format_always_has_n_best_lines(hyps, n_best, plain, scored):
    """With scores a reader splits at the tab; a line without hypothesis has no score to give."""
    assert write(Translation(0, "x", hyps), n_best) == plain
    assert write(Translation(0, "x", hyps), n_best, with_score=True) == scored


def test_moses_format_has_n_best_lines_with_four_fields():
    assert write(TWO, 2, output_format="moses") == (
        "3 ||| a b ||| log_prob= -0.7500 ||| -0.2500\n3 ||| c ||| log_prob= -2.3457 ||| -1.2346\n"
    )
    for hyps in ([], [NOTHING], [hyp("a")]):
        lines = write(Translation(7, "x", hyps), 3, output_format="moses").split("\n")
        assert lines.pop() == ""
        assert len(lines) == 3
        for line in lines:
            number, _, _, score = line.split(" ||| ")
            assert number == "7"
            float(score)


def test_jsonl_format_of_translation():
    """The keys of the contract, in its order."""
    one = Hypothesis("Hi!", ["▁Hi", "!"], -0.21, -0.84, [-0.3, -0.3, -0.24], True)
    line = write(Translation(0, "Hé", [one], ("truncated",)), output_format="jsonl")
    assert line == (
        '{"id": 0, "src": "Hé", "hyps": [{"text": "Hi!", "tokens": ["▁Hi", "!"], "score": -0.21, '
        '"log_prob": -0.84, "token_log_probs": [-0.3, -0.3, -0.24], "ended": true}], '
        '"notes": ["truncated"]}\n'
    )


def test_jsonl_format_of_reference_scores():
    """The key is there with a reference and only then, null where nothing could be scored."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    cases = [(False, None, "absent"), (True, None, None), (True, -1.5, -1.5)]
    for has_gold, value, expected in [*cases, (True, -math.inf, None)]:
        translation = Translation(0, "a", [], ("empty",), value, has_gold)
        line = write(translation, output_format="jsonl")
        record = json.loads(line, parse_constant=refuse)
        assert record.get("gold_log_prob", "absent") == expected
        assert record["hyps"] == []
        assert record["notes"] == ["empty"]


def test_jsonl_format_counts_unknown_tokens():
    for n in (0, 3):
        record = json.loads(write(Translation(0, "a", [hyp()], n_unknown=n), output_format="jsonl"))
        assert record.get("n_unknown", 0) == n and ("n_unknown" in record) == (n > 0)


@settings(max_examples=150)
@given(st.lists(st.text(st.sampled_from(BREAKS + "ab|\t ü😀\0")), max_size=3), st.integers(0, 2))
def test_line_breaks_in_hypothesis_do_not_end_output_line(texts, extra):
    hyps = [hyp(text, tokens=[text]) for text in texts]
    translation = Translation(5, "".join(texts), hyps)
    n_best = len(texts) + extra
    for data in ({}, {"with_score": True}, {"output_format": "moses"}):
        assert len(write(translation, n_best, **data).splitlines()) == n_best
    line = write(translation, n_best, output_format="jsonl")
    assert len(line.splitlines()) == 1
    assert line.endswith("\n")
    record = json.loads(line)
    assert record["src"] == "".join(texts)
    assert [h["text"] for h in record["hyps"]] == texts
    assert [h["tokens"] for h in record["hyps"]] == [[text] for text in texts]


def test_line_breaks_become_spaces_in_text_and_escapes_in_jsonl():
    text = "a" + "b".join(BREAKS) + "c"
    expected = "a" + "b".join(" " for _ in BREAKS) + "c\n"
    translation = Translation(0, text, [hyp(text, tokens=[])])
    assert write(translation) == expected
    line = write(translation, output_format="jsonl")
    for escape in ("\\n", "\\r", "\\u0085", "\\u2028", "\\u2029", "\\u001c"):
        assert escape in line


def test_verbose_log_matches_opennmt_format():
    translation = Translation(4, "x y", [hyp("a b", -0.25), hyp("c", -1.5)], (), -2.5, True)
    assert format_sentence_log(translation, "the reference", verbose=True) == [
        "",
        "SENT 5: ['x', 'y']",
        "PRED 5: a b",
        "PRED SCORE: -0.2500",
        "GOLD 5: the reference",
        "GOLD SCORE: -2.5000",
        "BEST HYP:",
        "[-0.2500] ['a', 'b']",
        "[-1.5000] ['c']",
    ]


@pytest.mark.parametrize(
    ("translation", "reference", "verbose", "log"),
    [
        (
            Translation(0, "x", [hyp("a", -1.0)]), None, True,
            ["", "SENT 1: ['x']", "PRED 1: a", "PRED SCORE: -1.0000"],
        ),
        (Translation(1, "x", [hyp(), hyp()], (), -2.5, True), "ref", False,
         ["GOLD 2: ref", "GOLD SCORE: -2.5000"]),
        (Translation(1, "", [NOTHING], ("empty",), None, True), "ref", False, ["GOLD 2: ref"]),
        (Translation(0, "x", [hyp()]), "a\r\nb", False, ["GOLD 1: a  b"]),
    ],
)  # fmt: skip
def test_verbose_log_with_single_hypothesis_and_reference(translation, reference, verbose, log):
    assert format_sentence_log(translation, reference, verbose) == log


def test_verbose_log_without_hypotheses():
    log = format_sentence_log(Translation(0, "", [NOTHING]), None, verbose=True)
    assert log[:2] == ["", "SENT 1: []"]
    assert "BEST HYP:" not in log


def test_summary_averages_per_sentence_and_token(log):
    two, four = [hyp("a b", -1.0, -3.0), hyp("z", -9.0)], [hyp("a b c d", -2.0, -6.0)]
    translations = [
        Translation(0, "x", two, (), -4.0, True, n_gold_tokens=3),
        Translation(1, "x", four, ("truncated",), -8.0, True, n_gold_tokens=5),
        Translation(2, "", [NOTHING], ("empty",), None, True),
    ]
    Summary.of(translations).log(scores=True)
    assert log == [
        "line 3: the input line is empty, so the output line is empty [empty]",
        "line 2: the input is too long; its end was not translated [truncated]",
        "PRED AVG SCORE: -0.5000, PRED PPL: 1.6487",  # e^0.5
        "PRED SCORE: -1.5000, PRED PPL: 4.48 NB SENTENCES: 2",  # e^1.5
        "GOLD AVG SCORE: -1.5000, GOLD PPL: 4.4817",
        "GOLD SCORE: -6.0000, GOLD PPL: 403.43 NB SENTENCES: 2",  # e^6
    ]


def test_averages_without_tokens_or_sentences_and_with_overflow():
    assert format_averages("PRED", 0.0, 0, 0) == []
    only = "PRED SCORE: -1.0000, PRED PPL: 2.72 NB SENTENCES: 1"
    assert format_averages("PRED", -1.0, 0, 1) == [only]
    for total in (-1e5, -math.inf):
        assert [line.split("PPL: ")[1] for line in format_averages("GOLD", total, 2, 1)] == [
            "inf",
            "inf NB SENTENCES: 1",
        ]


def test_summary_without_scores_or_lines(log):
    Summary().log(scores=True)
    Summary.of([Translation(0, "", [NOTHING])]).log(scores=True)
    Summary.of([Translation(0, "x", [hyp()])]).log(scores=False)
    assert log == []


def test_summary_lists_first_five_lines_and_counts_tokens(log):
    translations = []
    for i in range(20):
        unknown = i % 3 == 0
        notes = ("unknown-tokens",) * unknown + ("repeats",) * (i in (4, 19))
        translations.append(Translation(i, "x", [hyp()], notes, n_unknown=2 * unknown))
    expected = [
        "lines 5 and 20: the translation repeats itself [repeats]",
        "lines 1, 4, 7, 10, 13 and 2 more: some words or characters are not in the vocabulary "
        "(14 tokens) [unknown-tokens]",
    ]
    for n in (1, 3, 6, 19, 20):  # cut into parts
        whole = Summary()
        for start in range(0, 20, n):
            whole.join(Summary.of(translations[start : start + n]))
        whole.log(scores=False)
        assert log == expected
        log.clear()


@pytest.mark.parametrize(
    ("n_lines", "expected"),
    [
        (1, "line 1: the translation repeats itself [repeats]"),
        (2, "lines 1 and 2: the translation repeats itself [repeats]"),
        (5, "lines 1, 2, 3, 4 and 5: the translation repeats itself [repeats]"),
        (6, "lines 1, 2, 3, 4, 5 and 1 more: the translation repeats itself [repeats]"),
        (1239, "lines 1, 2, 3, 4, 5 and 1,234 more: the translation repeats itself [repeats]"),
    ],
)
def test_summary_lists_five_line_numbers_and_counts_the_rest(log, n_lines, expected):
    Summary.of(Translation(i, "x", [hyp()], ("repeats",)) for i in range(n_lines)).log(scores=False)
    assert log == [expected]


def test_summary_single_unknown_token_is_singular(log):
    Summary.of([Translation(0, "x", [hyp()], ("unknown-tokens",), n_unknown=1)]).log(scores=False)
    assert log[0].endswith("(1 token) [unknown-tokens]")


def test_summary_warnings_are_single_sentences(log):
    rows = re.findall(r"^  of .*: (.*)$", postprocess.__doc__ or "", re.M)
    notes = [note for row in rows for note in row.split(", ")]
    assert sorted(notes) == sorted(WARNING_TEXTS), "each note needs its sentence in warnings.yaml"
    for note in notes:
        log.clear()
        Summary.of([Translation(4, "x", [hyp()], (note,))]).log(scores=False)
        line = log[0].split(" (0 tokens)")[0].removesuffix(f" [{note}]")
        # A subject in small letters, a verb, and no full stop: it follows `line 5: `
        assert re.fullmatch(r"line 5: [a-z_]+ [^.]*[^.,;]", line), line
        assert len(line) <= 85, line


def test_untranslated_lists_first_lines_of_all_warnings():
    notes = [("not-a-number",), ("invalid-json",), ("empty",), ("no-text-field",)] * 3
    lines = [Translation(i, "", [NOTHING], notes[i]) for i in range(len(notes))]
    found = Summary.of(lines).untranslated
    assert (found.n_lines, found.shown()) == (9, "1, 2, 4, 5, 6 and 4 more")
