"""YAML files of options: read strictly, with the line of each value and a remedy for each error."""

import difflib
import re
from collections.abc import Callable
from typing import Any

import yaml

from onmt_lite.checkpoints.shipped import config_names
from onmt_lite.errors import explained, hint_on

MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
TAG = "tag:yaml.org,2002:"
PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")  # not 010, which is 8, nor 1:30, which is 90
QUOTED = re.compile(r"""("(\\.|[^"\\])*"|'[^']*')|(?<!\S)#.*""")  # and comments
LINES = "write a line `option: value` for each option, such as `beam_size: 5`"


class Unreadable(ValueError):
    """What is wrong with a file, where, and what to do."""

    def __init__(self, problem: str, place: str, remedy: str):
        super().__init__(f"{problem} ({place}); {remedy}")


def read_yaml(path: str, is_text: Callable[[str, str], bool]) -> list[tuple[str, Any, int]]:
    """Return (key, value, line) of each option in the file.  `is_text(key, kind)` says whether a
    value of this kind of YAML (bool, int, float, timestamp) is taken as it is written.

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
            line = node.start_mark.line
            is_list = isinstance(node, yaml.SequenceNode)
            remedy = "write the options without `- ` or [ ]" if is_list else LINES
            problem = f"the file is {'a list' if is_list else 'text'}, not 'option: value' lines"
            raise Unreadable(problem, f"{path}:{line + 1}", _about_lines(text, line) or remedy)
        return _read_mapping(loader, node, path, is_text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line if mark else 0
        problem = f"not valid YAML: {error.problem}"
        raise Unreadable(problem, f"{path}:{line + 1}", _remedy(error, text, line)) from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = f"not valid YAML: {' '.join(str(error).split())}"
        raise Unreadable(problem, path, "save the file as plain UTF-8 text") from None


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        shipped = config_names()
        hint = hint_on(path) or "check the path"
        if near := difflib.get_close_matches(path.removesuffix(".yaml"), shipped, 1):
            hint = f"did you mean {near[0]}?"
        remedy = f"{hint} (shipped are {', '.join(shipped)})"
        raise Unreadable(f"cannot be read: {error.strerror}", path, remedy) from None
    except (OSError, ValueError) as error:
        reason, _, remedy = explained(error).partition("; ")
        raise Unreadable(f"cannot be read: {reason}", path, remedy) from None
    if len(data) > MAX_BYTES:
        problem = f"larger than {MAX_BYTES // 1024} KiB"
        raise Unreadable(problem, path, "give a YAML file of options")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        problem, place = f"not UTF-8 text: byte {error.start}", f"{path}:{line}"
        raise Unreadable(problem, place, "save the file as UTF-8") from None


def _refuse_surprises(text: str, path: str) -> None:
    """Check the events; values are made only if they pass."""
    depth = 0
    event: Any  # every event has a start_mark, which the type stubs leave open
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
        depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
        where = f"{path}:{event.start_mark.line + 1}"
        if depth > MAX_DEPTH:
            raise Unreadable("too deep nesting", where, LINES)
        if isinstance(event, yaml.AliasEvent):
            remedy = f"write the value out, or quote it: '*{event.anchor}'"
            raise Unreadable(f"an alias, *{event.anchor}", where, remedy)
        if getattr(event, "tag", None) is not None:
            raise Unreadable(f"a tag, {event.tag}", where, "write the plain value, or quote it")


def _read_mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode, path: str, is_text: Callable[[str, str], bool]
) -> list[tuple[str, Any, int]]:
    found: list[tuple[str, Any, int]] = []
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        where = f"{path}:{line}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise Unreadable("a key must be an option's name", where, LINES)
        key = key_node.value.lstrip("-")
        if key in lines:
            problem = f"{key} is set twice, at lines {lines[key]} and {line}"
            raise Unreadable(problem, where, "remove one of them")
        lines[key] = line
        items = value_node.value if isinstance(value_node, yaml.SequenceNode) else []
        for scalar in [value_node, *items]:
            kind = scalar.tag.removeprefix(TAG)
            if isinstance(scalar, yaml.ScalarNode) and kind != "null" and is_text(key, kind):
                scalar.tag = TAG + "str"
            elif kind == "int" and not PLAIN_INT.fullmatch(scalar.value):
                problem = f"{key}: YAML reads {scalar.value} as another number"
                raise Unreadable(problem, where, "write plain digits or quote it")
        try:
            value = loader.construct_object(value_node, deep=True)
        except (ValueError, OverflowError) as error:  # 2026-13-45, which looks like a date
            problem = f"{key}: not valid YAML: {error}"
            raise Unreadable(problem, where, "quote the value") from None
        found.append((key, value, line))
    return found


# -- remedies --------------------------------------------------------------------------------------


def _remedy(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    """Return what to do about an error of the YAML parser at a line, counted from 0."""
    problem, lines = error.problem or "", text.split("\n")
    shown = lines[line] if line < len(lines) else ""
    begin = error.context_mark.line if error.context_mark else line
    name, _, value = shown.strip().partition(":")
    quoted = f"{name}: '{value.strip()}'" if value.strip() and len(value) < 60 else "'...'"
    if "escape" in problem:
        return "in double quotes \\ begins an escape: write paths with / or in single quotes"
    if "'\\t'" in problem:
        return "write spaces in the place of the TAB"
    if "document" in problem and "another" in problem:
        return "write one list of options: remove the line ---"
    if known := _about_lines(text, line):
        return known
    if "end of stream" in problem and "quoted" in (error.context or ""):
        return f"close the quotation marks that begin in line {begin + 1}"
    if "',' or" in problem:
        return f"close the bracket that begins in line {begin + 1}"
    indented = any(re.match(r"\s+\w", each) for each in lines[: line + 1])
    if (
        indented
        and "document start" in problem
        or re.match(r"\s", shown)
        or begin != line
        and re.match(r"\s", lines[begin])
    ):
        return "begin every option at the start of its line, without spaces before it"
    if re.match(r"\s*[^\s'\"]+\s+[A-Za-z]\w*:\s", value):
        return "write one option in each line, or quote a value that holds a colon"
    if "not allowed here" in problem or "cannot start" in problem or value.lstrip()[:1] in "*&!|>":
        return f"quote the value: {quoted}"
    if value.lstrip()[:1] in ("'", '"'):
        return "put the whole value in quotation marks of the other kind"
    return LINES


def _about_lines(text: str, line: int) -> str:
    """Return what to do about lines of another format, up to a line, counted from 0."""
    for shown in map(str.rstrip, text.split("\n")[: line + 1]):
        plain = QUOTED.sub("", shown).strip()
        if re.fullmatch(r"\[\w+\]", plain):
            return f"remove the line {plain}: options have no sections"
        if match := re.match(r"-*(\w+)\s*=\s*\S", plain):
            value = shown.partition("=")[2].strip()
            return f"write `{match[1]}: {value[:50]}` in the place of `{shown.strip()[:50]}`"
        if match := re.match(r"(?:-+)?([A-Za-z]\w*):[^\s/\\]", plain):
            return f"write a space after the colon of {match[1]}"
        if match := re.match(r"-{1,2}([A-Za-z]\w*) +([^\s:][^:]*)$", plain):
            return f"write `{match[1]}: {match[2][:50]}`, one option in each line"
    return ""
