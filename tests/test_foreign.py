"""Options of another program in a schema: taken while they ask for nothing."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from onmt_lite.config.foreign import Foreign
from onmt_lite.config.option import META, opt, options_of
from onmt_lite.config.sources import Program
from onmt_lite.errors import OptionError


@dataclass(frozen=True)
class Shape:
    title: ClassVar[str] = "Shape"

    count: int = opt(5, "how many", min=1)
    name: str = opt("", "what it is called")
    extra: str = opt("{}", "more, as a table", table=True)


OPTIONS = options_of((Shape, *META))
FOREIGN = {
    "size": Foreign(("1", ""), "one will do", refused=True),
    "host": Foreign(("here",)),
    "mood": Foreign(None),
    "count": Foreign(("-1",)),
    "name": Foreign(("false",), "it is a text now", refused=True),
}


@pytest.fixture
def resolve(tmp_path):
    """resolve(yaml, *argv)"""

    def run(yaml, *argv):
        path = tmp_path / "a.yaml"
        path.write_text(yaml, encoding="utf-8")
        argv = ["-config", str(path), *argv]
        program = Program("test", "", OPTIONS, ours_too=FOREIGN, foreign=lambda: FOREIGN)
        return program.load(argv)[0]

    return run


@pytest.mark.parametrize(
    "yaml",
    ["size: 1", "size: []", 'size: ""', "size:", "size: 1.0", "host: here", "mood: {a: [1]}"],
)
def test_values_that_ask_for_nothing(resolve, yaml):
    resolved = resolve(yaml)
    assert resolved.notes == ()
    assert "size" not in resolved.values
    (note,) = resolve(yaml, "-host", "a", "b").notes
    assert note == "host a b: without effect here (command line)"


@pytest.mark.parametrize(
    ("yaml", "argv", "problem"),
    [
        ("size: 2", [], "size 2: one will do ("),
        ("size: [1, 2]", [], "size 1 2: one will do ("),
        ("", ["-size"], "size true: one will do (command line)"),
        ("name: true", [], "name: expected text, got True; it is a text now ("),
        ("", ["-name"], "name: takes one value, got none; it is a text now (command line)"),
        ("count: -2", [], "count: expected a whole number at least 1, got -2 ("),
        ("", ["-count", "-2"], "count: expected a whole number at least 1, got -2 (command line)"),
    ],
)
def test_other_values_are_refused(resolve, yaml, argv, problem):
    with pytest.raises(OptionError) as caught:
        resolve(yaml, *argv)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)


def test_what_not_given_is_there_is_not_given_here(resolve):
    resolved = resolve("count: -1\nname: false\n")
    assert (resolved.values["count"], resolved.values["name"]) == (5, "")
    assert resolved.origins["count"] == "default"
    assert resolve("count: -1\n", "-count", "7").values["count"] == 7
    taken_back = resolve("count: 7\n", "-count", "-1")
    assert (taken_back.values["count"], taken_back.origins["count"]) == (5, "default")


def test_a_table_becomes_text(resolve):
    resolved = resolve("extra: {'a': true, b: [1, x]}")
    assert resolved.values["extra"] == "{'a': True, 'b': [1, 'x']}"
    with pytest.raises(OptionError, match="expected text"):
        resolve("name: {a: 1}")
