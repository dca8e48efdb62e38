"""Tests that need a real process: signals, broken streams, environment, streaming."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.end_to_end.conftest import ROOT, list_names
from tests.support.sweeps import mark_sweeps


def finish(process):
    """Return (exit code, remaining stdout, stderr) of a process that must end by itself."""
    out, err = process.communicate(timeout=200)
    text = err.decode("utf-8")
    assert "Traceback" not in text, text
    return process.returncode, out, text


@pytest.fixture
def running(process, tmp_path, until):
    """running(*argv): a job that has written one line and waits for more input."""

    def start(*argv, older=True, **popen):
        if older:
            (tmp_path / "out").write_bytes(b"older\n")
        job = process("-output", "out", *argv, stdin=subprocess.PIPE, **popen)
        job.stdin.write(b"one\n")
        job.stdin.flush()
        part = tmp_path / "out.parts" / "output"
        until(lambda: job.poll() is not None or (part.exists() and part.stat().st_size))
        assert job.poll() is None, job.communicate()
        return job

    return start


def stopped(number, job, n_lines, folder, older=True):
    """`finish`, and check the line about the signal, for a job started by `running`.

    The last line may have been in transit.
    """
    code, out, err = finish(job)
    number = number or code - 128
    kept = "out is as it was before" if older else "out was not written"
    done = ["before the first line", "after 1 line", "after 2 lines"][n_lines - 1 : n_lines + 1]
    stopped = f"onmt_lite: stopped by {signal.Signals(number).name}"
    assert err in [f"{stopped} {d}; {kept}; this run left no results\n" for d in done], err
    assert (code, out) == (128 + number, b"")
    assert os.listdir(folder) == ["out"] * older
    assert not older or (folder / "out").read_bytes() == b"older\n"


CASES = [(signal.SIGTERM, False), (signal.SIGHUP, True), (signal.SIGTERM, True)]


@pytest.mark.parametrize(("number", "older"), mark_sweeps(CASES, CASES[::2]))
def test_stop_signal_ends_job_and_leaves_no_files(running, tmp_path, number, older):
    # The tests themselves may run under nohup
    job = running(older=older, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    job.send_signal(number)
    stopped(number, job, 1, tmp_path, older)


def test_ignored_sighup_stays_ignored_and_ctrl_c_works(running, until, tmp_path):
    """nohup starts its command with SIGHUP ignored."""
    job = running(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.send_signal(signal.SIGHUP)
    job.stdin.write(b"two\n")
    job.stdin.flush()
    part = tmp_path / "out.parts" / "output"
    done = "ein\nü\n".encode()
    until(lambda: job.poll() is not None or part.read_bytes() == done)
    assert job.poll() is None, "ended by a signal that was ignored"
    job.send_signal(signal.SIGINT)
    stopped(signal.SIGINT, job, 2, tmp_path)


def test_two_stop_signals_at_once(running, tmp_path):
    """Both are pending when the process continues; the second must not interrupt the clean-up."""
    job = running()
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
        job.send_signal(number)
    stopped(None, job, 1, tmp_path)
    assert job.returncode in (143, 129)


@pytest.fixture
def run_program(tmp_path, env, table):
    """run_program(lines of Python, n, *argv): run them and a job of n lines in a process."""

    def run(lines, n, *argv):
        program = f"import os, sys; from onmt_lite.__main__ import main\n{lines}\nsys.exit(main())"
        (tmp_path / "src").write_bytes(b"one\n" * n)
        words = ["-model", table, "-src", "src", "-output", "out", *argv]
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=tmp_path,
            env={**env, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=200,
        )

    return run


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_signal_dropped_by_python_ends_job(run_program, tmp_path, workers):
    """Python drops an exception raised in a finalizer or an import callback."""
    lines = (
        "from onmt_lite.jobs.output import Output\n"
        "class Last:\n"
        "    def __del__(self): os.kill(os.getpid(), 15)\n"
        "Output.append = lambda self, done: (Last(), None)[1]"
    )
    done = run_program(lines, 30, "-workers", workers, "-bucket_lines", "1")
    err = done.stderr.decode()
    assert "Exception ignored in: <function Last.__del__" in err and "stopped by SIGTERM" in err
    assert done.returncode == 143 and not (tmp_path / "out").exists()


def test_stop_signal_after_publishing_changes_nothing(run_program, tmp_path):
    """Ending the process takes a moment with torch; the job is done."""
    lines = (
        "import atexit, signal\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, 15)\n"
        "sys.last = Last()\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    )
    done = run_program(lines, 1)
    assert done.returncode == 0
    assert done.stderr == b""
    assert (tmp_path / "out").read_bytes() == b"ein\n"


def test_stdout_lines_appear_at_once_and_sigpipe_ends_job(process):
    """As in `translate.py | head -1`: silent, with the exit code of SIGPIPE."""
    job = process(stdin=subprocess.PIPE)
    for line, answer in [(b"one\n", b"ein\n"), (b"two\none\n", "ü\n".encode())]:
        job.stdin.write(line)
        job.stdin.flush()
        assert job.stdout.readline() == answer
    assert job.stdout.readline() == b"ein\n"
    job.stdout.close()
    job.stdin.write(b"one\n")
    job.stdin.close()
    assert job.wait(timeout=200) == 141
    assert job.stderr.read() == b""


def test_output_pipe_without_reader_ends_job(process, tmp_path, until):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    job = process("-output", "pipe", stdin=subprocess.PIPE)
    job.stdin.write(b"one\n")
    job.stdin.flush()

    def answer():
        try:
            return os.read(reader, 100)
        except BlockingIOError:
            return b""

    assert until(answer) == b"ein\n"
    os.close(reader)
    job.stdin.write(b"one\n")
    assert finish(job) == (141, b"", "")


def test_stdout_full_is_an_error(shell):
    done = shell("> /dev/full", input=b"one\n")
    reason = "No space left on device; free some space or choose another disk"
    done.failed(5, f"cannot write standard output: {reason}")


def test_closed_stdout_or_stdin_is_an_error(shell, src):
    done = shell(">&-", "-src", src)
    done.failed(5, "cannot write standard output: it is closed; open it or use -output FILE")
    done = shell("<&-")
    done.failed(5, "cannot read standard input: it is closed; open it or set -src FILE")


def test_closed_stderr_is_ignored(shell):
    done = shell("2>&-", "-output", "/dev/stdout", input=b"one\n\n")
    assert (done.code, done.out) == (0, b"ein\n\n")
    done = shell("2>&-", "-nope")  # nor does the error go to standard output
    assert (done.code, done.out) == (2, b"")


@pytest.mark.parametrize("words", ["-help", "-help search", "-print_config"])
def test_help_and_print_config_with_broken_stdout(shell, process, words):
    done = shell("> /dev/full", *words.split())
    assert done.code == 5
    assert re.fullmatch(r"onmt_lite: error: .*No space left on device; free some .*\n", done.err)
    reading, writing = os.pipe()
    os.close(reading)
    job = process(*words.split(), stdout=writing)
    os.close(writing)
    _, err = job.communicate(timeout=200)
    assert (job.returncode, err) == (141, b"")


def test_output_does_not_depend_on_environment(shell, env, tmp_path, table):
    """ASCII locale, no UTF-8 mode, no HOME, another directory, non-ASCII names."""
    list_names = ["quelle-ü.txt", "ziel-ü.txt", "log-ü.txt"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / list_names[0]).write_bytes(b"two\n\nodd\n")
    bare = {k: v for k, v in env.items() if k not in ("HOME", "LANG")}
    bare |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    src, output, log = (f"sub/{name}" for name in list_names)
    done = shell("", "-src", src, "-output", output, "-verbose", "-log_file", log, env=bare)
    assert (done.code, done.out) == (0, b"")
    assert "PRED 1: " in done.err
    assert (tmp_path / output).read_bytes() == "ü\n\nx y z\n".encode()
    assert "PRED 1: ü\n" in (tmp_path / log).read_text(encoding="utf-8")
    assert sorted(os.listdir(tmp_path)) == ["sub"]


def test_job_with_few_file_descriptors(shell, src):
    done = shell("", "-src", src, "-output", "out", first="ulimit -n 32; exec")
    assert done.code == 0
    assert (src.parent / "out").read_bytes() == "ein\nü\n\nx y z\n".encode()


def test_memory_limit_too_low_for_torch_is_an_error(shell, src):
    done = shell("", "-src", src, "-output", "out", first="ulimit -v 400000; exec")
    assert (done.code, list_names(src.parent)) == (6, ["src.txt"])
    assert re.fullmatch(r"onmt_lite: error: out of memory: .* 390 MiB \(ulimit -v\).*\n", done.err)
