"""Reads a flat YAML configuration: keys, plain values, lists of plain values."""

import re
from collections.abc import Callable
from typing import Any

import yaml

from onmt_lite.checkpoints.shipped import config_names

MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
TAG = "tag:yaml.org,2002:"
# Of an option's name and a kind of YAML (bool, int, float, timestamp): whether such a value is
# taken as text, as it is written
IsText = Callable[[str, str], bool]
PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")  # not 010, which is 8, nor 1:30, which is 90


def read_yaml(path: str, is_text: IsText = lambda name, kind: False) -> list[tuple[str, Any, int]]:
    """Return (key, value, line) of each option in the file.

    Raises ValueError, naming file and line, for a file that is not YAML and for YAML that no
    configuration means: duplicate keys, anchors, tags, several documents, deep nesting.
    """
    text = _read_text(path)
    try:
        _refuse_surprises(text, path)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None or node.value == "":
            return []
        if not isinstance(node, yaml.MappingNode):
            where = f"{path}:{node.start_mark.line + 1}"
            raise ValueError(f"not a list of 'option: value' lines ({where})")
        return _read_mapping(loader, node, path, is_text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"not valid YAML: {error.problem} ({path}:{line})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())} ({path})") from None


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        shipped = f"; shipped are {', '.join(config_names())}" if is_missing else ""
        reason = getattr(error, "strerror", error)
        raise ValueError(f"cannot be read: {reason} ({path}){shipped}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1024} KiB ({path}); is it a configuration?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.start} ({path})") from None


def _refuse_surprises(text: str, path: str) -> None:
    """Check the events; values are made only if they pass."""
    depth = 0
    event: Any  # every event has a start_mark, which the type stubs leave open
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
        depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
        where = f"{path}:{event.start_mark.line + 1}"
        if depth > MAX_DEPTH:
            raise ValueError(f"too deep nesting ({where})")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"an alias, *{event.anchor} ({where}); write the value out")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"a tag, {event.tag} ({where}); write the plain value")


def _read_mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode, path: str, is_text: IsText
) -> list[tuple[str, Any, int]]:
    found: list[tuple[str, Any, int]] = []
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ValueError(f"a key must be an option's name ({path}:{line})")
        key = key_node.value.lstrip("-")
        if key in lines:
            both = f"lines {lines[key]} and {line}"
            raise ValueError(f"{key} is set twice, at {both} ({path}:{line})")
        lines[key] = line
        items = value_node.value if isinstance(value_node, yaml.SequenceNode) else []
        for scalar in [value_node, *items]:
            kind = scalar.tag.removeprefix(TAG)
            if isinstance(scalar, yaml.ScalarNode) and kind != "null" and is_text(key, kind):
                scalar.tag = TAG + "str"
            elif kind == "int" and not PLAIN_INT.fullmatch(scalar.value):
                raise ValueError(
                    f"{key}: YAML reads {scalar.value} as another number ({path}:{line}); "
                    "write plain digits or quote it"
                )
        try:
            value = loader.construct_object(value_node, deep=True)
        except (ValueError, OverflowError) as error:  # 2026-13-45, which looks like a date
            raise ValueError(f"{key}: not valid YAML: {error} ({path}:{line})") from None
        found.append((key, value, line))
    return found
