"""YAML configuration files: a strict reader that reports the line of each error."""

import difflib
import re
from collections.abc import Callable
from typing import Any

import yaml

from onmt_lite.checkpoints.shipped import list_configs
from onmt_lite.errors import explain_os_error, hint_for_path
from onmt_lite.system.safe_parse import PlainLoader

MAX_BYTES = 64 * 1024
TAG = "tag:yaml.org,2002:"
PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")  # not 010 (8 in YAML 1.1) or 1:30 (90)
WRITE_LINES = (
    "write each option as `option: value` on its own line without indentation; "
    "quote values with special characters"
)
# Remedies for errors of the YAML parser, by a part of its message; otherwise WRITE_LINES
REMEDIES = {
    "escape": "\\ starts an escape in double quotes: write paths with / or in single quotes",
    "another document": "use a single document: remove the line ---",
}


class ConfigFileError(ValueError):
    """An error in a configuration file: problem, place and remedy."""

    def __init__(self, problem: str, place: str, remedy: str):
        super().__init__(f"{problem} ({place}); {remedy}")


class OptionLoader(PlainLoader):
    """YAML loader that rejects deep nesting, anchors and tags."""

    max_depth = 20

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = f"an alias, *{event.anchor}"
        elif getattr(event, "tag", None) is not None:
            problem = f"a tag, {event.tag}"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def read_yaml(path: str, is_string: Callable[[str, str], bool]) -> list[tuple[str, Any, int]]:
    """Read a configuration file.

    Args:
        path: The file.
        is_string: `is_string(key, type)` returns True if a value of this YAML type (bool, int,
            float, timestamp) is used as a string, exactly as written.

    Returns:
        (key, value, line) of each option.

    Raises:
        ValueError: The file is not YAML, or contains duplicate keys, anchors, tags, several
            documents or deep nesting; the message has file and line.
    """
    text = _read_text(path)
    try:
        loader = OptionLoader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or ""
        remedy = next((text for part, text in REMEDIES.items() if part in problem), WRITE_LINES)
        if error.context and error.context_mark:
            problem = (
                f"{error.context} that starts on line {error.context_mark.line + 1}: {problem}"
            )
        raise ConfigFileError(f"not valid YAML: {problem}", f"{path}:{line}", remedy) from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = f"not valid YAML: {' '.join(str(error).split())}"
        raise ConfigFileError(problem, path, "save the file as plain UTF-8 text") from None
    if node is None or node.value == "":
        return []
    if not isinstance(node, yaml.MappingNode):
        is_list = isinstance(node, yaml.SequenceNode)
        remedy = "write the options without `- ` or [ ]" if is_list else WRITE_LINES
        problem = f"the file contains {'a list' if is_list else 'text'}, not 'option: value' lines"
        raise ConfigFileError(problem, f"{path}:{node.start_mark.line + 1}", remedy)
    return _read_mapping(loader, node, path, is_string)


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        shipped = list_configs()
        hint = hint_for_path(path) or "check the path"
        if near := difflib.get_close_matches(path.removesuffix(".yaml"), shipped, 1):
            hint = f"did you mean {near[0]}?"
        remedy = f"{hint} (shipped configurations: {', '.join(shipped)})"
        raise ConfigFileError(f"cannot be read: {error.strerror}", path, remedy) from None
    except (OSError, ValueError) as error:
        reason, _, remedy = explain_os_error(error).partition("; ")
        raise ConfigFileError(f"cannot be read: {reason}", path, remedy) from None
    if len(data) > MAX_BYTES:
        problem = f"larger than {MAX_BYTES // 1024} KiB"
        raise ConfigFileError(problem, path, "use a YAML file of options")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        problem, place = f"not UTF-8 text: byte {error.start}", f"{path}:{line}"
        raise ConfigFileError(problem, place, "save the file as UTF-8") from None


def _read_mapping(
    loader: yaml.SafeLoader,
    node: yaml.MappingNode,
    path: str,
    is_string: Callable[[str, str], bool],
) -> list[tuple[str, Any, int]]:
    """Read the options of a mapping.

    Args:
        loader: The YAML loader.
        node: The mapping.
        path: The file, for errors.
        is_string: As in `read_yaml`.

    Returns:
        (key, value, line) of each option.

    Raises:
        ConfigFileError: A key or a value is not valid.
    """
    options: list[tuple[str, Any, int]] = []
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        where = f"{path}:{line}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigFileError("a key must be the name of an option", where, WRITE_LINES)
        key = key_node.value.lstrip("-")
        if key in lines:
            problem = f"{key} is set twice, at lines {lines[key]} and {line}"
            raise ConfigFileError(problem, where, "remove one of them")
        lines[key] = line
        items = value_node.value if isinstance(value_node, yaml.SequenceNode) else []
        for scalar in [value_node, *items]:
            yaml_type = scalar.tag.removeprefix(TAG)
            if (
                isinstance(scalar, yaml.ScalarNode)
                and yaml_type != "null"
                and is_string(key, yaml_type)
            ):
                scalar.tag = TAG + "str"
            elif yaml_type == "int" and not PLAIN_INT.fullmatch(scalar.value):
                problem = f"{key}: YAML parses {scalar.value} as another number"
                raise ConfigFileError(problem, where, "write plain digits or quote it")
        try:
            value = loader.construct_object(value_node, deep=True)
        except (ValueError, OverflowError, yaml.YAMLError) as error:  # such as 2026-13-45
            reason = " ".join(str(error).split())
            raise ConfigFileError(
                f"{key}: not valid YAML: {reason}", where, "quote the value"
            ) from None
        options.append((key, value, line))
    return options
