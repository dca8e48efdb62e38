"""Command line, YAML files and keyword arguments, merged into one set of values."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.checkpoints.shipped import find_config
from onmt_lite.config.conditions import unmet
from onmt_lite.config.foreign import Foreign, as_words
from onmt_lite.config.option import META_NAMES, Option, check, check_quoted, parse_words
from onmt_lite.config.yamlfile import read_yaml
from onmt_lite.errors import OptionError

# From the values that are given to defaults that depend on them, and in words, of what; the last
# ones win
Defaults = Callable[[dict[str, Any]], list[tuple[Mapping[str, Any], str]]]
Read = Callable[[Option, Any], Any]  # the value of an option; ValueError says what was expected
Remark = Callable[[str], str | None]  # what to say of a name that no option has


def no_defaults(given: dict[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    return []


def no_remark(name: str) -> str | None:
    return None


@dataclass(frozen=True)
class Resolved:
    """Values of all options, with where each came from: default, FILE:LINE, command line.

    `notes` names options of other programs that were taken without effect.
    """

    values: dict[str, Any]
    origins: dict[str, str]
    notes: tuple[str, ...] = ()

    def build(self, group: type) -> Any:
        """The dataclass of one group."""
        return group(**{f.name: self.values[f.name] for f in dataclasses.fields(group)})

    def to_yaml(self) -> str:
        """A configuration that gives these values again, the origins as comments."""
        lines = []
        for name, value in self.values.items():
            # A file's name may hold a line feed, and an origin must stay a comment
            origin = " ".join(self.origins[name].split())
            lines.append(f"{name}: {dump(value)}  # {origin}\n")
        return "".join(lines)

    def given(self) -> dict[str, Any]:
        """The values that no default has given."""
        return {n: v for n, v in self.values.items() if not self.origins[n].startswith("default")}

    def notes_on(self, reasons: Mapping[str, str]) -> list[str]:
        """A note for each given option without effect, from why it has none."""
        given = self.configuration().given()
        return [
            f"{name}: without effect; {why} ({self.origins[name]})"
            for name, why in reasons.items()
            if name in given
        ]

    def configuration(self) -> "Resolved":
        """What a YAML file may hold: all but the options of the command line alone."""
        names = [name for name in self.values if name not in META_NAMES]
        return Resolved({n: self.values[n] for n in names}, {n: self.origins[n] for n in names})


def _without_paths(value: Any) -> Any:
    """Paths as text, those in a list too."""
    if isinstance(value, (list, tuple)):
        return [_without_paths(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def dump(value: Any) -> str:
    """A value on one line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    texts = [item for item in (plain if isinstance(plain, list) else [plain]) if type(item) is str]
    style = None if all(text.isprintable() for text in texts) else '"'
    dumped = yaml.safe_dump(
        plain, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


class Resolver:
    """Takes values from one source after another, collecting problems on the way."""

    def __init__(
        self,
        options: dict[str, Option],
        remark: Remark = no_remark,
        foreign: Mapping[str, Foreign] | None = None,
        quoted: bool = False,
    ):
        self.options = options
        self.quoted = quoted
        self.remark = remark
        self.foreign = foreign or {}
        self.values = {name: option.default for name, option in options.items()}
        self.origins = dict.fromkeys(options, "default")
        self.asked: dict[str, tuple[str, str]] = {}  # foreign options: words and origin
        self.problems: list[str] = []
        self.notes: dict[str, str] = {}  # by name, so that each option has one

    def put(self, name: str, value: Any, origin: str, read: Read = check) -> None:
        """Take a value from YAML or Python; None is as if it were not there."""
        if value is None and (name in self.options or name in self.foreign):
            return
        known = self.foreign.get(name)
        if known and name in self.options and not known.asks_for(as_words(value)):
            self._unset(name)  # what "not given" is in the other program
            return
        if name in META_NAMES and name in self.options:
            self.problems.append(f"{name} belongs on the command line; give it there ({origin})")
        elif not self._take_foreign(name, value, as_words(value), origin, read):
            self._take(name, value, origin, read)

    def put_words(self, name: str, words: list[str]) -> None:
        """Take words of the command line."""
        shown, known = as_words(words or True), self.foreign.get(name)
        if known and shown and name in self.options and not known.asks_for(shown):
            self._unset(name)  # as in YAML, but for "", which nobody types to say nothing
            return
        if not self._take_foreign(name, words, shown, "command line", parse_words):
            self._take(name, words, "command line", parse_words)

    def _unset(self, name: str) -> None:
        """As if no earlier source had given the option."""
        self.values[name], self.origins[name] = self.options[name].default, "default"

    def _take_foreign(self, name: str, raw: Any, words: str, origin: str, read: Read) -> bool:
        """Whether nothing is left to do for the option, as it is another program's."""
        known = self.foreign.get(name)
        if known is None:
            return False
        if known.switch and words == "true":
            name_here, value = known.switch
            self._note(name, words, known.says, origin)
            self._take(name_here, value, origin, check)
            return True
        if name in self.options:
            return False
        if known.renamed and known.asks_for(words):
            self._note(name, words, known.says, origin)
            self._take(known.renamed, raw, origin, read)
        else:
            self.asked[name] = words, origin
        return True

    def _note(self, name: str, words: str, says: str, origin: str) -> None:
        if says:
            shown = "" if words == "true" else f" {words[:50]}"
            self.notes[name] = f"{name}{shown}: {says} ({origin})"

    def _judge_foreign(self) -> None:
        """Say what becomes of options of another program, once for each."""
        for name, (words, origin) in self.asked.items():
            known = self.foreign[name]
            if not known.asks_for(words):
                continue
            if known.refused and (not known.unless or unmet(known.unless, self.values)):
                self.problems.append(f"{name} {words[:50]}: {known.says} ({origin})")
            else:
                self._note(name, words, known.says, origin)

    def _take(self, name: str, raw: Any, origin: str, read: Read) -> None:
        if name not in self.options:
            self.problems.append(f"{self._unknown(name)} ({origin})")
            return
        try:
            self.values[name] = read(self.options[name], raw)
            self.origins[name] = origin
        except ValueError as error:
            known = self.foreign.get(name)
            hint = f"; {known.says}" if known and known.refused else ""
            self.problems.append(f"{name}: {error}{hint} ({origin})")

    def _unknown(self, name: str) -> str:
        shown = name[:50]
        if (plain := name.replace("-", "_")) in self.options:
            return f"unknown option {shown}; here it is {plain}"
        if remark := self.remark(plain):
            return f"unknown option {shown}; {remark}"
        if plain in self.foreign:
            return f"unknown option {shown}; it is spelt {plain}"
        starts = [known for known in self.options if name and known.startswith(name)]
        near = starts or difflib.get_close_matches(name, self.options, n=1, cutoff=0.6)
        if not near:
            return f"unknown option {shown}; -help lists all"
        return f"unknown option {shown}; did you mean {' or '.join(near)}?"

    def command_line(self, argv: Sequence[str]) -> None:
        given, stray = split_argv(argv)
        for word in stray:
            self.problems.append(
                f"{word!r} belongs to no option; name the input with -src (command line)"
            )
        configs: list[str] = []
        for name, words in given:
            if name == "config":  # -config a -config b reads both; of others the last one counts
                configs += words
                words = configs
            self.put_words(name, words)

    def yaml_file(self, path: str) -> None:
        path = find_config(path)
        read = check_quoted if self.quoted else check
        try:
            for name, value, line in read_yaml(path, self._is_text):
                self.put(name, value, f"{path}:{line}", read)
        except ValueError as error:
            self.problems.append(f"config: {error}")

    def _is_text(self, name: str, kind: str) -> bool:
        """Whether `no`, 1.5 or 2024-01-01 in a file are text, as they would be in quotes."""
        known = self.foreign.get(name)
        if known and known.switch and kind == "bool":  # a switch of the other program
            return False
        option = self.options.get(known.renamed if known and known.renamed else name)
        return self.quoted and option is not None and option.kind is str and not option.choices

    def keywords(self, given: dict[str, Any]) -> None:
        for name, value in given.items():
            self.put(name, _without_paths(value), "keyword argument")

    def apply(self, defaults: Defaults) -> None:
        """Defaults that depend on what has been given."""
        given = {n: self.values[n] for n, origin in self.origins.items() if origin != "default"}
        for found, origin in defaults(given):
            for name in found.keys() - given.keys():
                self.values[name], self.origins[name] = found[name], f"default {origin}"

    def result(self) -> Resolved:
        """Raises OptionError with every problem found so far."""
        self._judge_foreign()
        if self.problems:
            raise OptionError(*self.problems)
        return Resolved(self.values, self.origins, tuple(self.notes.values()))


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


def load(
    argv: Sequence[str],
    options: dict[str, Option],
    cross_check: Callable[[dict[str, Any]], list[str]],
    remark: Remark = no_remark,
    defaults: Defaults = no_defaults,
    foreign: Mapping[str, Foreign] | None = None,
    quoted: bool = False,
) -> Resolved:
    """The command line and the YAML files that it names.  OptionError lists all problems.

    quoted  whether quotes around a value in YAML make no difference
    """
    resolver = Resolver(options, remark, foreign, quoted)
    for path in [path for name, words in split_argv(argv)[0] if name == "config" for path in words]:
        resolver.yaml_file(path)
    resolver.command_line(argv)
    resolver.apply(defaults)
    resolver.problems += cross_check(resolver.values)
    return resolver.result()
