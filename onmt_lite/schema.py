"""One definition of an option serves the command line, YAML, help, validation and Python.

An option is a field of a frozen dataclass, made with `opt`.  A schema is the list of
those dataclasses (its groups); field names are unique across groups, so the command
line and YAML are flat.  Sources are merged default < YAML files < command line, and
every problem in all of them is collected before anything is raised.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from onmt_lite.errors import OptionError

MAX_CONFIG_BYTES = 64 * 1024
MAX_CONFIG_DEPTH = 20
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def opt(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
) -> Any:
    """A dataclass field that is an option.  `min` and `max` are inclusive, `above` is not."""
    metadata = {"help": help, "min": min, "max": max, "above": above}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """An option as the sources see it."""

    name: str
    group: type
    kind: type  # bool, int, float or str: the type of one value
    choices: tuple[str, ...]
    many: bool  # takes a list of values
    default: Any
    help: str
    bounds: dict[str, float | None]

    def expected(self) -> str:
        """In words, what a value must be."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        low, high, above = (self.bounds[k] for k in ("min", "max", "above"))
        noun = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[
            self.kind
        ]
        limits = []
        if above is not None:
            limits.append(f"above {above:g}")
        if low is not None:
            limits.append(f"at least {low:g}")
        if high is not None:
            limits.append(f"at most {high:g}")
        return " ".join([noun, " and ".join(limits)]).strip()


def options_of(groups: tuple[type, ...]) -> dict[str, Option]:
    """All options of the groups, by name, in order."""
    found = {}
    for group in groups:
        hints = typing.get_type_hints(group)
        for f in dataclasses.fields(group):
            assert f.name not in found, f"two options named {f.name}"
            kind, choices, many = _read_type(hints[f.name])
            bounds = {k: f.metadata[k] for k in ("min", "max", "above")}
            found[f.name] = Option(
                f.name, group, kind, choices, many, f.default, f.metadata["help"], bounds
            )
    return found


def _read_type(hint: Any) -> tuple[type, tuple[str, ...], bool]:
    """int | None -> int;  Literal -> str with choices;  tuple[str, ...] -> many str."""
    if isinstance(hint, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        return str, typing.get_args(hint), False
    if typing.get_origin(hint) is tuple:
        kind, choices, _ = _read_type(typing.get_args(hint)[0])
        return kind, choices, True
    return hint, (), False


@dataclass(frozen=True)
class Resolved:
    """Values of all options with where each came from: "default", "FILE:LINE", "command line"."""

    values: dict[str, Any]
    origins: dict[str, str]

    def build(self, group: type) -> Any:
        """The dataclass of one group."""
        return group(**{f.name: self.values[f.name] for f in dataclasses.fields(group)})

    def to_yaml(self) -> str:
        """A configuration that gives these values again, the origins as comments."""
        lines = []
        for name, value in self.values.items():
            plain = list(value) if isinstance(value, tuple) else value
            dumped = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10**9)
            dumped = dumped.removesuffix("...\n").strip()
            lines.append(f"{name}: {dumped}  # {self.origins[name]}\n")
        return "".join(lines)

    def without(self, group: type) -> "Resolved":
        """All but the options of one group."""
        names = [
            name for name in self.values if name not in {f.name for f in dataclasses.fields(group)}
        ]
        return Resolved({n: self.values[n] for n in names}, {n: self.origins[n] for n in names})


