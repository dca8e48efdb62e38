"""One job: the lines of -src through an engine to -output, a stream or files that appear when they
are complete.  What a job itself does, reading and writing, needs no torch: only the engine does.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count

from tqdm import tqdm

from onmt_lite.checkpoints.shipped import find_config, find_model, get_model_paths
from onmt_lite.config.extensions import is_gzip_path
from onmt_lite.config.files import (
    GzipCompressor,
    OutputStream,
    check_directories,
    check_distinct,
    check_writable,
    format_path,
    is_regular_output,
    is_rereadable,
    write_text,
)
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, DataError, FileError, OptionError, wrap_os_errors
from onmt_lite.inference.records import ProgressTotal, Trace
from onmt_lite.jobs import tasks
from onmt_lite.jobs.engine import choose_engine
from onmt_lite.jobs.inputs import Inputs, Range, UnchangedFiles, list_line_inputs, scan_inputs
from onmt_lite.jobs.progress import JobProgress, configure_logging, log_machine, log_start
from onmt_lite.jobs.reports import DETAIL, SACREBLEU_MISSING, Summary, has_sacrebleu, needs_bleu
from onmt_lite.jobs.store import (
    BucketResult,
    Job,
    ResultParts,
    Store,
    compute_fingerprint,
    list_all_model_files,
    list_option_files,
)
from onmt_lite.jobs.tasks import Bucket, Engine, StreamReader, Task
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import CONSOLE, Interrupted, is_typed
from onmt_lite.trace.page import to_html, to_json

MAX_TRACED_LINES = 100  # lines whose search -dump_beam shows
NO_DUMP_ON_RESUME = (
    "dump_beam has seen no line of a job that goes on; leave out resume to begin anew"
)
PERMANENT_ERRORS = (OptionError, CheckpointError)  # as a rule another run would end in the same way

# By options and the number of buckets; None: nobody knows it
EngineFactory = Callable[[TranslateOptions, int | None], Engine]


def run_job(
    options: TranslateOptions, engine: Engine | None = None, progress: ProgressTotal | None = None
) -> Summary:
    """Translate -src to -output.  Raises an OnmtLiteError; then -output is as it was before, and
    if the error `goes_on`, the same job with -resume continues.  With an `engine` that has the
    model already, the log stays as the caller has set it up, and nothing goes on.  `progress` is
    called with the lines and target tokens that are done.
    """
    check_distinct(list(list_read_files(options)), list_written_files(options))
    if options.jobs.log_file is not None:
        check_directories([("log_file", options.jobs.log_file)])
    if options.jobs.resume and (why := find_resume_obstacle(options)):
        raise OptionError(f"resume: {why}")
    resumable = engine is None and not find_resume_obstacle(options)
    run = Run(options, [options.data.src], resumable, progress)
    logged = configure_logging(options.jobs, options.information.verbose)
    with logged if engine is None else contextlib.nullcontext():
        check_directories(list_written_files(options))
        return run.translate(lambda *job: engine or choose_engine(*job))


class Run:
    """A run of a job, which may be one of several until the job is complete."""

    def __init__(
        self,
        options: TranslateOptions,
        sources: Sequence[str],
        resumable: bool,
        progress: ProgressTotal | None = None,
    ):
        """`sources`: the files of src, in order.  `resumable`: another run can go on."""
        self.options, self.sources, self.resumable = options, sources, resumable
        self.progress = progress
        self.started = time.monotonic()
        self.out: Output | None = None  # from when it is locked
        self.meter: JobProgress | None = None  # from when the first line is to be translated
        self.dump, self.traces = options.information.dump_beam, list[Trace]()

    def translate(self, choose: EngineFactory) -> Summary:
        """Raises as `run_job`."""
        try:
            return self._translate(choose)
        except BaseException as error:
            goes_on = self.out.keeps(error) if self.out is not None else self.resumable
            attach_job_state(error, self.options.data.output, self.out, self.meter, goes_on)
            raise

    def _translate(self, choose: EngineFactory) -> Summary:
        options, jobs = self.options, self.options.jobs
        unchanged = UnchangedFiles(
            *self.sources, *(path for _, path in list_line_inputs(options)[1:])
        )
        inputs = scan_inputs(options, self.sources)
        ranges = inputs.ranges or []
        tasks.check_phrases(ranges)
        if inputs.ranges is not None:
            tasks.check_fields(options, self.sources)
        if self.dump is not None:
            check_writable(self.dump)
        with Output(options.data.output, jobs.report, self.resumable) as out:
            self.out = out
            lacks = needs_bleu(options) and not has_sacrebleu()
            asked, options = options, options.with_models()  # once all else is in order
            self.options = options
            job = compute_fingerprint(options, inputs.files) if self.resumable else {}
            is_over = jobs.resume and out.is_complete(job, ranges)
            log_start()
            log_models(asked.model.model, options.model.model)
            log_notices([*options.notes, *[SACREBLEU_MISSING] * lacks])
            if is_over:
                LOG.info("%s is complete; nothing is left to do", format_path(options.data.output))
                return out.summary
            n_buckets = None if inputs.ranges is None else len(ranges)
            has_all = bool(out.ranges) and not out.todo  # parts, which are to be joined
            with Engine() if has_all else choose(options, n_buckets) as engine:
                log_notices(engine.notes)
                log_machine(engine.machine)
                out.begin(job, ranges, engine.machine)
                if jobs.resume:
                    done = f"going on; {out.n_before:,} of {inputs.n_lines:,} lines are done"
                    log_notices([done if out.n_before else "no line is done yet; beginning anew"])
                if out.n_before and self.dump is not None:
                    log_notices([f"{self.dump} is not written: {NO_DUMP_ON_RESUME}"])
                    self.dump = None
                meter = self._run(engine, out, inputs, unchanged)
            with meter.clock.phase("write"):
                out.join()
            self._log_end(out.summary, meter)
            if self.dump is not None:
                to_text = to_html if self.dump.endswith(".html") else to_json
                write_text(to_text(self.traces), self.dump)
            meter.end(options.data.output, time.monotonic() - self.started)
            out.place()  # after the log: a job that fails leaves no output
        return out.summary

    def _run(
        self, engine: Engine, out: "Output", inputs: Inputs, unchanged: UnchangedFiles
    ) -> JobProgress:
        """Do all that is left to do, so that memory does not grow with the input."""
        options, quiet = self.options, self.options.jobs.quiet
        typed = is_typed(options.data.src)
        self.meter = meter = JobProgress(inputs.n_lines, quiet, typed, self.progress, out.n_before)
        with ExitStack() as opened:
            opened.enter_context(meter)
            opened.enter_context(unchanged)
            work: Iterable[Range | Bucket] = out.todo
            numbers = iter([each.number for each in out.todo])
            first = inputs.ranges[0].first if inputs.ranges else 0
            below = 0 if self.dump is None else first + MAX_TRACED_LINES
            if inputs.ranges is None:
                reader, numbers = StreamReader(options, inputs.n_lines, opened), count()
                work = reader.buckets()
            todo = (Task(each, options, out.parts, below) for each in work)
            results = opened.enter_context(closing(engine.run(todo, meter.add)))
            for done in in_order(results, numbers):
                unchanged.check()
                # The output may go to the terminal of the bar
                with tqdm.external_write_mode(CONSOLE), meter.clock.phase("write"):
                    out.append(done)
                meter.clock.add(done.seconds)
                self.traces += done.traces
                for line in done.log:
                    LOG.info("%s", line)
        return meter

    def _log_end(self, summary: Summary, meter: JobProgress) -> None:
        """Log what was done to the lines, and how long that took."""
        report, output = self.options.information, self.options.data.output
        if self.options.phrases.force_words and not self.options.data.score_only:
            n_unmet, n_forced = summary.n_unmet, summary.n_forced
            LOG.info("force_words: %d of %d phrases not met", n_unmet, n_forced)
        if self.options.text.replace_unk:
            LOG.info("replace_unk: %d replaced by tokens of the source", summary.n_replaced)
        seen = CONSOLE.isatty() and output not in ("-", "/dev/stdout")
        summary.log(report.verbose or report.report_time or seen)
        if report.report_time:
            meter.log_times(meter.started - self.started)


def in_order(results: Iterable[BucketResult], numbers: Iterator[int]) -> Iterator[BucketResult]:
    """Results in the order of their numbers: each waits for those before it."""
    waiting: dict[int, BucketResult] = {}
    wanted = next(numbers, None)
    for done in results:
        waiting[done.number] = done
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted = next(numbers, None)


class Output:
    """The translations of a job, and its report if there is one; a context."""

    def __init__(self, path: str, report: str | None = None, resumable: bool = False):
        """`resumable`: another run can go on from the parts.  Raises FileError."""
        self.path, self.resumable = path, resumable
        paths = [path for path in (path, report) if path is not None]
        self.sinks = [
            Store(each) if is_regular_output(each) else OutputStream(each) for each in paths
        ]
        # The gzip packer of each sink whose name ends in .gz
        self.packers = [
            GzipCompressor(flushes=isinstance(sink, OutputStream))
            if is_gzip_path(sink.path)
            else None
            for sink in self.sinks
        ]
        self.stores = [sink for sink in self.sinks if isinstance(sink, Store)]
        self.parts: ResultParts | None = (
            None  # of a job that can go on; else results are written at once
        )
        self.ranges, self.todo = list[Range](), list[Range]()  # all, and those without parts
        self.begun = self.complete = False  # complete: the files are in their places
        self.summary, self.n_before = Summary(), 0  # of all that is done; lines of earlier runs

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
        if isinstance(error, PERMANENT_ERRORS) and not self.summary.n_lines:
            return False
        return self.begun or isinstance(error, Interrupted)

    # -- before the work --------------------------------------------------------------------------

    def is_complete(self, job: Job, ranges: list[Range]) -> bool:
        """Find what earlier runs have done of a job; return whether its files are in their places.
        Raises OptionError if they were asked for another job, FileError."""
        self.stores[0].compare(job)
        self.parts = ResultParts(self.path, job)
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

    def begin(self, job: Job, ranges: list[Range], machine: dict[str, str] | None) -> None:
        """Begin the job: anew, or with what `is_complete` has found.  Raises OptionError if a
        machine of another kind than this one (None: unknown) has begun, FileError."""
        goes_on = self.parts is not None
        if not goes_on:
            self.ranges, self.todo = ranges, ranges
        for store in self.stores:
            if self.resumable and store is self.stores[0]:
                self.parts = ResultParts(self.path, job)
                store.begin(job, goes_on)
                if machine is not None:
                    self.parts.claim_device(machine)
            else:
                store.clear()
        self.begun = True

    # -- results ----------------------------------------------------------------------------------

    def append(self, done: BucketResult) -> None:
        """Take a result: written now, or kept as a part already.  Raises FileError, and
        Interrupted if nobody reads a pipe any more."""
        if self.parts is None:
            self._write(done)
        self.summary.join(done.summary)

    def join(self) -> None:
        """Write the parts one after the other.  Raises FileError."""
        if self.parts is None:
            return
        summary = Summary()
        for each in self.ranges:
            if (part := self.parts.read(each.number)) is None:
                where = f"its part {each.where} is damaged or gone; begin anew without -resume"
                raise FileError(f"cannot write {self.path}: {where}")
            self._write(part)
            summary.join(part.summary)
        self.summary = summary

    def place(self) -> None:
        """Put all that is written in its place.  Raises FileError."""
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
        for sink, packer, share in zip(self.sinks, self.packers, (done.data, done.report)):
            sink.append(share if packer is None else packer.compress(share))

    def _remove_stores(self) -> None:
        for store in self.stores:
            with wrap_os_errors(f"write {store.path}"):
                store.remove()


# -- files that a job reads and writes ------------------------------------------------------------


def find_resume_obstacle(options: TranslateOptions) -> str:
    """Why another run cannot go on with the job; "" if it can."""
    for name, path in list_option_files(options):
        if not is_rereadable(path):
            shown = "standard input" if path == "-" else path
            return f"{name} is {shown}, which cannot be read again; give a file"
    for name, sink in (("output", options.data.output), ("report", options.jobs.report)):
        if sink is not None and not is_regular_output(sink) and not os.path.isdir(sink):
            return f"{name} is {format_path(sink)}, which is no file to go on with; give a file"
    return ""


def list_written_files(options: TranslateOptions) -> list[tuple[str, str]]:
    """List the files that the options name to be written: what to call each, and its path."""
    jobs, dump = options.jobs, options.information.dump_beam
    named = [("output", options.data.output), ("log_file", jobs.log_file)]
    named += [("report", jobs.report), ("dump_beam", dump)]
    return [(name, path) for name, path in named if path is not None]


def list_read_files(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """List the files that the options name to be read: what to call each, and its path."""
    yield from list_option_files(options)
    yield from (("config", find_config(path)) for path in options.configs)
    for path in map(find_model, get_model_paths(options.model.model)):
        yield "model", str(path)
    # An empty one there may be what the shell has made for `> file`
    yield from (("model", f) for _, f in list_all_model_files(options) if os.path.getsize(f))


# -- the log of a job -----------------------------------------------------------------------------


def log_notices(notes: Iterable[str]) -> None:
    for note in notes:
        LOG.info("NOTE: %s", note)


def log_models(names: Iterable[str], paths: Iterable[str]) -> None:
    """Log where models of the hub are: the paths have their commits."""
    for name, path in zip(names, paths):
        if name != path:
            LOG.info("%s: %s", name, path, extra=DETAIL)


def attach_initial_state(stop: Interrupted, options: TranslateOptions) -> None:
    """Let a stop say that nothing is written yet."""
    attach_job_state(stop, options.data.output, None, None, not find_resume_obstacle(options))


def attach_job_state(
    error: BaseException, output: str, out: Output | None, meter: JobProgress | None, goes_on: bool
) -> None:
    """Attach to an error, for the command line, how far the job was, what became of its output and
    whether -resume can continue."""
    goes_on &= out is not None or isinstance(error, Interrupted)
    n_lines = 0 if out is None else out.summary.n_lines
    done = f"after {meter.done(n_lines)}" if meter and n_lines else "before the first line"
    if out is not None and out.complete:
        state = f"; {format_path(output)} is complete"
    elif is_regular_output(output):
        state = "is as it was before" if os.path.exists(output) else "was not written"
        rest = "; go on with:" if goes_on else ", nothing of this run is kept"
        state = f"; {format_path(output)} {state}{rest}"
    else:
        state = f", written to {format_path(output)}" if n_lines else "; nothing was written"
    vars(error).update(can_resume=goes_on, status=done + state)
