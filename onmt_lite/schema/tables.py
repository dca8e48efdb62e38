"""Options as text for people."""

from typing import Any

from onmt_lite.schema.option import Option

BAR = "\\|"  # a bar inside a cell of a Markdown table


def help_text(options: dict[str, Option], usage: str) -> str:
    """What -help prints."""
    lines = [usage, ""]
    for option in options.values():
        head = f"  -{option.name} {_metavar(option)}".rstrip()
        default = "" if option.default in (None, ()) else f" (default {_show(option.default)})"
        lines += [head, f"      {option.help}{default}"]
    return "\n".join(lines)


def markdown_table(options: dict[str, Option]) -> str:
    """The table of options in the README."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for option in options.values():
        head = f"-{option.name} {_metavar(option)}".rstrip()
        default = "" if option.default in (None, ()) else f"`{_show(option.default)}`"
        lines.append(f"| `{head}` | {default} | {option.help.replace('|', BAR)} |")
    return "\n".join(lines)


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    word = {bool: "", int: "N", float: "X", str: "TEXT"}[option.kind]
    return f"{word} [{word} ...]" if option.many else word


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
