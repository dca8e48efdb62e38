"""The scripts in examples/ run, and their output matches the translator's."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from onmt_lite import Translator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["alternatives", "datasets_map", "draw_search", "pandas_column", "rerank", "score_pairs"]


@pytest.fixture(scope="module")
def translator():
    return Translator.from_pretrained("de-en")


@pytest.fixture
def run_example(monkeypatch, tmp_path, capsys):
    """run_example(name, *argv) -> (global variables of the script, its output)"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run_example(name, *argv, as_main=True):
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, argv)])
        variables = runpy.run_path(path, run_name="__main__" if as_main else name)
        return variables, capsys.readouterr().out

    return run_example


def test_examples_are_all_tested_and_short():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == NAMES
    for name in NAMES:
        text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        assert text.count("\n") <= 60
        assert f"python examples/{name}.py" in text


@pytest.mark.parametrize(
    ("argv", "expected_words"),
    [
        ([], {"movies", "movie", "theater"}),
        (["Wo wohnst du?", "Where"], {"do", "are"}),
        (["Guten Morgen!"], {"Good"}),
    ],
)
def test_alternatives_prints_translations_with_different_next_words(
    run_example, translator, argv, expected_words
):
    """Best first; each text is in the n-best list for its prefix."""
    variables, out = run_example("alternatives", *argv)
    sentence, prefix = variables["sentence"], variables["prefix"]
    rows = [line.split(maxsplit=1) for line in out.splitlines()]
    scores, texts = [float(score) for score, _ in rows], [text for _, text in rows]
    assert len(texts) == 5 and scores == sorted(scores, reverse=True)
    (translation,) = translator.translate([sentence], [prefix])
    assert texts[0] == translation.text
    starts = [variables["extend_prefix"](text) for text in texts]
    next_words = {start.removeprefix(prefix).strip(" ,'") for start in starts}
    assert len(next_words) == 5 and expected_words <= next_words
    for start, (score, text) in zip(starts, rows):
        (translation,) = translator.translate([sentence], [start], n_best=5)
        assert text in [hyp.text for hyp in translation.hyps]
        assert float(score) <= translation.hyps[0].score + 1e-3


def test_pandas_column_translates_table_with_empty_cell(run_example, translator):
    pandas = pytest.importorskip("pandas")
    variables, out = run_example("pandas_column")
    table = variables["table"]
    assert isinstance(table, pandas.DataFrame)
    translations = translator.translate(table["german"].fillna(""))
    assert list(table["english"]) == [t.text for t in translations]
    assert list(table["english"] == "") == [False, False, True, False]
    assert "lines[2]: expected a line of text, got" in out


class FakeDataset:
    """The part of a Hugging Face dataset that the example uses: columns and a batched map."""

    def __init__(self, columns):
        self.columns = columns

    def map(self, function, batched, batch_size):
        assert batched
        n_rows, new_columns = len(next(iter(self.columns.values()))), {}
        for i in range(0, n_rows, batch_size):
            batch = {name: values[i : i + batch_size] for name, values in self.columns.items()}
            for name, values in function(batch).items():
                new_columns.setdefault(name, []).extend(values)
        return FakeDataset(self.columns | new_columns)


def test_datasets_map_adds_columns(run_example, translator):
    variables, _ = run_example("datasets_map", as_main=False)
    german = ["Guten Morgen!", "", "Wo ist der Bahnhof?"]
    dataset = FakeDataset({"de": german})
    dataset = dataset.map(variables["add_english"], batched=True, batch_size=2)
    translations = translator.translate(german, n_best=2)
    assert dataset.columns["en"] == [t.text for t in translations]
    assert dataset.columns["second"] == [t.hyps[-1].text for t in translations]
    assert dataset.columns["notes"] == [[], ["empty"], []]


def test_datasets_map_with_datasets_installed_prints_translations(run_example):
    pytest.importorskip("datasets")
    variables, out = run_example("datasets_map")
    assert variables["dataset"]["de"] == variables["german"]
    assert all(text in out for text in variables["dataset"]["en"])


def test_rerank_selects_hypotheses_with_fewer_violations(run_example):
    variables, out = run_example("rerank")
    translations, count = variables["translations"], variables["count_violations"]
    selected = re.findall(r"with rule +\S+  (.*)   \(rank (\d+)\)", out)
    n_changed = 0
    for t, (text, rank) in zip(translations, selected, strict=True):
        hyp = t.hyps[int(rank) - 1]
        assert hyp.text == text
        assert count(t.src, hyp) <= count(t.src, t.hyps[0])
        n_changed += rank != "1"
    assert n_changed


def test_score_pairs_finds_misaligned_pairs(run_example, tmp_path):
    _, out = run_example("score_pairs")
    suspects = re.findall(r"^suspect .*  \|  (.*)$", out, re.M)
    misaligned = ["We are going to the cinema tonight.", "The weather was terrible last week."]
    assert sorted(suspects) == sorted(misaligned)
    assert out.count("\n") == 8
    (tmp_path / "mine.tsv").write_text("Guten Morgen!\tGood morning!\n", encoding="utf-8")
    _, out = run_example("score_pairs", tmp_path / "mine.tsv")
    assert re.fullmatch(r"fine .*Good morning!\n", out)


def test_draw_search_prints_steps_and_hypotheses(run_example, translator):
    variables, out = run_example("draw_search", "Wo ist der Bahnhof?")
    steps, hyps = out.split("\n\nscore ")
    (translation,) = translator.translate(["Wo ist der Bahnhof?"], beam_size=3, n_best=3)
    printed = re.findall(r"^ *(-\d\.\d+) +\d+  (.*)$", hyps, re.M)[:3]
    for (score, text), hyp in zip(printed, translation.hyps, strict=True):
        assert (float(score), text) == (pytest.approx(hyp.score, abs=1e-3), hyp.text)
    best = translation.hyps[0]
    rows = re.findall(r"^ +(\d+) +\d+ +\d+ +(-\d+\.\d+)  (.*)$", steps, re.M)
    (last,) = [row for row in rows if row[2].split() == [*best.tokens, "■"]]
    assert int(last[0]) == len(best.tokens) + 1
    assert float(last[1]) == pytest.approx(best.log_prob, abs=1e-3)
    assert len(rows) == 3 * len(variables["beam"].prev_ks)
