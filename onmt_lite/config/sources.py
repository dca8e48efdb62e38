"""Command line, YAML files and keyword arguments, merged into one set of values.

Sources win in the order default < YAML files < command line.  Every problem in all of them is
collected before anything is raised.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import yaml

from onmt_lite.checkpoints.shipped import find_config
from onmt_lite.config.files import CONTENTS, PHRASES
from onmt_lite.config.option import (
    META_NAMES,
    SWITCHES,
    Group,
    Option,
    build_group,
    check_unquoted_value,
    check_value,
    format_value,
    parse_words,
)
from onmt_lite.config.other_tools import ForeignOption
from onmt_lite.config.rules import Rule, find_errors, find_notices
from onmt_lite.config.suggestions import suggest_for_extra, suggest_for_stray, suggest_names
from onmt_lite.config.yaml_file import read_yaml
from onmt_lite.errors import OptionError

T = TypeVar("T")
KEYWORD_ORIGIN = "keyword argument"  # an origin of values
Read = Callable[[Option, Any], Any]  # reads the value of an option, or raises ValueError
Setting = tuple[Any, str]  # a value and its origin


@dataclass(frozen=True, eq=False)
class Program(Generic[T]):
    """A program, as far as its options go; T is what it makes of their values."""

    name: str  # of its module, for python -m
    usage: str  # what follows the command in the help
    options: Mapping[str, Option]
    rules: Sequence[Rule] = ()  # about options that do not go together
    build: Callable[[Any], T] = lambda resolved: resolved  # from Resolved
    # Options of another program, in YAML too: those that are ours too, and all
    shared_options: Mapping[str, ForeignOption] = field(default_factory=dict)
    foreign_options: Callable[[], Mapping[str, ForeignOption]] = dict
    hint: Callable[[str], str | None] = lambda name: None  # what to say about an unknown name
    # Whether defaults depend on a model that is not here yet; rules are checked when it is
    awaits_model: Callable[[Mapping[str, Any]], bool] = lambda values: False
    # From the given values, defaults that depend on them and what they belong to; the last ones win
    defaults: Callable[[Mapping[str, Any]], list[tuple[Mapping[str, Any], str]]] = lambda given: []
    # What a printed configuration says of values besides where they come from, by name
    describe_auto: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda values: {}
    common_options: Sequence[
        str
    ] = ()  # the most used options, which help shows first; by default all
    accepts_text: bool = False  # whether words on the command line may be meant as text
    ignores_quotes: bool = False  # whether quotes around a value in YAML make no difference

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
                resolver.add_yaml_file(path)
        resolver.add_command_line(argv)
        resolved = resolver.resolve()
        return self.build(resolved), resolved

    def complete(self, known: "Resolved", problems: Sequence[str] = ()) -> "Resolved":
        """Add the defaults that depend on given values, and the notes of the rules.

        Args:
            known: the values, with the notes on options of other programs.
            problems: what is wrong with them already.

        Returns:
            All values and notes.

        Raises:
            OptionError: with every problem, those of the rules too; what reading defaults raises.
        """
        values, origins, fixed = dict(known.values), dict(known.origins), dict[str, Setting]()
        given = {n: values[n] for n, o in origins.items() if not o.startswith("default")}
        usual = {name: option.default for name, option in self.options.items()}
        for found, origin in self.defaults(given):
            usual |= found
            for name in [name for name in found if name not in given]:
                if name in self.options:
                    values[name], origins[name] = found[name], f"default {origin}"
                else:
                    fixed[name] = found[name], f"default {origin}"
        rules = () if self.awaits_model(values) else self.rules
        refused = find_errors(rules, values)
        if problems:  # what cannot be read may be what is missing
            refused = [problem for problem in refused if " is missing; " not in problem]
        if problems or refused:
            raise OptionError(*problems, *refused)
        # An option that is given what holds anyway, as in a printed configuration, asks for nothing
        given = {n: v for n, v in given.items() if n not in META_NAMES}
        asked = {n: origins[n] for n, value in given.items() if value != usual[n]}
        said = find_notices(rules, {**values, "given": given}, asked)
        return Resolved(values, origins, known.foreign_notices, tuple(said), fixed)


@dataclass(frozen=True)
class Resolved:
    """Values of all options, with where each came from."""

    values: dict[str, Any]
    origins: dict[str, str]  # default, FILE:LINE, command line, keyword argument
    foreign_notices: tuple[str, ...] = ()  # notes on options of other programs
    option_notices: tuple[str, ...] = ()  # notes on options without effect
    fixed: Mapping[str, Setting] = field(default_factory=dict)  # what no option sets

    @property
    def notices(self) -> tuple[str, ...]:
        return (*self.foreign_notices, *self.option_notices)

    def build(self, group: type[Group]) -> Group:
        return build_group(group, self.values)

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
        return "".join(f"{name}: {dump_yaml(value)}  # {lines[name]}\n" for name, value, _ in rows)


def dump_yaml(value: Any) -> str:
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
        self.foreign_values: dict[
            str, tuple[ForeignOption, str, str]
        ] = {}  # by name: words and origin
        self.problems: list[str] = []
        self.notices: dict[str, str] = {}  # by name, so that each option has one

    def _find_foreign(self, name: str) -> ForeignOption | None:
        program = self.program
        return (
            program.shared_options.get(name)
            if name in self.options
            else program.foreign_options().get(name)
        )

    def add_yaml_file(self, path: str) -> None:
        path = find_config(os.path.expanduser(path))
        read = check_unquoted_value if self.program.ignores_quotes else check_value
        try:
            found = read_yaml(path, self._reads_as_text)
        except ValueError as error:
            self.problems.append(f"config: {error}")
            return
        for name, value, line in found:
            self.add_value(name, value, f"{path}:{line}", read)
        if not found:
            remedy = "write lines such as `beam_size: 5` into it, or leave it out"
            self.notices["config"] = f"config: without effect; {path} holds no options; {remedy}"

    def _reads_as_text(self, name: str, kind: str) -> bool:
        """Return whether `no`, 1.5 or 2024-01-01 in a file are text, as they would be in quotes."""
        known = self._find_foreign(name)
        if known and known.sets and kind == "bool":  # a switch of the other program
            return False
        option = self.options.get(known.renamed_to if known and known.renamed_to else name)
        is_text = option is not None and option.value_type is str and not option.choices
        return self.program.ignores_quotes and is_text

    def add_command_line(self, argv: Sequence[str]) -> None:
        given, stray = split_argv(argv)
        if stray:
            hint = suggest_for_stray(stray, self.options, self.program.accepts_text)
            self.problems.append(f"{' '.join(stray)!r} belongs to no option; {hint}")
        configs: list[str] = []
        for name, words in given:
            if name == "config":  # -config a -config b reads both; of others the last one counts
                configs += words
                words = configs
            self.add_value(name, words, "command line", parse_words)

    def add_value(self, name: str, raw: Any, origin: str, read: Read = check_value) -> None:
        """Take a value, or the words of a command line; None is as if it were not there.  An empty
        path is not given: a shell writes one for a variable that is not set."""
        known, ours, typed = self._find_foreign(name), name in self.options, read is parse_words
        if raw is None and (ours or known):
            return
        if ours and self.options[name].is_path:
            paths = list(raw) if isinstance(raw, (list, tuple)) else [raw]
            if paths and all(path == "" for path in paths):
                self.values[name], self.origins[name] = self.options[name].default, "default"
                return
            raw = [path for path in paths if path != ""] if self.options[name].is_list else raw
        words = format_value(raw or True) if typed else format_value(raw)
        asks = known is not None and known.has_effect(words)
        # What "not given" is in the other program; nobody types "" to say nothing
        if known and ours and not asks and (words or not typed):
            self.values[name], self.origins[name] = self.options[name].default, "default"
        elif name in META_NAMES and ours and not typed:
            self.problems.append(f"{name} belongs on the command line; give it there ({origin})")
        elif known and known.sets and words == "true":
            self._add_notice(name, known, words, origin)
            self._set(*known.sets, origin, check_value)
        elif ours or known is None:
            self._set(name, raw, origin, read)
        elif known.renamed_to and asks:
            self._add_notice(name, known, words, origin)
            self._set(known.renamed_to, raw, origin, read)
        elif asks:
            self.foreign_values[name] = known, words, origin
        else:  # what was said before counts no more
            self.foreign_values.pop(name, None)

    def _set(self, name: str, raw: Any, origin: str, read: Read) -> None:
        if name not in self.options:
            self.problems.append(f"{self._explain_unknown(name, raw)} ({origin})")
            return
        try:
            self.values[name] = read(self.options[name], raw)
            self.origins[name] = origin
        except ValueError as error:
            known = self._find_foreign(name)
            is_guessed = "; did you mean" in f"{error}"
            hint = f"; {known.message}" if known and known.is_rejected and not is_guessed else ""
            if isinstance(raw, list) and read is not parse_words and CONTENTS.get(name) == PHRASES:
                hint = f"; {name} takes {PHRASES}"
                hint += (
                    "; give the phrases themselves to translate()"
                    if origin == KEYWORD_ORIGIN
                    else ""
                )
            is_typed = read is parse_words and not is_guessed
            meant = self._suggest_for_extra(name, raw) if is_typed else ""
            self.problems.append(f"{name}: {error}{hint} ({origin}){meant}")

    def _suggest_for_extra(self, name: str, words: list[str]) -> str:
        """Return what to add if words follow an option that does not take them."""
        option = self.options[name]
        if option.value_type is bool and words:
            if len(words) == 1 and (switch := SWITCHES.get(words[0].lower())) is not None:
                return f"; did you mean {format_value(switch)}?"
            words = ["true", *words]
        if option.is_list or len(words) < 2 or not any(words[1:]):
            return ""
        return f"; {suggest_for_extra(option, words, self.options, self.program.accepts_text)}"

    def _explain_unknown(self, name: str, raw: Any = None) -> str:
        shown = name[:50]
        if (plain := name.replace("-", "_")) in self.options:
            return f"unknown option {shown}; here it is {plain}"
        remark = self.program.hint(plain)
        if remark:
            return f"unknown option {shown}; {remark}"
        if isinstance(raw, dict):
            remedy = f"write its options at the start of a line, without {shown}"
            return f"unknown option {shown}; options have no sections: {remedy}"
        if plain in self.program.foreign_options():
            return f"unknown option {shown}; it is spelt {plain}"
        if not (near := suggest_names(name, self.options, self.program.common_options)):
            return f"unknown option {shown}; python -m {self.program.name} -help all lists all"
        return f"unknown option {shown}; did you mean {' or '.join(near)}?"

    def _add_notice(self, name: str, known: ForeignOption, words: str, origin: str) -> None:
        if known.message:
            shown = "" if words == "true" else f" {words[:50]}"
            self.notices[name] = f"{name}{shown}: {known.message} ({origin})"

    def resolve(self) -> Resolved:
        """Return all values, checked by the rules.  Raises as `Program.complete`."""
        for name, (known, words, origin) in self.foreign_values.items():
            excused = known.transform and known.transform in self.values["transforms"]
            if known.is_rejected and not excused:
                self.problems.append(f"{name} {words[:50]}: {known.message} ({origin})")
            else:
                self._add_notice(name, known, words, origin)
        read = Resolved(self.values, self.origins, tuple(self.notices.values()))
        return self.program.complete(read, self.problems)


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
