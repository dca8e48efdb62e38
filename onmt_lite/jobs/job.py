"""One file job: buckets of lines through an engine, from -src to -output.

What a job itself does, reading and writing, needs no torch: only the engine does.
"""

import contextlib
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onmt_lite.checkpoints.shipped import find_config, find_model, model_paths
from onmt_lite.config.console import CONSOLE, is_typed
from onmt_lite.config.cores import may_have_gpu, threads_wanted, usable_cores, worker_room
from onmt_lite.config.environment import importing
from onmt_lite.config.interrupt import Interrupted
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import FileError, OptionError
from onmt_lite.files import (
    Inputs,
    check_paths,
    count_input,
    is_packed,
    name_of,
    replaces_a_file,
    rereads,
)
from onmt_lite.jobs import bleu
from onmt_lite.jobs.buckets import (
    Engine,
    Progress,
    Shard,
    choose_shard,
    lines_per_bucket,
    open_buckets,
)
from onmt_lite.jobs.dump import Dump, open_dump
from onmt_lite.jobs.fingerprint import fingerprint, model_files, named_files
from onmt_lite.jobs.output import Output, open_output
from onmt_lite.jobs.phrase_files import check_glossary, open_glossary
from onmt_lite.jobs.progress import Meter, logging_to
from onmt_lite.jobs.reports import LOG, Summary
from onmt_lite.jobs.workers import Workers
from onmt_lite.text.file_types import guess_encoding
from onmt_lite.text.lines import LineReader
from onmt_lite.text.stream import STANDARD_INPUT

if TYPE_CHECKING:
    from onmt_lite.inference.translator import Translator

MAX_WORKERS = 256  # as -workers takes
NOT_SEEN = "dump_beam has seen no line of a job that goes on; leave out resume to begin anew"
FEW_LINES = 3  # so many lines that are not UTF-8 may be damaged


def run_job(
    options: TranslateOptions,
    translator: "Translator | None" = None,
    progress: Progress | None = None,
) -> Summary:
    """Translate -src to -output.  Raises an OnmtLiteError; then -output is as it was before, and
    if the error `goes_on`, the same job with -resume goes on from what is written.

    With a `translator` that is loaded already, the log stays as the caller has set it up, and
    nothing goes on.  `progress` is called after each batch with the lines and target tokens that
    are done.
    """
    check_job(options)
    with logging_to(options.jobs) if translator is None else contextlib.nullcontext():
        return run_logged(options, translator, progress)


def check_job(options: TranslateOptions) -> None:
    """OptionError where files or options cannot be those of a job."""
    check_paths(list(files_read(options)), files_written(options))
    check_resume(options)


def count_lines(options: TranslateOptions) -> int | None:
    """Lines of the input, None for a stream.  DataError where files do not match line by line,
    OptionError where a stream is to be cut into shards."""
    data = options.data
    total = count_input(data.src, data.tgt)
    check_glossary(options.phrases, total)
    if options.jobs.shard and total is None:
        raise OptionError(f"shard: lines of {data.src} cannot be counted first; give a file")
    return total


def run_logged(
    options: TranslateOptions, translator: "Translator | None", progress: Progress | None
) -> Summary:
    """As `run_job`, with the log set up."""
    data, jobs, report = options.data, options.jobs, options.information
    out, meter, started = None, None, time.monotonic()
    resumable = translator is None and not why_not_resumed(options)
    inputs = Inputs(data.src, data.tgt)
    try:
        total = count_lines(options)
        with (
            open_output(data.output, jobs.report, resumable) as out,
            open_dump(report.dump_beam) as dump,
        ):
            lacks = bleu.is_wanted(options) and not bleu.is_installed()
            for note in (*options.notes, *[bleu.LACKS] * lacks):
                LOG.info("NOTE: %s", note)
            job = fingerprint(options) if resumable else {}
            if jobs.resume and out.is_complete(job):
                with log_behind():
                    LOG.info("%s is complete; nothing is left to do", name_of(data.output))
                return out.summary
            with choose_engine(options, translator, total) as engine:
                for note in engine.notes:
                    LOG.info("NOTE: %s", note)
                n = lines_per_bucket(options, engine.machine["device"], total)
                shard = choose_shard(data.src, jobs, n, total)
                out.begin(job, engine.machine, jobs.resume)
                if out.n_done and dump.path is not None:
                    LOG.info("NOTE: %s is not written: %s", dump.path, NOT_SEEN)
                    dump = Dump(None)
                typed, n_before = is_typed(data.src), out.summary.n_lines
                with Meter(shard.n_lines, jobs.quiet, typed, progress, n_before) as meter:
                    translate_buckets(engine, options, n, shard, inputs, out, meter, dump)
                    seconds = meter.seconds()
            log_end(options, out.summary)
            if report.report_time:
                for line in times(seconds, meter.n_lines - n_before, meter.n_tokens):
                    LOG.info("%s", line)
                LOG.info("TIME: %.2f s to load, %s", meter.started - started, meter.phases())
            dump.write()
            out.finish()  # behind the log: a job that fails leaves no output
    except BaseException as error:
        goes_on = out.keeps(error) if out is not None else resumable
        say_what_is_kept(error, data.output, out, meter, goes_on)
        raise
    with log_behind():
        meter.end(data.output, time.monotonic() - started)
    return out.summary


def log_end(options: TranslateOptions, summary: Summary) -> None:
    """What was done to the lines."""
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
    """How long the lines took, in the words of OpenNMT-py 3.5."""
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
    """Let an error say for the command line what is kept, and whether -resume `goes_on`."""
    goes_on &= out is not None or isinstance(error, Interrupted)
    vars(error).update(goes_on=goes_on, kept=what_is_kept(output, out, meter, goes_on))


