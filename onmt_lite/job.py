"""One file job: windows of lines through a translator, from -src to -output."""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from typing import IO

from onmt_lite.checkpoints import load_checkpoint
from onmt_lite.checkpoints.summary import describe
from onmt_lite.console import is_typed
from onmt_lite.errors import DataError
from onmt_lite.files import (
    MATCH,
    check_paths,
    count_input,
    name_of,
    open_input,
    open_output,
    replaces_a_file,
    write_all,
)
from onmt_lite.interrupt import Interrupted
from onmt_lite.options import TranslateOptions
from onmt_lite.progress import Meter, logging_to
from onmt_lite.records import Line, Translation
from onmt_lite.reports import LOG, Summary, build_writer, log_sentence
from onmt_lite.rules import model_notes
from onmt_lite.shipped import find_config
from onmt_lite.text.kinds import guess_encoding
from onmt_lite.text.lines import LineReader
from onmt_lite.text.stream import STANDARD_INPUT
from onmt_lite.tokenization import fit, read_own
from onmt_lite.translator import Progress, Translator, model_paths

# Options that name a file to read, besides models and configurations
READ = (
    *("src", "tgt", "phrase_table"),
    *("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab"),
)

FEW_LINES = 3  # so many lines that are not UTF-8 may be damaged


def run_job(
    options: TranslateOptions,
    translator: Translator | None = None,
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
    options: TranslateOptions, translator: Translator | None, progress: Progress | None
) -> Summary:
    """As `run_job`, with the log set up."""
    data, report = options.data, options.information
    meter, started = None, time.monotonic()
    total = count_input(data.src, data.tgt)
    try:
        with open_output(data.output) as out:
            for note in options.notes:
                LOG.info("NOTE: %s", note)
            translator = translator or Translator.load(options)
            for note in model_notes(options, translator.checkpoint, translator.device):
                LOG.info("NOTE: %s", note)
            with Meter(total, options.jobs.quiet, is_typed(data.src), progress) as meter:
                summary = translate_stream(translator, options, out, meter)
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
        return f"{done}, written to {name_of(output)}" if n_lines else f"{done} was written"
    state = "is as it was before" if os.path.exists(output) else "was not written"
    return f"{done}; {name_of(output)} {state}, nothing of this run is kept"


def files_read(options: TranslateOptions) -> Iterator[tuple[str, str]]:
    """Everything that the options name to be read: what to call it, and its path."""
    values = {**vars(options.data), **vars(options.text)}
    yield from ((name, values[name]) for name in READ if values[name])
    yield from ((f"config {path}", find_config(path)) for path in options.configs)
    yield from ((f"model {path}", str(path)) for path in model_paths(options))


def describe_models(options: TranslateOptions) -> str:
    """What the models that the options name are, a block each, with the tokenizer that would be
    used.  Raises CheckpointError or OptionError."""
    own = read_own(options)
    blocks = [
        describe(fit(load_checkpoint(path), options, own), str(path))
        for path in model_paths(options)
    ]
    return "\n".join(blocks)


def translate_stream(
    translator: Translator, options: TranslateOptions, out: IO[bytes], meter: Meter
) -> Summary:
    """Window after window, so that memory does not grow with the input."""
    data, summary = options.data, Summary()
    writer = build_writer(data, options.search.n_best)
    with open_input(data.src) as src_fd:
        reader = LineReader(src_fd, STANDARD_INPUT if data.src == "-" else data.src)
        for lines, tgt_lines in with_targets(reader.windows(), data.tgt):
            prefixes = tgt_lines if data.tgt_file_prefix else None
            gold_lines = None if data.tgt_file_prefix else tgt_lines
            translations = translator.translate_lines(
                lines, gold_lines, options, meter.add, prefixes
            )
            with meter.hidden():  # the output may go to the same terminal
                write_all(out, "".join(map(writer, translations)), data.output)
                meter.n_written += len(lines)
            for i, translation in enumerate(translations):
                summary.add(translation)
                gold = None if gold_lines is None else gold_lines[i].text
                log_sentence(translation, gold, options.information.verbose)
            if lines[0].id == 0 and next(iter(translator.checkpoint.tokenizers)) == "space":
                note_raw_text(translations)
    note_encoding(reader, summary)
    return summary


def note_raw_text(translations: list[Translation]) -> None:
    """Text given to a model of tokens: most of its first words are unknown."""
    n_tokens = sum(translation.n_src_tokens for translation in translations)
    n_unknown = sum(translation.n_unknown for translation in translations)
    if n_unknown > n_tokens / 2:
        LOG.info(
            "NOTE: %d of the first %d words are unknown to the model, which takes tokens separated "
            "by spaces; for text as it is, give -src_subword_model with -tokenizer bpe or "
            "sentencepiece, or -transforms",
            *(n_unknown, n_tokens),
        )


def note_encoding(reader: LineReader, summary: Summary) -> None:
    """More than a few lines that are not UTF-8: which encoding would fit."""
    noted = summary.notes.get("invalid-utf8")
    if noted is None or noted.n_lines <= min(FEW_LINES, summary.n_lines / 2):
        return
    encoding = guess_encoding(reader.not_utf8)
    file = "FILE" if reader.name == STANDARD_INPUT else shlex.quote(reader.name)
    if reader.n_utf8 > noted.n_lines / 10:  # as a whole, the file must not be converted
        remedy = "other lines are, so convert these alone"
    else:
        remedy = f"iconv -f {encoding} -t utf-8 {file}" if encoding else f"see file -i {file}"
    likely = f" but look like {encoding}" if encoding else ""
    LOG.info("NOTE: lines %s are not UTF-8%s; %s", noted.shown(), likely, remedy)


def with_targets(
    sources: Iterator[list[Line]], tgt: str | None
) -> Iterator[tuple[list[Line], list[Line] | None]]:
    """Windows of source lines, with the lines of the file `tgt` that belong to them."""
    if tgt is None:
        yield from ((window, None) for window in sources)
        return
    with open_input(tgt) as tgt_fd:
        reader = LineReader(tgt_fd, STANDARD_INPUT if tgt == "-" else tgt)
        targets = (line for window in reader.windows() for line in window)
        n = 0
        for window in sources:
            paired = [target for _, target in zip(window, targets)]
            n += len(paired)
            if len(paired) < len(window):
                raise DataError(f"src has more lines than tgt, which has {n}; {MATCH}")
            yield window, paired
        if next(targets, None) is not None:
            raise DataError(f"tgt has more lines than src, which has {n}; {MATCH}")
