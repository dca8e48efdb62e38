"""Rules about options that do not go together: when a rule holds, how serious it is, what it says.

Each program has a table of rules; the translator's is in `onmt_lite.config.translate_rules`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from onmt_lite.config.option import format_value
from onmt_lite.errors import Message


class Values(dict[str, Any]):
    """Values of all options by name: `v.beam_size` or `v["beam_size"]`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def fill(self, template: str, *texts: str) -> Message:
        """Fill in `{beam_size}` with name and value, and `{0}` with the first text."""
        return Message.of(
            template, *texts, **{name: format_value(value) for name, value in self.items()}
        )


Predicate = Callable[[Values], Any]
# A template of `Values.fill`, or a function that makes one or several messages
MessageSource = str | Callable[[Values], str | Iterable[str]]
Conditions = dict[
    str, Predicate
]  # conditions that must all hold, by the words that help has for them


@dataclass(frozen=True)
class Rule:
    """One entry of a table of rules.

    refused: the program ends with this message.  idle: the options `names` have no effect, and a
    note says why if they were given.  noted: the message is a note.
    """

    severity: Literal["refused", "idle", "noted"]
    applies: Predicate
    message: MessageSource
    options: tuple[str, ...] = ()  # options, each of which is `v.option` in turn
    help: str = ""  # what the help on these options says about the rule

    def format_messages(self, v: Values) -> list[str]:
        """Return what to say about these values; nothing unless the rule holds."""
        if not self.applies(v):
            return []
        if isinstance(self.message, str):
            return [v.fill(self.message)]
        said = self.message(v)
        return [said] if isinstance(said, str) else list(said)


# -- entries of a table ---------------------------------------------------------------------------


def reject_if(holds: Predicate, says: MessageSource) -> Rule:
    return Rule("refused", holds, says)


def reject_all(problems: Callable[[Values], Iterable[str]]) -> Rule:
    """Refuse with every problem that a function finds."""
    return Rule("refused", lambda v: True, problems)


def require_paths(*names: str) -> Rule:
    """Refuse if one of these paths is not given."""
    return reject_all(lambda v: [f"{n} is missing; give a path" for n in names if not v[n]])


def requires(names: str, clauses: Conditions, usual: Any = None) -> Rule:
    """Refuse the options unless all clauses hold; `usual` is a value that asks for nothing."""

    def says(v: Values) -> str:
        lacks = _strip_hyphens(find_unmet(clauses, v))
        return v.fill(f"{v.option} needs {{0}}; give that too, or leave {v.option} out", lacks)

    return Rule(
        "refused",
        lambda v: is_set(v[v.option]) and v[v.option] != usual and find_unmet(clauses, v),
        says,
        tuple(names.split()),
        f"Requires {' and '.join(clauses)}",
    )


def no_effect_if(names: str, holds: Predicate, says: MessageSource) -> Rule:
    return Rule("idle", holds, says, tuple(names.split()))


def effective_only_with(names: str, clauses: Conditions, on: bool = False) -> Rule:
    """The options are idle unless all clauses hold; `on`: false asks for something, too."""

    def says(v: Values) -> str:
        clause = find_unmet(clauses, v)
        why = v.fill(f"{v.option} needs {{0}}", _strip_hyphens(clause))
        needed = re.findall(r"(?<!\S)-([a-z]\w*)", clause)
        if len(needed) != 1:
            return why
        shown = "not given" if v[needed[0]] in (None, "", ()) else format_value(v[needed[0]])
        return v.fill(f"{needed[0]} is {shown}, {{0}}", why)

    return Rule(
        "idle",
        lambda v: (on or is_set(v[v.option])) and find_unmet(clauses, v),
        says,
        tuple(names.split()),
        f"Effective only with {' and '.join(clauses)}",
    )


def notice_if(holds: Predicate, says: MessageSource) -> Rule:
    return Rule("noted", holds, says)


# -- clauses --------------------------------------------------------------------------------------


def any_set(*names: str) -> Conditions:
    """-a or -b: one of these options asks for something."""
    return {" or ".join(f"-{n}" for n in names): lambda v: any(is_set(v[n]) for n in names)}


def none_set(*names: str) -> Conditions:
    """no -a and no -b: none of these options asks for anything."""

    def absence(name: str) -> Predicate:
        return lambda v: not is_set(v[name])

    return {f"no -{name}": absence(name) for name in names}


def value_in(name: str, *values: str) -> Conditions:
    """-name x or y: the value is one of these, or holds one of them."""

    def holds(v: Values) -> bool:
        return bool({*values} & ({*v[name]} if isinstance(v[name], tuple) else {v[name]}))

    return {Message.of(f"-{{{name}}}", **{name: " or ".join(values)}): holds}


def at_least(name: str, least: int) -> Conditions:
    return {Message.of(f"-{{{name}}} or more", **{name: least}): lambda v: v[name] >= least}


def is_set(value: Any) -> bool:
    """Return whether a value asks for anything."""
    return bool(value) and value != "none"


def find_unmet(clauses: Conditions, v: Values) -> str:
    """The first clause that does not hold; "" if all do."""
    return next((words for words, holds in clauses.items() if not holds(v)), "")


def _strip_hyphens(clause: str) -> Message:
    """Write a clause as messages have it: -beam_size becomes beam_size."""
    plain = Message(re.sub(r"(?<!\S)-(?=[a-z])", "", clause))
    plain.keywords = getattr(clause, "keywords", plain)
    return plain


def find_errors(rules: Iterable[Rule], values: Mapping[str, Any]) -> list[str]:
    """Return the messages of all rules that refuse these values."""
    return [
        said
        for rule in rules
        if rule.severity == "refused"
        for name in rule.options or ("",)
        for said in rule.format_messages(Values(values, option=name))
    ]


def find_notices(
    rules: Iterable[Rule], values: Mapping[str, Any], asked: Mapping[str, str]
) -> list[str]:
    """Return the notes about these values, one for each option that is idle.

    asked  options that ask for more than holds anyway, and where each was given
    """
    others: list[str] = []
    idle: dict[str, str] = {}
    for rule in rules:
        if rule.severity == "noted":
            others += rule.format_messages(Values(values))
        for name in rule.options if rule.severity == "idle" else ():
            if name in asked and name not in idle:
                for why in rule.format_messages(Values(values, option=name)):
                    template = f"{name}: without effect; {{0}} ({{1}})"
                    idle[name] = Message.of(template, why, asked[name])
    return [*others, *idle.values()]


def describe_requirements(rules: Iterable[Rule], name: str) -> str:
    """Return what the help on an option says about the rules."""
    return ". ".join(rule.help for rule in rules if rule.help and name in rule.options)
