"""Sources of option values: the command line, YAML files and keyword arguments.

The command line overrides YAML files, and YAML files override defaults.  All problems are
collected before an error is raised.
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
    BOOLEAN_WORDS,
    META_NAMES,
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
KEYWORD_ORIGIN = "keyword argument"
Parser = Callable[[Option, Any], Any]  # parses the value of an option or raises ValueError
Setting = tuple[Any, str]  # a value and its origin


@dataclass(frozen=True, eq=False)
class Program(Generic[T]):
    """The command-line interface of a program; T is the type of its parsed options.

    Attributes:
        name: Module name for `python -m`.
        usage: Text after the command in the help.
        options: All options by name.
        rules: Rules about combinations of options.
        build: Converts Resolved to T.
        shared_options: Options of another program that this program has as well.
        foreign_options: Loads the options of another program that YAML files may contain.
        hint: Returns a hint about an unknown name, or None.
        awaits_model: Returns True if defaults depend on a model that must be downloaded first;
            the rules are then checked after the download.
        defaults: Returns defaults that depend on the given values, with their origin, in increasing
            order of priority.
        describe_auto: Returns the values that `auto` resolves to, for print_config.
        common_options: Options that -help without a name describes (default: all).
        accepts_text: Whether stray words may be text to translate.
        ignores_quotes: Whether quotes around YAML values are ignored.
    """

    name: str
    usage: str
    options: Mapping[str, Option]
    rules: Sequence[Rule] = ()
    build: Callable[[Any], T] = lambda resolved: resolved
    shared_options: Mapping[str, ForeignOption] = field(default_factory=dict)
    foreign_options: Callable[[], Mapping[str, ForeignOption]] = dict
    hint: Callable[[str], str | None] = lambda name: None
    awaits_model: Callable[[Mapping[str, Any]], bool] = lambda values: False
    defaults: Callable[[Mapping[str, Any]], list[tuple[Mapping[str, Any], str]]] = lambda given: []
    describe_auto: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda values: {}
    common_options: Sequence[str] = ()
    accepts_text: bool = False
    ignores_quotes: bool = False

    def load(self, argv: Sequence[str]) -> tuple[T, "Resolved"]:
        """Parse a command line and its YAML files.

        Args:
            argv: The words after the command, such as `["-beam_size", "4"]`.

        Returns:
            The options, and a Resolved with the origin of each value.

        Raises:
            OptionError: An option is not valid; the error lists all problems.
        """
        resolver = Resolver(self)
        for name, words in split_argv(argv)[0]:
            for path in filter(None, words if name == "config" else ()):
                resolver.add_yaml_file(path)
        resolver.add_command_line(argv)
        resolved = resolver.resolve()
        return self.build(resolved), resolved

    def complete(self, known: "Resolved", problems: Sequence[str] = ()) -> "Resolved":
        """Add defaults that depend on the given values, check the rules and add their notices.

        Args:
            known: The values, with the notices about options of other programs.
            problems: Problems found so far.

        Returns:
            All values and notices.

        Raises:
            OptionError: An option is not valid; the error lists all problems.
            CheckpointError: The model that sets defaults cannot be read.
        """
        values, origins, fixed = dict(known.values), dict(known.origins), dict[str, Setting]()
        given = {n: values[n] for n, o in origins.items() if not o.startswith("default")}
        defaults = {name: option.default for name, option in self.options.items()}
        for more_defaults, origin in self.defaults(given):
            defaults |= more_defaults
            for name in [name for name in more_defaults if name not in given]:
                setting = more_defaults[name], f"default {origin}"
                if name in self.options:
                    values[name], origins[name] = setting
                else:
                    fixed[name] = setting
        rules = () if self.awaits_model(values) else self.rules
        errors = find_errors(rules, values)
        if problems:  # an option that could not be parsed is not missing
            errors = [error for error in errors if " is missing; " not in error]
        if problems or errors:
            raise OptionError(*problems, *errors)
        # A value that equals the default, as in a printed configuration, needs no notice
        given = {n: v for n, v in given.items() if n not in META_NAMES}
        changed = {n: origins[n] for n, value in given.items() if value != defaults[n]}
        notices = find_notices(rules, {**values, "given": given}, changed)
        return Resolved(values, origins, known.foreign_notices, tuple(notices), fixed)


@dataclass(frozen=True)
class Resolved:
    """Values of all options, with the origin of each."""

    values: dict[str, Any]
    origins: dict[str, str]  # default, FILE:LINE, command line, keyword argument
    foreign_notices: tuple[str, ...] = ()  # about options of other programs
    option_notices: tuple[str, ...] = ()  # about our options
    fixed: Mapping[str, Setting] = field(default_factory=dict)  # not set by an option

    @property
    def notices(self) -> tuple[str, ...]:
        """All notices."""
        return (*self.foreign_notices, *self.option_notices)

    def build(self, group: type[Group]) -> Group:
        """Build one option group."""
        return build_group(group, self.values)

    def given(self) -> dict[str, Any]:
        """Return the values that were given, without those of META_NAMES."""
        defaults = {name for name, origin in self.origins.items() if origin.startswith("default")}
        return {n: v for n, v in self.values.items() if n not in META_NAMES and n not in defaults}

    def to_yaml(self, comments: Mapping[str, str] | None = None) -> str:
        """Format the values as YAML with the origin of each value as a comment.

        Args:
            comments: Text to append to the origin, by option.

        Returns:
            One line per option; a setting that is not an option is commented out.
        """
        rows = [(n, self.values[n], origin) for n, origin in self.origins.items()]
        rows = [row for row in rows if row[0] not in META_NAMES]
        rows += [(f"# {name}", *row) for name, row in self.fixed.items()]
        lines = {name: " ".join(origin.split()) for name, _, origin in rows}
        for name, comment in (comments or {}).items():
            lines[name] += f"; {comment}"
        return "".join(f"{name}: {dump_yaml(value)}  # {lines[name]}\n" for name, value, _ in rows)


def dump_yaml(value: Any) -> str:
    """Format a value as a single line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    texts = [item for item in (plain if isinstance(plain, list) else [plain]) if type(item) is str]
    style = None if all(text.isprintable() for text in texts) else '"'
    dumped = yaml.safe_dump(
        plain, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


class Resolver:
    """Merges values from one source after another and collects problems."""

    def __init__(self, program: Program[Any]):
        self.program, self.options = program, program.options
        self.values = {name: option.default for name, option in self.options.items()}
        self.origins = dict.fromkeys(self.options, "default")
        # Option, words and origin by name
        self.foreign_values: dict[str, tuple[ForeignOption, str, str]] = {}
        self.problems: list[str] = []
        self.notices: dict[str, str] = {}  # by name, at most one per option

    def _find_foreign(self, name: str) -> ForeignOption | None:
        if name in self.options:
            return self.program.shared_options.get(name)
        return self.program.foreign_options().get(name)

    def add_yaml_file(self, path: str) -> None:
        """Add the values of a YAML file."""
        path = find_config(os.path.expanduser(path))
        parse = check_unquoted_value if self.program.ignores_quotes else check_value
        try:
            values = read_yaml(path, self._is_string)
        except ValueError as error:
            self.problems.append(f"config: {error}")
            return
        for name, value, line in values:
            self.add_value(name, value, f"{path}:{line}", parse)
        if not values:
            remedy = "add lines such as `beam_size: 5`, or remove it"
            self.notices["config"] = f"config: has no effect; {path} is empty; {remedy}"

    def _is_string(self, name: str, yaml_type: str) -> bool:
        """Return True if `no`, 1.5 or 2024-01-01 in YAML is a string, as it would be in quotes."""
        foreign = self._find_foreign(name)
        if foreign and foreign.sets and yaml_type == "bool":  # a boolean of the other program
            return False
        option = self.options.get(foreign.renamed_to if foreign and foreign.renamed_to else name)
        is_string = option is not None and option.value_type is str and not option.choices
        return self.program.ignores_quotes and is_string

    def add_command_line(self, argv: Sequence[str]) -> None:
        """Add the values of a command line."""
        given, stray = split_argv(argv)
        if stray:
            hint = suggest_for_stray(stray, self.options, self.program.accepts_text)
            self.problems.append(f"{' '.join(stray)!r} does not belong to any option; {hint}")
        configs: list[str] = []
        for name, words in given:
            if name == "config":  # -config a -config b reads both; otherwise the last value wins
                configs += words
                words = configs
            self.add_value(name, words, "command line", parse_words)

    def add_value(self, name: str, raw: Any, origin: str, parse: Parser = check_value) -> None:
        """Add the value of an option.

        None is ignored.  An empty path counts as not given, because a shell passes one for an unset
        variable.

        Args:
            name: The option.
            raw: The value, or its words on the command line.
            origin: Origin of the value, for messages.
            parse: Function that parses the value.
        """
        foreign, is_ours = self._find_foreign(name), name in self.options
        is_typed = parse is parse_words
        if raw is None and (is_ours or foreign):
            return
        if is_ours and self.options[name].is_path:
            paths = list(raw) if isinstance(raw, (list, tuple)) else [raw]
            if paths and all(path == "" for path in paths):
                self._reset(name)
                return
            raw = [path for path in paths if path != ""] if self.options[name].is_list else raw
        words = format_value(raw or True) if is_typed else format_value(raw)
        has_effect = foreign is not None and foreign.has_effect(words)
        # A neutral value of the other program; "" on the command line is a value
        if foreign and is_ours and not has_effect and (words or not is_typed):
            self._reset(name)
        elif name in META_NAMES and is_ours and not is_typed:
            self.problems.append(f"{name} is only supported on the command line ({origin})")
        elif foreign and foreign.sets and words == "true":
            self._add_notice(name, foreign, words, origin)
            self._set(*foreign.sets, origin, check_value)
        elif is_ours or foreign is None:
            self._set(name, raw, origin, parse)
        elif foreign.renamed_to and has_effect:
            self._add_notice(name, foreign, words, origin)
            self._set(foreign.renamed_to, raw, origin, parse)
        elif has_effect:
            self.foreign_values[name] = foreign, words, origin
        else:  # overrides an earlier value
            self.foreign_values.pop(name, None)

    def _reset(self, name: str) -> None:
        self.values[name], self.origins[name] = self.options[name].default, "default"

    def _set(self, name: str, raw: Any, origin: str, parse: Parser) -> None:
        """Parse and set the value of an option; the arguments are those of `add_value`."""
        if name not in self.options:
            self.problems.append(f"{self._explain_unknown(name, raw)} ({origin})")
            return
        try:
            self.values[name] = parse(self.options[name], raw)
            self.origins[name] = origin
        except ValueError as error:
            foreign = self._find_foreign(name)
            has_suggestion = "; did you mean" in f"{error}"
            hint = ""
            if foreign and foreign.is_rejected and not has_suggestion:
                hint = f"; {foreign.message}"
            if isinstance(raw, list) and parse is not parse_words and CONTENTS.get(name) == PHRASES:
                hint = f"; {name} must be {PHRASES}"
                if origin == KEYWORD_ORIGIN:
                    hint += "; pass the phrases themselves to translate()"
            is_typed = parse is parse_words and not has_suggestion
            suggestion = self._suggest_for_extra(name, raw) if is_typed else ""
            self.problems.append(f"{name}: {error}{hint} ({origin}){suggestion}")

    def _suggest_for_extra(self, name: str, words: list[str]) -> str:
        """Return a remedy for words after an option that does not take them."""
        option = self.options[name]
        if option.value_type is bool and words:
            if len(words) == 1 and (boolean := BOOLEAN_WORDS.get(words[0].lower())) is not None:
                return f"; did you mean {format_value(boolean)}?"
            words = ["true", *words]
        if option.is_list or len(words) < 2 or not any(words[1:]):
            return ""
        return f"; {suggest_for_extra(option, words, self.options, self.program.accepts_text)}"

    def _explain_unknown(self, name: str, raw: Any = None) -> str:
        """Return the error for an unknown option name."""
        problem, plain = f"unknown option {name[:50]}", name.replace("-", "_")
        if plain in self.options or plain in self.program.foreign_options():
            return f"{problem}; use {plain} instead"
        if hint := self.program.hint(plain):
            return f"{problem}; {hint}"
        if isinstance(raw, dict):
            remedy = f"write its options at the start of a line, without {name[:50]}"
            return f"{problem}; sections are not supported: {remedy}"
        if not (near := suggest_names(name, self.options, self.program.common_options)):
            return f"{problem}; python -m {self.program.name} -help all lists all options"
        return f"{problem}; did you mean {' or '.join(near)}?"

    def _add_notice(self, name: str, foreign: ForeignOption, words: str, origin: str) -> None:
        """Add the notice about an option of another program, with its value and origin."""
        if foreign.message:
            value = "" if words == "true" else f" {words[:50]}"
            self.notices[name] = f"{name}{value}: {foreign.message} ({origin})"

    def resolve(self) -> Resolved:
        """Return all values and notices, checked by the rules.

        Raises:
            OptionError: An option is not valid; the error lists all problems.
        """
        for name, (foreign, words, origin) in self.foreign_values.items():
            is_excused = foreign.transform and foreign.transform in self.values["transforms"]
            if foreign.is_rejected and not is_excused:
                self.problems.append(f"{name} {words[:50]}: {foreign.message} ({origin})")
            else:
                self._add_notice(name, foreign, words, origin)
        given = Resolved(self.values, self.origins, tuple(self.notices.values()))
        return self.program.complete(given, self.problems)


def split_argv(argv: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Split a command line into options with their words, and words before the first option.

    ["x", "-a", "1", "--b=2"] -> [("a", ["1"]), ("b", ["2"])], ["x"]
    """
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
