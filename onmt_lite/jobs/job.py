"""One job: lines of -src go through an engine to -output.

The output is a stream, or files that appear when they are complete.

Reading and writing need no torch; only the engine does.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count

from tqdm import tqdm

from onmt_lite.checkpoints.shipped import find_config, find_model, get_model_paths
from onmt_lite.config.files import (
    check_directories,
    check_distinct,
    check_writable,
    format_path,
    is_regular_output,
    is_rereadable,
    write_text,
)
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OptionError
from onmt_lite.inference.records import ProgressTotal, Trace
from onmt_lite.jobs import tasks
from onmt_lite.jobs.engine import choose_engine
from onmt_lite.jobs.fingerprint import compute_fingerprint, list_all_model_files, list_option_files
from onmt_lite.jobs.inputs import Inputs, Range, UnchangedFiles, list_line_inputs, scan_inputs
from onmt_lite.jobs.output import Output
from onmt_lite.jobs.progress import JobProgress, configure_logging, log_machine, log_start
from onmt_lite.jobs.reports import DETAIL, SACREBLEU_MISSING, Summary, has_sacrebleu, needs_bleu
from onmt_lite.jobs.store import BucketResult
from onmt_lite.jobs.tasks import Bucket, Engine, StreamReader, Task
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import CONSOLE, Interrupted, is_typed
from onmt_lite.trace.page import to_html, to_json

MAX_TRACED_LINES = 100  # limit of -dump_beam
NO_DUMP_ON_RESUME = "earlier lines of a resumed job were not traced; start over without -resume"

# From the options and the number of buckets (None if unknown)
EngineFactory = Callable[[TranslateOptions, int | None], Engine]


def run_job(
    options: TranslateOptions, engine: Engine | None = None, progress: ProgressTotal | None = None
) -> Summary:
    """Translate -src to -output.

    Args:
        options: options of the job.
        engine: an engine that is loaded already.  Then logging is left as the caller has set it up,
            and the job cannot be resumed.
        progress: callback with the lines and target tokens that are done.

    Returns:
        Counts over the lines, and warnings.

    Raises:
        OnmtLiteError: -output is as it was before.  If the error has `can_resume`, the same job
            with -resume continues.
    """
    check_distinct(list(list_read_files(options)), list_written_files(options))
    if options.jobs.log_file is not None:
        check_directories([("log_file", options.jobs.log_file)])
    if options.jobs.resume and (why := find_resume_obstacle(options)):
        raise OptionError(f"resume: {why}")
    resumable = engine is None and not find_resume_obstacle(options)
    run = Run(options, [options.data.src], resumable, progress)
    log_setup = configure_logging(options.jobs, options.information.verbose)
    with log_setup if engine is None else contextlib.nullcontext():
        check_directories(list_written_files(options))
        return run.translate(lambda *job: engine or choose_engine(*job))


class Run:
    """One attempt at a job; an interrupted job is resumed by a later Run."""

    def __init__(
        self,
        options: TranslateOptions,
        sources: Sequence[str],
        resumable: bool,
        progress: ProgressTotal | None = None,
    ):
        """Prepare the run; `translate` starts it.

        Args:
            options: options of the job.
            sources: the files of src in order.
            resumable: whether a later run can resume the job.
            progress: callback with the lines and target tokens that are done.
        """
        self.options, self.sources, self.resumable = options, sources, resumable
        self.progress = progress
        self.started = time.monotonic()
        self.out: Output | None = None  # set once it is locked
        self.progress_bar: JobProgress | None = None  # set when translation starts
        self.dump, self.traces = options.information.dump_beam, list[Trace]()

    def translate(self, make_engine: EngineFactory) -> Summary:
        """Run the job.

        Args:
            make_engine: returns the engine for the options and the number of buckets.

        Raises:
            OnmtLiteError: as `run_job`.
        """
        try:
            return self._translate(make_engine)
        except BaseException as error:
            can_resume = (
                self.out.can_resume_after(error) if self.out is not None else self.resumable
            )
            attach_job_state(
                error, self.options.data.output, self.out, self.progress_bar, can_resume
            )
            raise

    def _translate(self, make_engine: EngineFactory) -> Summary:
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
            lacks_sacrebleu = needs_bleu(options) and not has_sacrebleu()
            # Downloads models: do all other checks first
            original, options = options, options.with_models()
            self.options = options
            job = compute_fingerprint(options, inputs.files) if self.resumable else {}
            is_done = jobs.resume and out.is_complete(job, ranges)
            log_start()
            log_models(original.model.model, options.model.model)
            log_notices([*options.notes, *[SACREBLEU_MISSING] * lacks_sacrebleu])
            if is_done:
                LOG.info("%s is already complete", format_path(options.data.output))
                return out.summary
            n_buckets = None if inputs.ranges is None else len(ranges)
            has_all_parts = bool(out.ranges) and not out.todo  # they only need to be joined
            with Engine() if has_all_parts else make_engine(options, n_buckets) as engine:
                log_notices(engine.notes)
                log_machine(engine.machine)
                out.begin(job, ranges, engine.machine)
                if jobs.resume:
                    done = f"resuming: {out.n_before:,} of {inputs.n_lines:,} lines are done"
                    log_notices([done if out.n_before else "no line is done yet; starting over"])
                if out.n_before and self.dump is not None:
                    log_notices([f"{self.dump} is not written: {NO_DUMP_ON_RESUME}"])
                    self.dump = None
                progress_bar = self._run(engine, out, inputs, unchanged)
            with progress_bar.clock.phase("write"):
                out.join()
            self._log_end(out.summary, progress_bar)
            if self.dump is not None:
                to_text = to_html if self.dump.endswith(".html") else to_json
                write_text(to_text(self.traces), self.dump)
            progress_bar.end(options.data.output, time.monotonic() - self.started)
            out.publish()  # last: a job that fails leaves no output
        return out.summary

    def _run(
        self, engine: Engine, out: "Output", inputs: Inputs, unchanged: UnchangedFiles
    ) -> JobProgress:
        """Translate all remaining lines; memory use does not depend on the input.

        Args:
            engine: the loaded engine.
            out: the output, begun.
            inputs: the scanned inputs.
            unchanged: checks that inputs do not change.

        Returns:
            The progress of the job, closed.
        """
        options, quiet = self.options, self.options.jobs.quiet
        reads_terminal = is_typed(options.data.src)
        self.progress_bar = progress_bar = JobProgress(
            inputs.n_lines, quiet, reads_terminal, self.progress, out.n_before
        )
        with ExitStack() as stack:
            stack.enter_context(progress_bar)
            stack.enter_context(unchanged)
            work: Iterable[Range | Bucket] = out.todo
            numbers = iter([line_range.number for line_range in out.todo])
            first = inputs.ranges[0].first if inputs.ranges else 0
            traced_below = 0 if self.dump is None else first + MAX_TRACED_LINES
            if inputs.ranges is None:
                reader, numbers = StreamReader(options, inputs.n_lines, stack), count()
                work = reader.buckets()
            todo = (Task(item, options, out.parts, traced_below) for item in work)
            results = stack.enter_context(closing(engine.run(todo, progress_bar.add)))
            for done in in_order(results, numbers):
                unchanged.check()
                # The output may go to the same terminal as the bar
                with tqdm.external_write_mode(CONSOLE), progress_bar.clock.phase("write"):
                    out.append(done)
                progress_bar.clock.add(done.seconds)
                self.traces += done.traces
                for line in done.log:
                    LOG.info("%s", line)
        return progress_bar

    def _log_end(self, summary: Summary, progress_bar: JobProgress) -> None:
        """Log statistics, warnings and times."""
        report, output = self.options.information, self.options.data.output
        if self.options.phrases.force_words and not self.options.data.score_only:
            n_unmet, n_forced = summary.n_unmet, summary.n_forced
            LOG.info("force_words: %d of %d phrases not met", n_unmet, n_forced)
        if self.options.text.replace_unk:
            LOG.info("replace_unk: %d replaced by tokens of the source", summary.n_replaced)
        shows_bar = CONSOLE.isatty() and output not in ("-", "/dev/stdout")
        summary.log(report.verbose or report.report_time or shows_bar)
        if report.report_time:
            progress_bar.log_times(progress_bar.started - self.started)


def in_order(results: Iterable[BucketResult], numbers: Iterator[int]) -> Iterator[BucketResult]:
    """Yield results in the order of their numbers."""
    pending: dict[int, BucketResult] = {}
    next_number = next(numbers, None)
    for done in results:
        pending[done.number] = done
        while next_number in pending:
            yield pending.pop(next_number)
            next_number = next(numbers, None)


# -- files that a job reads and writes ------------------------------------------------------------


def find_resume_obstacle(options: TranslateOptions) -> str:
    """Return why a later run cannot resume the job; "" if it can."""
    for name, path in list_option_files(options):
        if not is_rereadable(path):
            shown = "standard input" if path == "-" else path
            return f"{name} is {shown}, which cannot be read again; use a file"
    for name, sink in (("output", options.data.output), ("report", options.jobs.report)):
        if sink is not None and not is_regular_output(sink) and not os.path.isdir(sink):
            return f"{name} is {format_path(sink)}, which cannot be resumed; use a file"
    return ""


def list_written_files(options: TranslateOptions) -> list[tuple[str, str]]:
    """Return the files that the options name for writing: name for messages, and path."""
    jobs, dump = options.jobs, options.information.dump_beam
    named = [("output", options.data.output), ("log_file", jobs.log_file)]
    named += [("report", jobs.report), ("dump_beam", dump)]
    return [(name, path) for name, path in named if path is not None]


def list_read_files(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """Yield the files that the options name for reading: name for messages, and path."""
    yield from list_option_files(options)
    yield from (("config", find_config(path)) for path in options.configs)
    for path in map(find_model, get_model_paths(options.model.model)):
        yield "model", str(path)
    # An empty file may have just been created by the shell for `> file`
    yield from (("model", f) for _, f in list_all_model_files(options) if os.path.getsize(f))


# -- the log of a job -----------------------------------------------------------------------------


def log_notices(notes: Iterable[str]) -> None:
    """Log notices about options without effect, and similar ones."""
    for note in notes:
        LOG.info("NOTE: %s", note)


def log_models(names: Iterable[str], paths: Iterable[str]) -> None:
    """Log the local paths of models from the hub; they contain the commit."""
    for name, path in zip(names, paths):
        if name != path:
            LOG.info("%s: %s", name, path, extra=DETAIL)


def attach_initial_state(stop: Interrupted, options: TranslateOptions) -> None:
    """Attach the state before the first line to an interruption."""
    attach_job_state(stop, options.data.output, None, None, not find_resume_obstacle(options))


def attach_job_state(
    error: BaseException,
    output: str,
    out: Output | None,
    progress_bar: JobProgress | None,
    can_resume: bool,
) -> None:
    """Attach the state of the job to an error: progress, output, and whether it can be resumed.

    Args:
        error: gets the attributes `status` and `can_resume`.
        output: path of the output.
        out: the output, None if it was never locked.
        progress_bar: the progress, None if translation had not started.
        can_resume: whether the job can be resumed.
    """
    can_resume &= out is not None or isinstance(error, Interrupted)
    n_lines = 0 if out is None else out.summary.n_lines
    done = (
        f"after {progress_bar.done(n_lines)}"
        if progress_bar and n_lines
        else "before the first line"
    )
    if out is not None and out.complete:
        state = f"; {format_path(output)} is complete"
    elif is_regular_output(output):
        state = "is as it was before" if os.path.exists(output) else "was not written"
        rest = "; resume with:" if can_resume else "; this run left no results"
        state = f"; {format_path(output)} {state}{rest}"
    else:
        state = f", written to {format_path(output)}" if n_lines else "; nothing was written"
    vars(error).update(can_resume=can_resume, status=done + state)