class Resolver:
    """Merges sources into a `Resolved`, collecting problems on the way."""

    def __init__(self, options: dict[str, Option], elsewhere: dict[str, str] | None = None):
        self.options = options
        self.elsewhere = elsewhere or {}  # names that other programs use -> what to say
        self.values = {name: option.default for name, option in options.items()}
        self.origins = dict.fromkeys(options, "default")
        self.problems: list[str] = []

    def put(self, name: str, raw: Any, origin: str) -> None:
        """Take one value from `origin`, after checking it."""
        option = self.options.get(name)
        if option is None:
            self.problems.append(f"{self._unknown(name)} ({origin})")
            return
        if raw is None:  # YAML null: as if the key were absent
            return
        try:
            self.values[name] = coerce(option, raw)
            self.origins[name] = origin
        except ValueError as error:
            self.problems.append(f"{name}: {error} ({origin})")

    def _unknown(self, name: str) -> str:
        if name in self.elsewhere:
            return f"unknown option {name}; {self.elsewhere[name]}"
        starts = [known for known in self.options if known.startswith(name)]
        near = starts or difflib.get_close_matches(name, self.options, n=1, cutoff=0.6)
        if not near:
            return f"unknown option {name}; -help lists all"
        return f"unknown option {name}; did you mean {' or '.join(near)}?"

    def command_line(self, argv: list[str]) -> None:
        for name, words in split_argv(argv, self.problems):
            option = self.options.get(name)
            if option is None:
                self.put(name, words, "command line")
            elif option.many:
                self.put(name, words, "command line")
            elif option.kind is bool and not words:
                self.put(name, "true", "command line")
            elif len(words) == 1:
                self.put(name, words[0], "command line")
            else:
                got = f"{len(words)} values: {' '.join(words)}" if words else "no value"
                self.problems.append(f"{name}: takes one value, got {got} (command line)")

    def yaml_file(self, path: str) -> None:
        try:
            for name, value, line in read_yaml(path):
                self.put(name, value, f"{path}:{line}")
        except ValueError as error:
            self.problems.append(f"config: {error}")

    def result(self) -> Resolved:
        """Raises OptionError with every problem found so far."""
        if self.problems:
            raise OptionError(*self.problems)
        return Resolved(self.values, self.origins)


@dataclass(frozen=True)
class MetaOptions:
    """What every program has: where its options come from.  Never part of a configuration."""

    config: tuple[str, ...] = opt(
        (), "YAML files with options; a later file wins over an earlier one"
    )
    print_config: bool = opt(
        False, "print the resolved options as YAML, with where each came from, and exit"
    )
    help: bool = opt(False, "print this text and exit")


def load(
    argv: Sequence[str],
    options: dict[str, Option],
    cross_check: Callable[[dict[str, Any]], list[str]],
    elsewhere: dict[str, str] | None = None,
) -> Resolved:
    """The command line and the YAML files that it names.  Raises OptionError with all problems."""
    command_line = Resolver(options, elsewhere)
    command_line.command_line(list(argv))
    merged = Resolver(options, elsewhere)
    for path in command_line.values["config"]:
        merged.yaml_file(path)
    for f in dataclasses.fields(MetaOptions):
        if merged.origins[f.name] != "default":
            merged.problems.append(
                f"{f.name} belongs on the command line ({merged.origins[f.name]})"
            )
    merged.problems += command_line.problems
    for name, origin in command_line.origins.items():
        if origin != "default":
            merged.values[name], merged.origins[name] = command_line.values[name], origin
    merged.problems += cross_check(merged.values)
    return merged.result()


def coerce(option: Option, raw: Any) -> Any:
    """A raw value from any source as the option's type; ValueError says what was expected."""
    if not option.many:
        return _coerce_one(option, raw)
    items = raw if isinstance(raw, (list, tuple)) else [raw]
    if not items:
        raise ValueError("needs at least one value")
    return tuple(_coerce_one(option, item) for item in items)


def _coerce_one(option: Option, raw: Any) -> Any:
    wrong = ValueError(f"expected {option.expected()}, got {raw!r}")
    if option.choices:
        raw = str(raw).lower() if isinstance(raw, bool) else raw  # YAML reads true as a bool
        if raw not in option.choices:
            near = difflib.get_close_matches(str(raw), option.choices, n=1)
            raise ValueError(f"{wrong}" + (f"; did you mean {near[0]}?" if near else ""))
        return raw
    if option.kind is str:
        if not isinstance(raw, str) or "\0" in raw:
            raise wrong
        return raw
    if option.kind is bool:
        if str(raw).lower() not in ("true", "false") or isinstance(
            raw, (int, float)
        ) is not isinstance(raw, bool):
            raise wrong
        return str(raw).lower() == "true"
    value = _number(option.kind, raw, wrong)
    low, high, above = (option.bounds[k] for k in ("min", "max", "above"))
    if (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    ):
        raise wrong
    return value


