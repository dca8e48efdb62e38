"""One job: the lines of -src through an engine to -output.

What a job itself does, reading and writing, needs no torch: only the engine does.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count

from onmt_lite.checkpoints.shipped import find_config, find_model, model_paths
from onmt_lite.config.console import CONSOLE, Interrupted, is_typed
from onmt_lite.config.files import check_paths, name_of, replaces_a_file, rereads
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import FileError, OptionError
from onmt_lite.jobs.engine import choose_engine
from onmt_lite.jobs.inputs import Inputs, Range, Unchanged, look_at_inputs, roles_of
from onmt_lite.jobs.output import Dump, Output
from onmt_lite.jobs.progress import Meter, logging_to
from onmt_lite.jobs.reading import Bucket, StreamReader, check_phrases, note_encoding
from onmt_lite.jobs.reports import LACKS_SACREBLEU, LOG, Summary, has_sacrebleu, wants_bleu
from onmt_lite.jobs.store import files_of_models, fingerprint, named_files
from onmt_lite.jobs.tasks import Done, Engine, Progress, Task

NOT_SEEN = "dump_beam has seen no line of a job that goes on; leave out resume to begin anew"

Choose = Callable[[int | None], Engine]  # by the number of buckets; None: nobody knows it


def run_job(
    options: TranslateOptions,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Translate -src to -output.  Raises an OnmtLiteError; then -output is as it was before, and
    if the error `goes_on`, the same job with -resume continues.

    With an `engine` that has the model already, the log stays as the caller has set it up, and
    nothing goes on.  `progress` is called after each batch with the lines and target tokens that
    are done.
    """
    check_job(options)
    resumable = engine is None and not why_not_resumed(options)
    run = Run(options, [options.data.src], resumable, progress)
    with logging_to(options.jobs) if engine is None else contextlib.nullcontext():
        return run.translate(lambda n_buckets: engine or choose_engine(options, n_buckets))


class Run:
    """A run of a job, which may be one of several until the job is complete."""

    def __init__(
        self,
        options: TranslateOptions,
        sources: Sequence[str],
        resumable: bool,
        progress: Progress | None = None,
    ):
        """`sources`: the files of src, in order.  `resumable`: another run can go on."""
        self.options, self.sources, self.resumable = options, sources, resumable
        self.progress = progress
        self.started = time.monotonic()
        self.out: Output | None = None  # from when it is locked
        self.meter: Meter | None = None  # from when the first line is to be translated

    def translate(self, choose: Choose) -> Summary:
        """Raises as `run_job`."""
        output = self.options.data.output
        try:
            summary = self._translate(choose)
        except BaseException as error:
            goes_on = self.out.keeps(error) if self.out is not None else self.resumable
            say_what_is_kept(error, output, self.out, self.meter, goes_on)
            raise
        if self.meter is not None:
            with log_behind():
                self.meter.end(output, time.monotonic() - self.started)
        return summary

    def _translate(self, choose: Choose) -> Summary:
        options, jobs = self.options, self.options.jobs
        beside = [path for _, path in roles_of(options)[1:]]
        unchanged = Unchanged(*self.sources, *beside)
        inputs = look_at_inputs(options, self.sources)
        ranges = inputs.ranges or []
        check_phrases(ranges)
        with (
            Output(options.data.output, jobs.report, self.resumable) as out,
            Dump(options.information.dump_beam) as dump,
        ):
            self.out = out
            lacks = wants_bleu(options) and not has_sacrebleu()
            log_notes([*options.notes, *[LACKS_SACREBLEU] * lacks])
            job = fingerprint(options, inputs.files) if self.resumable else {}
            if jobs.resume and out.is_complete(job, ranges):
                with log_behind():
                    output = name_of(options.data.output)
                    LOG.info("%s is complete; nothing is left to do", output)
                return out.summary
            n_buckets = None if inputs.ranges is None else len(ranges)
            with Engine() if out.has_all else choose(n_buckets) as engine:
                log_notes(engine.notes)
                out.begin(job, ranges, engine.machine)
                if jobs.resume:
                    log_notes([going_on(out.n_before, inputs.n_lines)])
                if out.n_before and dump.path is not None:
                    log_notes([f"{dump.path} is not written: {NOT_SEEN}"])
                    dump.leave_out()
                meter = self._run(engine, out, inputs, unchanged, dump)
            with meter.clock.phase("write"):
                out.join()
            self._log_end(out.summary, meter)
            dump.write()
            out.place()  # after the log: a job that fails leaves no output
        return out.summary

    def _run(
        self, engine: Engine, out: Output, inputs: Inputs, unchanged: Unchanged, dump: Dump
    ) -> Meter:
        """Do all that is left to do, so that memory does not grow with the input."""
        options, quiet = self.options, self.options.jobs.quiet
        typed = is_typed(options.data.src)
        self.meter = meter = Meter(inputs.n_lines, quiet, typed, self.progress, out.n_before)
        with ExitStack() as opened:
            opened.enter_context(meter)
            opened.enter_context(unchanged)
            work: Iterable[Range | Bucket] = out.todo
            source, numbers = None, iter([each.number for each in out.todo])
            if inputs.ranges is None:
                reader, numbers = StreamReader(options, inputs.window, opened), count()
                work, source = reader.buckets(), reader.source
            tasks = (Task(each, options, out.parts, dump.take(each.n_lines)) for each in work)
            results = opened.enter_context(closing(engine.run(tasks, meter.add)))
            for done in in_order(results, numbers):
                unchanged.check()
                with meter.hidden():  # the output may go to the same terminal
                    with meter.clock.phase("write"):
                        out.append(done)
                meter.clock.add(done.seconds)
                dump.traces += done.traces
                for line in done.log:
                    LOG.info("%s", line)
            note_encoding(source, self.sources, out.summary)
        return meter

    def _log_end(self, summary: Summary, meter: Meter) -> None:
        """Log what was done to the lines, and how long that took."""
        log_end(self.options, summary)
        if self.options.information.report_time:
            for line in times(meter.took, meter.n_lines - meter.n_before, meter.n_tokens):
                LOG.info("%s", line)
            LOG.info("TIME: %.2f s to load, %s", meter.started - self.started, meter.phases())


