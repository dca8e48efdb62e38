"""What an option needs beside it, in the words that help prints: "-coverage_penalty wu or summary".

A condition is clauses joined by "and", a clause alternatives joined by "or":

    -name            the option asks for something: not false, 0, none, "" or an empty list
    -name VALUE      this is its value, or one of its values; a bare VALUE goes with the last name
    -name N or more  it has at least this value
    no -name         it asks for nothing
    several -name    it has two values or more
"""

import re
from collections.abc import Mapping
from typing import Any

from onmt_lite.config.foreign import as_words
from onmt_lite.config.option import Option

Values = Mapping[str, Any]


def refusals(options: Mapping[str, Option], values: Values) -> list[str]:
    """A problem for each option that lacks what it requires."""
    return [
        f"{name} needs {_undashed(clause)}; give that too, or leave {name} out"
        for name, option in options.items()
        if option.requires and asks(values[name]) and values[name] != option.default
        if (clause := unmet(option.requires, values))
    ]


def idle(options: Mapping[str, Option], values: Values, usual: Values) -> dict[str, str]:
    """Why options have no effect, by their names: those that lack what they need, where their
    values ask for something that is not the usual."""
    reasons = {}
    for name, option in options.items():
        clause = unmet(option.needs, values)
        wanted = asks(values[name]) or option.default is True  # which nobody turns off for nothing
        if clause and wanted and values[name] != usual[name]:
            needed = re.findall(r"(?<!\S)-([a-z]\w*)", clause)
            reasons[name] = f"{name} needs {_undashed(clause)}"
            if len(needed) == 1:
                value = values[needed[0]]
                state = "not given" if value in (None, "", ()) else as_words(value)
                reasons[name] = f"{needed[0]} is {state}, {reasons[name]}"
    return reasons


def asks(value: Any) -> bool:
    """Whether a value asks for anything."""
    return bool(value) and value != "none"


def unmet(condition: str, values: Values) -> str:
    """The first clause that does not hold; "" where all do."""
    clauses = condition.split(" and ") if condition else []
    return next((clause for clause in clauses if not _holds(clause, values)), "")


def _holds(clause: str, values: Values) -> bool:
    name, wanted = "", ""
    for part in clause.split(" or "):
        words = part.split()
        if words[0] in ("no", "several"):
            value = values[words[1][1:]]
            found = not asks(value) if words[0] == "no" else len(value) > 1
        elif words == ["more"]:
            found = values[name] >= int(wanted)
        else:
            if words[0].startswith("-"):
                name = words.pop(0)[1:]
            wanted = words[0] if words else ""
            value = values[name]
            written = value if isinstance(value, tuple) else (str(value),)
            found = wanted in written if words else asks(value)
        if found:
            return True
    return False


def _undashed(clause: str) -> str:
    """The clause as messages have it: -beam_size becomes beam_size."""
    return re.sub(r"(?<!\S)-(?=[a-z])", "", clause)
