"""Output on a terminal: progress bar, log lines, typed input, and the last line."""

import contextlib
import fcntl
import os
import re
import struct
import sys
import termios

import pytest
import tqdm

from onmt_lite.jobs import progress as module
from onmt_lite.jobs.progress import JobProgress, format_line_count

OUT = "ein\nü\n\nx y z\n".encode()  # of the fixture src
END = r"4 lines -> {} \(\d+\.\d s\)\n"


class Terminal:
    """A terminal of a given size, and everything shown on it so far."""

    def __init__(self, columns, rows=24):
        self.pty_fd, self.tty_fd = os.openpty()
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.tty_fd, termios.TIOCSWINSZ, size)
        os.set_blocking(self.pty_fd, False)
        self.shown = ""

    def read(self):
        with contextlib.suppress(OSError):  # no new output, or the writer is gone
            while data := os.read(self.pty_fd, 1 << 16):
                self.shown += data.decode("utf-8")
        return self.shown

    def type(self, text):
        os.write(self.pty_fd, text.encode("utf-8"))

    def lines(self):
        """Return the visible lines: text after a carriage return replaces the old text."""
        screen = []
        for line in self.read().replace("\r\n", "\n").split("\n"):
            cells = ""
            for text in line.split("\r"):
                cells = text + cells[len(text) :]
            screen.append(cells.rstrip())
        return screen

    def controls(self):
        """In a child: make this the controlling terminal, so that ^C reaches it."""
        os.setsid()
        fcntl.ioctl(self.tty_fd, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal():
    with contextlib.ExitStack() as made:

        def make(columns=80):
            one = Terminal(columns)
            made.callback(lambda: (os.close(one.pty_fd), os.close(one.tty_fd)))
            return one

        yield make


@pytest.fixture
def shown_on(monkeypatch):
    """shown_on(screen, *names): redirect streams of this process, such as stderr, to a terminal."""
    with contextlib.ExitStack() as opened:

        def lead(screen, *names):
            for name in names:
                stream = open(os.dup(screen.tty_fd), "w", encoding="utf-8")
                monkeypatch.setattr(sys, name, opened.enter_context(stream))

        yield lead


@pytest.mark.parametrize("columns", [80, 20, 0])
def test_bar_fits_terminal_and_last_line_names_output(main, terminal, shown_on, src, columns):
    screen = terminal(columns)
    shown_on(screen, "stderr")
    done = main("-src", src, "-output", "out")
    assert (done.code, done.out, done.err) == (0, b"", "")
    screen.read()
    bars = [text for text in re.split("[\r\n]+", screen.shown) if "4" in text and "%" in text]
    assert bars and all(len(bar) < (columns or 80) for bar in bars)
    assert "100%" in bars[-1]
    *_, summary, per_token, per_sentence, end, nothing = screen.lines()
    assert per_token.startswith("PRED AVG SCORE: ") and per_sentence.startswith("PRED SCORE: ")
    assert (summary, nothing) == (
        "line 3: the input line is empty, so the output line is empty [empty]",
        "",
    )
    assert re.fullmatch(END.format("out"), end + "\n")


def test_bar_moves_before_the_end(process, terminal, until):
    screen = terminal()
    job = process("-output", "out", stdin=-1, stderr=screen.tty_fd)
    for n, text in enumerate(["1 lines", "2 lines", "3 lines"], 1):
        job.stdin.write(b"one\n")
        job.stdin.flush()
        until(lambda text=text: job.poll() is not None or text in screen.read())
        assert job.poll() is None, f"ended at line {n}"
    job.stdin.close()
    assert job.wait(timeout=200) == 0


class Screen:
    """A terminal that records its output."""

    encoding, shown = "utf-8", ""

    def write(self, text):
        self.shown += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_bar_remaining_time_at_constant_speed(monkeypatch):
    """One line per second in batches of ten, so the rate is known."""
    now = [1000.0]
    monkeypatch.setattr(module, "CONSOLE", Screen())
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
    with JobProgress(200, quiet=False, reads_terminal=False) as meter:
        for n_left in range(190, -1, -10):
            now[0] += 10.0
            meter.add(10, 20)
            shown = module.CONSOLE.shown
            assert f"{200 - n_left}/200 [" in shown.rsplit("\r", 1)[-1]
            assert f"<{n_left // 60:02}:{n_left % 60:02}," in shown.rsplit("\r", 1)[-1]


def test_bar_moves_for_small_batch_after_large_one(monkeypatch):
    """The bar must not adapt its refresh interval to the first batch."""
    monkeypatch.setattr(module, "CONSOLE", Screen())
    with JobProgress(400, quiet=False, reads_terminal=False) as meter:
        meter.bar.mininterval = 0
        for n, done in [(300, 300), (1, 301), (9, 310), (90, 400)]:
            meter.add(n, 10)
            assert f"{done}/400" in module.CONSOLE.shown


def test_bar_does_not_mix_with_output_on_same_terminal(main, terminal, shown_on, src):
    screen = terminal()
    shown_on(screen, "stdout", "stderr")
    done = main("-src", src)
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert screen.lines()[:4] == ["ein", "ü", "", "x y z"]


def test_quiet_shows_no_bar_on_terminal(main, terminal, shown_on, src):
    screen = terminal()
    shown_on(screen, "stderr")
    done = main("-src", src, "-quiet")
    assert (done.code, done.out, done.err, screen.read()) == (0, OUT, "", "")


class TestWithoutATerminal:
    LINE = r"\d of 4 lines, \d+ tokens/s, \d\d:\d\d left\n"

    def test_short_job_logs_no_progress(self, main, src):
        log = main("-src", src, "-output", "out").err
        assert log == "line 3: the input line is empty, so the output line is empty [empty]\n"
        assert [format_line_count(n) for n in (0, 1, 12345)] == [
            "0 lines",
            "1 line",
            "12,345 lines",
        ]

    def test_long_job_logs_progress_periodically(self, main, src, tmp_path, monkeypatch):
        """The interval is set to 0, so progress is logged after every batch."""
        monkeypatch.setattr(module, "LOG_INTERVAL", 0.0)
        argv = ["-batch_size", 1, "-batch_type", "sents", "-log_file", "log"]
        done = main("-src", src, "-output", "out", *argv)
        parts = done.err.split("line 3: ")
        assert re.fullmatch(f"({self.LINE}){{4}}", parts[0])  # the blank line, then three batches
        assert "4 of 4 lines, " in parts[0] and "00:00 left\n" in parts[0]
        assert re.fullmatch(END.format("out"), done.err.split("\n", 5)[-1])
        logged = re.sub(r"(?m)^\[.* INFO\] ", "", (tmp_path / "log").read_text())
        details = "onmt_lite|precision|kernels|PRED"
        assert re.sub(f"(?m)^({details}).*\n", "", logged) == done.err

    def test_progress_with_unknown_line_count(self, main, monkeypatch):
        monkeypatch.setattr(module, "LOG_INTERVAL", 0.0)
        pty_fd, tty_fd = os.pipe()
        os.write(tty_fd, b"one\n")
        os.close(tty_fd)
        with os.fdopen(pty_fd) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            done = main("-output", "out")
        assert re.match(r"1 line, \d+ tokens/s\n", done.err.split("\n", 1)[-1])
        assert done.err.split("\n")[-2].startswith("1 line -> out (")

    def test_progress_of_file_opened_by_shell(self, shell, src, terminal):
        """Lines that another program has already read are not counted."""
        screen = terminal()
        done = shell("; } < src.txt", first="{ read line;", stderr=screen.tty_fd)
        assert (done.code, done.out) == (0, OUT.removeprefix(b"ein\n"))
        assert "3/3" in screen.read()

    def test_quiet_logs_progress_only_to_file(self, main, src, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "LOG_INTERVAL", 0.0)
        done = main("-src", src, "-quiet", "-log_file", "log")
        assert (done.code, done.out, done.err) == (0, OUT, "")
        logged = (tmp_path / "log").read_text()
        assert "4 of 4 lines, " in logged and "4 lines -> standard output (" in logged


class TestTypedInput:
    @pytest.fixture
    def typed(self, process, terminal, until):
        """A job that waits for typed lines, and its terminal."""
        screen = terminal()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen.tty_fd)
        job = process(**streams)
        until(lambda: job.poll() is not None or "Ctrl-D ends the input\r\n" in screen.read())
        assert screen.lines() == ["loading the model ...", "type a line; Ctrl-D ends the input", ""]
        return job, screen

    def test_typed_lines_are_translated_at_once(self, typed, until):
        job, screen = typed
        for line, answer in [("one", "ein"), ("two", "ü"), ("odd", "x y z")]:
            screen.type(f"{line}\n")
            until(lambda seen=f"{line}\r\n{answer}\r\n": seen in screen.read())
        screen.type("\x04")
        assert job.wait(timeout=200) == 0
        assert screen.lines()[2:] == ["one", "ein", "two", "ü", "odd", "x y z", ""]
        assert "%" not in screen.shown and "tokens/s" not in screen.shown

    def test_ctrl_d_without_lines(self, typed):
        job, screen = typed
        screen.type("\x04")
        assert job.wait(timeout=200) == 0
        assert screen.lines()[2:] == [""]

    def test_ctrl_c_leaves_clean_line(self, typed, until):
        job, screen = typed
        for n in (1, 2):
            screen.type("one\n")
            until(lambda n=n: screen.read().count("ein\r\n") == n)
        screen.type("tw\x03")
        assert job.wait(timeout=200) == 130
        *lines, stopped, nothing = screen.lines()[2:]
        assert (lines, nothing) == (["one", "ein"] * 2, "")
        # The last line may have been written and not be counted yet
        pattern = r"onmt_lite: stopped by SIGINT after (1 line|2 lines), written to standard output"
        assert re.fullmatch(pattern, stopped)

    def test_quiet_prints_no_prompt(self, process, terminal):
        screen = terminal()
        job = process("-quiet", stdin=screen.tty_fd, stderr=screen.tty_fd)
        screen.type("one\n\x04")
        out, _ = job.communicate(timeout=200)
        assert (job.returncode, out, screen.lines()) == (0, b"ein\n", ["one", ""])


def test_bar_of_stopped_job_ends_with_newline(process, terminal, until):
    screen = terminal()
    job = process("-output", "new", stdin=-1, stderr=screen.tty_fd)
    job.stdin.write(b"one\n")
    job.stdin.flush()
    until(lambda: job.poll() is not None or "1 lines" in screen.read())
    screen.type("\x03")
    assert job.wait(timeout=200) == 130
    bar, stopped, nothing = screen.lines()
    assert bar.startswith("1 lines [")
    assert stopped.startswith("onmt_lite: stopped by SIGINT after 1 line; new was not written")
    assert nothing == ""


def test_ctrl_c_before_model_is_loaded(process, terminal, until):
    """^C arrives during the import of torch, which takes seconds."""
    screen = terminal()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen.tty_fd)
    job = process("-model", "no/such", **streams, preexec_fn=screen.controls)
    until(lambda: job.poll() is not None or "...\r\n" in screen.read())
    screen.type("\x03")
    assert job.wait(timeout=200) == 130
    expected = "onmt_lite: stopped by SIGINT before the first line; nothing was written"
    assert screen.lines()[1:] == [expected, ""]
