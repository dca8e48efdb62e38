"""Declaration of options, and validation of their values."""

import dataclasses
import difflib
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+", re.ASCII)
# Words that YAML 1.1 and ConfigArgParse accept as booleans
BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
File = Annotated[str, "FILE"]  # a path, shown as FILE in the help
BOUNDS = {
    "above": ("above", operator.gt),
    "min": ("at least", operator.ge),
    "max": ("at most", operator.le),
}
DEVICE_PATTERN = (r"auto|cpu|cuda(:(0|[1-9][0-9]?))?", "auto, cpu, cuda or cuda:N")

Group = TypeVar("Group")


def opt(
    default: Any,
    within: tuple[Any, Any] = (None, None),
    help: str = "",
    example: str = "",
    **attributes: Any,
) -> Any:
    """Declare an option as a dataclass field; its annotation is its type.

    A field without `opt` is an option with only a default.

    Args:
        default: Default value.
        within: Inclusive bounds of a number, None for no bound.
        help: Help text of a program outside the package; programs in the package use help.yaml.
        example: Value in the example of the help, as for `help`.
        attributes: Other fields of `Option`.

    Returns:
        A dataclass field.
    """
    texts = {"help": help, "example": example} if help else None
    bounds = dict(zip(("min", "max"), within))
    return dataclasses.field(
        default=default, metadata={"help_texts": texts, **bounds, **attributes}
    )


@dataclass(frozen=True)
class ConfigOptions:
    """Configuration files."""

    title: ClassVar[str] = "Jobs"

    config: tuple[File, ...] = ()


@dataclass(frozen=True)
class MetaOptions:
    """Options that print information about a program."""

    title: ClassVar[str] = "Information"

    print_config: bool = False
    save_config: File | None = None
    help: tuple[str, ...] = opt((), metavar="[NAME ...]")
    version: bool = False


# Groups of every program; they are never part of a configuration
META_GROUPS = (ConfigOptions, MetaOptions)
META_NAMES = tuple(f.name for group in META_GROUPS for f in dataclasses.fields(group))


@dataclass(frozen=True)
class Option:
    """A declared option."""

    name: str
    group: str  # title of its group in the help
    sections: tuple[str, ...]  # sections of help.yaml to search, in this order
    value_type: type  # type of a single value: bool, int, float or str
    default: Any
    is_list: bool = False  # accepts several values
    choices: tuple[str, ...] = ()  # allowed strings
    min: float | None = None  # inclusive bounds of a number
    max: float | None = None
    above: float | None = None  # exclusive lower bound
    pattern: tuple[str, str] = (".*", "")  # regular expression of a string, and its description
    is_dict: bool = False  # a string; a YAML mapping is converted to a Python literal
    metavar: str = ""  # placeholder in the help; FILE and PATH mark paths
    help_texts: Mapping[str, str] | None = None  # help and example, if not in help.yaml
    extra_help: str = ""  # appended to the help, such as requirements

    @property
    def help(self) -> str:
        """Help text."""
        return self._texts["help"]

    @property
    def example(self) -> str:
        """Value in the example of -help NAME."""
        return self._texts.get("example", "")

    @property
    def _texts(self) -> Mapping[str, str]:
        if self.help_texts is not None:
            return self.help_texts
        texts = read_help()
        return next(texts[name][self.name] for name in self.sections if self.name in texts[name])

    @property
    def is_path(self) -> bool:
        """True if values are paths."""
        return self.metavar in ("FILE", "PATH")

    @property
    def bounds(self) -> dict[str, float | None]:
        """Bounds of a number by name, None for no bound."""
        return {name: getattr(self, name) for name in BOUNDS}

    def describe_values(self) -> str:
        """Describe valid values, such as "an integer between 1 and 10"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.pattern[1]:
            return self.pattern[1]
        string = "a path" if self.is_path else "a string"
        nouns = {bool: "true or false", int: "an integer", float: "a number", str: string}
        bounds = [(BOUNDS[k][0], v) for k, v in self.bounds.items() if v is not None]
        limits = " and ".join(f"{word} {_format_bound(bound)}" for word, bound in bounds)
        if self.min is not None:
            limits = f"of {limits}"
            if self.max is not None:
                limits = f"between {_format_bound(self.min)} and {_format_bound(self.max)}"
        return f"{nouns[self.value_type]} {limits}".strip()


@cache
def read_help() -> dict[str, dict[str, dict[str, str]]]:
    """Return the help and example of each option, by section of help.yaml and name.

    Reads the file on first use, because a job does not need it.
    """
    path = Path(__file__).with_name("help.yaml")
    texts: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(path.read_bytes())
    return texts


def _format_bound(bound: float) -> str:
    """Format a bound: 1000, 100,000 or 2^63 - 1."""
    if bound == 2**63 - 1:
        return "2^63 - 1"
    return f"{round(bound):,}" if abs(bound) >= 10_000 else f"{bound:g}"


def collect_options(
    groups: tuple[type[Any], ...],
    sections: tuple[str, ...] = (),
    extra_help: Callable[[str], str] = lambda name: "",
) -> dict[str, Option]:
    """Return the options of all groups by name, in order.

    Args:
        groups: Dataclasses with a `title`; their fields are options.
        sections: Sections of help.yaml with the help texts; `common` is added.
        extra_help: Function from an option's name to text appended to its help.

    Returns:
        The options by name.
    """
    sections = (*sections, "common")
    options: dict[str, Option] = {}
    for group in groups:
        hints = typing.get_type_hints(group, include_extras=True)
        for f in dataclasses.fields(group):
            assert f.name not in options, f"two options named {f.name}"
            attributes = {
                **_parse_hint(hints[f.name]),
                **f.metadata,
                "extra_help": extra_help(f.name),
            }
            options[f.name] = Option(f.name, group.title, sections, default=f.default, **attributes)
    return options


def build_group(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Build one option group from the values of all options."""
    return group(**{f.name: values[f.name] for f in dataclasses.fields(group)})  # type: ignore


