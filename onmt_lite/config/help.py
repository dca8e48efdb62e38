"""Options described: what -help prints, and the tables of the documentation."""

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

MAX_WIDTH = 100  # columns; longer lines are hard to read
MIN_WIDTH = 40
TEXT_COLUMN = 26  # at which descriptions begin
MAX_CHOICES = 40  # characters; longer lists of choices go into the description
ESCAPED_BAR = "\\|"  # a bar inside a cell of a Markdown table
UNSET = (None, (), "")  # defaults that go without saying


def group_options(options: Options) -> dict[str, list[Option]]:
    """The options of each group, by its title, in order."""
    groups: dict[str, list[Option]] = {}
    for option in options.values():
        groups.setdefault(option.group, []).append(option)
    return groups


def format_help(options: Options, usage: str, columns: int = 80, page: Sequence[str] = ()) -> str:
    """The options of a page, the most used ones, in short; without a page all, group by group.  For
    a terminal of so many columns; paragraphs of `usage` that are indented stay as they are."""
    width = max(MIN_WIDTH, min(columns, MAX_WIDTH))
    listings = [
        _format_group(title, group, width) for title, group in group_options(options).items()
    ]
    end = f"-help NAME ... describes options and groups, with examples: -help {[*options][0]}"
    if page:
        members = [shorten(options[n]) for n in page]
        listings = [_format_group("The most used options", members, width, describe_briefly)]
        end = f"-help all lists all {len(options)} options by group; {end}"
    paragraphs = [
        text if text.startswith(" ") else "\n".join(_wrap(text, width))
        for text in (*usage.split("\n\n"), end)
    ]
    return "\n\n".join([*paragraphs[:-1], *listings, paragraphs[-1]])


def shorten(option: Option) -> Option:
    """The option with one value and a default that is none by itself."""
    default = None if not option.default or option.default == "-" else option.default
    metavar = option.metavar or "NAME" * bool(option.choices)
    return replace(
        option, is_list=False, choices=(), default=default, metavar=metavar, extra_help=""
    )


def describe_options(
    names: Sequence[str],
    options: Options,
    columns: int = 80,
    page: Sequence[str] = (),
    remark: Callable[[str], str | None] = lambda name: None,
) -> str:
    """The options and groups of these names, with examples.  OptionError for unknown names.

    `page` and `remark` are those of the Program.  Any word of a group's title names the group; if
    an option has the same name, both are shown.
    """
    width, groups = max(MIN_WIDTH, min(columns, MAX_WIDTH)), group_options(options)
    parts: list[str] = []
    problems = []
    for name in (word.lstrip("-").lower() for word in names):
        titles = [t for t in groups if name in (t.lower(), *t.lower().split())]
        if name in options:
            parts.append(_format_details(options[name], options, width))
        for title in titles:
            parts += [
                f"{title}:",
                *(_format_details(each, options, width) for each in groups[title]),
            ]
        if name not in options and not titles:
            near = suggest_names(name, options, page, [title.lower() for title in groups])
            hint = f"did you mean {' or '.join(near)}?" if near else "-help all lists all"
            hint = remark(name.replace("-", "_")) or hint
            problems.append(f"help: no option or group is called {name[:50]!r}; {hint}")
    if problems:
        raise OptionError(*problems)
    return "\n\n".join(parts)


def _format_group(
    title: str,
    members: Sequence[Option],
    width: int,
    describe: Callable[[Option], str] = lambda option: describe(option),
) -> str:
    """A group: options on the left, what they do on the right."""
    lines = [f"{title}:"]
    for option in members:
        head, body = f"  {format_signature(option)}", _wrap(describe(option), width, TEXT_COLUMN)
        if len(head) < TEXT_COLUMN - 1:
            body[0] = head.ljust(TEXT_COLUMN) + body[0].lstrip()
        else:
            lines += _wrap(format_signature(option), width, 6, first=2)
        lines += body
    return "\n".join(lines)


def _format_details(option: Option, options: Options, width: int) -> str:
    """All about one option."""
    command, pairs = format_example(option, options)
    lines = _wrap(format_signature(option), width, 4, first=0)
    lines += [*_wrap(describe(option), width, 4), "", f"    Group:         {option.group}"]
    lines += _wrap(f"Value:         {option.expected()}", width, 19, first=4)
    lines += _wrap(f"Command line:  {command}", width, 19, first=4)
    for i, pair in enumerate(pairs):
        lines += _wrap(f"YAML:          {pair}" if i == 0 else pair, width, 21, 19 if i else 4)
    return "\n".join(lines)


def format_example(option: Option, options: Options) -> tuple[str, list[str]]:
    """Return the words of a command line, and the lines of YAML that say the same, if any."""
    command = f"-{option.name} {option.example}".rstrip()
    if option.name in META_NAMES:
        return command, []
    given, _ = split_argv(shlex.split(command))
    return command, [
        f"{name}: {dump_yaml(parse_words(options[name], words))}" for name, words in given
    ]


def format_markdown(options: Options) -> str:
    """A table for each group, under its title."""
    lines = []
    for title, members in group_options(options).items():
        lines += ["", f"### {title}", "", "| option | default | meaning |", "|---|---|---|"]
        for option in members:
            default = "" if option.default in UNSET else f"`{_format_default(option.default)}`"
            cells = (f"`{format_signature(option)}`", default, describe(option, with_default=False))
            lines.append(f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |")
    return "\n".join(lines[1:])


def format_signature(option: Option) -> str:
    """The option's name and the form of its value: -beam_size N."""
    choices = "{" + ",".join(option.choices) + "}"
    word = {bool: "", int: "N", float: "X", str: "TEXT"}[option.value_type]
    if option.choices:
        word = choices if len(choices) <= MAX_CHOICES else "NAME"
    word = option.metavar or word
    several = option.is_list and not word.startswith("[")
    return f"-{option.name} {f'{word} [{word} ...]' if several else word}".rstrip()


def describe_briefly(option: Option) -> str:
    """Return the first clause of an option's help, and its default."""
    return describe(option, of=re.split(r"[:;.](?=\s)", option.help, maxsplit=1)[0])


def describe(option: Option, with_default: bool = True, of: str = "") -> str:
    """Return sentences: what the option does, its choices, its default, what it needs."""
    sentences = [of or option.help]
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
    """Lines of the text, indented by so many columns, the first one by `first`."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * (indent if first is None else first),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
