"""The warning `numbers` in output and log."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A model with memorized translations: first and second hypothesis of each line."""
    known = {"2": ("250", "2"), "5": ("5", "6"), "899,00": ("899,000", "x"), "A7!": ("8", "x")}
    known |= {"B8!": ("7", "x"), "ja": ("yes", "x")}
    words = sorted({word for pair in known.values() for word in pair})
    ends = [9.0] + [-9.0] * len(words)

    def source(pair):
        first = [-9.0, *({pair[0]: 5.0, pair[1]: 4.0}.get(word, -9.0) for word in words)]
        return {"length": 1, "rows": {"": first}, "default": ends}

    sources = {line: source(pair) for line, pair in known.items()}
    model = {"format": "onmt_lite-table-1", "vocab": ["</s>", *words], "sources": sources}
    path = tmp_path / "table.json"
    path.write_text(json.dumps(model), "utf-8")
    return path


def notes_of(main, *options):
    done = main(*options, "-output", "out", "-output_format", "jsonl")
    assert done.code == 0
    records = map(json.loads, Path("out").read_text("utf-8").splitlines())
    return [record["notes"] for record in records], done.err


def test_numbers_warning_in_output_and_summary(main, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("src").write_text("2\n5\n\n899,00\nja\n2\n", "utf-8")
    notes, log = notes_of(main, "-model", table, "-src", "src", "-n_best", "2")
    assert notes == [["numbers"], [], ["empty"], ["numbers"], [], ["numbers"]]
    assert "lines 1, 4 and 6: the numbers differ from the source [numbers]\n" in log


def test_numbers_warning_considers_whole_lines(main, table, tmp_path, monkeypatch):
    """Numbers that move between the two sentences of a line cause no warning."""
    monkeypatch.chdir(tmp_path)
    Path("src").write_text("A7! B8!\nA7!\n", "utf-8")
    notes, _ = notes_of(main, "-model", table, "-src", "src", "-split_longer", "4")
    assert notes == [[], ["numbers"]]
