"""Sources of options are parsed and merged; tested with a small schema."""

import shlex
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onmt_lite.config.help import format_markdown
from onmt_lite.config.option import collect_options, opt
from onmt_lite.config.sources import Program, Resolver
from onmt_lite.errors import OptionError


@dataclass(frozen=True)
class Shape:
    title: ClassVar[str] = "Shape"

    count: int = opt(5, help="how many", min=1, max=10)
    cap: int | None = opt(None, help="no more than this", min=-1)
    flag: bool = opt(False, help="switch")
    mode: Literal["none", "wu", "avg"] = opt("avg", help="which form")


@dataclass(frozen=True)
class Words:
    title: ClassVar[str] = "Words"

    rate: float = opt(1.0, help="how fast", min=-2, max=2)
    share: float = opt(0.5, help="part of the whole", above=0, max=1)
    name: str = opt("", help="what it is called")
    names: tuple[str, ...] = opt((), help="all it is called")


OPTIONS = collect_options((Shape, Words))
PROGRAM = Program("test", "", OPTIONS, hint={"num_beams": "use count instead"}.get)


@pytest.fixture
def resolve(tmp_path):
    """resolve(argv, yaml, yaml, ...) -> Resolved; files are a.yaml, b.yaml, ... in tmp_path."""

    def run(argv=(), *texts):
        resolver = Resolver(PROGRAM)
        for letter, text in zip("abc", texts):
            path = tmp_path / f"{letter}.yaml"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            resolver.add_yaml_file(str(path))
        resolver.add_command_line(list(argv))
        return resolver.resolve()

    return run


@pytest.fixture
def problems(resolve):
    """problems(argv, yaml, ...) -> all problems of an OptionError."""

    def run(argv=(), *texts):
        with pytest.raises(OptionError) as caught:
            resolve(argv, *texts)
        assert all(caught.value.problems)
        return caught.value.problems

    return run


def split_texts(table):
    """Return (name, text) pairs of a table with several texts per name, separated by bars."""
    return [(name, text) for name, texts in table.items() for text in texts.split(" | ")]


SPELLINGS = {
    ("count", 3): "-count 3 | --count 3 | --count=3 | -count=3 | -count 4 -count 3",
    ("cap", -1): "-cap -1",
    ("rate", -0.5): "-rate -0.5 | -rate=-.5 | -rate -5e-1",
    ("rate", 0.001): "-rate 1e-3",
    ("rate", 2.0): "-rate 2",
    ("flag", True): "-flag | -flag true | -flag -count 3",
    ("flag", False): "-flag false | --flag=false",
    ("name", "-"): "-name -",
    ("name", "-x"): "-name=-x",
    ("name", "a=b"): "-name a=b | --name=a=b",
    ("name", "5"): "-name 5",
    ("name", "$HOME/~"): "-name $HOME/~",  # not expanded
    ("names", ("a",)): "-names a",
    ("names", ("a", "b")): "-names a b",
}


@pytest.mark.parametrize(("expected", "words"), split_texts(SPELLINGS))
def test_command_line_spellings(resolve, expected, words):
    name, value = expected
    resolved = resolve(words.split())
    assert resolved.values[name] == value
    assert type(resolved.values[name]) is type(value)
    assert resolved.origins[name] == "command line"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cuont", "did you mean count?"),  # a similar name
        ("coun", "did you mean count?"),  # an abbreviation
        ("ra", "did you mean rate?"),
        ("nam", "name or names"),
        ("name_", "did you mean name"),
        ("Count", "did you mean count?"),
        ("num_beams", "use count instead"),  # a name from another program
        ("zzzzzz", "-help"),
    ],
)
def test_unknown_name_has_suggestion(problems, name, hint):
    for found in (problems([f"-{name}", "1"]), problems([], f"{name}: 1")):
        assert len(found) == 1
        assert found[0].startswith(f"unknown option {name};")
        assert hint in found[0]


def test_empty_name_does_not_list_every_option(problems):
    (problem,) = problems([], "'': 1")
    assert len(problem) < 200, problem


INVALID_YAML = {  # a boolean or a quoted number is not a number
    "count": "true | 5.0 | '5' | \"5\" | [5] | {a: 5} | 1e1 | .inf | 0 | 11 | "
    "99999999999999999999999 | five | 2020-01-01",
    "cap": "-2",
    "rate": "true | .nan | .inf | -.inf | 2.0001 | -3 | abc",
    "share": "0 | 1.5",
    "flag": "1 | 1.0 | 'true' | maybe | [true]",
    "mode": "5 | [wu] | no | ''",
    "name": '5 | true | [a] | {a: b} | "a\\0b"',
    "names": "[a, 5] | 5 | {a: b} | [[a]]",
}


