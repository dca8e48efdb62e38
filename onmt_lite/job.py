"""One file job: windows of lines through a translator, from -src to -output."""

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from io import TextIOWrapper
from typing import IO

from tqdm import tqdm

from onmt_lite.checkpoints import load_checkpoint
from onmt_lite.checkpoints.summary import describe
from onmt_lite.console import CONSOLE
from onmt_lite.errors import DataError, FileError
from onmt_lite.files import (
    MATCH,
    check_paths,
    count_input,
    descriptor_of,
    open_input,
    open_output,
    write_all,
)
from onmt_lite.options import DataOptions, JobOptions, TranslateOptions
from onmt_lite.records import Line
from onmt_lite.reports import LOG, Summary, build_writer, log_sentence
from onmt_lite.rules import model_notes
from onmt_lite.shipped import find_config
from onmt_lite.text.lines import LineReader
from onmt_lite.tokenization import fit, read_own
from onmt_lite.translator import Progress, Translator, model_paths, totals

# Options that name a file to read, besides models and configurations
READ = (
    *("src", "tgt", "phrase_table"),
    *("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab"),
)


def run_job(
    options: TranslateOptions,
    translator: Translator | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Translate -src to -output.  Raises an OnmtLiteError; then no output file is left behind.

    With a `translator` that is loaded already, the log stays as the caller has set it up.
    `progress` is called after each batch with the lines and target tokens that are done.
    """
    data, report = options.data, options.information
    check_paths(list(files_read(options)), data.output, options.jobs.log_file)
    if translator is None:
        set_up_log(options.jobs)
    total = count_input(data.src, data.tgt)
    with open_output(data.output) as out:
        started = time.monotonic()
        for note in options.notes:
            LOG.info("NOTE: %s", note)
        translator = translator or Translator.load(options)
        for note in model_notes(options, translator.checkpoint, translator.device):
            LOG.info("NOTE: %s", note)
        loaded = time.monotonic()
        summary, n_tokens = translate_stream(translator, options, out, total, totals(progress))
        seconds = time.monotonic() - loaded
    summary.log(scores=report.verbose or report.report_time)
    if report.report_time:
        LOG.info(
            "TIME: %.2f s to load, %.2f s to translate, %.1f sentences/s, %.1f tokens/s",
            loaded - started,
            seconds,
            summary.n_lines / seconds,
            n_tokens / seconds,
        )
    return summary


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
    translator: Translator,
    options: TranslateOptions,
    out: IO[bytes],
    total: int | None,
    on_batch: Progress,
) -> tuple[Summary, int]:
    """Window after window, so that memory does not grow with the input.

    `on_batch` is called with the lines and target tokens that each batch adds.  Returns the
    summary and the number of target tokens.
    """
    data = options.data
    writer = build_writer(data, options.search.n_best)
    summary, n_tokens = Summary(), 0
    hidden = options.jobs.quiet or not CONSOLE.isatty()
    # Some terminals say 0 x 0, which tqdm would believe
    columns, rows = shutil.get_terminal_size()
    with tqdm(
        total=total, unit=" lines", file=CONSOLE, disable=hidden, ncols=columns, nrows=rows
    ) as bar:

        def progress(n_lines: int, n_new_tokens: int) -> None:
            nonlocal n_tokens
            n_tokens += n_new_tokens
            elapsed = bar.format_dict["elapsed"] or 1e-9
            bar.set_postfix_str(f"{n_tokens / elapsed:.0f} tokens/s", refresh=False)
            bar.update(n_lines)
            on_batch(n_lines, n_new_tokens)

        for lines, tgt_lines in read_windows(data):
            prefixes = tgt_lines if data.tgt_file_prefix else None
            gold_lines = None if data.tgt_file_prefix else tgt_lines
            translations = translator.translate_lines(
                lines, gold_lines, options, progress, prefixes
            )
            bar.clear()  # the output may go to the same terminal
            write_all(out, "".join(map(writer, translations)), data.output)
            bar.refresh()
            for i, translation in enumerate(translations):
                summary.add(translation)
                gold = None if gold_lines is None else gold_lines[i].text
                log_sentence(translation, gold, options.information.verbose)
    return summary, n_tokens


def read_windows(data: DataOptions) -> Iterator[tuple[list[Line], list[Line] | None]]:
    """Windows of source lines, with the reference lines that belong to them."""
    with open_input(data.src) as src_fd:
        sources = LineReader(src_fd, data.src).windows()
        if data.tgt is None:
            for window in sources:
                yield window, None
            return
        with open_input(data.tgt) as tgt_fd:
            targets = (line for window in LineReader(tgt_fd, data.tgt).windows() for line in window)
            n = 0
            for window in sources:
                paired = [target for _, target in zip(window, targets)]
                n += len(paired)
                if len(paired) < len(window):
                    raise DataError(f"src has more lines than tgt, which has {n}; {MATCH}")
                yield window, paired
            if next(targets, None) is not None:
                raise DataError(f"tgt has more lines than src, which has {n}; {MATCH}")


class BarHandler(logging.Handler):
    """Log lines above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=CONSOLE)


class StrictFileHandler(logging.FileHandler):
    """A log file that cannot be written ends the job instead of being forgotten."""

    def _open(self) -> TextIOWrapper:
        fd = descriptor_of(self.baseFilename)
        return (
            super()._open() if fd is None else open(os.dup(fd), "w", encoding="utf-8", newline="")
        )

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        reason = getattr(error, "strerror", error)
        raise FileError(f"cannot write {self.baseFilename}: {reason}") from None

    def close(self) -> None:
        self.stream = None  # every record was flushed; a full disk has been told of already
        super().close()


def set_up_log(jobs: JobOptions) -> None:
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    LOG.handlers = [] if jobs.quiet else [BarHandler()]
    if jobs.log_file is not None:
        add_log_file(jobs.log_file)


def add_log_file(path: str) -> None:
    """Log to the end of a file too.  FileError where it cannot be written."""
    try:
        handler = StrictFileHandler(path, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write {path}: {getattr(error, 'strerror', error)}") from None
    handler.setFormatter(logging.Formatter("[%(asctime)s %(levelname)s] %(message)s"))
    LOG.addHandler(handler)
