"""Options of another program that have nothing to do here, and are taken so that its files load."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Foreign:
    """What may be said of such an option.

    off      values that ask for nothing, written as on a command line; None: all of them
    instead  what to do where it has another value, which is refused; None: any is taken, and the
             log says that it has no effect

    An entry for an option that we have too says which values in a YAML file are as if the line
    were not there, and what to add to the message where a value is wrong.
    """

    off: tuple[str, ...] | None
    instead: str | None = None

    def asks_for(self, words: str) -> bool:
        """Whether the value would have an effect in the other program."""
        return self.off is not None and words not in self.off


def as_words(value: Any) -> str:
    """A value from YAML as it would be written on a command line."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_words, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
