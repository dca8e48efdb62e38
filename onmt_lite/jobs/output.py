"""The output of a job: where results go, and how they are published or resumed."""

import contextlib

from onmt_lite.config.extensions import is_gzip_path
from onmt_lite.config.files import (
    GzipCompressor,
    OutputStream,
    is_regular_output,
)
from onmt_lite.errors import CheckpointError, DataError, FileError, OptionError, wrap_os_errors
from onmt_lite.jobs.fingerprint import Job
from onmt_lite.jobs.inputs import Range
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.store import BucketResult, ResultParts, Store
from onmt_lite.system.terminal import Interrupted

# Another run would most likely fail in the same way
PERMANENT_ERRORS = (OptionError, CheckpointError)


class Output:
    """The translations of a job, and its report if requested; a context."""

    def __init__(self, path: str, report: str | None = None, resumable: bool = False):
        """Choose the output files; `__enter__` locks them.

        Args:
            path: the output.
            report: the file of -report, None without one.
            resumable: whether a later run can resume from partial files.

        Raises:
            FileError: if a file cannot be written.
        """
        self.path, self.resumable = path, resumable
        paths = [path for path in (path, report) if path is not None]
        self.sinks = [
            Store(path) if is_regular_output(path) else OutputStream(path) for path in paths
        ]
        # Compressors of the sinks whose names end in .gz
        self.packers = [
            GzipCompressor(flushes=isinstance(sink, OutputStream))
            if is_gzip_path(sink.path)
            else None
            for sink in self.sinks
        ]
        self.stores = [sink for sink in self.sinks if isinstance(sink, Store)]
        self.parts: ResultParts | None = None  # of a resumable job; others write results at once
        self.ranges, self.todo = list[Range](), list[Range]()  # all, and those not done
        self.is_started = self.complete = False  # complete: files are published
        self.summary, self.n_before = Summary(), 0  # lines of earlier runs

    def __enter__(self) -> "Output":
        """Lock the files.  Raises FileError."""
        with contextlib.ExitStack() as stack:
            for sink in self.sinks:
                stack.enter_context(sink)
            self._opened = stack.pop_all()
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """After an error, keep results for a later run if it can resume; else remove them."""
        with self._opened:
            if (
                error is not None
                and self.is_started
                and not self.complete
                and not self.can_resume_after(error)
            ):
                for store in self.stores:
                    with contextlib.suppress(OSError):  # keep the original error
                        store.remove()

    def can_resume_after(self, error: BaseException) -> bool:
        """Return True if a later run can resume the job after this error."""
        if not self.resumable or self.complete or isinstance(error, DataError):
            return False
        # Once there are partial files, only this machine is unsuitable, not the job
        if isinstance(error, PERMANENT_ERRORS) and not self.summary.n_lines:
            return False
        return self.is_started or isinstance(error, Interrupted)

    # -- before the work --------------------------------------------------------------------------

    def is_complete(self, job: Job, ranges: list[Range]) -> bool:
        """Find the results of earlier runs.

        Args:
            job: fingerprint of the job.
            ranges: its buckets.

        Returns:
            True if the output files are published already.

        Raises:
            OptionError: if earlier runs belong to a different job.
            FileError: if a file cannot be read or written.
        """
        self.stores[0].compare(job)
        self.parts = ResultParts(self.path, job)
        labels = [store.read_label(job) for store in self.stores]
        if all(label is not None for label in labels):
            self.summary, self.complete = labels[0] or Summary(), True
            self._remove_stores()
            return True
        for line_range in ranges:
            if result := self.parts.read(line_range.number):
                self.summary.join(result.summary)
            else:
                self.todo.append(line_range)
        self.ranges, self.n_before = ranges, self.summary.n_lines
        return False

    def begin(self, job: Job, ranges: list[Range], machine: dict[str, str] | None) -> None:
        """Start the job, or resume it with the results that `is_complete` has found.

        Args:
            job: fingerprint of the job.
            ranges: its buckets.
            machine: device and precision; None if unknown.

        Raises:
            OptionError: if the job was started with another device or precision.
            FileError: if the store cannot be written.
        """
        is_resumed = self.parts is not None
        if not is_resumed:
            self.ranges, self.todo = ranges, ranges
        for store in self.stores:
            if self.resumable and store is self.stores[0]:
                self.parts = ResultParts(self.path, job)
                store.begin(job, is_resumed)
                if machine is not None:
                    self.parts.claim_device(machine)
            else:
                store.clear()
        self.is_started = True

    # -- results ----------------------------------------------------------------------------------

    def append(self, done: BucketResult) -> None:
        """Write a result, unless it is stored as a partial file.

        Raises:
            FileError: if writing fails.
            Interrupted: if the reader of a pipe is gone.
        """
        if self.parts is None:
            self._write(done)
        self.summary.join(done.summary)

    def join(self) -> None:
        """Concatenate the partial files.  Raises FileError."""
        if self.parts is None:
            return
        summary = Summary()
        for line_range in self.ranges:
            if (result := self.parts.read(line_range.number)) is None:
                problem = f"the partial file {line_range.where} is damaged or missing"
                raise FileError(f"cannot write {self.path}: {problem}; start over without -resume")
            self._write(result)
            summary.join(result.summary)
        self.summary = summary

    def publish(self) -> None:
        """Publish the complete files under their names.  Raises FileError."""
        for sink, packer in zip(self.sinks, self.packers):
            if packer is not None:
                sink.append(packer.finish())
            if isinstance(sink, Store) and self.parts is not None:
                sink.finish(self.parts.job, self.summary)
            else:
                sink.finish()
        self.complete = True
        self._remove_stores()

    def _write(self, done: BucketResult) -> None:
        for sink, packer, content in zip(self.sinks, self.packers, (done.data, done.report)):
            sink.append(content if packer is None else packer.compress(content))

    def _remove_stores(self) -> None:
        for store in self.stores:
            with wrap_os_errors(f"write {store.path}"):
                store.remove()