def _number(kind: type, raw: Any, wrong: ValueError) -> Any:
    if isinstance(raw, str):  # the command line, or 1e-3, which YAML 1.1 takes for text
        if not NUMBER.fullmatch(raw):
            raise wrong
        raw = float(raw) if kind is float else int(raw) if raw.lstrip("+-").isdigit() else raw
    if isinstance(raw, bool) or not isinstance(raw, (int, float) if kind is float else int):
        raise wrong
    if isinstance(raw, float) and not math.isfinite(raw):
        raise wrong
    return kind(raw)


def split_argv(argv: list[str], problems: list[str]) -> list[tuple[str, list[str]]]:
    """["-a", "1", "--b=2"] -> [("a", ["1"]), ("b", ["2"])].  Words before that are problems."""
    given: list[tuple[str, list[str]]] = []
    for word in argv:
        if re.match(r"--?[A-Za-z_]", word):
            name, equals, value = word.lstrip("-").partition("=")
            given.append((name, [value] if equals else []))
        elif given:
            given[-1][1].append(word)
        else:
            problems.append(
                f"{word!r} belongs to no option; name the input with -src (command line)"
            )
    return given


def read_yaml(path: str) -> list[tuple[str, Any, int]]:
    """(key, value, line) of a YAML mapping of plain values and lists of them.

    Raises ValueError, naming the file and line, for what YAML allows but a flat
    configuration cannot mean: duplicate keys, anchors, tags, several documents.
    """
    text = _read_config(path)
    try:
        depth = 0
        event: Any  # every event has a start_mark, which the type stubs leave open
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
            depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
            if depth > MAX_CONFIG_DEPTH or isinstance(event, yaml.AliasEvent):
                what = (
                    "an alias (*name)" if isinstance(event, yaml.AliasEvent) else "too deep nesting"
                )
                raise ValueError(
                    f"{what} ({path}:{event.start_mark.line + 1}); write the value out"
                )
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise ValueError(
                f"not a list of 'option: value' lines ({path}:{node.start_mark.line + 1})"
            )
        return _read_mapping(loader, node, path)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"not valid YAML: {error.problem} ({path}:{line})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {str(error).splitlines()[0]} ({path})") from None


def _read_config(path: str) -> str:
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror} ({path})") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ValueError(
            f"larger than {MAX_CONFIG_BYTES // 1024} KiB ({path}); is it a configuration?"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.start} ({path})") from None


def _read_mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode, path: str
) -> list[tuple[str, Any, int]]:
    found: list[tuple[str, Any, int]] = []
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ValueError(f"a key must be an option's name ({path}:{line})")
        key = key_node.value.lstrip("-")
        if key in lines:
            raise ValueError(
                f"{key} is set twice, at lines {lines[key]} and {line} ({path}:{line})"
            )
        lines[key] = line
        try:
            value = loader.construct_object(value_node, deep=True)
        except ValueError as error:  # such as 2026-13-45, which looks like a date
            raise ValueError(f"{key}: not valid YAML: {error} ({path}:{line})") from None
        found.append((key, value, line))
    return found


def help_text(options: dict[str, Option], usage: str) -> str:
    """What -help prints."""
    lines = [usage, ""]
    for option in options.values():
        head = f"  -{option.name} {_metavar(option)}".rstrip()
        default = "" if option.default is None else f" (default {_show(option.default)})"
        lines += [head, f"      {option.help}{default}"]
    return "\n".join(lines)


def markdown_table(options: dict[str, Option]) -> str:
    """The table of options in the README."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for option in options.values():
        metavar = _metavar(option).replace("|", "\\|")
        default = "" if option.default is None else f"`{_show(option.default)}`"
        lines.append(f"| `{f'-{option.name} {metavar}'.rstrip()}` | {default} | {option.help} |")
    return "\n".join(lines)


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    word = {bool: "", int: "N", float: "X", str: "TEXT"}[option.kind]
    return f"{word} [{word} ...]" if option.many else word


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def resolve_python(options: dict[str, Option], given: dict[str, Any]) -> Resolved:
    """Options given as keyword arguments."""
    resolver = Resolver(options)
    for name, value in given.items():
        resolver.put(name, str(value) if isinstance(value, Path) else value, "keyword argument")
    return resolver.result()
