"""One file job: the only layer that touches files."""

import contextlib
import errno
import fcntl
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tqdm import tqdm

from onmt_lite.checkpoints import load_checkpoint
from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.interrupt import Interrupted
from onmt_lite.options import DataOptions, ReportOptions, TranslateOptions
from onmt_lite.records import Line
from onmt_lite.reports import LOG, Summary, build_writer, log_gold, log_sentence
from onmt_lite.text.lines import LineReader, count_lines
from onmt_lite.translator import Translator, model_path


def run_job(options: TranslateOptions) -> None:
    """Translate -src to -output.  Raises an OnmtLiteError; then no output file is left behind."""
    set_up_log(options.report)
    total = check_files(options.data)
    with open_output(options.data.output) as out:
        started = time.monotonic()
        translator = Translator(load_checkpoint(model_path(options)), options)
        loaded = time.monotonic()
        summary, n_tokens = translate_stream(translator, options, out, total)
        seconds = time.monotonic() - loaded
    summary.log(scores=options.report.verbose or options.report.report_time)
    if options.report.report_time:
        LOG.info(
            "TIME: %.2f s to load, %.2f s to translate, %.1f sentences/s, %.1f tokens/s",
            loaded - started,
            seconds,
            summary.n_lines / seconds,
            n_tokens / seconds,
        )


def translate_stream(
    translator: Translator, options: TranslateOptions, out: IO[bytes], total: int | None
) -> tuple[Summary, int]:
    """Window after window, so that memory does not grow with the input."""
    data, report = options.data, options.report
    writer = build_writer(data, options.search.n_best)
    summary, n_tokens = Summary(), 0
    hidden = report.quiet or not sys.stderr.isatty()
    with tqdm(
        total=total, unit=" lines", disable=hidden, dynamic_ncols=True, file=sys.stderr
    ) as bar:

        def progress(n_lines: int, n_new_tokens: int) -> None:
            nonlocal n_tokens
            n_tokens += n_new_tokens
            elapsed = bar.format_dict["elapsed"] or 1e-9
            bar.set_postfix_str(f"{n_tokens / elapsed:.0f} tokens/s", refresh=False)
            bar.update(n_lines)

        for lines, tgt_lines in read_windows(data):
            translations = translator.translate_lines(lines, tgt_lines, options, progress)
            write(out, "".join(map(writer, translations)), data.output)
            for i, translation in enumerate(translations):
                summary.add(translation)
                if report.verbose:
                    log_sentence(translation)
                if tgt_lines is not None:
                    log_gold(translation, tgt_lines[i].text)
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
                    raise DataError(
                        f"tgt has {n} lines, src has more; they must match line by line"
                    )
                yield window, paired
            if next(targets, None) is not None:
                raise DataError(
                    f"tgt has more lines than src, which has {n}; they must match line by line"
                )


def check_files(data: DataOptions) -> int | None:
    """Find, before the model is loaded, what would fail later.  Returns src's lines, if known."""
    if data.src != "-" and data.output != "-" and _same_file(data.src, data.output):
        raise OptionError("output is the same file as src; choose another")
    if data.tgt is not None and data.output != "-" and _same_file(data.tgt, data.output):
        raise OptionError("output is the same file as tgt; choose another")
    counts = {path: _count(path) for path in (data.src, data.tgt) if path is not None}
    n_src, n_tgt = counts[data.src], counts.get(data.tgt or "")
    if n_src is not None and n_tgt is not None and n_src != n_tgt:
        raise DataError(f"src has {n_src} lines, tgt has {n_tgt}; they must match line by line")
    return n_src


def _same_file(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def _count(path: str) -> int | None:
    """Lines of a regular file; None for a stream, which can be read only once."""
    if path == "-":
        return None
    with open_input(path) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
    return count_lines(path)


@contextlib.contextmanager
def open_input(path: str) -> Iterator[int]:
    """A file descriptor to read from."""
    if path == "-":
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed")
        yield sys.stdin.fileno()
        return
    try:
        # A FIFO would wait for its writer here, so only its existence is checked beforehand
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise FileError(f"cannot read {path}: it is a directory")
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def open_output(path: str) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears under its name only when complete.

    Until then it is `PATH.part`, locked against a second job.
    """
    if path == "-":
        if sys.stdout is None:
            raise FileError("cannot write standard output: it is closed")
        yield sys.stdout.buffer
        return
    # Where a symbolic link points is replaced, not the link; a device is written as it is
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise FileError(f"cannot write {path}: it is a directory")
        if target.exists() and not target.is_file():
            with open(target, "wb") as device:
                yield device
            return
        part = target.with_name(target.name + ".part")
        with _open_locked(part, path) as out:
            try:
                yield out
                out.flush()
                os.fsync(out.fileno())
                os.replace(part, target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise FileError(f"cannot write {path}: {getattr(error, 'strerror', error)}") from None


def _open_locked(part: Path, path: str) -> IO[bytes]:
    """An empty file that no other job writes to."""
    while True:
        out = open(part, "ab")  # not "wb": what another job has written must not be cut
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            out.close()
            raise FileError(f"cannot write {path}: another job is writing it") from None
        # That job may have renamed the file between our opening and locking it
        if part.exists() and os.path.samestat(os.fstat(out.fileno()), os.stat(part)):
            out.truncate(0)
            return out
        out.close()


def write(out: IO[bytes], text: str, path: str) -> None:
    """All of it, now: what is written must not wait in a buffer for a failure nobody sees."""
    try:
        out.write(text.encode("utf-8"))
        out.flush()
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise Interrupted(signal.SIGPIPE) from None
        name = "standard output" if path == "-" else path
        raise FileError(f"cannot write {name}: {error.strerror}") from None


class BarHandler(logging.Handler):
    """Log lines above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def set_up_log(report: ReportOptions) -> None:
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    LOG.handlers = [] if report.quiet or sys.stderr is None else [BarHandler()]
    if report.log_file is not None:
        try:
            handler = logging.FileHandler(report.log_file, encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise FileError(f"cannot write {report.log_file}: {reason}") from None
        handler.setFormatter(logging.Formatter("[%(asctime)s %(levelname)s] %(message)s"))
        LOG.addHandler(handler)
