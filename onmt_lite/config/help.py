"""Help texts: the output of -help, and the option tables of the documentation."""

import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onmt_lite.config.option import META_NAMES, Option, parse_words
from onmt_lite.config.sources import dump_yaml, split_argv
from onmt_lite.config.suggestions import suggest_names
from onmt_lite.errors import OptionError

Options = Mapping[str, Option]

MAX_WIDTH = 100  # columns
MIN_WIDTH = 40
TEXT_COLUMN = 26  # column of the descriptions
MAX_CHOICES = 40  # characters; longer lists of choices are moved to the description
ESCAPED_BAR = "\\|"  # for cells of a Markdown table
UNSET = (None, (), "")  # defaults that are not shown


def group_options(options: Options) -> dict[str, list[Option]]:
    """Return the options of each group by its title, in order."""
    groups: dict[str, list[Option]] = {}
    for option in options.values():
        groups.setdefault(option.group, []).append(option)
    return groups


def format_help(options: Options, usage: str, columns: int = 80, common: Sequence[str] = ()) -> str:
    """Format the help of a program.

    Args:
        options: All options by name.
        usage: Introduction; indented paragraphs are not wrapped.
        columns: Width of the terminal.
        common: Options to describe briefly (default: describe all options by group).

    Returns:
        The help, without a final line feed.
    """
    width = max(MIN_WIDTH, min(columns, MAX_WIDTH))
    listings = [
        _format_group(title, group, width) for title, group in group_options(options).items()
    ]
    end = f"-help NAME ... describes options or groups with examples: -help {[*options][0]}"
    if common:
        members = [shorten(options[n]) for n in common]
        listings = [_format_group("Common options", members, width, describe_briefly)]
        end = f"-help all lists all {len(options)} options by group; {end}"
    paragraphs = [
        text if text.startswith(" ") else "\n".join(_wrap(text, width))
        for text in (*usage.split("\n\n"), end)
    ]
    return "\n\n".join([*paragraphs[:-1], *listings, paragraphs[-1]])


def shorten(option: Option) -> Option:
    """Return a copy of the option with a short signature and without an empty default."""
    default = None if not option.default or option.default == "-" else option.default
    metavar = option.metavar or "NAME" * bool(option.choices)
    return replace(
        option, is_list=False, choices=(), default=default, metavar=metavar, extra_help=""
    )


def describe_options(
    names: Sequence[str],
    options: Options,
    columns: int = 80,
    common: Sequence[str] = (),
    hint: Callable[[str], str | None] = lambda name: None,
) -> str:
    """Describe options and groups with examples.

    Args:
        names: Options, or words from group titles; a word that is both describes both.
        options: All options by name.
        columns: Width of the terminal.
        common: Common options, which suggestions prefer.
        hint: Function from an unknown name to a hint, or None.

    Returns:
        The descriptions, separated by empty lines.

    Raises:
        OptionError: A name is unknown.
    """
    width, groups = max(MIN_WIDTH, min(columns, MAX_WIDTH)), group_options(options)
    parts: list[str] = []
    problems = []
    for name in (word.lstrip("-").lower() for word in names):
        titles = [t for t in groups if name in (t.lower(), *t.lower().split())]
        if name in options:
            parts.append(_format_details(options[name], options, width))
        for title in titles:
            members = groups[title]
            parts += [f"{title}:", *(_format_details(m, options, width) for m in members)]
        if name not in options and not titles:
            near = suggest_names(name, options, common, [title.lower() for title in groups])
            remedy = f"did you mean {' or '.join(near)}?" if near else "-help all lists all options"
            remedy = hint(name.replace("-", "_")) or remedy
            problems.append(f"help: there is no option or group {name[:50]!r}; {remedy}")
    if problems:
        raise OptionError(*problems)
    return "\n\n".join(parts)


