"""The output of a job: a stream, or files that appear when they are complete."""

import contextlib

from onmt_lite.config.console import Interrupted
from onmt_lite.config.files import Stream, replaces_a_file
from onmt_lite.errors import CheckpointError, DataError, FileError, OptionError, refused
from onmt_lite.inference.records import Trace
from onmt_lite.inference.trace_page import to_html, to_json
from onmt_lite.jobs.inputs import Range
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.store import Job, Parts, Store
from onmt_lite.jobs.tasks import Done

REFUSED = (OptionError, CheckpointError)  # as a rule another run would end in the same way


def open_sink(path: str) -> Stream | Store:
    """What takes bytes: a context.  Raises FileError, now or when it is entered."""
    return Store(path) if replaces_a_file(path) else Stream(path)


class Output:
    """The translations of a job, and its report if there is one; a context.

    parts     the parts of a job that can go on; None if results are written as they come, in order
    todo      ranges whose parts are not there yet
    summary   of the lines that are done, by this run and by earlier ones
    n_before  lines that earlier runs have done
    complete  the files are in their places
    """

    def __init__(self, path: str, report: str | None = None, resumable: bool = False):
        """`resumable`: another run can read the input again, and continue from the parts.

        Raises FileError.
        """
        self.path, self.resumable = path, resumable
        self.sinks = [open_sink(name) for name in (path, report) if name is not None]
        self.stores = [sink for sink in self.sinks if isinstance(sink, Store)]
        self.job: Job | None = None
        self.parts: Parts | None = None
        self.ranges: list[Range] = []
        self.todo: list[Range] = []
        self.begun = self.complete = False
        self.summary, self.n_before = Summary(), 0

    def __enter__(self) -> "Output":
        """Lock the files.  Raises FileError."""
        with contextlib.ExitStack() as opened:
            for sink in self.sinks:
                opened.enter_context(sink)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        """After an error, keep what another run can go on from, or remove what this one wrote."""
        with self._opened:
            if error is not None and self.begun and not self.complete and not self.keeps(error):
                for store in self.stores:
                    with contextlib.suppress(OSError):  # the error that led here counts
                        store.remove()

    def keeps(self, error: BaseException) -> bool:
        """Return whether another run can go on after this error."""
        if not self.resumable or self.complete or isinstance(error, DataError):
            return False
        # Once there are parts, an unsuitable machine is refused, not the job
        if isinstance(error, REFUSED) and not self.summary.n_lines:
            return False
        return self.begun or isinstance(error, Interrupted)

    # -- before the work --------------------------------------------------------------------------

    def is_complete(self, job: Job, ranges: list[Range]) -> bool:
        """Find what earlier runs have done of a job; return whether its files are in their places.

        job  what the output depends on, besides the machine

        Raises OptionError if they were asked for another job, FileError.
        """
        self.stores[0].compare(job)
        self.job, self.parts = job, Parts(self.path, job)
        labels = [store.labelled(job) for store in self.stores]
        if all(label is not None for label in labels):
            self.summary, self.complete = labels[0] or Summary(), True
            self._remove_stores()
            return True
        for each in ranges:
            if part := self.parts.read(each.number):
                self.summary.join(part.summary)
            else:
                self.todo.append(each)
        self.ranges, self.n_before = ranges, self.summary.n_lines
        return False

    @property
    def has_all(self) -> bool:
        """All parts are there, and are to be joined."""
        return bool(self.ranges) and not self.todo

    def begin(self, job: Job, ranges: list[Range], machine: dict[str, str] | None) -> None:
        """Begin the job: anew, or with what `is_complete` has found.

        machine  what translates here; None if that is not known

        Raises OptionError if a machine of another kind has begun, FileError.
        """
        goes_on = self.parts is not None
        if not goes_on:
            self.ranges, self.todo = ranges, ranges
        for store in self.stores:
            if self.resumable and store is self.stores[0]:
                self.job, self.parts = job, Parts(self.path, job)
                store.begin(job, goes_on)
                if machine is not None:
                    self.parts.settle(machine)
            else:
                store.clear()
        self.begun = True

    # -- results ----------------------------------------------------------------------------------

    def append(self, done: Done) -> None:
        """Take a result: written now, or kept as a part already.

        Raises FileError, and Interrupted if nobody reads a pipe any more.
        """
        if self.parts is None:
            self._write(done.data, done.report)
        self.summary.join(done.summary)

    def join(self) -> None:
        """Write the parts one after the other.  Raises FileError."""
        if self.parts is None:
            return
        summary = Summary()
        for each in self.ranges:
            part = self.parts.read(each.number)
            if part is None:
                raise FileError(
                    f"cannot write {self.path}: its part {each.where} is damaged or gone"
                )
            self._write(part.data, part.report)
            summary.join(part.summary)
        self.summary = summary

    def place(self) -> None:
        """Put all that is written in its place.  Raises FileError."""
        for sink in self.sinks:
            if isinstance(sink, Store):
                sink.finish(self.job, self.summary)
            else:
                sink.finish()
        self.complete = True
        self._remove_stores()

    def _write(self, data: bytes, report: bytes) -> None:
        for sink, share in zip(self.sinks, (data, report)):
            sink.append(share)

    def _remove_stores(self) -> None:
        for store in self.stores:
            with refused(f"write {store.path}"):
                store.remove()


N_LINES = 100  # that are traced


class Dump:
    """The traces of a job; without a path, of no line.  A context."""

    def __init__(self, path: str | None):
        """Raises FileError."""
        self.path, self.traces = path, list[Trace]()
        self.sink = None if path is None else open_sink(path)
        self.n_left = 0 if path is None else N_LINES  # lines to be traced

    def __enter__(self) -> "Dump":
        """Lock the file.  Raises FileError."""
        if self.sink is not None:
            self.sink.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.sink is not None:
            self.sink.__exit__(*error)

    def take(self, n_lines: int) -> int:
        """How many of the next lines are to be traced."""
        n = min(self.n_left, n_lines)
        self.n_left -= n
        return n

    def leave_out(self) -> None:
        """Trace no line, and leave the file as it is."""
        self.path, self.n_left = None, 0

    def write(self) -> None:
        """Put the file in its place.  Raises FileError, and Interrupted if nobody reads a pipe."""
        if self.path is None or self.sink is None:
            return
        made = to_html if self.path.endswith(".html") else to_json
        if isinstance(self.sink, Store):
            self.sink.clear()
        self.sink.append(made(self.traces).encode("utf-8", "backslashreplace"))
        self.sink.finish()
        if isinstance(self.sink, Store):
            with refused(f"write {self.path}"):
                self.sink.remove()