def _parse_hint(hint: Any) -> dict[str, Any]:
    """Convert a type hint to fields of Option.

    int | None -> int;  Literal -> str with choices;  tuple[str, ...] -> list of str
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (hint,) = [part for part in parts if part is not type(None)]
        return _parse_hint(hint)
    if origin is Literal:
        return {"value_type": str, "choices": parts}
    if origin is tuple:
        return {**_parse_hint(parts[0]), "is_list": True}
    return (
        {"value_type": parts[0], "metavar": parts[1]}
        if origin is Annotated
        else {"value_type": hint}
    )


# -- values ---------------------------------------------------------------------------------------


def parse_words(option: Option, words: list[str]) -> Any:
    """Parse the value of an option on the command line.

    Raises:
        ValueError: The value is missing or not valid.
    """
    if option.value_type is bool and not words:
        return True
    if not words:
        problem = "needs at least one value" if option.is_list else "takes one value, got none"
        shown = f"; for example: -{option.name} {option.example}" if option.example else ""
        raise ValueError(problem + shown)
    if not option.is_list and len(words) != 1:
        raise ValueError(f"takes one value, got {len(words)}: {' '.join(words)}")
    values = [_parse_word(option, word) for word in words]
    return check_value(option, values if option.is_list else values[0])


def _parse_word(option: Option, word: str) -> Any:
    """Convert "5" to 5 for a number; return all other words unchanged."""
    if option.value_type is bool and word in ("true", "false"):
        return word == "true"
    if option.value_type in (int, float) and NUMBER.fullmatch(word):
        try:
            return int(word)
        except ValueError:
            return float(word)
    return word


def check_unquoted_value(option: Option, value: Any) -> Any:
    """Check a YAML value regardless of quotes: "5" and 5 are the same.

    ConfigArgParse, and so OpenNMT-py, reads all YAML values like words of the command line.

    Raises:
        ValueError: The value is not valid.
    """

    def unquoted(item: Any) -> Any:
        if option.value_type is bool and type(item) in (str, int):
            return BOOLEAN_WORDS.get(str(item).lower(), item)
        return _parse_word(option, item) if isinstance(item, str) else item

    return check_value(option, list(map(unquoted, value)) if _is_list(value) else unquoted(value))


def check_value(option: Option, value: Any) -> Any:
    """Check a value from YAML or Python and convert it to the option's type.

    Raises:
        ValueError: The value is not valid.
    """
    if option.is_dict and isinstance(value, dict):
        value = str(value)
    if not option.is_list:
        return _check_item(option, value)
    return tuple(_check_item(option, item) for item in (value if _is_list(value) else [value]))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _check_item(option: Option, value: Any) -> Any:
    if isinstance(value, PurePath):
        value = str(value)
    near = difflib.get_close_matches(str(value).lower(), map(str.lower, option.choices), 1)
    similar = [choice for choice in option.choices if choice.lower() in near]
    remedy = f"; did you mean {similar[0]}?" if similar else ""
    if _is_list(value) or isinstance(value, dict):
        remedy = f"; set {option.name} to a single value"
    error = ValueError(f"must be {option.describe_values()}, got {_quote(value)}{remedy}")
    if option.choices:
        if isinstance(value, (bool, int)):  # YAML parses the choice "true" as True
            value = str(value).lower()
        if value not in option.choices:
            raise error
        return value
    if option.value_type is float:
        if isinstance(value, str) and EXPONENT.fullmatch(value):
            value = float(value)  # a string in YAML 1.1
        if type(value) is int and abs(value) < 2**53:
            value = float(value)
    if type(value) is not option.value_type:  # isinstance(True, int) is true
        raise error
    if isinstance(value, str):
        if "\0" in value or not re.fullmatch(option.pattern[0], value, re.DOTALL):
            raise error
        if option.is_path:  # the shell expands ~ only at the start of a word
            value = os.path.expanduser(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise error
    elif isinstance(value, (int, float)):
        for name, bound in option.bounds.items():
            if bound is not None and not BOUNDS[name][1](value, bound):
                raise error
    return 0.0 if option.value_type is float and value == 0 else value  # -0.0 is 0


def _quote(value: Any) -> str:
    """Return the repr of a value, truncated to 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # an int with thousands of digits
        return "a very long number"
    return text if len(text) <= 100 else text[:100] + "..."


def format_value(value: Any) -> str:
    """Format a value for the command line: (0, 1) -> "0 1", True -> "true"."""
    if _is_list(value):
        return " ".join(map(format_value, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value + 0.0:g}"
    text = str(value)
    return text.lower() if text in ("True", "False") else text
