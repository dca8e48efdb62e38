"""Options as text for people."""

from typing import Any

from onmt_lite.schema.option import Option

BAR = "\\|"  # a bar inside a cell of a Markdown table


def by_group(options: dict[str, Option]) -> dict[str, list[Option]]:
    """The options of each group, by its title, in order."""
    groups: dict[str, list[Option]] = {}
    for option in options.values():
        groups.setdefault(option.group, []).append(option)
    return groups


def help_text(options: dict[str, Option], usage: str) -> str:
    """What -help prints."""
    lines = [usage]
    for title, members in by_group(options).items():
        lines += ["", f"{title}:"]
        for option in members:
            head = f"  -{option.name} {_metavar(option)}".rstrip()
            default = "" if option.default in (None, ()) else f" (default {_show(option.default)})"
            lines += [head, f"      {option.help}{default}"]
    return "\n".join(lines)


def markdown_table(options: dict[str, Option]) -> str:
    """A table for each group, under its title."""
    return "\n\n".join(
        "\n".join([f"### {title}", "", "| option | default | meaning |", "|---|---|---|"] + rows)
        for title, rows in (
            (title, [_row(option) for option in members])
            for title, members in by_group(options).items()
        )
    )


def _row(option: Option) -> str:
    head = f"-{option.name} {_metavar(option)}".rstrip()
    default = "" if option.default in (None, (), "") else f"`{_show(option.default)}`"
    return f"| `{head}` | {default} | {option.help.replace('|', BAR)} |"


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    word = {bool: "", int: "N", float: "X", str: "TEXT"}[option.kind]
    return f"{word} [{word} ...]" if option.many else word


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
