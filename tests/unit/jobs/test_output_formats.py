"""The same job in every output format, translating or scoring."""

import json
import logging
import math
from itertools import product
from pathlib import Path

import pytest

import translate
from onmt_lite import Translator
from onmt_lite.config.options import OPTIONS as DECLARED
from onmt_lite.config.text_options import SCORE_FORMATS, DataOptions
from onmt_lite.inference.records import Hypothesis, Translation
from onmt_lite.jobs import reports
from onmt_lite.jobs.reports import build_writer

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
    """run(words) -> output lines and log of a job."""
    (tmp_path / "src").write_text("\n".join(LINES) + "\n")

    def run_once(words, model=TOY):
        argv = f"-model {model} -device cpu -src {tmp_path}/src {words}".split()
        assert translate.main(argv) == 0
        said = capfd.readouterr()
        assert said.out.endswith("\n")
        return said.out[:-1].split("\n"), said.err

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


@pytest.mark.parametrize(("words", "scored"), [*product(OPTIONS, (False, True))])
def test_output_formats_contain_the_same_translations(run, words, scored):
    n_best = int(words.split()[1]) if words else 1
    words += " -token_scores" * scored
    jsonl, _ = run(f"{words} -output_format jsonl")
    text, _ = run(f"{words} -with_score")
    moses, _ = run(f"{words} -output_format moses")
    tsv, _ = run(f"{words} -output_format tsv")
    hyps = []
    for line in jsonl:
        found = json.loads(line)["hyps"]
        assert scored or "word_log_probs" not in found[0]
        hyps += found + [None] * (n_best - len(found))
    assert len(hyps) == len(text) == len(moses) == len(tsv) == len(LINES) * n_best
    for i, (hyp, of_text, of_moses, of_tsv) in enumerate(zip(hyps, text, moses, tsv)):
        line, made = i // n_best, hyp is not None and hyp["token_log_probs"] != []
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
def test_token_log_probs_sum_to_log_prob(run, words, tiny_checkpoint):
    for model in (TOY, tiny_checkpoint):
        lines, _ = run(f"{words} -token_scores -output_format jsonl", model)
        hyps = [hyp for line in lines for hyp in json.loads(line)["hyps"]]
        for hyp in hyps:
            by_token, by_word = hyp["token_log_probs"], hyp["word_log_probs"]
            assert len(by_token) == len(hyp["tokens"]) + hyp["ended"]
            assert sum(by_token) == pytest.approx(hyp["log_prob"], abs=1e-5)
            assert by_token or by_word == []
            if hyp["text"]:
                assert len(by_word) == len(hyp["text"].split())
                end = by_token[-1] if hyp["ended"] else 0.0
                assert sum(by_word) + end == pytest.approx(hyp["log_prob"], abs=1e-5)
            if model == TOY:  # a word is a token
                assert by_word == by_token[: len(hyp["tokens"])]
        assert any(hyp["token_log_probs"] for hyp in hyps)


def test_max_length_unfinished_hypothesis_is_flagged_and_counted(run):
    lines, log = run("-max_length 1 -output_format jsonl")
    cut = [i for i, line in enumerate(lines, 1) if not json.loads(line)["hyps"][0]["ended"]]
    blank = [i for i, line in enumerate(LINES, 1) if not line.strip()]
    cut = [i for i in cut if i not in blank]
    first = ", ".join(map(str, cut[:-1]))
    assert f"lines {first} and {cut[-1]}: the translation was cut off at the length limit" in log


def test_output_format_choices_match_implemented_formats():
    assert set(DECLARED["output_format"].choices) == {"auto", *reports.FORMATS}
    assert set(SCORE_FORMATS) == set(reports.REFERENCE_FORMATS)


def test_tsv_tabs_and_line_breaks_in_text_keep_columns():
    hyp = Hypothesis("a\tb\u2028c", ["a"], -0.5, -1.0, [-0.75, -0.25], True)
    write = build_writer(DataOptions(output_format="tsv", token_scores=True), 1)
    assert write(Translation(3, "x", [hyp])) == "3\t0\t-0.5000\t-1.0000\ta b c\t-0.7500 -0.2500\n"


def test_jsonl_impossible_tokens_can_be_parsed():
    """-Infinity in a table model."""
    hyp = Hypothesis("a", ["a"], -math.inf, -math.inf, [-math.inf, -0.5], True)
    for output_format in ("text", "moses", "tsv", "jsonl"):
        write = build_writer(DataOptions(output_format=output_format, token_scores=True), 1)
        said = write(Translation(0, "x", [hyp]))
        if output_format == "jsonl":
            assert json.loads(said)["hyps"][0]["token_log_probs"] == [None, -0.5]
        else:
            assert "-inf -0.5000" in said


def test_output_with_workers_equals_output_from_python(tmp_path, run):
    words = "-token_scores -output_format jsonl -quiet"
    expected, _ = run(words)
    assert run(f"{words} -workers 2 -bucket_lines 2")[0] == expected
    options = dict(output_format="jsonl", token_scores=True)
    translator = Translator.from_pretrained(TOY, device="cpu")
    translator.translate_file(tmp_path / "src", tmp_path / "out", **options)
    assert (tmp_path / "out").read_text().split("\n")[:-1] == expected


