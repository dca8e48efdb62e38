"""Parsers for YAML and JSON files from outside: plain values with limited nesting."""

import json
from typing import Any

import yaml

# Raised by PyYAML for a value that does not match its tag, as in `!!bool 5`, or overflows a float
SCALAR_ERRORS = (ValueError, KeyError, IndexError, AttributeError, OverflowError)


def parse_json(data: bytes | str, unique: bool = True, max_depth: int = 0) -> Any:
    """Parse JSON.

    Args:
        data: UTF-8, UTF-16 or UTF-32 bytes, or a string.
        unique: whether duplicate names in an object are rejected; otherwise the last one counts.
        max_depth: limit for nested arrays and objects; 0: as deep as Python allows.

    Returns:
        The value.

    Raises:
        ValueError: for invalid data, and for an integer of more than 4,300 digits.
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
    """Build an object; reject duplicate names, of which json silently keeps the last."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"it has {name[:50]!r} twice")
        result[name] = value
    return result


def _depth(value: Any) -> int:
    """Return the nesting depth of arrays and objects."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def parse_yaml(data: bytes) -> Any:
    """Parse YAML with plain values.  Raises ValueError for anything else."""
    try:
        return PlainLoader(data).get_single_data()
    except (yaml.YAMLError, RecursionError, *SCALAR_ERRORS):
        raise ValueError("not valid YAML with plain values") from None


class PlainLoader(yaml.SafeLoader):
    """YAML loader that limits nesting and rejects merge keys.

    Ten merge keys in a row can expand a mapping a thousandfold.
    """

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
            raise yaml.YAMLError("merge keys are not supported")
        super().flatten_mapping(node)
