"""Ranges: the units of work, each a bucket of lines as a position in the input files."""

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onmt_lite.text.lines import MAX_LINE_BYTES

Role = str  # of an input: src, tgt, force_words or ban_words


@dataclass(frozen=True)
class Span:
    """Whole lines of a file.

    start    bytes of the text before them, counted after unpacking
    n_bytes  their own, and `crc` the CRC-32 of these
    """

    path: str
    n_lines: int
    start: int
    n_bytes: int
    crc: int


@dataclass(frozen=True)
class Range:
    """A bucket of lines, as they stand in files.

    first  number of the first line, from 0
    spans  the lines of src, and those of each further input that belong to them; a span of one
           line may be that of all lines
    """

    number: int
    first: int
    spans: dict[Role, Span]

    @property
    def n_lines(self) -> int:
        return self.spans["src"].n_lines

    @property
    def where(self) -> str:
        """at lines 1 to 1024"""
        return f"at lines {self.first + 1} to {self.first + self.n_lines}"


def cut(
    path: str, chunks: Iterable[bytes], counts: Iterable[float], max_bytes: float = math.inf
) -> Iterator[Span]:
    """Yield whole lines: a line feed ends a line, and the last one may lack it.

    counts     lines of each span, if there are as many
    max_bytes  a span ends early when it has so many; of a line that is longer than any model
               reads, only the beginning counts
    """
    sizes = iter(counts)
    wanted = next(sizes)
    start = n_bytes = n_lines = crc = 0
    n_counted = 0  # bytes of the lines, as far as a model may read them
    length = 0  # bytes of the line that has not ended
    for chunk in chunks:
        taken = at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            n_counted += min(length + end - at, MAX_LINE_BYTES)
            length, at, n_lines = 0, end + 1, n_lines + 1
            if n_lines == wanted or n_counted >= max_bytes:
                piece = memoryview(chunk)[taken:at]
                n_bytes, crc, taken = n_bytes + len(piece), zlib.crc32(piece, crc), at
                yield Span(path, n_lines, start, n_bytes, crc)
                start += n_bytes
                n_bytes = n_lines = crc = n_counted = 0
                wanted = next(sizes)
        length += len(chunk) - at
        rest = memoryview(chunk)[taken:]
        n_bytes, crc = n_bytes + len(rest), zlib.crc32(rest, crc)
    if n_bytes:
        yield Span(path, n_lines + (length > 0), start, n_bytes, crc)
