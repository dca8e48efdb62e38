"""Phrases to the lines that they belong to."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat

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
    given = {"force_words": forced, "ban_words": banned}
    columns = {name: phrases_of_lines(name, phrases) for name, phrases in given.items()}
    n = 0
    for n, line in enumerate(lines, 1):
        own = []
        for name, column in columns.items():
            phrases = next(column, None)
            if phrases is None:
                raise DataError(
                    f"{name} has {n - 1} entries, but there are more lines; give one for each"
                )
            own.append(phrases)
        yield marked(line, *own)
    for name, column in columns.items():
        if not isinstance(column, repeat) and next(column, None) is not None:
            raise DataError(f"{name} has more entries than the {n} lines; give one for each")


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


def phrases_of_lines(name: str, phrases: Phrases) -> Iterator[tuple[str, ...]]:
    """The phrases of one line after the other; a `repeat` of what all lines have."""
    if isinstance(phrases, str | None):
        return repeat(parsed(phrases or ""))
    if not hasattr(phrases, "__iter__"):
        raise TypeError(f"{name}: expected phrases, got {type(phrases).__name__}")
    return (of_entry(f"{name}[{i}]", entry) for i, entry in enumerate(phrases))


def of_entry(place: str, entry: str | Sequence[str] | None) -> tuple[str, ...]:
    words = [entry] if isinstance(entry, str) else [] if entry is None else entry
    try:
        return parsed("\t".join(words))
    except TypeError:
        raise TypeError(f"{place}: expected phrases, got {repr(entry)[:50]}") from None
