"""Progress and log of a job: a bar on a terminal, otherwise a line every few seconds."""

import contextlib
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper

from tqdm import tqdm

from onmt_lite.config.files import find_descriptor, format_path
from onmt_lite.config.job_options import JobOptions
from onmt_lite.errors import FileError, explain_os_error
from onmt_lite.jobs.reports import DETAIL
from onmt_lite.models.kernels.build import describe_kernels
from onmt_lite.system.clock import Clock
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import CONSOLE
from onmt_lite.version import __version__

LOG_INTERVAL = 10.0  # seconds between lines about progress
PHASES = ("tokenize", "encode", "decode", "write")


class JobProgress:
    """Progress of a job; a context that shows its bar.

    Attributes:
        n_lines, n_tokens: lines and target tokens that are done, earlier runs included (lines
            only).
        clock: time per phase, summed over all processes.
        has_logged: whether a line about progress went to stderr.
    """

    def __init__(
        self,
        total: int | None,
        quiet: bool,
        reads_terminal: bool,
        callback: Callable[[int, int], object] | None = None,
        n_before: int = 0,
    ):
        """Create the bar and start the clock.

        Args:
            total: number of lines, None if they cannot be counted in advance.
            quiet: show no bar.
            reads_terminal: whether a person types the lines.
            callback: called after each batch with the lines and target tokens that are done.
            n_before: lines of earlier runs.
        """
        self.total, self.reads_terminal, self.callback, self.n_before = (
            total,
            reads_terminal,
            callback,
            n_before,
        )
        self.n_lines, self.n_tokens = n_before, 0
        self.clock = Clock()
        self.has_logged = False
        self.bar = tqdm(
            total=total,
            initial=n_before,
            unit=" lines",
            file=CONSOLE,
            disable=quiet or reads_terminal or not CONSOLE.isatty(),
            miniters=1,  # otherwise a small batch after a large one does not move the bar
            smoothing=0,  # mean rate: a bucket starts with its longest lines
            ncols=get_bar_width(),
            nrows=24,  # some terminals report 0
        )
        if reads_terminal and not quiet:
            print("type a line; Ctrl-D ends the input", file=CONSOLE)
        self.started = self.last_logged = time.monotonic()

    def __enter__(self) -> "JobProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self.elapsed = self.seconds()
        self.bar.close()

    def add(self, n_lines: int, n_tokens: int) -> None:
        """Count the lines of a batch, and the target tokens of their translations."""
        self.n_lines, self.n_tokens = self.n_lines + n_lines, self.n_tokens + n_tokens
        if self.callback is not None and n_lines:
            self.callback(self.n_lines, self.n_tokens)
        self.bar.ncols = get_bar_width()
        speed = f"{self.n_tokens / self.seconds():.0f} tokens/s"
        self.bar.set_postfix_str(speed, refresh=False)
        self.bar.update(n_lines)
        now = time.monotonic()
        if now - self.last_logged >= LOG_INTERVAL and not self.reads_terminal:
            self.last_logged, self.has_logged = now, True
            line = f"{self.done(self.n_lines)}, {speed}"
            n_new = self.n_lines - self.n_before
            if self.total and n_new > 0:
                left = (self.total - self.n_lines) * self.seconds() / n_new
                line += f", {tqdm.format_interval(left)} left"
            LOG.info(line, extra={"on_stderr": not CONSOLE.isatty()})

    def end(self, output: str, seconds: float) -> None:
        """Log the number of lines and the output; on stderr if progress was visible there.

        Args:
            output: path of the output.
            seconds: duration of the job.
        """
        is_visible = (CONSOLE.isatty() or self.has_logged) and not (
            self.reads_terminal and output == "-"
        )
        elapsed = f"{seconds:.1f} s" if seconds < 100 else tqdm.format_interval(seconds)
        lines, where = format_line_count(self.n_lines), format_path(output)
        LOG.info("%s -> %s (%s)", lines, where, elapsed, extra={"on_stderr": is_visible})

    def done(self, n_lines: int) -> str:
        """Format progress: "1,024 of 2,000 lines"."""
        return (
            f"{n_lines:,} of {format_line_count(self.total)}"
            if self.total
            else format_line_count(n_lines)
        )

    def log_times(self, loading: float) -> None:
        """Log the duration, and the time spent on loading and on each phase."""
        for line in format_times(self.elapsed, self.n_lines - self.n_before, self.n_tokens):
            LOG.info("%s", line)
        spent = self.clock.seconds
        phases = ", ".join(f"{spent[name]:.2f} s to {name}" for name in PHASES)
        LOG.info("TIME: %.2f s to load, %s", loading, phases)

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return max(1e-9, time.monotonic() - self.started)


