"""Where translations go: to a stream, or to a file that appears when it is complete."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO

from onmt_lite.config.interrupt import Interrupted
from onmt_lite.errors import CheckpointError, DataError, FileError, OptionError
from onmt_lite.files import descriptor_of, name_of, replaces_a_file
from onmt_lite.jobs.buckets import Done
from onmt_lite.jobs.fingerprint import Job, differences
from onmt_lite.jobs.journal import Record, write_all
from onmt_lite.jobs.part import Part, refused
from onmt_lite.jobs.reports import LOG, Summary, read_summary

REFUSED = (OptionError, DataError, CheckpointError)  # another run would end in the same way


@contextlib.contextmanager
def open_output(
    path: str, report: str | None = None, resumable: bool = False
) -> Iterator["Output"]:
    """The output of a job, and its -report; files are locked, and written from `begin` on.

    resumable  another run can read the input from its start, and find what is written

    Raises FileError.  After an error within, what another run can go on from stays; see `leave`.
    """
    with contextlib.ExitStack() as stack:
        out, *more = [stack.enter_context(open_sink(name)) for name in (path, report) if name]
        output = Output(out, more[0] if more else None, resumable)
        try:
            yield output
        except BaseException as error:
            output.leave(error)
            raise


@contextlib.contextmanager
def open_sink(path: str) -> Iterator["Stream | Part"]:
    """A file that is locked, or a stream; closed at the end.  Raises FileError."""
    sink = Part(path) if replaces_a_file(path) else Stream(path)
    try:
        yield sink
    finally:
        with contextlib.suppress(OSError):  # the error that led here counts
            sink.close()


@contextlib.contextmanager
def open_whole(path: str) -> Iterator["Stream | Part"]:
    """As `open_sink`, for what `write_whole` writes at once: nothing unfinished is left."""
    with open_sink(path) as sink:
        try:
            yield sink
        finally:
            # Of a job that was stopped, only what its output was to be can be gone on with
            if isinstance(sink, Part) and not sink.journal.job:
                with contextlib.suppress(OSError):  # the error that led here counts
                    sink.remove()


def write_whole(sink: "Stream | Part", data: bytes) -> None:
    """All of it, or the file stays as it was; to a stream as it is.  Raises as `Stream.append`."""
    if isinstance(sink, Part):
        sink.begin({})
    sink.append(data, {})
    sink.end()
    if isinstance(sink, Part):
        sink.place({}, Summary())


class Output:
    """What a job writes: its translations, and its report if there is one.

    n_done    buckets that are written, with those of earlier runs
    summary   of the lines in these
    complete  whether the files are in their places
    """

    def __init__(self, out: "Stream | Part", report: "Stream | Part | None", resumable: bool):
        self.out, self.report = out, report
        sinks = [sink for sink in (out, report) if sink is not None]
        self.parts = [sink for sink in sinks if isinstance(sink, Part)]
        self.resumable = resumable
        self.job: Job = {}
        self.begun, self.complete, self.n_done, self.summary = False, False, 0, Summary()

    def compare(self, job: Job) -> None:
        """Raise OptionError where a journal that is there is of another job."""
        journals = [part.journal.job for part in self.parts]
        found = [d for old in journals if old for d in differences(old, job)]
        if found:
            remedy = "give what it was, or leave out -resume to begin anew"
            raise OptionError(*(f"resume: {what}; {remedy}" for what in dict.fromkeys(found)))

    def is_complete(self, job: Job) -> bool:
        """Whether earlier runs have done all of the job; then the files are put in their places.

        Raises OptionError where earlier runs have begun another job.
        """
        self.compare(job)
        if self.parts and all(part.is_complete(job) for part in self.parts):
            self.job, self.summary = job, self.parts[0].summary
            self._place()
        return self.complete

    def begin(self, job: Job, machine: dict[str, str], resume: bool = False) -> None:
        """Begin anew, or with `resume` behind the buckets that are written.

        job  what the output depends on, besides the machine; {} where nothing can be resumed

        Raises OptionError where another machine has begun, FileError where writing fails.
        """
        self.job = {**job, "machine": machine} if job else {}
        if resume:
            self.compare(self.job)
            self._find()
            LOG.info("NOTE: %s", going_on(self.summary.n_lines))
        self.begun = True
        for part in self.parts:
            if self.n_done:
                part.go_on()
            else:
                part.begin(self.job)

    def append(self, done: Done) -> None:
        """Write a bucket.  Raises FileError, and Interrupted where nobody reads a pipe."""
        if self.report is not None:
            self.report.append(done.report, {})
        self.out.append(done.data, {"lines": done.n_lines, "summary": asdict(done.summary)})
        self._count(done.summary)

    def finish(self) -> None:
        """Put what is written in its place.  Raises FileError."""
        for sink in (self.out, self.report):
            if sink is not None:
                sink.end()
        self._place()

    def keeps(self, error: BaseException) -> bool:
        """Whether another run can go on after this error."""
        if isinstance(error, REFUSED) or not self.resumable or self.complete:
            return False
        return self.begun or isinstance(error, Interrupted)

    def leave(self, error: BaseException) -> None:
        """After an error: keep what another run can go on from, or remove what this one wrote."""
        if self.begun and not self.complete and not self.keeps(error):
            for part in self.parts:
                with contextlib.suppress(OSError):  # the error that led here counts
                    part.remove()

    def _find(self) -> None:
        """Count the buckets that are in all parts as their journals say."""
        for buckets in zip(*(part.buckets() for part in self.parts)):
            for part, bucket in zip(self.parts, buckets):
                part.keep(bucket)
            self._count(read_summary(buckets[0].record["summary"]))

    def _count(self, summary: Summary) -> None:
        self.n_done += 1
        self.summary.join(summary)

    def _place(self) -> None:
        for part in self.parts:
            part.place(self.job, self.summary)
        self.complete = True
        for part in self.parts:
            with refused(part.path):
                part.journal.remove()


def going_on(n_lines: int) -> str:
    return f"going on after line {n_lines:,}" if n_lines else "no line is done yet; beginning anew"


class Stream:
    """Standard output, a device or a pipe: written to as it is."""

    def __init__(self, path: str):
        """Raises FileError."""
        self.path = path
        if path == "-":
            if sys.stdout is None:
                raise FileError("cannot write standard output: it is closed")
            self.file: IO[bytes] = sys.stdout.buffer
            return
        with refused(path):
            if os.path.isdir(path):
                raise FileError(f"cannot write {path}: it is a directory")
            fd = descriptor_of(path)
            # Nothing is cut: what another process has open may be a file
            fd = os.open(path, os.O_WRONLY | os.O_APPEND) if fd is None else os.dup(fd)
            self.file = open(fd, "wb", buffering=0)

    def append(self, data: bytes, record: Record) -> None:
        """Write all of it, now; the record is for files.  Raises as `write_stream` does."""
        write_stream(self.file, data, self.path)

    def end(self) -> None:
        """Close it: some file systems tell only now that a disk is full.  Raises FileError."""
        with refused(self.path):
            self.close()

    def close(self) -> None:
        if self.path != "-":
            self.file.close()


def write_stream(out: IO[bytes], data: bytes, path: str) -> None:
    """Write all of it, now: what waits in a buffer may fail when nobody sees."""
    try:
        out.flush()  # what the program itself has printed
        write_all(out.fileno(), data)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise Interrupted(signal.SIGPIPE) from None
        raise FileError(f"cannot write {name_of(path)}: {error.strerror}") from None
