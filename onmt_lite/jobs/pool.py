"""A Translator whose calls are done by worker processes: `Translator.from_pretrained(workers=2)`.

The processes are those of -workers: one loads the model, the others are its forks.  The caller's
process loads no model, and what it has done with torch before does not matter.  A call is cut into
parts, runs of lines; a worker has one part at a time.
"""

import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Translation
from onmt_lite.inference.translator import Translator
from onmt_lite.jobs.buckets import BUCKET_LINES, Bucket, Done, Engine
from onmt_lite.jobs.buckets import Progress as Added
from onmt_lite.jobs.work import translate_bucket
from onmt_lite.jobs.workers import Workers
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.line import Line

PARTS = 4  # of a call, for each worker: who is done early takes another
FULL = 64  # lines that make a good batch, below which a part is not cut more than workers need

Task = Callable[[Translator, "Call", Added], Any]  # what a worker does with a part


@dataclass(frozen=True)
class Call(Bucket):
    """A part of a call, or a bucket of a file.

    task      what is done with it, a function of this module
    options   of the call; None: those of the Translator
    prefixes  of the lines, if there are any
    bucket    of the file
    """

    task: Task | None = None
    options: TranslateOptions | None = None
    prefixes: list[Line] | None = None
    bucket: Bucket | None = None

    @property
    def where(self) -> str:
        return super().where if self.lines else "in a call without lines"


@dataclass(frozen=True)
class Answer:
    """What has become of a part."""

    number: int
    value: Any


class PoolWorkers(Workers):
    """Processes that do calls."""

    task = ("onmt_lite.jobs.pool", "answer")


class Pool(Translator):
    """A Translator without a model: its workers have one."""

    def __init__(self, options: TranslateOptions):
        """Start the workers.  Raises OptionError, CheckpointError or WorkerLost."""
        self.options, self.warned = options, set()
        self.process = os.getpid()
        self._numbers = count()
        self._lock = threading.Lock()  # the workers do the calls of several threads in turn
        self._caller: int | None = None  # the thread whose call is being done
        self._workers = PoolWorkers(options, options.n_workers or 1)
        self._end = weakref.finalize(self, end, self._workers, self.process)
        self._workers.__enter__()
        self.machine = self._workers.machine

    def close(self) -> None:
        """End the workers.  A call that comes later is a ValueError."""
        self._end()

    def translate_lines(
        self,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: Added = lambda n_lines, n_tokens: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Translation]:
        calls = self._calls(translate, lines, tgt_lines, options or self.options, prefixes)
        return self._joined(calls, progress)

    def score_lines(self, sources: Sequence[Line], targets: Sequence[Line]) -> list[float | None]:
        return self._joined(self._calls(score, sources, targets, self.options))

    def notes_on(self, options: TranslateOptions) -> list[str]:
        return self._joined(self._calls(tell_notes, [], None, options))

    def engine(self, options: TranslateOptions) -> Engine:
        return FileEngine(self, options)

    def run(
        self, calls: Iterable[Call], progress: Added = lambda n_lines, n_tokens: None
    ) -> Generator[Any, None, None]:
        """Yield the values of the answers, in order.  Raises what the tasks raise.

        ValueError where the workers have been ended, or are those of another process.
        """
        if not self._end.alive:
            raise ValueError("this Translator is closed")
        if os.getpid() != self.process:
            raise ValueError("this Translator is of another process; make one in each")
        if self._caller == threading.get_ident():
            raise ValueError("this Translator is at work: its progress cannot call it")
        with self._lock, closing(self._workers.run(calls, progress)) as answers:
            self._caller = threading.get_ident()
            try:
                for answer in answers:
                    yield answer.value
            finally:
                self._caller = None

    def file_calls(self, buckets: Iterable[Bucket], options: TranslateOptions) -> Iterator[Call]:
        for b in buckets:
            task = translate_for_file
            yield Call(next(self._numbers), b.lines, None, task, options, bucket=b)

    def _joined(
        self, calls: Iterable[Call], progress: Added = lambda n_lines, n_tokens: None
    ) -> list[Any]:
        """The lists of all answers as one."""
        with closing(self.run(calls, progress)) as answers:
            return [each for answer in answers for each in answer]

    def _calls(
        self,
        task: Task,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None,
        options: TranslateOptions,
        prefixes: Sequence[Line] | None = None,
    ) -> Iterator[Call]:
        """Lines in parts; in one part where it matters what shares a batch."""
        n = len(lines)
        alone = PRESETS[options.search.search].policy.as_2018
        size = max(1, n) if alone else part_size(n, self._workers.n)
        for start in range(0, max(1, n), size):
            part = slice(start, start + size)
            begin, tgt = (
                None if each is None else list(each[part]) for each in (prefixes, tgt_lines)
            )
            yield Call(next(self._numbers), list(lines[part]), tgt, task, options, begin)


class FileEngine:
    """The engine of a job that the workers of a Translator do; see `Engine`."""

    def __init__(self, pool: Pool, options: TranslateOptions):
        self.pool, self.options = pool, options
        self.machine = pool.machine
        self.notes: list[str] = []  # they are warnings of the call
        self.running: Generator[Done, None, None] | None = None

    def __enter__(self) -> "FileEngine":
        return self

    def __exit__(self, *error: object) -> None:
        if self.running is not None:
            self.running.close()  # an error, whose traceback may live on, has left it open

    def run(self, buckets: Iterable[Bucket], progress: Added) -> Iterator[Done]:
        self.running = self.pool.run(self.pool.file_calls(buckets, self.options), progress)
        return self.running


def part_size(n_lines: int, n_workers: int) -> int:
    """Lines of a part: several parts for each worker, but full batches first."""
    full = min(FULL, math.ceil(n_lines / n_workers))
    return min(BUCKET_LINES["cpu"], max(1, full, math.ceil(n_lines / (PARTS * n_workers))))


def end(workers: Workers, process: int) -> None:
    """End workers, unless this is a fork of the process that started them."""
    if os.getpid() == process:
        workers.__exit__()


# -- what workers do ------------------------------------------------------------------------------


def answer(
    translator: Translator, options: TranslateOptions, call: Call, progress: Added
) -> Answer:
    """The task of these workers."""
    assert call.task is not None
    return Answer(call.number, call.task(translator, call, progress))


def translate(translator: Translator, call: Call, progress: Added) -> list[Translation]:
    return translator.translate_lines(
        call.lines, call.tgt_lines, call.options, progress, call.prefixes
    )


def score(translator: Translator, call: Call, progress: Added) -> list[float | None]:
    return translator.score_lines(call.lines, call.tgt_lines or [])


def tell_notes(translator: Translator, call: Call, progress: Added) -> list[str]:
    return translator.notes_on(call.options or translator.options)


def translate_for_file(translator: Translator, call: Call, progress: Added) -> Done:
    assert call.bucket is not None
    return translate_bucket(translator, call.options or translator.options, call.bucket, progress)
