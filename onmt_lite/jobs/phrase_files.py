"""The files of -force_words and -ban_words, read beside the lines that they belong to."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from onmt_lite.config.phrase_options import PhraseOptions
from onmt_lite.errors import DataError
from onmt_lite.files import MATCH, open_input, rereads
from onmt_lite.inference.glossary import marked
from onmt_lite.jobs.buckets import Bucket
from onmt_lite.text.line import Line
from onmt_lite.text.lines import LineReader
from onmt_lite.text.phrases import parse_phrases

ONE = f"{MATCH}, or be one line for all"


class PhraseFile:
    """The phrases of a file of one line, for all lines, or of one line after the other."""

    def __init__(self, name: str, reader: LineReader | None):
        """reader: None where there is no file, and no phrase."""
        self.name, self.reader = name, reader
        self.ahead = [] if reader is None else reader.take(2)
        self.of_all = reader is None or len(self.ahead) == 1
        self.n_taken = 0

    def of(self, line: Line) -> tuple[str, ...]:
        """The phrases of a line; lines are asked for in order, and some may be left out.

        DataError where there are none for it any more, and for phrases that are no UTF-8."""
        if not self.of_all:
            while self.n_taken < line.id:
                self._next()
            return self._read(self._next())
        return self._read(self.ahead[0]) if self.ahead else ()

    def _next(self) -> Line:
        if not self.has_more():
            raise DataError(f"src has more lines than {self.name}, which has {self.n_taken}; {ONE}")
        self.n_taken += 1
        return self.ahead.pop(0)

    def _read(self, line: Line) -> tuple[str, ...]:
        if "invalid-utf8" in line.notes:
            raise DataError(f"{self.name} line {line.id + 1} is not UTF-8; convert it")
        return parse_phrases(line.text)

    def has_more(self) -> bool:
        """Whether there are lines for further lines of the input."""
        if not self.ahead and self.reader is not None:
            self.ahead = self.reader.take(1)
        return bool(self.ahead)

    def end(self, n_lines: int) -> None:
        """DataError where there is more than the input has lines."""
        if not self.of_all and self.has_more():
            raise DataError(f"{self.name} has more lines than src, which has {n_lines}; {ONE}")


class Glossary:
    """The phrases of a job, those forced and those banned."""

    def __init__(self, forced: PhraseFile, banned: PhraseFile):
        self.forced, self.banned = forced, banned

    def marked(self, buckets: Iterable[Bucket], whole: bool) -> Iterator[Bucket]:
        """The buckets with the phrases of their lines.  Errors as above, and for a phrase that is
        forced and banned.  whole: they are all of the input that is left."""
        n_lines = 0
        for bucket in buckets:
            lines = [marked(e, self.forced.of(e), self.banned.of(e)) for e in bucket.lines]
            n_lines = lines[-1].id + 1 if lines else n_lines
            yield replace(bucket, lines=lines)
        if whole and n_lines:
            self.forced.end(n_lines)
            self.banned.end(n_lines)


@contextlib.contextmanager
def open_glossary(options: PhraseOptions) -> Iterator[Glossary]:
    """The files that the options name.  FileError where one cannot be read, or has changed."""
    with contextlib.ExitStack() as stack:

        def opened(name: str, path: str | None) -> PhraseFile:
            if path is None:
                return PhraseFile(name, None)
            reader = LineReader(stack.enter_context(open_input(path)), path)
            return PhraseFile(name, reader)

        forced = opened("force_words", options.force_words)
        yield Glossary(forced, opened("ban_words", options.ban_words))


def check_glossary(options: PhraseOptions, n_lines: int | None) -> None:
    """Read the files once, before the work begins, for an input of so many lines, if that is known.

    DataError for what `Glossary.marked` would come across later.
    """
    paths = [path for path in (options.force_words, options.ban_words) if path is not None]
    if not paths or not all(map(rereads, paths)):  # a stream is read once
        return
    with open_glossary(options) as glossary:
        by_line = [file for file in (glossary.forced, glossary.banned) if not file.of_all]
        if not by_line:
            n_lines = 1
        n = 0
        while n < n_lines if n_lines is not None else any(file.has_more() for file in by_line):
            line = Line(n, "")
            marked(line, glossary.forced.of(line), glossary.banned.of(line))
            n += 1
        for file in by_line:
            file.end(n)