# -- only scored ----------------------------------------------------------------------------------

TARGETS = ["the cat", "a", "", "", "a cat the"]


@pytest.fixture
def score(tmp_path, run):
    (tmp_path / "tgt").write_text("\n".join(TARGETS) + "\n")
    return lambda words, *more: run(f"-tgt {tmp_path}/tgt {words}", *more)


def test_score_only_equals_gold_scores_of_translation(score, tiny_checkpoint):
    for model in (TOY, tiny_checkpoint):
        usual = [*map(json.loads, score("-output_format jsonl", model)[0])]
        records = [*map(json.loads, score("-score_only -output_format jsonl", model)[0])]
        assert [r["gold_log_prob"] for r in records] == [r["gold_log_prob"] for r in usual]
        lines, _ = score("-score_only -token_scores", model)
        plain, _ = score("-score_only", model)
        for record, line, first, text in zip(records, lines, plain, LINES, strict=True):
            total, tokens = record["gold_log_prob"], record["gold_token_log_probs"]
            assert record["hyps"] == [] and record["src"] == text
            if not text.strip():
                assert line == "" and total is tokens is None and record["notes"] == ["empty"]
                continue
            assert sum(tokens) == pytest.approx(total)
            *columns, by_token = line.split("\t")
            assert first == "\t".join(columns)
            expected = [total, len(tokens), math.exp(-total / len(tokens))]
            assert [*map(float, columns)] == pytest.approx(expected, rel=1e-3, abs=1e-4)
            assert [*map(float, by_token.split())] == pytest.approx(tokens, abs=1e-4)


def test_score_only_equals_scores_of_table_model(score):
    """Target tokens and EOS, from the table in the file."""
    table = json.loads(Path(TOY).read_text(encoding="utf-8"))
    source, expected = table["sources"]["katze"], []
    ids = [*map(table["vocab"].index, "the cat".split()), 0]
    for n, i in enumerate(ids):
        row = source["rows"].get(" ".join(map(str, ids[:n])), source["default"])
        expected.append(row[i] - math.log(sum(map(math.exp, row))))
    (first, *_), _ = score("-score_only -output_format jsonl")
    assert json.loads(first)["gold_token_log_probs"] == pytest.approx(expected, abs=1e-5)


def test_score_only_equals_scores_of_translations(score, run, tmp_path, tiny_checkpoint):
    """Translations that are scored as references get their log-probabilities from the search."""
    lines, _ = run("-output_format jsonl", tiny_checkpoint)
    found = [json.loads(line)["hyps"][0] for line in lines]
    (tmp_path / "tgt").write_text("".join(hyp["text"] + "\n" for hyp in found))
    lines, log = score("-score_only -output_format jsonl", tiny_checkpoint)
    n = 0
    for line, hyp in zip(lines, found):
        gold = json.loads(line)["gold_token_log_probs"]
        if hyp["ended"] and gold is not None and len(gold) == len(hyp["token_log_probs"]):
            n += 1
            assert gold == pytest.approx(hyp["token_log_probs"], abs=1e-4)
    assert n > 0 and "GOLD AVG SCORE" in log


def test_score_only_runs_no_search(score, monkeypatch):
    def never(*args, **named):
        raise AssertionError("searched")

    monkeypatch.setattr("onmt_lite.inference.runner.decode", never)
    lines, log = score("-score_only")
    assert len(lines) == len(LINES) and "GOLD 1" not in log
    assert "GOLD 1: the cat" in score("-score_only -verbose")[1]


def test_score_only_perplexity_of_impossible_and_single_token():
    write = build_writer(DataOptions(score_only=True, tgt="a"), 1)
    for tokens, said in (
        ([-math.log(2)], "-0.6931\t1\t2.0000"),
        ([-math.inf, -1.0], "-inf\t2\tinf"),
        ([-1500.0], "-1500.0000\t1\tinf"),
        ([0.0, 0.0], "0.0000\t2\t1.0000"),
    ):
        gold = dict(gold_log_prob=sum(tokens), gold_token_log_probs=tokens, has_gold=True)
        assert write(Translation(0, "x", **gold)) == said + "\n"
    assert write(Translation(0, "x", has_gold=True)) == "\n"


@pytest.mark.sweep
def test_score_only_with_workers_gives_same_output(score):
    words = "-score_only -output_format jsonl -quiet"
    assert score(words)[0] == score(f"{words} -workers 2 -bucket_lines 2")[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-score_only", "score_only requires tgt"),
        ("-score_only -tgt a -tgt_file_prefix", "tgt is either a reference or"),
        (
            "-score_only -tgt a -output_format tsv",
            "output_format tsv is not supported with score_only",
        ),
        (
            "-score_only -tgt a -output_format moses",
            "output_format moses is not supported with score_only",
        ),
    ],
)
def test_score_only_rejects_incompatible_options(words, said, capsys):
    assert translate.main([*words.split(), "-model", TOY]) == 2
    assert said in capsys.readouterr().err
