"""Selection of back-translated pairs."""

import pytest

from onmt_lite.errors import DataError
from onmt_lite.train.data import read_pairs
from recipes.de_en.select_back import load_select_options, main, write_selection


@pytest.fixture
def words(tmp_path):
    rows = [
        ("Er liest ein Buch.", "He reads a book.", "-3\t6\t1.5"),
        ("Er liesert ein Buch.", "He reads a book.", "-1\t6\t1.1"),  # invented
        ("Er liest ein book.", "He reads a book.", "-1\t6\t1.2"),  # untranslated
        ("Er liest Xaver 12.", "Xaver 12 is read.", "-2\t6\t1.3"),  # names and numbers
        ("Er liest.", "He is reading a book.", "-9\t7\t3.9"),
    ]
    columns = zip(*rows, strict=True)
    for name, column in zip(("de", "en", "scores"), columns, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in column), encoding="utf-8")
    (tmp_path / "known").write_text("Er liest ein Buch, book.\tHe xaver\n" * 2, encoding="utf-8")
    names = dict(sources="de", targets="en", scores="scores", known="known", output="out.gz")
    return [word for name, file in names.items() for word in (f"-{name}", str(tmp_path / file))]


def test_selection_drops_invented_words_and_keeps_best_pairs(words, tmp_path):
    assert main([*words, "-lines", "2"]) == 0
    pairs = read_pairs(tmp_path / "out.gz")
    assert [src for src, _ in pairs] == ["Er liest Xaver 12.", "Er liest ein Buch."]


def test_selection_rejects_files_of_different_lengths(words, tmp_path):
    (tmp_path / "en").write_text("He reads.\n", encoding="utf-8")
    with pytest.raises(DataError, match="differ in their number of lines"):
        write_selection(load_select_options(words)[0])
    assert not (tmp_path / "out.gz").exists()
