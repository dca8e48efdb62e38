"""One file job: buckets of lines through an engine, from -src to -output.

What a job itself does, reading and writing, needs no torch: only the engine does.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from onmt_lite.buckets import (
    BUCKET_LINES,
    Engine,
    Progress,
    Shard,
    choose_shard,
    open_buckets,
)
from onmt_lite.console import is_typed
from onmt_lite.errors import OptionError
from onmt_lite.files import (
    Inputs,
    check_paths,
    count_input,
    name_of,
    open_output,
    replaces_a_file,
    write_all,
)
from onmt_lite.interrupt import Interrupted
from onmt_lite.options import TranslateOptions
from onmt_lite.progress import Meter, logging_to
from onmt_lite.reports import LOG, Summary
from onmt_lite.shipped import find_config, model_paths
from onmt_lite.text.kinds import guess_encoding
from onmt_lite.text.lines import LineReader
from onmt_lite.text.stream import STANDARD_INPUT
from onmt_lite.workers import Workers

if TYPE_CHECKING:
    from onmt_lite.translator import Translator

# Options that name a file to read, besides models and configurations
READ = (
    *("src", "tgt", "phrase_table"),
    *("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab"),
)

FEW_LINES = 3  # so many lines that are not UTF-8 may be damaged


def run_job(
    options: TranslateOptions,
    translator: "Translator | None" = None,
    progress: Progress | None = None,
) -> Summary:
    """Translate -src to -output.  Raises an OnmtLiteError; then no output file is left behind.

    With a `translator` that is loaded already, the log stays as the caller has set it up.
    `progress` is called after each batch with the lines and target tokens that are done.
    """
    check_paths(list(files_read(options)), options.data.output, options.jobs.log_file)
    with logging_to(options.jobs) if translator is None else contextlib.nullcontext():
        return run_logged(options, translator, progress)


def run_logged(
    options: TranslateOptions, translator: "Translator | None", progress: Progress | None
) -> Summary:
    """As `run_job`, with the log set up."""
    data, report = options.data, options.information
    meter, started = None, time.monotonic()
    inputs = Inputs(data.src, data.tgt)
    total = count_input(data.src, data.tgt)
    if options.jobs.shard and total is None:
        raise OptionError(f"shard: lines of {data.src} cannot be counted first; give a file")
    try:
        with open_output(data.output) as out:
            for note in options.notes:
                LOG.info("NOTE: %s", note)
            with choose_engine(options, translator) as engine:
                for note in engine.notes:
                    LOG.info("NOTE: %s", note)
                n = lines_per_bucket(options, engine)
                shard = choose_shard(data.src, options.jobs, n, total)
                typed = is_typed(data.src)
                with Meter(shard.n_lines, options.jobs.quiet, typed, progress) as meter:
                    summary = translate_buckets(engine, options, shard, inputs, out, meter)
                    seconds = meter.seconds()
            summary.log(scores=report.verbose or report.report_time)
            if report.report_time:
                LOG.info(
                    "TIME: %.2f s to load, %.2f s to translate, %.1f sentences/s, %.1f tokens/s",
                    meter.started - started,
                    seconds,
                    meter.n_lines / seconds,
                    meter.n_tokens / seconds,
                )
                LOG.info("TIME: %s", meter.phases())
    except Interrupted as stop:
        stop.kept = what_is_kept(data.output, meter)
        raise
    meter.end(data.output, time.monotonic() - started)
    return summary


def what_is_kept(output: str, meter: Meter | None) -> str:
    """Of a job that was stopped: how far it was and what became of its output."""
    replaced = replaces_a_file(output)
    n_lines = 0 if meter is None else meter.n_lines if replaced else meter.n_written
    done = f"after {meter.done(n_lines)}" if meter and n_lines else "before the first line"
    if not replaced:
        return (
            f"{done}, written to {name_of(output)}" if n_lines else f"{done}; nothing was written"
        )
    state = "is as it was before" if os.path.exists(output) else "was not written"
    return f"{done}; {name_of(output)} {state}, nothing of this run is kept"


def files_read(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """Everything that the options name to be read: what to call it, and its path."""
    values = {**vars(options.data), **vars(options.text)}
    yield from ((name, values[name]) for name in READ if values[name])
    yield from ((f"config {path}", find_config(path)) for path in options.configs)
    yield from ((f"model {path}", str(path)) for path in model_paths(options.model.model))


def choose_engine(options: TranslateOptions, translator: "Translator | None") -> Engine:
    """What translates the buckets of this job."""
    if translator is None and options.n_workers > 1:
        return Workers(options, options.n_workers)
    from onmt_lite.work import InProcess  # imported late: torch takes seconds

    return InProcess(options, translator)


def translate_buckets(
    engine: Engine,
    options: TranslateOptions,
    shard: Shard,
    inputs: Inputs,
    out: IO[bytes],
    meter: Meter,
) -> Summary:
    """Bucket after bucket, so that memory does not grow with the input."""
    data, summary = options.data, Summary()
    with inputs, open_buckets(data, lines_per_bucket(options, engine), shard) as reader:
        for done in engine.run(reader.buckets(), meter.add):
            inputs.check()
            with meter.hidden():  # the output may go to the same terminal
                with meter.clock.phase("write"):
                    write_all(out, done.data, data.output)
                meter.n_written += done.n_lines
            meter.clock.add(done.seconds)
            summary.join(done.summary)
            for line in done.log:
                LOG.info("%s", line)
        note_encoding(reader.source, summary)
    return summary


def lines_per_bucket(options: TranslateOptions, engine: Engine) -> int:
    return options.jobs.bucket_lines or BUCKET_LINES[engine.machine["device"]]


def note_encoding(reader: LineReader, summary: Summary) -> None:
    """More than a few lines that are not UTF-8: which encoding would fit."""
    noted = summary.notes.get("invalid-utf8")
    few = min(FEW_LINES, summary.n_lines / 2)
    if noted is None or noted.n_lines <= few or not reader.not_utf8:
        return
    encoding = guess_encoding(reader.not_utf8)
    file = "FILE" if reader.name == STANDARD_INPUT else shlex.quote(reader.name)
    if reader.n_utf8 > noted.n_lines / 10:  # as a whole, the file must not be converted
        remedy = "other lines are, so convert these alone"
    else:
        remedy = f"iconv -f {encoding} -t utf-8 {file}" if encoding else f"see file -i {file}"
    likely = f" but look like {encoding}" if encoding else ""
    LOG.info("NOTE: lines %s are not UTF-8%s; %s", noted.shown(), likely, remedy)
