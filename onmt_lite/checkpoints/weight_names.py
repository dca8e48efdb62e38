"""Weight names of other toolkits and the internal names, in both directions (weight_names.yaml)."""

import re
from functools import lru_cache
from typing import NamedTuple

from onmt_lite.checkpoints.config_reader import load_yaml

NUMBER = re.compile(r"\d+")
SUFFIX = re.compile(r"(weight|bias)\w*")  # omitted in the tables


class Names(NamedTuple):
    """A table of weight_names.yaml in both directions."""

    external: dict[str, list[str]]  # internal name -> names of the tensors to stack
    internal: dict[str, list[str]]  # tensor name -> internal name, then all names of its stack


@lru_cache
def load_weight_names(model: str) -> Names:
    """Load the table of a model format (cached)."""
    names = Names({}, {})
    for scope in load_yaml("weight_names.yaml")[model]:
        for internal, versions in scope["parts"].items():
            internal = join_name(scope.get("internal", ""), internal)
            for version in versions if isinstance(versions, list) else [versions]:
                stack = [join_name(scope.get("external", ""), part) for part in version.split()]
                names.external.setdefault(internal, stack)
                names.internal.update(dict.fromkeys(stack, [internal, *stack]))
    return names


def translate_name(name: str, table: dict[str, list[str]]) -> list[str]:
    """Translate a weight name: the entry `encoder.#.ffn.up` covers encoder.3.ffn.up.bias.

    Args:
        name: a weight name with layer number and suffix.
        table: one of the two directions of `Names`.

    Returns:
        The names in the table, with layer number and suffix; empty if the table has no entry.
    """
    scope, _, suffix = name.rpartition(".")
    for stem, end in ((name, ""), (scope, suffix if SUFFIX.fullmatch(suffix) else None)):
        number = NUMBER.search(stem)
        for key in (stem, NUMBER.sub("#", stem, count=1)):
            if end is not None and key in table:
                layer = number[0] if number else ""
                return [join_name(entry.replace("#", layer), end) for entry in table[key]]
    return []


def join_name(*names: str) -> str:
    """Join the non-empty parts of a weight name with dots."""
    return ".".join(filter(None, names))
