"""The one reader of YAML and JSON files that others wrote: plain values of limited depth."""

import json
from typing import Any

import yaml

# Raised by PyYAML for a value that is not of its tag, as in `!!bool 5`, or beyond all floats
SCALAR_ERRORS = (ValueError, KeyError, IndexError, AttributeError, OverflowError)


def parse_json(data: bytes | str, unique: bool = True, max_depth: int = 0) -> Any:
    """Parse JSON.

    Args:
        data: UTF-8, UTF-16 or UTF-32, or text.
        unique: whether equal names in an object are refused; else the last one counts.
        max_depth: how many lists and objects may be in one another; 0: as many as Python reads.

    Returns:
        The value.

    Raises:
        ValueError: for anything else, also for an integer of more than 4,300 digits.
    """
    try:
        value = json.loads(data, object_pairs_hook=_to_object if unique else None)
        is_too_deep = max_depth and _depth(value) > max_depth
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("not JSON") from None
    if is_too_deep:
        raise ValueError("too deep nesting")
    return value


def _to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse equal names, of which json keeps the last one silently."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has {name[:50]!r} twice")
        found[name] = value
    return found


def _depth(value: Any) -> int:
    """Count how many lists and objects are in one another."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def parse_yaml(data: bytes) -> Any:
    """Parse YAML of plain values.  Raises ValueError for anything else."""
    try:
        return PlainLoader(data).get_single_data()
    except (yaml.YAMLError, RecursionError, *SCALAR_ERRORS):
        raise ValueError("not YAML that is understood") from None


class PlainLoader(yaml.SafeLoader):
    """Without deep nesting, and without merge keys: ten of them in a row make a table a thousand
    times as large."""

    depth, max_depth = 0, 100

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        self.depth += 1
        if self.depth > self.max_depth:
            mark = event.start_mark
            raise yaml.MarkedYAMLError(problem="too deep nesting", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("a merge key")
        super().flatten_mapping(node)
