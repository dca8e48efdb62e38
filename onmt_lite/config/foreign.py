"""Options of another program that have nothing to do here, and are taken so that its files load."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Foreign:
    """What becomes of such an option.

    off      values that ask for nothing, as words of a command line; None: all do
    says     what a note says of any other value
    refused  other values are refused, and `says` is the reason and the remedy
    unless   a condition under which they are not refused, but noted as without effect
    renamed  our option that has the same values
    switch   our option and its value that a switch stands for, where it is on

    An entry for an option that we have too says which values are as if it were not given, and what
    to add to the message where a value is wrong.
    """

    off: tuple[str, ...] | None
    says: str = "without effect here"
    refused: bool = False
    unless: str = ""
    renamed: str = ""
    switch: tuple[str, Any] | None = None

    def asks_for(self, words: str) -> bool:
        """Whether the value would have an effect in the other program."""
        return self.off is not None and _plain(words) not in map(_plain, self.off)


def _plain(words: str) -> str:
    """.02 and 0.020 are the same number."""
    try:
        return f"{float(words) + 0.0:g}"
    except ValueError:
        return words


def as_words(value: Any) -> str:
    """A value from YAML as it would be written on a command line."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_words, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value + 0.0:g}"
    text = str(value)
    return text.lower() if text in ("True", "False") else text
