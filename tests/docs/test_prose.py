"""The prose counter: what it reads, what it counts, and that this checkout passes."""

from pathlib import Path

import pytest

from tests.docs import prose


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("A", "It prints what it found."),
        ("B", "Rows are sorted; those that ended are dropped."),
        ("C", "The file says which tokenizer it needs."),
        ("D", "Nobody reads this."),
        ("F", "a buffer of its own"),
        ("G", "The search goes on."),
        ("H", "where there is no GPU"),
        ("I", "the file beside it"),
        ("J", "on a CPU alone"),
        ("K", "holds for every batch"),
        ("N", "a mask, which is built once"),
        ("O", "all but for one"),
        ("Q", "give one"),
    ],
)
def test_pattern_matches_the_construction_it_names(key, text):
    assert prose.PATTERNS[key].regex.search(text)


def test_python_prose_has_docstrings_comments_and_messages(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""First line of it."""\nX = "two words"  # a comment\nY = "three words here"\n'
    )
    assert [passage.text for passage in prose.python_prose(path)] == [
        "First line of it.",
        "three words here",
        "a comment",
    ]


def test_markdown_prose_skips_code_blocks(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n```bash\ncode\n```\nafter\n")
    assert [(passage.line, passage.text) for passage in prose.markdown_prose(path)] == [
        (1, "before"),
        (5, "after"),
    ]


def test_check_exits_with_1_above_a_ceiling(monkeypatch):
    passages = {"docs": [prose.Passage(Path("page.md"), 1, "Nobody knows.")]}
    monkeypatch.setattr(prose, "collect_prose", lambda: passages)
    monkeypatch.setattr("sys.argv", ["prose", "--check"])
    assert prose.main() == 1
    monkeypatch.setattr("sys.argv", ["prose"])
    assert prose.main() == 0
