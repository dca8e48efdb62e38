"""Options: how they are declared, and what their values may be."""

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
# Words that YAML 1.1 and ConfigArgParse read as a switch
SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
File = Annotated[str, "FILE"]  # and what help calls a value
BOUNDS = {
    "above": ("above", operator.gt),
    "min": ("at least", operator.ge),
    "max": ("at most", operator.le),
}
DEVICE_PATTERN = (r"auto|cpu|cuda(:(0|[1-9][0-9]?))?", "auto, cpu, cuda or cuda:N")  # a `form`

Group = TypeVar("Group")


def opt(
    default: Any,
    within: tuple[Any, Any] = (None, None),
    help: str = "",
    example: str = "",
    **more: Any,
) -> Any:
    """Declare an option as a field of a group; its annotation is its type.  A field without `opt`
    is an option with a default alone.

    Args:
        default: the value if none is given.
        within: the inclusive bounds of a number, or None.
        help: what it does, for programs outside of the package; help.yaml has it for the others.
        example: the words after the option in an example, likewise.
        more: other fields of `Option`.
    """
    texts = {"help": help, "example": example} if help else None
    bounds = dict(zip(("min", "max"), within))
    return dataclasses.field(default=default, metadata={"help_texts": texts, **bounds, **more})


@dataclass(frozen=True)
class ConfigOptions:
    """Where options come from."""

    title: ClassVar[str] = "Jobs"

    config: tuple[File, ...] = ()


@dataclass(frozen=True)
class MetaOptions:
    """What every program tells about itself."""

    title: ClassVar[str] = "Information"

    print_config: bool = False
    save_config: File | None = None
    help: tuple[str, ...] = opt((), metavar="[NAME ...]")
    version: bool = False


# Groups that every program has, and that are never part of a configuration
META_GROUPS = (ConfigOptions, MetaOptions)
META_NAMES = tuple(f.name for group in META_GROUPS for f in dataclasses.fields(group))


@dataclass(frozen=True)
class Option:
    """A declared option."""

    name: str
    group: str  # the title of the group that help shows it in
    sections: tuple[str, ...]  # of help.yaml, the first that has the name counts
    value_type: type  # of one value: bool, int, float or str
    default: Any
    is_list: bool = False  # takes a list of values
    choices: tuple[str, ...] = ()  # values of a text
    min: float | None = None  # bounds of a number, inclusive
    max: float | None = None
    above: float | None = None  # a bound, exclusive
    pattern: tuple[str, str] = (".*", "")  # what a text must match, and how messages describe that
    is_dict: bool = False  # a text; a table in YAML becomes what Python would write
    metavar: str = ""  # what help calls a value; FILE and PATH name what is on disk
    help_texts: Mapping[str, str] | None = None  # its help and example, if help.yaml has none
    extra_help: str = ""  # what help says besides, such as what the option needs

    @property
    def help(self) -> str:
        """What the option does."""
        return self._texts["help"]

    @property
    def example(self) -> str:
        """The words after the option in the example of -help NAME."""
        return self._texts.get("example", "")

    @property
    def _texts(self) -> Mapping[str, str]:
        if self.help_texts is not None:
            return self.help_texts
        texts = read_help()
        return next(texts[name][self.name] for name in self.sections if self.name in texts[name])

    @property
    def is_path(self) -> bool:
        return self.metavar in ("FILE", "PATH")

    @property
    def bounds(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in BOUNDS}

    def expected(self) -> str:
        """Describe valid values."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.pattern[1]:
            return self.pattern[1]
        text = "a path" if self.is_path else "text"
        nouns = {bool: "true or false", int: "a whole number", float: "a number", str: text}
        limits = [
            f"{BOUNDS[k][0]} {_format_bound(v)}" for k, v in self.bounds.items() if v is not None
        ]
        return " ".join([nouns[self.value_type], " and ".join(limits)]).strip()


@cache
def read_help() -> dict[str, dict[str, dict[str, str]]]:
    """Return help.yaml: the texts of each option, by section and name.  Read when first needed,
    as a job needs none."""
    path = Path(__file__).with_name("help.yaml")
    texts: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(path.read_bytes())
    return texts


def _format_bound(bound: float) -> str:
    """Write a bound readably: 1000, 100,000, 2^63 - 1."""
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
        groups: dataclasses with a `title`, whose fields are options.
        sections: of help.yaml, where the texts are looked up.
        extra_help: returns what help adds about the option of a name.
    """
    sections = (*sections, "common")
    found: dict[str, Option] = {}
    for group in groups:
        hints = typing.get_type_hints(group, include_extras=True)
        for f in dataclasses.fields(group):
            assert f.name not in found, f"two options named {f.name}"
            more = {**_parse_hint(hints[f.name]), **f.metadata, "extra_help": extra_help(f.name)}
            found[f.name] = Option(f.name, group.title, sections, default=f.default, **more)
    return found


