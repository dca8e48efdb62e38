"""One job in every output format: what all of them say is the same."""

import json
import logging
import math
from itertools import product

import pytest

import translate
from onmt_lite import Translator
from onmt_lite.options import DataOptions
from onmt_lite.records import Hypothesis, Translation
from onmt_lite.reports import build_writer

TOY = "data/toy.json"
LINES = ["katze", "", "katze katze", "  ", "katze katze katze"]
OPTIONS = [
    "",
    "-n_best 3",
    "-n_best 5 -beam_size 9 -max_length 2",  # some are cut off, some are missing
    "-n_best 2 -length_penalty wu -alpha 0.7",
]


@pytest.fixture
def run(tmp_path, capfd):
    """run(words) -> the lines of the output and the log of a job."""
    (tmp_path / "src").write_text("\n".join(LINES) + "\n")

    def run_once(words, model=TOY):
        argv = f"-model {model} -device cpu -src {tmp_path}/src {words}".split()
        assert translate.main(argv) == 0
        said = capfd.readouterr()
        assert said.out.endswith("\n")
        return said.out[:-1].split("\n"), said.err

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


def numbers(text):
    return [float(word) for word in text.split()]


def records_of(lines, n_best):
    """Per line of the input, what JSONL says of n_best hypotheses, in the words of tests."""
    for line in lines:
        hyps = json.loads(line)["hyps"]
        yield hyps + [None] * (n_best - len(hyps))


@pytest.mark.parametrize(("words", "scored"), [*product(OPTIONS, (False, True))])
def test_formats_agree(run, words, scored):
    n_best = int(words.split()[1]) if words else 1
    more = "-token_scores" if scored else ""
    jsonl, _ = run(f"{words} {more} -output_format jsonl")
    text, _ = run(f"{words} {more} -with_score")
    moses, _ = run(f"{words} {more} -output_format moses")
    tsv, _ = run(f"{words} {more} -output_format tsv")
    hyps = [hyp for line in records_of(jsonl, n_best) for hyp in line]
    assert len(hyps) == len(text) == len(moses) == len(tsv) == len(LINES) * n_best
    for i, (hyp, *rows) in enumerate(zip(hyps, text, moses, tsv)):
        line, of_text, of_moses, of_tsv = i // n_best, *rows
        made = hyp is not None and hyp["token_log_probs"] != []
        hyp = hyp or {"text": "", "score": 0.0, "log_prob": 0.0, "token_log_probs": []}
        scores = " ".join(f"{x:.4f}" for x in hyp["token_log_probs"])
        score, log_prob = f"{hyp['score']:.4f}", f"{hyp['log_prob']:.4f}"

        columns = of_tsv.split("\t")
        assert columns[:2] == [str(line), str(i % n_best)]
        assert columns[2:] == [score, log_prob, hyp["text"], *[scores] * scored]

        number, sentence, features, last = of_moses.split(" ||| ")
        assert (number, sentence, last) == (str(line), hyp["text"], score)
        *of_words, name, value = features.split()
        assert [name, value] == ["log_prob=", log_prob]
        assert of_words == (["WordScores=", *scores.split()] if scored else [])

        expected = [hyp["text"], *[score] * made, *[scores] * (made and scored)]
        assert of_text.split("\t") == expected


@pytest.mark.parametrize("words", OPTIONS)
def test_log_probs_add_up(run, words, tiny_checkpoint):
    for model, (lines, _) in (
        (model, run(f"{words} -token_scores -output_format jsonl", model))
        for model in (TOY, tiny_checkpoint)
    ):
        n_made = 0
        for line in lines:
            for hyp in json.loads(line)["hyps"]:
                by_token, by_word = hyp["token_log_probs"], hyp["word_log_probs"]
                assert len(by_token) == len(hyp["tokens"]) + hyp["ended"]
                assert sum(by_token) == pytest.approx(hyp["log_prob"], abs=1e-5)
                if not by_token:
                    assert by_word == []
                    continue
                n_made += 1
                if hyp["text"]:
                    assert len(by_word) == len(hyp["text"].split())
                    end = by_token[-1] if hyp["ended"] else 0.0
                    assert sum(by_word) + end == pytest.approx(hyp["log_prob"], abs=1e-5)
                if model == TOY:  # a word is a token
                    assert by_word == by_token[: len(hyp["tokens"])]
        assert n_made > 0


def test_words_are_scored_only_where_asked(run):
    (first, *_), _ = run("-output_format jsonl")
    assert "word_log_probs" not in json.loads(first)["hyps"][0]


def test_what_a_limit_cuts_off_is_counted_and_marked(run):
    lines, log = run("-max_length 1 -output_format jsonl")
    cut = [i for i, line in enumerate(lines, 1) if not json.loads(line)["hyps"][0]["ended"]]
    blank = [i for i, line in enumerate(LINES, 1) if not line.strip()]
    cut = [i for i in cut if i not in blank]
    assert cut and f"unfinished: {len(cut)} of {len(LINES)} lines" in log


def test_tabs_and_line_ends_in_a_text_do_not_move_columns():
    hyp = Hypothesis("a\tb\u2028c", ["a"], -0.5, -1.0, [-0.75, -0.25], True)
    write = build_writer(DataOptions(output_format="tsv", token_scores=True), 1)
    assert write(Translation(3, "x", [hyp])) == "3\t0\t-0.5000\t-1.0000\ta b c\t-0.7500 -0.2500\n"


def test_impossible_tokens_can_be_read_back():
    """-Infinity of a table model."""
    hyp = Hypothesis("a", ["a"], -math.inf, -math.inf, [-math.inf, -0.5], True)
    for output_format in ("text", "moses", "tsv"):
        write = build_writer(DataOptions(output_format=output_format, token_scores=True), 1)
        assert "-inf -0.5000" in write(Translation(0, "x", [hyp]))
    write = build_writer(DataOptions(output_format="jsonl"), 1)
    assert json.loads(write(Translation(0, "x", [hyp])))["hyps"][0]["token_log_probs"] == [
        None,
        -0.5,
    ]


def test_a_job_with_workers_and_one_from_python_say_the_same(tmp_path, run):
    words = "-token_scores -output_format jsonl -quiet"
    expected, _ = run(words)
    assert run(f"{words} -workers 2 -bucket_lines 2")[0] == expected
    options = dict(output_format="jsonl", token_scores=True)
    Translator.from_pretrained(TOY, device="cpu").translate_file(
        tmp_path / "src", tmp_path / "out", **options
    )
    assert (tmp_path / "out").read_text().split("\n")[:-1] == expected
