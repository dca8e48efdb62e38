"""What an option is, and which values it takes."""

import dataclasses
import difflib
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+", re.ASCII)


def opt(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    table: bool = False,
) -> Any:
    """A dataclass field that is an option.  `min` and `max` are inclusive, `above` is not.

    The type says what it may be; `choices` does where they are known only at run time.  `table`: a
    text that YAML may hold as a table, which becomes the text that Python would write.
    """
    metadata = {"help": help, "min": min, "max": max, "above": above, "choices": choices}
    metadata["table"] = table
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ConfigOptions:
    """Where options come from."""

    title: ClassVar[str] = "Jobs"

    config: tuple[str, ...] = opt(
        (),
        "YAML files with options; a later file wins over an earlier one; a name such as `nbest` "
        "is a shipped file where no such path exists",
    )


@dataclass(frozen=True)
class MetaOptions:
    """What every program tells of itself."""

    title: ClassVar[str] = "Information"

    print_config: bool = opt(
        False, "print the resolved options as YAML, with where each came from, and exit"
    )
    help: bool = opt(False, "print this text and exit")
    version: bool = opt(False, "print the versions of onmt_lite, Python and torch, and exit")


# Groups that every program has, and that are never part of a configuration
META = (ConfigOptions, MetaOptions)
META_NAMES = tuple(f.name for group in META for f in dataclasses.fields(group))


@dataclass(frozen=True)
class Option:
    """An option as the sources see it."""

    name: str
    group: str  # the title of the group that help shows it in
    kind: type  # bool, int, float or str: the type of one value
    choices: tuple[str, ...]
    many: bool  # takes a list of values
    default: Any
    help: str
    bounds: dict[str, float | None]
    table: bool = False  # YAML may hold it as a table

    def expected(self) -> str:
        """In words, what a value must be."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        words = {"above": "above", "min": "at least", "max": "at most"}
        limits = [f"{words[k]} {v:g}" for k, v in self.bounds.items() if v is not None]
        return " ".join([nouns[self.kind], " and ".join(limits)]).strip()

    def inside(self, value: float) -> bool:
        low, high, above = (self.bounds[k] for k in ("min", "max", "above"))
        return (
            (low is None or value >= low)
            and (high is None or value <= high)
            and (above is None or value > above)
        )


def options_of(groups: tuple[type[Any], ...]) -> dict[str, Option]:
    """All options of the groups, by name, in order.  Each group has a `title`."""
    found: dict[str, Option] = {}
    for group in groups:
        hints = typing.get_type_hints(group)
        for f in dataclasses.fields(group):
            assert f.name not in found, f"two options named {f.name}"
            kind, choices, many = _read_type(hints[f.name])
            bounds = {k: f.metadata[k] for k in ("above", "min", "max")}
            choices = choices or f.metadata["choices"]
            found[f.name] = Option(
                f.name,
                group.title,
                kind,
                choices,
                many,
                f.default,
                f.metadata["help"],
                bounds,
                f.metadata["table"],
            )
    return found


def _read_type(hint: Any) -> tuple[type, tuple[str, ...], bool]:
    """int | None -> int;  Literal -> str with choices;  tuple[str, ...] -> many str."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        return str, typing.get_args(hint), False
    if typing.get_origin(hint) is tuple:
        kind, choices, _ = _read_type(typing.get_args(hint)[0])
        return kind, choices, True
    return hint, (), False


def parse_words(option: Option, words: list[str]) -> Any:
    """Words of a command line as the option's value; ValueError says what was expected."""
    if option.many:
        if not words:
            raise ValueError("needs at least one value")
        return check(option, [_parse_word(option, word) for word in words])
    if option.kind is bool and not words:
        return True
    if len(words) != 1:
        got = f"{len(words)}: {' '.join(words)}" if words else "none"
        raise ValueError(f"takes one value, got {got}")
    return check(option, _parse_word(option, words[0]))


def _parse_word(option: Option, word: str) -> Any:
    """5 -> 5 where a number is wanted; what is no number stays text, which `check` refuses."""
    if option.kind is bool and word in ("true", "false"):
        return word == "true"
    if option.kind in (int, float) and NUMBER.fullmatch(word):
        try:
            return int(word)
        except ValueError:
            return float(word)
    return word


def check(option: Option, value: Any) -> Any:
    """A value from YAML or Python, as it is used; ValueError says what was expected."""
    if option.table and isinstance(value, dict):
        value = str(value)
    if not option.many:
        return _check_one(option, value)
    if not isinstance(value, (list, tuple)):
        value = [value]
    return tuple(_check_one(option, item) for item in value)


def _check_one(option: Option, value: Any) -> Any:
    wrong = ValueError(f"expected {option.expected()}, got {_quote(value)}")
    if option.choices:
        if isinstance(value, bool):  # YAML reads true, where a choice is "true"
            value = str(value).lower()
        if value not in option.choices or not isinstance(value, str):
            near = difflib.get_close_matches(str(value), option.choices, n=1)
            raise ValueError(f"{wrong}" + (f"; did you mean {near[0]}?" if near else ""))
        return value
    if option.kind is str:
        if not isinstance(value, str) or "\0" in value:
            raise wrong
        return value
    if option.kind is float and isinstance(value, str) and EXPONENT.fullmatch(value):
        value = float(value)  # YAML 1.1 takes 1e-3 for text
    if option.kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not option.kind:  # True is an int to isinstance
        raise wrong
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong
    if isinstance(value, (int, float)) and not option.inside(value):
        raise wrong
    return value


def _quote(value: Any) -> str:
    """The value as it was given, but not pages of it."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "a number too long to print"
    return text if len(text) <= 100 else text[:100] + "..."