def build_group(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Build the dataclass of one group from the values of all options."""
    return group(**{f.name: values[f.name] for f in dataclasses.fields(group)})  # type: ignore


def _parse_hint(hint: Any) -> dict[str, Any]:
    """int | None -> int;  Literal -> str with choices;  tuple[str, ...] -> many str."""
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
    """Read the words of a command line.  Raises ValueError that says what was expected."""
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
    """5 -> 5 for a number; other words stay text, which `check` refuses if it must."""
    if option.value_type is bool and word in ("true", "false"):
        return word == "true"
    if option.value_type in (int, float) and NUMBER.fullmatch(word):
        try:
            return int(word)
        except ValueError:
            return float(word)
    return word


def check_unquoted_value(option: Option, value: Any) -> Any:
    """Check a value from YAML whose quotes make no difference: "5" and 5 are the same number and
    the same text, as in files of programs that read all values as words of a command line."""

    def unquoted(item: Any) -> Any:
        if option.value_type is bool and type(item) in (str, int):
            return SWITCHES.get(str(item).lower(), item)
        return _parse_word(option, item) if isinstance(item, str) else item

    return check_value(option, list(map(unquoted, value)) if _is_list(value) else unquoted(value))


def check_value(option: Option, value: Any) -> Any:
    """Return a value from YAML or Python as it is used.  Raises ValueError, as `parse_words`."""
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
    meant = [choice for choice in option.choices if choice.lower() in near]
    remedy = f"; did you mean {meant[0]}?" if meant else ""
    if _is_list(value) or isinstance(value, dict):
        remedy = f"; give one value, written after {option.name}"
    wrong = ValueError(f"expected {option.expected()}, got {_quote(value)}{remedy}")
    if option.choices:
        if isinstance(value, (bool, int)):  # YAML reads true if a choice is "true"
            value = str(value).lower()
        if value not in option.choices:
            raise wrong
        return value
    if option.value_type is float:
        if isinstance(value, str) and EXPONENT.fullmatch(value):
            value = float(value)  # YAML 1.1 takes 1e-3 for text
        if type(value) is int and abs(value) < 2**53:
            value = float(value)
    if type(value) is not option.value_type:  # True is an int to isinstance
        raise wrong
    if isinstance(value, str):
        if "\0" in value or not re.fullmatch(option.pattern[0], value, re.DOTALL):
            raise wrong
        if option.is_path:  # the shell does it only for a word that begins with ~
            value = os.path.expanduser(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise wrong
    elif isinstance(value, (int, float)):
        for name, bound in option.bounds.items():
            if bound is not None and not BOUNDS[name][1](value, bound):
                raise wrong
    return 0.0 if option.value_type is float and value == 0 else value  # -0.0 is 0


def _quote(value: Any) -> str:
    """The value as it was given, at most 100 characters of it."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "a number too long to print"
    return text if len(text) <= 100 else text[:100] + "..."


def format_value(value: Any) -> str:
    """Write a value as on a command line: (0, 1) -> "0 1", True -> "true"."""
    if _is_list(value):
        return " ".join(map(format_value, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value + 0.0:g}"
    text = str(value)
    return text.lower() if text in ("True", "False") else text
