"""Inputs of the Python interface: lines with their prefixes and phrases, in windows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat, zip_longest

from onmt_lite.errors import DataError
from onmt_lite.inference.records import Progress
from onmt_lite.text.lines import MAX_WINDOW_BYTES, WINDOW_LINES, Line, from_text
from onmt_lite.text.phrases import occurs, parse_phrases

Pair = tuple[Line, Line | None]  # a line and the prefix of its translation
# Of all lines, with TAB between them, or of each line: so, or as a list of phrases; None: none
Phrases = str | Iterable[str | Sequence[str] | None] | None


def pair_up(lines: Iterator[Line], prefixes: Iterator[Line] | None) -> Iterator[Pair]:
    """Pair lines with prefixes.  Raises DataError if their numbers differ."""
    if prefixes is None:
        yield from ((line, None) for line in lines)
        return
    for i, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None or prefix is None:
            more, fewer = ("prefixes", "lines") if line is None else ("lines", "prefixes")
            raise DataError(f"more {more} than {fewer}, which are {i}")
        yield line, prefix


def growing_windows(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Yield windows of growing size: the first results come soon, later windows fill batches."""
    window: list[Pair] = []
    n_chars, size = 0, 1
    for pair in pairs:
        window.append(pair)
        n_chars += len(pair[0].text)
        if len(window) == size or n_chars >= MAX_WINDOW_BYTES:
            yield window
            window, n_chars, size = [], 0, min(2 * size, WINDOW_LINES)
    if window:
        yield window


def totals(progress: Progress | None) -> Progress:
    """A progress of the counts that each batch adds, from one of totals."""
    n_lines = n_tokens = 0

    def add(more_lines: int, more_tokens: int) -> None:
        nonlocal n_lines, n_tokens
        n_lines, n_tokens = n_lines + more_lines, n_tokens + more_tokens
        if progress is not None and more_lines:
            progress(n_lines, n_tokens)

    return add


# -- phrases --------------------------------------------------------------------------------------


def with_phrases(lines: Iterable[Line], forced: Phrases, banned: Phrases) -> Iterator[Line]:
    """The lines with their phrases.

    Raises DataError if there are more or fewer entries than lines, or a phrase is forced and
    banned; TypeError for an entry that holds no phrases.
    """
    given = {"force_words": of_lines("force_words", forced)}
    given["ban_words"] = of_lines("ban_words", banned)
    n = 0
    for n, line in enumerate(lines, 1):
        entries = {name: next(each, None) for name, each in given.items()}
        for name, entry in entries.items():
            if entry is None:
                raise DataError(
                    f"{name} has {n - 1} entries, but there are more lines; give one for each"
                )
        yield marked(line, entries["force_words"] or (), entries["ban_words"] or ())
    for name, each in given.items():
        if not isinstance(each, repeat) and next(each, None) is not None:
            raise DataError(f"{name} has more entries than the {n} lines; give one for each")


def of_lines(name: str, phrases: Phrases) -> Iterator[tuple[str, ...]]:
    """The phrases of one line after the other."""
    if isinstance(phrases, str | None):
        return repeat(of_line(name, phrases))
    if not hasattr(phrases, "__iter__"):
        raise TypeError(f"{name}: expected phrases, got {type(phrases).__name__}")
    return (of_line(f"{name}[{i}]", entry) for i, entry in enumerate(phrases))


def of_line(name: str, entry: str | Sequence[str] | None) -> tuple[str, ...]:
    words = [entry] if isinstance(entry, str) else [] if entry is None else entry
    try:
        return parse_phrases(from_text("\t".join(words), 0).text)  # without lone surrogates
    except TypeError:
        raise TypeError(f"{name}: expected phrases, got {repr(entry)[:50]}") from None


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