def in_order(results: Iterable[Done], numbers: Iterator[int]) -> Iterator[Done]:
    """Results in the order of their numbers: each waits for those before it."""
    waiting: dict[int, Done] = {}
    wanted = next(numbers, None)
    for done in results:
        waiting[done.number] = done
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted = next(numbers, None)


# -- files that a job reads and writes ------------------------------------------------------------


def check_job(options: TranslateOptions) -> None:
    """Raise OptionError if files or options cannot be those of a job."""
    check_paths(list(files_read(options)), files_written(options))
    if options.jobs.resume and (why := why_not_resumed(options)):
        raise OptionError(f"resume: {why}")


def why_not_resumed(options: TranslateOptions) -> str:
    """Why another run cannot go on with the job; "" if it can."""
    for name, path in named_files(options):
        if not rereads(path):
            shown = "standard input" if path == "-" else path
            return f"{name} is {shown}, which cannot be read again; give a file"
    for name, sink in (("output", options.data.output), ("report", options.jobs.report)):
        if sink is not None and not replaces_a_file(sink) and not os.path.isdir(sink):
            return f"{name} is {name_of(sink)}, which is no file to go on with; give a file"
    return ""


def files_written(options: TranslateOptions) -> list[tuple[str, str]]:
    """List the files that the options name to be written: what to call each, and its path."""
    jobs = options.jobs
    named = [("output", options.data.output), ("log_file", jobs.log_file), ("report", jobs.report)]
    named.append(("dump_beam", options.information.dump_beam))
    return [(name, path) for name, path in named if path is not None]


def files_read(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """List the files that the options name to be read: what to call each, and its path."""
    yield from named_files(options)
    yield from (("config", find_config(path)) for path in options.configs)
    for path in map(find_model, model_paths(options.model.model)):
        yield "model", str(path)
    # An empty one there may be what the shell has made for `> file`
    yield from (("model", f) for _, f in files_of_models(options) if os.path.getsize(f))


# -- the log of a job -----------------------------------------------------------------------------


def log_notes(notes: Iterable[str]) -> None:
    for note in notes:
        LOG.info("NOTE: %s", note)


def going_on(n_before: int, total: int | None) -> str:
    if not n_before:
        return "no line is done yet; beginning anew"
    return f"going on; {n_before:,} of {total:,} lines are done"


def log_end(options: TranslateOptions, summary: Summary) -> None:
    """Log what was done to the lines."""
    report, output = options.information, options.data.output
    if options.phrases.force_words and not options.data.score_only:
        n_unmet, n_forced = summary.n_unmet, summary.n_forced
        LOG.info("force_words: %d of %d phrases not met", n_unmet, n_forced)
    if options.text.replace_unk:
        LOG.info("replace_unk: %d replaced by tokens of the source", summary.n_replaced)
    in_a_file = output not in ("-", "/dev/stdout")
    summary.log(report.verbose or report.report_time or in_a_file)


@contextlib.contextmanager
def log_behind() -> Iterator[None]:
    """Within, a line about an output that is complete: a log that cannot be written undoes nothing
    and ends in a warning."""
    try:
        yield
    except FileError as error:
        print(f"onmt_lite: warning: {error}", file=CONSOLE)


def times(seconds: float, n_lines: int, n_tokens: int) -> list[str]:
    """Report how long the lines took, in the words of OpenNMT-py 3.5."""
    return [
        f"Total translation time (s): {seconds:.1f}",
        f"Average translation time (ms): {1000 * seconds / max(1, n_lines):.1f}",
        f"Tokens per second: {n_tokens / seconds:.1f}",
    ]


def say_before_work(stop: Interrupted, options: TranslateOptions) -> None:
    """Let a stop say that nothing is written yet."""
    say_what_is_kept(stop, options.data.output, None, None, not why_not_resumed(options))


def say_what_is_kept(
    error: BaseException, output: str, out: Output | None, meter: Meter | None, goes_on: bool
) -> None:
    """Attach to an error how far the job was, and whether -resume can continue, for the command
    line."""
    goes_on &= out is not None or isinstance(error, Interrupted)
    vars(error).update(goes_on=goes_on, kept=what_is_kept(output, out, meter, goes_on))


def what_is_kept(output: str, out: Output | None, meter: Meter | None, goes_on: bool) -> str:
    """Say how far a stopped job was, and what became of its output."""
    replaced = replaces_a_file(output)
    n_lines = 0 if out is None else out.summary.n_lines
    done = f"after {meter.done(n_lines)}" if meter and n_lines else "before the first line"
    if out is not None and out.complete:
        return f"{done}; {name_of(output)} is complete"
    if not replaced:
        return (
            f"{done}, written to {name_of(output)}" if n_lines else f"{done}; nothing was written"
        )
    state = "is as it was before" if os.path.exists(output) else "was not written"
    kept = "; go on with:" if goes_on else ", nothing of this run is kept"
    return f"{done}; {name_of(output)} {state}{kept}"