def format_times(seconds: float, n_lines: int, n_tokens: int) -> list[str]:
    """Format the duration as OpenNMT-py 3.5 does.

    Args:
        seconds: duration of the translation.
        n_lines: lines.
        n_tokens: target tokens.
    """
    return [
        f"Total translation time (s): {seconds:.1f}",
        f"Average translation time (ms): {1000 * seconds / max(1, n_lines):.1f}",
        f"Tokens per second: {n_tokens / seconds:.1f}",
    ]


def format_line_count(n: int) -> str:
    """Format a number of lines: "1 line", "2,000 lines"."""
    return "1 line" if n == 1 else f"{n:,} lines"


def get_bar_width() -> int:
    """Return the columns for a bar: one less than the terminal has, as some wrap at the last."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):  # no stderr, or a closed one
        columns = 0
    return (columns or 80) - 1


# -- the log --------------------------------------------------------------------------------------


class StderrHandler(logging.Handler):
    """Logs above the progress bar."""

    def __init__(self, verbose: bool):
        super().__init__()
        self.verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        is_shown = self.verbose or not getattr(record, "detail", False)
        if is_shown and getattr(record, "on_stderr", True):
            tqdm.write(self.format(record), file=CONSOLE)


class StrictFileHandler(logging.FileHandler):
    """A log file that ends the job if it cannot be written; logging would ignore the error."""

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> TextIOWrapper:
        fd = find_descriptor(self.baseFilename)
        return (
            super()._open()
            if fd is None
            else open(os.dup(fd), "w", encoding="utf-8", errors=self.errors, newline="")
        )

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            reason = explain_os_error(error, "write")
            raise FileError(f"cannot write {self.baseFilename}: {reason}") from None
        raise  # a message that cannot be formatted is a bug

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full: reported at the last record
            super().close()


@contextlib.contextmanager
def configure_logging(jobs: JobOptions, verbose: bool = False) -> Iterator[None]:
    """Log to stderr unless -quiet, and to -log_file; restore the handlers at the end.

    Args:
        jobs: job options.
        verbose: log details to stderr, too.

    Raises:
        FileError: if the log file cannot be written.
    """
    previous = LOG.handlers, LOG.level, LOG.propagate
    LOG.handlers = [] if jobs.quiet else [StderrHandler(verbose)]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    try:
        if jobs.log_file is not None:
            add_log_file(jobs.log_file, jobs.log_file_level)
        yield
    finally:
        for handler in LOG.handlers:
            handler.close()
        LOG.handlers, level, LOG.propagate = previous
        LOG.setLevel(level)


def log_start() -> None:
    """Log the version and the command, to separate runs in the same file."""
    message = f"onmt_lite {__version__} begins on {platform.node()}: {shlex.join(sys.orig_argv)}"
    LOG.info("%s", message, extra={"on_stderr": False})


def log_machine(machine: Mapping[str, str] | None) -> None:
    """Log device and precision of the model if known, and on CPU the kernels."""
    if machine is not None:
        LOG.info("precision %s on %s", machine["precision"], machine["device"], extra=DETAIL)
        if machine["device"] == "cpu":
            LOG.info("kernels: %s", describe_kernels(), extra=DETAIL)


def add_log_file(path: str, level: str = "NOTSET") -> None:
    """Log to a file, too, until `configure_logging` ends.

    Args:
        path: the file.
        level: minimum level, a name or a number.

    Raises:
        FileError: if the file cannot be written.
    """
    try:
        handler = StrictFileHandler(path)
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot write log_file {path}: {explain_os_error(error, 'write')}"
        ) from None
    layout = "[%(asctime)s %(process)d %(levelname)s] %(message)s"  # several runs may share a file
    handler.setFormatter(logging.Formatter(layout))
    handler.setLevel(int(level) if level.isdecimal() else level)
    LOG.addHandler(handler)
