"""Translate names of weights between other toolkits and us, by the tables in weight_names.yaml."""

import re
from functools import lru_cache
from typing import NamedTuple

from onmt_lite.checkpoints.config_reader import load_yaml

NUMBER = re.compile(r"\d+")
SUFFIX = re.compile(r"(weight|bias)\w*")  # what is added to the names of a table


class Names(NamedTuple):
    """A table in both directions."""

    theirs: dict[str, list[str]]  # by our name: the names whose tensors are stacked
    ours: dict[str, list[str]]  # by each of their names: our name, and the names of the stack


@lru_cache
def load_weight_names(model: str) -> Names:
    """Read the table of a model type."""
    names = Names({}, {})
    for scope in load_yaml("weight_names.yaml")[model]:
        for ours, versions in scope["parts"].items():
            ours = join_name(scope.get("ours", ""), ours)
            for version in versions if isinstance(versions, list) else [versions]:
                stack = [join_name(scope.get("theirs", ""), part) for part in version.split()]
                names.theirs.setdefault(ours, stack)
                names.ours.update(dict.fromkeys(stack, [ours, *stack]))
    return names


def translate_name(name: str, table: dict[str, list[str]]) -> list[str]:
    """Look up a weight: encoder.#.ffn.up in the table is the entry of encoder.3.ffn.up.bias.

    Args:
        name: the weight, with the number of its layer and a suffix.
        table: one direction of a `Names`.

    Returns:
        The names in the table, with number and suffix; none if the table lacks the weight.
    """
    scope, _, suffix = name.rpartition(".")
    for stem, end in ((name, ""), (scope, suffix if SUFFIX.fullmatch(suffix) else None)):
        number = NUMBER.search(stem)
        for key in (stem, NUMBER.sub("#", stem, count=1)):
            if end is not None and key in table:
                layer = number[0] if number else ""
                return [join_name(found.replace("#", layer), end) for found in table[key]]
    return []


def join_name(*names: str) -> str:
    """Join the parts of a weight's name, of which some may be empty."""
    return ".".join(filter(None, names))
