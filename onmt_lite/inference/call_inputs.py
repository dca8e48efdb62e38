"""Inputs of a Python call: lines with their prefixes and phrases, and the progress callback."""

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

from onmt_lite.errors import DataError
from onmt_lite.inference.records import ProgressDelta, ProgressTotal
from onmt_lite.text.lines import Line, make_lines_from_texts
from onmt_lite.text.phrases import Phrases, iter_phrases, with_phrases

Pair = tuple[Line, Line | None]  # a line and the target prefix


def pair_lines(
    lines: Iterable[str], prefixes: Iterable[str] | None, forced: Phrases, banned: Phrases
) -> Iterator[Pair]:
    """Combine lines with their phrases and target prefixes.

    Args:
        lines: The lines.
        prefixes: Target prefixes, or None.
        forced: Phrases to force.
        banned: Phrases to ban.

    Returns:
        (line, prefix) pairs.

    Raises:
        DataError: A phrase is both forced and banned, or the numbers of entries differ.
        TypeError: An entry has the wrong type.
    """
    columns: dict[str, Iterator[Any]] = {
        "prefixes": repeat(None)
        if prefixes is None
        else make_lines_from_texts(prefixes, "prefixes"),
        "force_words": iter_phrases("force_words", forced),
        "ban_words": iter_phrases("ban_words", banned),
    }
    rows = zip_with_lines(make_lines_from_texts(lines, "lines"), columns)
    return ((with_phrases(line, *phrases), prefix) for line, prefix, *phrases in rows)


def zip_with_lines(lines: Iterator[Line], columns: dict[str, Iterator[Any]]) -> Iterator[list[Any]]:
    """Yield each line with its entry in every column.

    Args:
        lines: The lines.
        columns: Iterators by name; a `repeat` has an entry for every line.

    Yields:
        [line, entry, ...]

    Raises:
        DataError: A column is shorter or longer than the lines.
    """
    end = object()
    for n, line in enumerate(chain(lines, [end])):
        row = [next(column, end) for column in columns.values()]
        for (name, column), entry in zip(columns.items(), row):
            if not isinstance(column, repeat) and (entry is end) != (line is end):
                more, fewer = ("lines", name) if entry is end else (name, "lines")
                raise DataError(f"more {more} than {fewer} ({n}); pass one for each line")
        if line is not end:
            yield [line, *row]


def accumulate(progress: ProgressTotal | None) -> ProgressDelta:
    """Convert a progress callback for totals to one for the counts of each batch."""
    if not (progress is None or callable(progress)):
        raise TypeError(f"progress: must be a function, got {type(progress).__name__}")
    n_lines = n_tokens = 0

    def add(more_lines: int, more_tokens: int) -> None:
        nonlocal n_lines, n_tokens
        n_lines, n_tokens = n_lines + more_lines, n_tokens + more_tokens
        if progress is not None and more_lines:
            progress(n_lines, n_tokens)

    return add
