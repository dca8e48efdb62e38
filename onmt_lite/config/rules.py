"""Rules about combinations of options: when a rule applies, how severe it is, and its message.

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
        """Replace `{beam_size}` with name and value, and `{0}` with the first text."""
        return Message.of(
            template, *texts, **{name: format_value(value) for name, value in self.items()}
        )


OPTION_NAME = re.compile(r"(?<!\S)-([a-z]\w*)")  # in the text of a condition
Predicate = Callable[[Values], Any]
# A template for `Values.fill`, or a function that returns one or several messages
MessageSource = str | Callable[[Values], str | Iterable[str]]
Conditions = dict[str, Predicate]  # conditions that must all be met, by their text


@dataclass(frozen=True)
class Rule:
    """An entry in a table of rules.

    Severities: "error" ends the program with the message, "no effect" prints a notice for each of
    the options that was given, and "notice" prints the message as a notice.
    """

    severity: Literal["error", "no effect", "notice"]
    applies: Predicate
    message: MessageSource
    options: tuple[str, ...] = ()  # the rule is applied to each, as `v.option`
    help: str = ""  # added to the help of these options

    def format_messages(self, v: Values) -> list[str]:
        """Return the messages for these values; none unless the rule applies."""
        if not self.applies(v):
            return []
        if isinstance(self.message, str):
            return [v.fill(self.message)]
        messages = self.message(v)
        return [messages] if isinstance(messages, str) else list(messages)


# -- rules ----------------------------------------------------------------------------------------


def reject_if(applies: Predicate, message: MessageSource) -> Rule:
    """Return a rule that reports an error if a predicate is true."""
    return Rule("error", applies, message)


def reject_all(find_problems: Callable[[Values], Iterable[str]]) -> Rule:
    """Return a rule that reports every problem found by a function as an error."""
    return Rule("error", lambda v: True, find_problems)


def require_paths(*names: str) -> Rule:
    """Return a rule that reports each of these paths that is not set."""
    return reject_all(lambda v: [f"{n} is missing; set it to a path" for n in names if not v[n]])


def requires(names: str, conditions: Conditions, usual: Any = None) -> Rule:
    """Return a rule that rejects options unless all conditions are met.

    Args:
        names: Options, separated by spaces.
        conditions: The conditions.
        usual: Value that never needs the conditions.

    Returns:
        The rule.
    """

    def explain(v: Values) -> str:
        unmet = find_unmet(conditions, v)
        condition = _strip_hyphens(unmet.removeprefix("no "))
        if unmet.startswith("no "):
            return v.fill(f"{v.option} and {{0}} cannot be combined; remove one of them", condition)
        remedy = "set it as well" if len(OPTION_NAME.findall(unmet)) == 1 else "set one of them"
        return v.fill(f"{v.option} requires {{0}}; {remedy}, or remove {v.option}", condition)

    return Rule(
        "error",
        lambda v: is_set(v[v.option]) and v[v.option] != usual and find_unmet(conditions, v),
        explain,
        tuple(names.split()),
        _describe_conditions(conditions, "Requires", "Cannot be combined with"),
    )


def no_effect_if(names: str, applies: Predicate, message: MessageSource) -> Rule:
    """Return a rule for options that have no effect if a predicate is true.

    Args:
        names: Options, separated by spaces.
        applies: The predicate.
        message: The reason.

    Returns:
        The rule.
    """
    return Rule("no effect", applies, message, tuple(names.split()))


def effective_only_with(names: str, conditions: Conditions, on: bool = False) -> Rule:
    """Return a rule for options that have no effect unless all conditions are met.

    Args:
        names: Options, separated by spaces.
        conditions: The conditions.
        on: True if the options are on by default, so that false counts as set.

    Returns:
        The rule.
    """

    def explain(v: Values) -> str:
        unmet = find_unmet(conditions, v)
        name, *others = OPTION_NAME.findall(unmet)
        state = f"{name} is {format_value(v[name])}"
        if unmet.startswith("no "):
            return state
        reason = "it requires {0}"
        if not others and v[name] not in (None, "", ()):
            reason += f", but {state}"
        return v.fill(reason, _strip_hyphens(unmet))

    return Rule(
        "no effect",
        lambda v: (on or is_set(v[v.option])) and find_unmet(conditions, v),
        explain,
        tuple(names.split()),
        _describe_conditions(conditions, "Effective only with", "No effect with"),
    )


def notice_if(applies: Predicate, message: MessageSource) -> Rule:
    """Return a rule that prints a notice if a predicate is true."""
    return Rule("notice", applies, message)


# -- conditions -----------------------------------------------------------------------------------


def any_set(*names: str) -> Conditions:
    """Return the condition "-a, -b or -c": at least one of these options is set."""
    return {_join_or(f"-{n}" for n in names): lambda v: any(is_set(v[n]) for n in names)}


def none_set(*names: str) -> Conditions:
    """Return the conditions "no -a" and "no -b": none of these options is set."""

    def is_unset(name: str) -> Predicate:
        return lambda v: not is_set(v[name])

    return {f"no -{name}": is_unset(name) for name in names}


def value_in(name: str, *values: str) -> Conditions:
    """Return the condition "-name x or y": the option is, or contains, one of these values."""

    def has_value(v: Values) -> bool:
        return bool({*values} & ({*v[name]} if isinstance(v[name], tuple) else {v[name]}))

    return {Message.of(f"-{{{name}}}", **{name: _join_or(values)}): has_value}


def at_least(name: str, least: int) -> Conditions:
    """Return the condition "-name N or more"."""
    return {Message.of(f"-{{{name}}} or more", **{name: least}): lambda v: v[name] >= least}


def is_set(value: Any) -> bool:
    """Return True unless a value is false, empty, 0, None or "none"."""
    return bool(value) and value != "none"


def find_unmet(conditions: Conditions, v: Values) -> str:
    """Return the text of the first condition that is not met; "" if all are met."""
    return next((text for text, is_met in conditions.items() if not is_met(v)), "")


def _join_or(words: Iterable[str]) -> str:
    """Join alternatives: "a", "a or b", "a, b or c"."""
    return " or ".join(", ".join(words).rsplit(", ", 1))


def _describe_conditions(conditions: Conditions, required: str, excluded: str) -> str:
    """Return the conditions for the help.

    Args:
        conditions: The conditions.
        required: Words before the conditions that must be met.
        excluded: Words before the options of "no -a" conditions.

    Returns:
        One or two sentences, without the final period.
    """
    needed = [text for text in conditions if not text.startswith("no ")]
    banned = [text.removeprefix("no ") for text in conditions if text.startswith("no ")]
    sentences = [f"{required} {' and '.join(needed)}"] * bool(needed)
    return ". ".join([*sentences, *[f"{excluded} {_join_or(banned)}"] * bool(banned)])


def _strip_hyphens(condition: str) -> Message:
    """Remove hyphens before option names, as in messages: -beam_size -> beam_size."""
    plain = Message(OPTION_NAME.sub(r"\1", condition))
    plain.keywords = getattr(condition, "keywords", plain)
    return plain


def find_errors(rules: Iterable[Rule], values: Mapping[str, Any]) -> list[str]:
    """Return the messages of all rules with severity "error"."""
    return [
        message
        for rule in rules
        if rule.severity == "error"
        for name in rule.options or ("",)
        for message in rule.format_messages(Values(values, option=name))
    ]


def find_notices(
    rules: Iterable[Rule], values: Mapping[str, Any], given: Mapping[str, str]
) -> list[str]:
    """Return notices about values.

    Args:
        rules: The rules.
        values: Values of all options.
        given: Options with a value other than the default, and the origin of each value.

    Returns:
        The notices; an option without effect has one, from the first rule that applies.
    """
    notices: list[str] = []
    no_effect: dict[str, str] = {}
    for rule in rules:
        if rule.severity == "notice":
            notices += rule.format_messages(Values(values))
        for name in rule.options if rule.severity == "no effect" else ():
            if name in given and name not in no_effect:
                for why in rule.format_messages(Values(values, option=name)):
                    template = f"{name}: has no effect; {{0}} ({{1}})"
                    no_effect[name] = Message.of(template, why, given[name])
    return [*notices, *no_effect.values()]


def describe_requirements(rules: Iterable[Rule], name: str) -> str:
    """Return the requirements of an option for its help."""
    return ". ".join(rule.help for rule in rules if rule.help and name in rule.options)
