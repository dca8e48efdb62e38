"""Progress and log of a job: a bar on a terminal, elsewhere a line now and then."""

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
from onmt_lite.system.clock import Clock
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import CONSOLE
from onmt_lite.version import __version__

LOG_INTERVAL = 10.0  # lines about progress
PHASES = ("tokenize", "encode", "decode", "write")


class JobProgress:
    """How far a job is; a context in which its bar is shown."""

    def __init__(
        self,
        total: int | None,
        quiet: bool,
        typed: bool,
        tell: Callable[[int, int], object] | None = None,
        n_before: int = 0,
    ):
        """`total` lines, None if they cannot be counted beforehand, may be `typed` by a person;
        `tell` is called after each batch with the lines and target tokens that are done."""
        self.total, self.typed, self.tell, self.n_before = total, typed, tell, n_before
        self.n_lines, self.n_tokens = n_before, 0
        self.clock = Clock()  # what the job spends on what, in all its processes
        self.said = False  # a line about progress, on stderr
        self.bar = tqdm(
            total=total,
            initial=n_before,
            unit=" lines",
            file=CONSOLE,
            disable=quiet or typed or not CONSOLE.isatty(),
            miniters=1,  # without it, a small batch after a large one does not move the bar
            smoothing=0,  # the mean: a bucket begins with its long lines, so the last rate misleads
            ncols=bar_width(),
            nrows=24,  # some terminals say 0, which tqdm would believe
        )
        if typed and not quiet:
            print("type a line, Ctrl-D ends", file=CONSOLE)
        self.started = self.last_said = time.monotonic()

    def __enter__(self) -> "JobProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self.took = self.seconds()
        self.bar.close()

    def add(self, n_lines: int, n_tokens: int) -> None:
        """Count what a batch has added: lines, and tokens of their translations."""
        self.n_lines, self.n_tokens = self.n_lines + n_lines, self.n_tokens + n_tokens
        if self.tell is not None and n_lines:
            self.tell(self.n_lines, self.n_tokens)
        self.bar.ncols = bar_width()
        speed = f"{self.n_tokens / self.seconds():.0f} tokens/s"
        self.bar.set_postfix_str(speed, refresh=False)
        self.bar.update(n_lines)
        now = time.monotonic()
        if now - self.last_said >= LOG_INTERVAL and not self.typed:
            self.last_said, self.said = now, True
            line = f"{self.done(self.n_lines)}, {speed}"
            n_new = self.n_lines - self.n_before
            if self.total and n_new > 0:
                left = (self.total - self.n_lines) * self.seconds() / n_new
                line += f", {tqdm.format_interval(left)} left"
            LOG.info(line, extra={"on_stderr": not CONSOLE.isatty()})

    def end(self, output: str, seconds: float) -> None:
        """Log where how many lines are; on stderr if the way there was seen."""
        seen = (CONSOLE.isatty() or self.said) and not (self.typed and output == "-")
        took = f"{seconds:.1f} s" if seconds < 100 else tqdm.format_interval(seconds)
        lines, where = format_line_count(self.n_lines), format_path(output)
        LOG.info("%s -> %s (%s)", lines, where, took, extra={"on_stderr": seen})

    def done(self, n_lines: int) -> str:
        """1,024 of 2,000 lines"""
        return (
            f"{n_lines:,} of {format_line_count(self.total)}"
            if self.total
            else format_line_count(n_lines)
        )

    def log_times(self, loading: float) -> None:
        """Log how long the lines took, and what the time was spent on."""
        for line in format_times(self.took, self.n_lines - self.n_before, self.n_tokens):
            LOG.info("%s", line)
        spent = self.clock.seconds
        phases = ", ".join(f"{spent[name]:.2f} s to {name}" for name in PHASES)
        LOG.info("TIME: %.2f s to load, %s", loading, phases)

    def seconds(self) -> float:
        return max(1e-9, time.monotonic() - self.started)


def format_times(seconds: float, n_lines: int, n_tokens: int) -> list[str]:
    """Report how long the lines took, in the words of OpenNMT-py 3.5."""
    return [
        f"Total translation time (s): {seconds:.1f}",
        f"Average translation time (ms): {1000 * seconds / max(1, n_lines):.1f}",
        f"Tokens per second: {n_tokens / seconds:.1f}",
    ]


def format_line_count(n: int) -> str:
    return "1 line" if n == 1 else f"{n:,} lines"


def bar_width() -> int:
    """Columns of a bar: not the last one, at which some terminals wrap."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):  # none, or one that is closed
        columns = 0
    return (columns or 80) - 1


# -- the log --------------------------------------------------------------------------------------


class StderrHandler(logging.Handler):
    """Log lines above the progress bar."""

    def __init__(self, verbose: bool):
        super().__init__()
        self.verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        wanted = self.verbose or not getattr(record, "detail", False)
        if wanted and getattr(record, "on_stderr", True):
            tqdm.write(self.format(record), file=CONSOLE)


class StrictFileHandler(logging.FileHandler):
    """A log file that cannot be written ends the job instead of being forgotten."""

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
        raise  # a message that cannot be made is a defect

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk, of which the last record has told
            super().close()


@contextlib.contextmanager
def configure_logging(jobs: JobOptions, verbose: bool = False) -> Iterator[None]:
    """Send the log to stderr unless -quiet, details too if `verbose`, and to -log_file; restore its
    handlers at the end.  Raises FileError."""
    before = LOG.handlers, LOG.level, LOG.propagate
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
        LOG.handlers, level, LOG.propagate = before
        LOG.setLevel(level)


def log_start() -> None:
    """Log which run begins, which tells runs in one file apart."""
    what = f"onmt_lite {__version__} begins on {platform.node()}: {shlex.join(sys.orig_argv)}"
    LOG.info("%s", what, extra={"on_stderr": False})


def log_machine(machine: Mapping[str, str] | None) -> None:
    """Log what the model runs on, if that is known."""
    if machine is not None:
        LOG.info("precision %s on %s", machine["precision"], machine["device"], extra=DETAIL)


def add_log_file(path: str, level: str = "NOTSET") -> None:
    """Log to a file too, from this level on, until `configure_logging` ends.  Raises FileError."""
    try:
        handler = StrictFileHandler(path)
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot write log_file {path}: {explain_os_error(error, 'write')}"
        ) from None
    form = "[%(asctime)s %(process)d %(levelname)s] %(message)s"  # two runs may share a file
    handler.setFormatter(logging.Formatter(form))
    handler.setLevel(int(level) if level.isdecimal() else level)
    LOG.addHandler(handler)
