"""Phrases to the lines that they belong to."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from onmt_lite.errors import DataError
from onmt_lite.text.line import Line
from onmt_lite.text.lines import from_text
from onmt_lite.text.phrases import occurs, parse_phrases

# Of all lines, with TAB between them, or of each line: so, or as a list of phrases; None: none
Phrases = str | Iterable[str | Sequence[str] | None] | None


def with_phrases(lines: Iterable[Line], forced: Phrases, banned: Phrases) -> Iterator[Line]:
    """The lines with their phrases.

    Raises DataError if there are more or fewer entries than lines, or a phrase is forced and
    banned; TypeError for an entry that holds no phrases.
    """
    of_forced, of_banned = Entries("force_words", forced), Entries("ban_words", banned)
    n = 0
    for n, line in enumerate(lines, 1):
        yield marked(line, of_forced.take(n), of_banned.take(n))
    of_forced.end(n)
    of_banned.end(n)


def marked(line: Line, forced: tuple[str, ...], banned: tuple[str, ...]) -> Line:
    """The line with its phrases.  DataError for one that is forced and banned."""
    for phrase in forced:
        for other in banned:
            if occurs(phrase, other):
                inside = "" if phrase == other else f", of which {other[:50]!r} is a part"
                raise DataError(
                    f"line {line.id + 1}: {phrase[:50]!r} is forced{inside}, and banned; take it "
                    "out of force_words or ban_words"
                )
    return replace(line, forced=forced, banned=banned) if forced or banned else line


def parsed(phrases: str) -> tuple[str, ...]:
    """Phrases with TAB between them.  As in lines, lone surrogates are replaced."""
    return parse_phrases(from_text(phrases, 0).text)


class Entries:
    """The phrases of one line after the other."""

    def __init__(self, name: str, phrases: Phrases):
        self.name = name
        self.of_all = parsed(phrases or "") if isinstance(phrases, str | None) else None
        self.each: Iterator[str | Sequence[str] | None] = iter(())
        if not isinstance(phrases, str | None):
            if not hasattr(phrases, "__iter__"):
                raise TypeError(f"{name}: expected phrases, got {type(phrases).__name__}")
            self.each = iter(phrases)

    def take(self, n: int) -> tuple[str, ...]:
        """The phrases of line n, from 1."""
        if self.of_all is not None:
            return self.of_all
        try:
            entry = next(self.each)
        except StopIteration:
            raise DataError(
                f"{self.name} has {n - 1} entries, but there are more lines; give one for each"
            ) from None
        words = [entry] if isinstance(entry, str) else [] if entry is None else entry
        try:
            return parsed("\t".join(words))
        except TypeError:
            raise TypeError(
                f"{self.name}[{n - 1}]: expected phrases, got {repr(entry)[:50]}"
            ) from None

    def end(self, n: int) -> None:
        if self.of_all is None and next(self.each, self) is not self:
            raise DataError(f"{self.name} has more entries than the {n} lines; give one for each")