@pytest.mark.parametrize(("name", "value"), split_texts(INVALID_YAML))
def test_yaml_invalid_value_is_rejected_with_key_and_line(problems, tmp_path, name, value):
    (problem,) = problems([], f"# comment\n{name}: {value}")
    assert problem.startswith(f"{name}: must be ")
    assert problem.endswith(f"({tmp_path}/a.yaml:2)")


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", ["count", "rate"])
def test_number_too_long_for_float_is_rejected(problems, name, digits):
    """float() fails above 1e308, int() above 4300 digits."""
    assert len(problems(["-" + name, "1" * digits])) == 1
    assert len(problems([], f"{name}: {'1' * digits}")) == 1


INVALID_WORDS = {
    "-count": " 5.0 | 1e1 | true | 0 | 11 | ' 5' | '5\n' | 1_0 | 0x5 | '' | --5 | 1 2 | ",
    "-rate": " nan | inf | 1e999 | 1,5 | .",
    "-share": "0",
    "-flag": "1 | yes | true false",
    "-mode": "AVG",
    "-name": " a\0b | a b | ",
    "-names": "",
    "-count=": "",
    "-flag=": "",
}


@pytest.mark.parametrize(("name", "words"), split_texts(INVALID_WORDS))
def test_command_line_invalid_value_is_rejected(problems, name, words):
    (problem,) = problems([name, *shlex.split(words)])
    assert problem.startswith(name.strip("-=") + ": ")
    assert "(command line)" in problem


def test_error_has_value_and_valid_values(problems):
    assert problems(["-count", "11", "-mode", "avgg"]) == (
        "count: must be an integer between 1 and 10, got 11 (command line)",
        "mode: must be one of none, wu, avg, got 'avgg'; did you mean avg? (command line)",
    )
    assert "above 0 and at most 1" in problems(["-share", "0"])[0]


@pytest.mark.parametrize("words", ["x", "-", "--", "5 -flag"])
def test_stray_words_are_rejected(problems, words):
    stray = words.removesuffix(" -flag")
    assert problems(words.split()) == (
        f"{stray!r} does not belong to any option; -help lists the options",
    )


def test_yaml_null_counts_as_not_given(resolve):
    got = resolve([], "count: 3\ncap: 4", "count: null\ncap: ~\nname:")
    assert (got.values["count"], got.values["cap"], got.values["name"]) == (3, 4, "")
    assert got.origins["name"] == "default"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rate: 1e-3", "rate", 0.001),  # a string in YAML 1.1
        ("rate: 2", "rate", 2.0),
        ("-count: 3", "count", 3),
        ("--count: 3", "count", 3),
        ("names: a", "names", ("a",)),
        ("names: [a, b]", "names", ("a", "b")),
        ("names:\n- a\n- b", "names", ("a", "b")),
        ("\ufeffcount: 3", "count", 3),
        ("count: 3\r\nflag: true\r\n", "count", 3),
        ("---\ncount: 3\n...\n", "count", 3),
        ("{count: 3}", "count", 3),
        ("name: Üß 😀", "name", "Üß 😀"),
        ("name: $HOME/~", "name", "$HOME/~"),  # not expanded
        ("mode: none", "mode", "none"),
    ],
)
def test_yaml_value_is_parsed(resolve, text, name, value):
    got = resolve([], text).values[name]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "\ufeff"])
def test_yaml_empty_file_sets_nothing(resolve, text):
    assert set(resolve([], text).origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("count: 3\nflag: true\ncount: 4", 3, "lines 1 and 3"),
        ("count: 3\n--count: 4", 2, "lines 1 and 2"),
        ("name: &x a\nnames: [*x]", 2, "alias"),
        ("names: &x [*x]", 1, "alias"),
        ("\nnames: " + "[" * 30 + "]" * 30, 2, "nesting"),
        ("name: " + "[" * 5000, 1, "nesting"),
        ("a: 1\n---\nb: 2", 2, "document"),
        ("count: 3\n...\nx", 3, "expected"),
        ("- count: 3", 1, "option: value"),
        ("just text", 1, "option: value"),
        ("? [a]\n: b", 1, "key"),
        ("count:\t3\n\tflag: 1", 1, "\\t"),
        ("count: 3\n  flag: [1", 2, "not valid YAML"),
        ("name: 'a", 1, "not valid YAML"),
        ("name: !!python/object/apply:os.abort []", 1, "tag"),
        ("name: !!python/name:os.abort", 1, "tag"),
        ("name: !thing x", 1, "tag"),
    ],
)
def test_yaml_unsupported_syntax_is_rejected(problems, tmp_path, text, line, word):
    (problem,) = problems([], text)
    assert problem.startswith("config: ")
    assert word in problem
    assert f"({tmp_path}/a.yaml:{line})" in problem


TAGS = {
    "flag": "!!bool x | !!null x",
    "name": "!!timestamp x | !!str 5 | !!binary aGk=",
    "count": "!!int '' | !!int '-' | !!int x | !!int '5'",
    "rate": "!!float ''",
    "names": "!!set {a, b}",
}


