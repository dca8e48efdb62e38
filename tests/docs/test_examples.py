"""The scripts in examples/ run as they are, and say what the translator says."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from onmt_lite import Translator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["alternatives", "datasets_map", "draw_search", "pandas_column", "rerank", "score_pairs"]


@pytest.fixture(scope="module")
def shipped():
    return Translator.from_pretrained("de-en")


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """run(name, *words) -> (the names that the script defines, what it prints)"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(name, *words, as_main=True):
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, words)])
        names = runpy.run_path(path, run_name="__main__" if as_main else name)
        return names, capsys.readouterr().out

    return run


def test_all_are_run_here_and_short():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == NAMES
    for name in NAMES:
        text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        assert text.count("\n") <= 60
        assert f"python examples/{name}.py" in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {"movies", "movie", "theater"}),
        (["Wo wohnst du?", "Where"], {"do", "are"}),
        (["Guten Morgen!"], {"Good"}),
    ],
)
def test_alternatives(run, shipped, words, found):
    """Different next words, best first, each with what the translator makes of it."""
    names, out = run("alternatives", *words)
    sentence, beginning = names["sentence"], names["beginning"]
    rows = [line.split(maxsplit=1) for line in out.splitlines()]
    scores, texts = [float(score) for score, _ in rows], [text for _, text in rows]
    assert len(texts) == 5 and scores == sorted(scores, reverse=True)
    (plain,) = shipped.translate([sentence], [beginning])
    assert texts[0] == plain.text
    begins = [names["with_next_word"](text) for text in texts]
    next_words = {begin.removeprefix(beginning).strip(" ,'") for begin in begins}
    assert len(next_words) == 5 and found <= next_words
    for begin, (score, text) in zip(begins, rows):
        (expected,) = shipped.translate([sentence], [begin], n_best=5)
        assert text in [hyp.text for hyp in expected.hyps]
        assert float(score) <= expected.hyps[0].score + 1e-3


def test_pandas_column(run, shipped):
    pandas = pytest.importorskip("pandas")
    names, out = run("pandas_column")
    table = names["table"]
    assert isinstance(table, pandas.DataFrame)
    expected = shipped.translate(table["german"].fillna(""))
    assert list(table["english"]) == [t.text for t in expected]
    assert list(table["english"] == "") == [False, False, True, False]
    assert "lines[2]: expected a line of text, got" in out


class Rows:
    """As much of a data set as the example needs: columns, mapped in batches of rows."""

    def __init__(self, columns):
        self.columns = columns

    def map(self, function, batched, batch_size):
        assert batched
        n, found = len(next(iter(self.columns.values()))), {}
        for i in range(0, n, batch_size):
            part = {name: values[i : i + batch_size] for name, values in self.columns.items()}
            for name, values in function(part).items():
                found.setdefault(name, []).extend(values)
        return Rows(self.columns | found)


def test_datasets_map(run, shipped):
    names, _ = run("datasets_map", as_main=False)
    german = ["Guten Morgen!", "", "Wo ist der Bahnhof?"]
    rows = Rows({"de": german}).map(names["add_english"], batched=True, batch_size=2)
    expected = shipped.translate(german, n_best=2)
    assert rows.columns["en"] == [t.text for t in expected]
    assert rows.columns["second"] == [t.hyps[-1].text for t in expected]
    assert rows.columns["notes"] == [[], ["empty"], []]


def test_datasets_map_with_the_package(run):
    pytest.importorskip("datasets")
    names, out = run("datasets_map")
    assert names["dataset"]["de"] == names["german"]
    assert all(text in out for text in names["dataset"]["en"])


def test_rerank(run):
    names, out = run("rerank")
    translations, penalty = names["translations"], names["penalty"]
    chosen = re.findall(r"by the rule +\S+  (.*)   \(place (\d+)\)", out)
    n_changed = 0
    for t, (text, place) in zip(translations, chosen, strict=True):
        hyp = t.hyps[int(place) - 1]
        assert hyp.text == text
        assert penalty(t.src, hyp) <= penalty(t.src, t.hyps[0])
        n_changed += place != "1"
    assert n_changed


def test_score_pairs(run, tmp_path):
    _, out = run("score_pairs")
    suspect = re.findall(r"^suspect .*  \|  (.*)$", out, re.M)
    wrong = ["We are going to the cinema tonight.", "The weather was terrible last week."]
    assert sorted(suspect) == sorted(wrong)
    assert out.count("\n") == 8
    (tmp_path / "mine.tsv").write_text("Guten Morgen!\tGood morning!\n", encoding="utf-8")
    _, out = run("score_pairs", tmp_path / "mine.tsv")
    assert re.fullmatch(r"fine .*Good morning!\n", out)


def test_draw_search(run, shipped):
    names, out = run("draw_search", "Wo ist der Bahnhof?")
    steps, hyps = out.split("\n\nscore ")
    (expected,) = shipped.translate(["Wo ist der Bahnhof?"], beam_size=3, n_best=3)
    drawn = re.findall(r"^ *(-\d\.\d+) +\d+  (.*)$", hyps, re.M)[:3]
    for (score, text), hyp in zip(drawn, expected.hyps, strict=True):
        assert (float(score), text) == (pytest.approx(hyp.score, abs=1e-3), hyp.text)
    best = expected.hyps[0]
    rows = re.findall(r"^ +(\d+) +\d+ +\d+ +(-\d+\.\d+)  (.*)$", steps, re.M)
    (found,) = [row for row in rows if row[2].split() == [*best.tokens, "■"]]
    assert int(found[0]) == len(best.tokens) + 1
    assert float(found[1]) == pytest.approx(best.log_prob, abs=1e-3)
    assert len(rows) == 3 * len(names["beam"].prev_ks)