def _format_group(
    title: str,
    members: Sequence[Option],
    width: int,
    get_text: Callable[[Option], str] | None = None,
) -> str:
    """Format a group of options as two columns.

    Args:
        title: Title of the group.
        members: Options of the group.
        width: Maximum line width.
        get_text: Function that returns the right column (default: describe).

    Returns:
        The lines, joined.
    """
    lines = [f"{title}:"]
    for option in members:
        text = get_text(option) if get_text else describe(option)
        head, body = f"  {format_signature(option)}", _wrap(text, width, TEXT_COLUMN)
        if len(head) < TEXT_COLUMN - 1:
            body[0] = head.ljust(TEXT_COLUMN) + body[0].lstrip()
        else:
            lines += _wrap(format_signature(option), width, 6, first=2)
        lines += body
    return "\n".join(lines)


def _format_details(option: Option, options: Options, width: int) -> str:
    """Describe one option: signature, help, group, values and example."""
    command, pairs = format_example(option, options)
    lines = _wrap(format_signature(option), width, 4, first=0)
    lines += [*_wrap(describe(option), width, 4), "", f"    Group:         {option.group}"]
    lines += _wrap(f"Value:         {option.describe_values()}", width, 19, first=4)
    lines += _wrap(f"Command line:  {command}", width, 19, first=4)
    for i, pair in enumerate(pairs):
        lines += _wrap(f"YAML:          {pair}" if i == 0 else pair, width, 21, 19 if i else 4)
    return "\n".join(lines)


def format_example(option: Option, options: Options) -> tuple[str, list[str]]:
    """Return an example as a command line, and the equivalent YAML lines (none for META_NAMES)."""
    command = f"-{option.name} {option.example}".rstrip()
    if option.name in META_NAMES:
        return command, []
    given, _ = split_argv(shlex.split(command))
    return command, [
        f"{name}: {dump_yaml(parse_words(options[name], words))}" for name, words in given
    ]


def format_markdown(options: Options) -> str:
    """Return a Markdown table of the options of each group, under its title."""
    lines = []
    for title, members in group_options(options).items():
        lines += ["", f"### {title}", "", "| option | default | meaning |", "|---|---|---|"]
        for option in members:
            default = "" if option.default in UNSET else f"`{_format_default(option.default)}`"
            cells = (f"`{format_signature(option)}`", default, describe(option, with_default=False))
            lines.append(f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |")
    return "\n".join(lines[1:])


def format_signature(option: Option) -> str:
    """Return the name and a placeholder for the value: -beam_size N."""
    choices = "{" + ",".join(option.choices) + "}"
    word = {bool: "", int: "N", float: "X", str: "TEXT"}[option.value_type]
    if option.choices:
        word = choices if len(choices) <= MAX_CHOICES else "NAME"
    word = option.metavar or word
    several = option.is_list and not word.startswith("[")
    return f"-{option.name} {f'{word} [{word} ...]' if several else word}".rstrip()


def describe_briefly(option: Option) -> str:
    """Return the first clause of the help, and the default."""
    text = re.sub(r" \(default: .*\)", "", option.help)  # depends on the input or the model
    return describe(option, text=re.split(r"[:;.](?=\s)", text, maxsplit=1)[0])


def describe(option: Option, with_default: bool = True, text: str = "") -> str:
    """Describe an option: help, choices, default and requirements.

    Args:
        option: The option.
        with_default: Whether to include the default.
        text: Text to use instead of the help.

    Returns:
        Sentences.
    """
    sentences = [text or option.help]
    if option.choices and "{" not in format_signature(option):
        sentences.append(f"One of {', '.join(option.choices)}")
    if with_default and option.default not in UNSET and option.default is not False:
        sentences.append(f"Default: {_format_default(option.default)}")
    if option.extra_help:
        sentences.append(option.extra_help)
    return " ".join(f"{sentence}." for sentence in sentences)


def _format_default(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrap(text: str, width: int, indent: int = 0, first: int | None = None) -> list[str]:
    """Wrap text at spaces.

    Args:
        text: The text.
        width: Maximum line width.
        indent: Columns to indent all lines.
        first: Columns to indent the first line (default: indent).

    Returns:
        The lines.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * (indent if first is None else first),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