@pytest.mark.parametrize(("name", "value"), split_texts(TAGS))
def test_yaml_tag_is_rejected(problems, name, value):
    """A tag changes the type of a value, and PyYAML crashes on invalid ones."""
    assert len(problems([], f"{name}: {value}")) == 1


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"\xff\xfec\x00o\x00", "UTF-8"),
        (b"name: \xff", "UTF-8"),
        (b"name: a\0b", "YAML"),
        (b"\x89PNG\r\n\x1a\n\0\0", "UTF-8"),
        (b"#" * (64 * 1024 + 1), "64 KiB"),
    ],
)
def test_yaml_binary_file_is_rejected(problems, tmp_path, data, word):
    (problem,) = problems([], data)
    assert word in problem
    assert f"{tmp_path}/a.yaml" in problem


def test_yaml_file_of_64_kib_is_read(resolve):
    assert resolve([], b"count: 3\n".ljust(64 * 1024, b"#")).values["count"] == 3


def read(path):
    """Return the resolved options of a single file."""
    resolver = Resolver(PROGRAM)
    resolver.add_yaml_file(str(path))
    return resolver.resolve()


def test_yaml_missing_file_is_rejected(tmp_path):
    for path, word in [(tmp_path / "none.yaml", "No such file"), (tmp_path, "directory")]:
        with pytest.raises(OptionError) as caught:
            read(path)
        (problem,) = caught.value.problems
        assert word in problem and str(path) in problem


TEXT = st.text(st.characters(exclude_characters="\0"))
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "names": st.lists(TEXT, min_size=1),
        "count": st.integers(1, 10),
        "cap": st.integers(-1, 10**30),
        "flag": st.booleans(),
        "mode": st.sampled_from(["none", "wu", "avg"]),
        "rate": st.floats(-2, 2),
        "share": st.floats(0, 1, exclude_min=True),
        "name": TEXT,
    },
)


@settings(deadline=None, max_examples=80)
@given(VALUES)
@example({})  # an empty list, the default of `names`, must be a valid value
@example({"names": ["a\nb: c"]})
@example({"names": ["\x85"]})
@example({"names": ["x # y"]})
@example({"names": ["\x85\u2028\ufeff\ud800"]})
@example({"name": "...", "names": ["", "null", "5", "- a", "*x", "!y"]})
@example({"names": [" a "]})
def test_yaml_dump_loads_same_values(tmp_path_factory, values):
    resolver = Resolver(PROGRAM)
    for name, value in values.items():
        resolver.add_value(name, value, "here")
    first = resolver.resolve()
    path = tmp_path_factory.getbasetemp() / "printed.yaml"
    path.write_text(first.to_yaml(), encoding="utf-8", newline="\n")
    assert read(path).values == first.values


def test_yaml_dump_keeps_origin_on_one_line(tmp_path):
    """A file name may contain a line feed; the rest must stay in the comment."""
    path = tmp_path / "x\nname: stolen #.yaml"
    path.write_text("count: 3", encoding="utf-8")
    lines = read(path).to_yaml().split("\n")
    assert [line.split(":")[0] for line in lines if line] == [*OPTIONS]


YAML_WORDS = st.sampled_from(
    "count cap flag mode rate share name names : - ? , [ ] { } & * ! !!bool !!int !!timestamp | > "
    "' \" % @ ` # -- --- ... << = ~ null true no 5 1e3 .nan 1:30 0x1F 2001-99-99 a&b *a &a".split()
)
YAML_TEXT = st.lists(
    st.one_of(YAML_WORDS, st.sampled_from([" ", "\n", ": ", "\n  ", "\t"]), st.text(max_size=3)),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=250)
@given(st.one_of(YAML_TEXT.map(lambda text: text.encode("utf-8", "ignore")), st.binary()))
@example(b"flag: !!bool x")
@example(b"rate: " + b"1" * 400)
def test_any_yaml_gives_values_or_option_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    try:
        values = read(path).values
    except OptionError as error:
        assert error.problems
        return
    assert type(values["count"]) is int and 1 <= values["count"] <= 10
    assert type(values["rate"]) is float and -2 <= values["rate"] <= 2
    assert values["flag"] in (True, False) and values["mode"] in ("none", "wu", "avg")
    assert all(type(name) is str for name in (values["name"], *values["names"]))


def test_duplicate_option_in_groups_is_rejected():
    @dataclass(frozen=True)
    class Again:
        title: ClassVar[str] = "Again"

        count: int = opt(1, help="again")

    with pytest.raises(AssertionError, match="count"):
        collect_options((Shape, Again))


def test_markdown_table_has_options_by_group():
    table = format_markdown(OPTIONS)
    assert "| `-count N` | `5` | how many. |" in table
    rows = [line for line in table.split("\n") if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 4 for line in rows)  # a bar would end a cell
    places = [table.index(word) for word in ("Shape", "-count", "-mode", "Words", "-rate")]
    assert places == sorted(places)
    assert all(option.help in table for option in OPTIONS.values())