def what_is_kept(output: str, out: Output | None, meter: Meter | None, goes_on: bool) -> str:
    """Of a job that was stopped: how far it was and what became of its output."""
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


def check_resume(options: TranslateOptions) -> None:
    """OptionError where -resume is given and cannot work."""
    if options.jobs.resume and (why := why_not_resumed(options)):
        raise OptionError(f"resume: {why}")


def why_not_resumed(options: TranslateOptions) -> str:
    """Why another run cannot go on with the job; "" where it can."""
    data = options.data
    for name, path in named_files(options):
        if not rereads(path):
            shown = "standard input" if path == "-" else path
            return f"{name} is {shown}, which cannot be read again; give a file"
    for name, sink in (("output", data.output), ("report", options.jobs.report)):
        if sink is not None and not replaces_a_file(sink) and not os.path.isdir(sink):
            return f"{name} is {name_of(sink)}, which is no file to go on with; give a file"
    return ""


def files_written(options: TranslateOptions) -> list[tuple[str, str]]:
    """Everything that the options name to be written: what to call it, and its path."""
    jobs = options.jobs
    named = [("output", options.data.output), ("log_file", jobs.log_file), ("report", jobs.report)]
    named.append(("dump_beam", options.information.dump_beam))
    return [(name, path) for name, path in named if path is not None]


def files_read(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """Everything that the options name to be read: what to call it, and its path."""
    yield from named_files(options)
    yield from (("config", find_config(path)) for path in options.configs)
    for path in map(find_model, model_paths(options.model.model)):
        yield "model", str(path)
        files = [str(file) for file in model_files(path)]
        # An empty one there may be what the shell has made for `> file`
        yield from (("model", file) for file in files if os.path.getsize(file))


def choose_engine(
    options: TranslateOptions, translator: "Translator | None", total: int | None
) -> Engine:
    """What translates the buckets of this job, of `total` lines, if they can be counted."""
    if translator is not None:
        return translator.engine(options)
    n = options.n_workers
    if n is None:
        n = workers_that_pay(options, total)
        if n > 1:
            LOG.info("NOTE: %d workers, of one thread each; -workers 1 is one process", n)
    if n > 1:
        return Workers(options, n)
    with importing():
        from onmt_lite.jobs.work import InProcess  # late: torch takes seconds
    return InProcess(options)


def workers_that_pay(options: TranslateOptions, total: int | None) -> int:
    """How many workers a job gets where nobody says: one per core on a CPU, for a file of many
    lines, a bucket each at least.

    A start costs nothing: the parent needs no torch, and the workers share one that is loaded once.
    With the shipped model and 8, 64 and 256 lines two workers took 2.6, 3.1 and 5.2 s of processor
    time in all, one process 3.2, 3.4 and 5.4.  So the least size of a bucket decides, see
    `buckets.py`.  One process does a stream, whose lines may trickle; a job with -threads;
    what may run on a GPU; and all outside of Linux, where forks of a process with torch may fail.
    """
    speed, jobs = options.speed, options.jobs
    on_cpu = speed.device == "cpu" or speed.gpu == (-1,)
    on_cpu |= speed.device == "auto" and not speed.gpu and not may_have_gpu()
    if total is None or speed.threads or not on_cpu or sys.platform != "linux":
        return 1
    n_parts = int(jobs.shard.split("/")[1]) if jobs.shard else 1
    n_buckets = math.ceil(total / n_parts / lines_per_bucket(options, "cpu", total))
    most = min(usable_cores(), threads_wanted(), worker_room(), MAX_WORKERS)
    return max(1, int(min(most, n_buckets)))


def translate_buckets(
    engine: Engine,
    options: TranslateOptions,
    bucket_lines: int,
    shard: Shard,
    inputs: Inputs,
    out: Output,
    meter: Meter,
    dump: Dump,
) -> None:
    """Bucket after bucket, so that memory does not grow with the input."""
    with (
        inputs,
        open_buckets(options.data, bucket_lines, shard) as reader,
        open_glossary(options.phrases) as glossary,
    ):
        buckets = dump.marked(reader.buckets(out.n_done))
        buckets = glossary.marked(buckets, whole=options.jobs.shard is None)
        for done in engine.run(buckets, meter.add):
            inputs.check()
            with meter.hidden():  # the output may go to the same terminal
                with meter.clock.phase("write"):
                    out.append(done)
            meter.clock.add(done.seconds)
            dump.traces += done.traces
            for line in done.log:
                LOG.info("%s", line)
        note_encoding(reader.source, out.summary)


def note_encoding(reader: LineReader, summary: Summary) -> None:
    """More than a few lines that are not UTF-8: which encoding would fit."""
    noted = summary.notes.get("invalid-utf8")
    few = min(FEW_LINES, summary.n_lines / 2)
    if noted is None or noted.n_lines <= few or not reader.not_utf8:
        return
    encoding = guess_encoding(reader.not_utf8)
    is_standard = reader.name == STANDARD_INPUT
    file = "FILE" if is_standard else shlex.quote(reader.name)
    packed = is_packed("/dev/stdin" if is_standard else reader.name)
    unpack, source = (f"zcat {file} | ", "") if packed else ("", f" {file}")
    if reader.n_utf8 > noted.n_lines / 10:  # as a whole, the file must not be converted
        remedy = "other lines are, so convert these alone"
    elif encoding:
        remedy = f"{unpack}iconv -f {encoding} -t utf-8{source}"
    else:
        remedy = f"see {unpack}file -i{source or ' -'}"
    likely = f" but look like {encoding}" if encoding else ""
    LOG.info("NOTE: lines %s are not UTF-8%s; %s", noted.shown(), likely, remedy)
