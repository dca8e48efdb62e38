"""Every option of the translator has tests that its name finds, listed in tests/README.md.

The tests of an option `x_y` are in a file test_x_y.py or in a class TestXY.
`python -m tests.docs.test_tests_readme` writes the table.
"""

import ast
from pathlib import Path

import pytest

from onmt_lite.config.options import OPTIONS

TESTS = Path(__file__).resolve().parents[1]
README = TESTS / "README.md"
START, END = "<!-- options -->\n", "\n<!-- /options -->"


def get_class_name(option):
    """Return the name of the test class of an option: beam_size -> TestBeamSize."""
    return "Test" + "".join(word.capitalize() for word in option.split("_"))


def find_tests():
    """Return the tests of each option, as `path` or `path::class` relative to tests/."""
    tests = {name: [] for name in OPTIONS}
    options = {get_class_name(name): name for name in OPTIONS}
    for path in sorted(TESTS.rglob("test_*.py")):
        location = str(path.relative_to(TESTS))
        if (name := path.stem.removeprefix("test_")) in tests:
            tests[name].append(location)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in options:
                tests[options[node.name]].append(f"{location}::{node.name}")
    return tests


def make_table():
    """Return the table of options and their tests."""
    rows = ["| option | tests |", "|---|---|"]
    for name, locations in find_tests().items():
        cells = []
        for location in locations:
            path, _, class_name = location.partition("::")
            cells.append(f"[{class_name or path.rpartition('/')[2]}]({path})")
        rows.append(f"| `-{name}` | {', '.join(cells)} |")
    return "\n".join(rows)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_test_file_or_class(name):
    assert find_tests()[name], f"add tests/**/test_{name}.py or a class {get_class_name(name)}"


def test_option_table_is_up_to_date():
    table = README.read_text(encoding="utf-8").split(START)[1].split(END)[0]
    assert table == make_table(), "run `python -m tests.docs.test_tests_readme`"


if __name__ == "__main__":
    before, rest = README.read_text(encoding="utf-8").split(START)
    README.write_text(before + START + make_table() + END + rest.split(END)[1], encoding="utf-8")
