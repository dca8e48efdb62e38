"""Command line, YAML files and keyword arguments, merged into one set of values.

Sources win in the order default < YAML files < command line.  Every problem in all of them is
collected before anything is raised.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import yaml

from onmt_lite.checkpoints.shipped import config_names, find_config
from onmt_lite.config.console import is_text, line_that_works
from onmt_lite.config.foreign import Foreign
from onmt_lite.config.option import (
    META_NAMES,
    Group,
    Option,
    as_words,
    build,
    check,
    check_quoted,
    parse_words,
)
from onmt_lite.config.rules import Rule, notes, refusals
from onmt_lite.errors import OptionError

T = TypeVar("T")
Read = Callable[[Option, Any], Any]  # reads the value of an option, or raises ValueError
MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
MAX_GUESSES = 3  # names that an unknown one may be the beginning of
TAG = "tag:yaml.org,2002:"
PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")  # not 010, which is 8, nor 1:30, which is 90


@dataclass(frozen=True, eq=False)
class Program(Generic[T]):
    """A program, as far as its options go; T is what it makes of their values."""

    name: str
    usage: str  # what follows the command in the help
    options: Mapping[str, Option]
    rules: Sequence[Rule] = ()  # about options that do not go together
    build: Callable[[Any], T] = lambda resolved: resolved  # from Resolved
    # Options of another program, in YAML too: those that are ours too, and all
    ours_too: Mapping[str, Foreign] = field(default_factory=dict)
    foreign: Callable[[], Mapping[str, Foreign]] = dict
    remark: Callable[[str], str | None] = lambda name: None  # what to say about an unknown name
    # What given values stand for, such as the newest revision of a model
    settle: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: {}
    # From the given values, defaults that depend on them and what they belong to; the last ones win
    defaults: Callable[[Mapping[str, Any]], list[tuple[Mapping[str, Any], str]]] = lambda given: []
    # What a printed configuration says of values besides where they come from, by name
    comments: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda values: {}
    page: Sequence[str] = ()  # the most used options, which help shows first; by default all
    takes_text: bool = False  # whether words on the command line may be meant as text
    quoted: bool = False  # whether quotes around a value in YAML make no difference

    def load(self, argv: Sequence[str]) -> tuple[T, "Resolved"]:
        """Load a command line and the YAML files that it names.

        Args:
            argv: list of str, the words after the command, such as `["-beam_size", "4"]`.

        Returns:
            The options, and the Resolved that says where each value came from.

        Raises:
            OptionError: with every problem.
        """
        resolver = Resolver(self)
        for name, words in split_argv(argv)[0]:
            for path in filter(None, words if name == "config" else ()):
                resolver.yaml_file(path)
        resolver.command_line(argv)
        resolved = resolver.result()
        return self.build(resolved), resolved


@dataclass(frozen=True)
class Resolved:
    """Values of all options, with where each came from."""

    values: dict[str, Any]
    origins: dict[str, str]  # default, FILE:LINE, command line, keyword argument
    notes: tuple[str, ...] = ()  # options without effect, and what became of foreign ones
    fixed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # what no option sets

    def build(self, group: type[Group]) -> Group:
        return build(group, self.values)

    def given(self) -> dict[str, Any]:
        """Values of a configuration that are not defaults."""
        usual = {name for name, origin in self.origins.items() if origin.startswith("default")}
        return {n: v for n, v in self.values.items() if n not in META_NAMES and n not in usual}

    def to_yaml(self, comments: Mapping[str, str] | None = None) -> str:
        """A configuration that gives these values again, the origins as comments of one line, and
        further `comments` by name; what no option sets is a comment itself."""
        rows = [(n, self.values[n], origin) for n, origin in self.origins.items()]
        rows = [row for row in rows if row[0] not in META_NAMES]
        rows += [(f"# {name}", *row) for name, row in self.fixed.items()]
        lines = {name: " ".join(origin.split()) for name, _, origin in rows}
        for name, comment in (comments or {}).items():
            lines[name] += f"; {comment}"
        return "".join(f"{name}: {dump(value)}  # {lines[name]}\n" for name, value, _ in rows)


def notes_on(
    program: Program[Any], values: Mapping[str, Any], origins: Mapping[str, str]
) -> list[str]:
    """Return what the rules of a program note about values.

    An option that is given what holds anyway, as in a printed configuration, asks for nothing.
    """
    given = Resolved(dict(values), dict(origins)).given()
    usual = {name: option.default for name, option in program.options.items()}
    for defaults, _ in program.defaults(given):
        usual |= defaults
    asked = {name: origins[name] for name, value in given.items() if value != usual[name]}
    return notes(program.rules, {**values, "given": given}, asked)


def dump(value: Any) -> str:
    """Write a value on one line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    texts = [item for item in (plain if isinstance(plain, list) else [plain]) if type(item) is str]
    style = None if all(text.isprintable() for text in texts) else '"'
    dumped = yaml.safe_dump(
        plain, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


class Resolver:
    """Takes values from one source after another, collecting problems on the way."""

    def __init__(self, program: Program[Any]):
        self.program, self.options = program, program.options
        self.values = {name: option.default for name, option in self.options.items()}
        self.origins = dict.fromkeys(self.options, "default")
        self.asked: dict[str, tuple[Foreign, str, str]] = {}  # by name: words and origin
        self.problems: list[str] = []
        self.failed: set[str] = set()  # options whose value was refused, so they are not missing
        self.notes: dict[str, str] = {}  # by name, so that each option has one

    def _foreign(self, name: str) -> Foreign | None:
        program = self.program
        return program.ours_too.get(name) if name in self.options else program.foreign().get(name)

    def yaml_file(self, path: str) -> None:
        path = find_config(path)
        read = check_quoted if self.program.quoted else check
        try:
            for name, value, line in read_yaml(path, self._is_text):
                self.put(name, value, f"{path}:{line}", read)
        except ValueError as error:
            self.problems.append(f"config: {error}")

    def _is_text(self, name: str, kind: str) -> bool:
        """Return whether `no`, 1.5 or 2024-01-01 in a file are text, as they would be in quotes."""
        known = self._foreign(name)
        if known and known.switch and kind == "bool":  # a switch of the other program
            return False
        option = self.options.get(known.renamed if known and known.renamed else name)
        is_text = option is not None and option.kind is str and not option.choices
        return self.program.quoted and is_text

    def command_line(self, argv: Sequence[str]) -> None:
        given, stray = split_argv(argv)
        if stray:
            hint = line_that_works(stray) if self.program.takes_text else "-help lists the options"
            if stray == ["predict"]:  # Eole's command
                hint = "leave it out: this program only translates"
            self.problems.append(f"{' '.join(stray)!r} belongs to no option; {hint}")
        configs: list[str] = []
        for name, words in given:
            if name == "config":  # -config a -config b reads both; of others the last one counts
                configs += words
                words = configs
            self.put(name, words, "command line", parse_words)

    def put(self, name: str, raw: Any, origin: str, read: Read = check) -> None:
        """Take a value, or the words of a command line; None is as if it were not there.  An empty
        path is not given: a shell writes one for a variable that is not set."""
        known, ours, typed = self._foreign(name), name in self.options, read is parse_words
        if raw is None and (ours or known):
            return
        if ours and self.options[name].is_path:
            paths = list(raw) if isinstance(raw, (list, tuple)) else [raw]
            if paths and all(path == "" for path in paths):
                self.values[name], self.origins[name] = self.options[name].default, "default"
                return
            raw = [path for path in paths if path != ""] if self.options[name].many else raw
        words = as_words(raw or True) if typed else as_words(raw)
        asks = known is not None and known.asks_for(words)
        # What "not given" is in the other program; nobody types "" to say nothing
        if known and ours and not asks and (words or not typed):
            self.values[name], self.origins[name] = self.options[name].default, "default"
        elif name in META_NAMES and ours and not typed:
            self.problems.append(f"{name} belongs on the command line; give it there ({origin})")
        elif known and known.switch and words == "true":
            self._note(name, known, words, origin)
            self._take(*known.switch, origin, check)
        elif ours or known is None:
            self._take(name, raw, origin, read)
        elif known.renamed and asks:
            self._note(name, known, words, origin)
            self._take(known.renamed, raw, origin, read)
        elif asks:
            self.asked[name] = known, words, origin
        else:  # what was said before counts no more
            self.asked.pop(name, None)

    def _take(self, name: str, raw: Any, origin: str, read: Read) -> None:
        if name not in self.options:
            self.problems.append(f"{self._unknown(name)} ({origin})")
            return
        try:
            self.values[name] = read(self.options[name], raw)
            self.origins[name] = origin
        except ValueError as error:
            known = self._foreign(name)
            hint = f"; {known.says}" if known and known.refused else ""
            meant = self._of_text(name, raw, read)
            self.failed.add(name)
            self.problems.append(f"{name}: {error}{hint} ({origin}){meant}")

    def _of_text(self, name: str, raw: Any, read: Read) -> str:
        """Return what to add if the words are a sentence without quotes, or behind an option."""
        if not self.program.takes_text or read is not parse_words:
            return ""
        words = raw if name == "src" or self.options[name].kind is bool else raw[1:]
        several = " " in " ".join(words).strip()
        return f"; {line_that_works(words)}" if several and is_text(words) else ""

    def _unknown(self, name: str) -> str:
        shown = name[:50]
        if (plain := name.replace("-", "_")) in self.options:
            return f"unknown option {shown}; here it is {plain}"
        if remark := self.program.remark(plain):
            return f"unknown option {shown}; {remark}"
        if plain in self.program.foreign():
            return f"unknown option {shown}; it is spelt {plain}"
        starts = [known for known in self.options if name and known.startswith(name)]
        starts.sort(key=lambda known: (known not in self.program.page, len(known)))
        near = starts[:MAX_GUESSES] or difflib.get_close_matches(name, self.options, 1, cutoff=0.6)
        if not near:
            return f"unknown option {shown}; -help all lists all"
        return f"unknown option {shown}; did you mean {' or '.join(near)}?"

    def _note(self, name: str, known: Foreign, words: str, origin: str) -> None:
        if known.says:
            shown = "" if words == "true" else f" {words[:50]}"
            self.notes[name] = f"{name}{shown}: {known.says} ({origin})"

    def result(self) -> Resolved:
        """Return all values, checked by the rules.  Raises OptionError with every problem, or what
        settling values and reading defaults raise."""
        self.values |= self.program.settle(self.values)
        given = {n: self.values[n] for n, origin in self.origins.items() if origin != "default"}
        fixed: dict[str, tuple[Any, str]] = {}
        for found, origin in self.program.defaults(given):
            for name in [name for name in found if name not in given]:
                if name in self.options:
                    self.values[name], self.origins[name] = found[name], f"default {origin}"
                else:
                    fixed[name] = found[name], f"default {origin}"
        for name, (known, words, origin) in self.asked.items():
            excused = known.transform and known.transform in self.values["transforms"]
            if known.refused and not excused:
                self.problems.append(f"{name} {words[:50]}: {known.says} ({origin})")
            else:
                self._note(name, known, words, origin)
        refused = refusals(self.program.rules, self.values)
        self.problems += [p for p in refused if p.partition(" is missing")[0] not in self.failed]
        if self.problems:
            raise OptionError(*self.problems)
        said = [*self.notes.values(), *notes_on(self.program, self.values, self.origins)]
        return Resolved(self.values, self.origins, tuple(said), fixed)


def split_argv(argv: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """["x", "-a", "1", "--b=2"] -> [("a", ["1"]), ("b", ["2"])] and the words before any option."""
    given: list[tuple[str, list[str]]] = []
    stray = []
    for word in argv:
        if re.match(r"--?[A-Za-z_]", word):
            name, equals, value = word.lstrip("-").partition("=")
            given.append((name, [value] if equals else []))
        elif given:
            given[-1][1].append(word)
        else:
            stray.append(word)
    return given, stray


# -- YAML files ----------------------------------------------------------------------------------


def read_yaml(path: str, is_text: Callable[[str, str], bool]) -> list[tuple[str, Any, int]]:
    """Return (key, value, line) of each option in the file.  `is_text(key, kind)` says whether a
    value of this kind of YAML (bool, int, float, timestamp) is taken as it is written.

    Raises ValueError, naming file and line, for a file that is not YAML and for YAML that no
    configuration means: duplicate keys, anchors, tags, several documents, deep nesting.
    """
    text = _read_text(path)
    try:
        _refuse_surprises(text, path)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None or node.value == "":
            return []
        if not isinstance(node, yaml.MappingNode):
            where = f"{path}:{node.start_mark.line + 1}"
            raise ValueError(f"not a list of 'option: value' lines ({where})")
        return _read_mapping(loader, node, path, is_text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"not valid YAML: {error.problem} ({path}:{line})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())} ({path})") from None


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        shipped = f"; shipped are {', '.join(config_names())}" if is_missing else ""
        reason = getattr(error, "strerror", error)
        raise ValueError(f"cannot be read: {reason} ({path}){shipped}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1024} KiB ({path}); is it a configuration?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.start} ({path})") from None


def _refuse_surprises(text: str, path: str) -> None:
    """Check the events; values are made only if they pass."""
    depth = 0
    event: Any  # every event has a start_mark, which the type stubs leave open
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
        depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
        where = f"{path}:{event.start_mark.line + 1}"
        if depth > MAX_DEPTH:
            raise ValueError(f"too deep nesting ({where})")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"an alias, *{event.anchor} ({where}); write the value out")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"a tag, {event.tag} ({where}); write the plain value")


def _read_mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode, path: str, is_text: Callable[[str, str], bool]
) -> list[tuple[str, Any, int]]:
    found: list[tuple[str, Any, int]] = []
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ValueError(f"a key must be an option's name ({path}:{line})")
        key = key_node.value.lstrip("-")
        if key in lines:
            both = f"lines {lines[key]} and {line}"
            raise ValueError(f"{key} is set twice, at {both} ({path}:{line})")
        lines[key] = line
        items = value_node.value if isinstance(value_node, yaml.SequenceNode) else []
        for scalar in [value_node, *items]:
            kind = scalar.tag.removeprefix(TAG)
            if isinstance(scalar, yaml.ScalarNode) and kind != "null" and is_text(key, kind):
                scalar.tag = TAG + "str"
            elif kind == "int" and not PLAIN_INT.fullmatch(scalar.value):
                raise ValueError(
                    f"{key}: YAML reads {scalar.value} as another number ({path}:{line}); "
                    "write plain digits or quote it"
                )
        try:
            value = loader.construct_object(value_node, deep=True)
        except (ValueError, OverflowError) as error:  # 2026-13-45, which looks like a date
            raise ValueError(f"{key}: not valid YAML: {error} ({path}:{line})") from None
        found.append((key, value, line))
    return found
