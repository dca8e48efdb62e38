"""Logging of a job: its files are closed and its handlers removed at the end."""

import logging
import os
import re
import shlex
import subprocess
import sys
import time

import pytest

from onmt_lite import __version__
from onmt_lite.config.job_options import JobOptions
from onmt_lite.jobs.progress import add_log_file, configure_logging
from onmt_lite.system.log import LOG
from tests.end_to_end.conftest import SCRIPT
from tests.support.sweeps import mark_sweeps

JOBS = {
    "done": "-src src.txt -output out",
    "quiet": "-src src.txt -output out -quiet",
    "no input": "-src none -output out",
    "no model": "-src src.txt -model no/such",
    "no output": "-src src.txt -output no/such/out",
    "no log": "-src src.txt -log_file no/such/log",
    "unknown token": "-src odd.txt",
}


def open_files() -> list[str]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.islink(link)]


def state():
    return list(LOG.handlers), LOG.level, LOG.propagate


@pytest.mark.parametrize("words", JOBS.values(), ids=JOBS)
def test_job_restores_logging(main, src, tmp_path, words):
    (tmp_path / "odd.txt").write_bytes(b"zz\n")
    before = state()
    for name in ("log", "log", "other"):
        main("-log_file", name, *words.split())
    assert state() == before
    assert not {str(tmp_path / name) for name in ("log", "other")} & set(open_files())
    assert (tmp_path / "log").exists() == ("-log_file" not in words)


def test_each_job_logs_its_lines_once(main, src, tmp_path):
    """Handlers of an earlier job would log them again."""
    for _ in range(3):
        done = main("-src", src, "-log_file", "log")
        assert done.err.count("line 3: the input line is empty") == 1
    assert (tmp_path / "log").read_text("utf-8").count("line 3: the input line is empty") == 3


def test_log_file_separates_runs(process, src, tmp_path):
    """Two runs at once and one later: lines have a process id and start with the command."""
    both = [process("-src", src, "-output", name, "-log_file", "log") for name in "ab"]
    assert [job.wait() for job in both] == [0, 0]
    assert process("-src", src, "-output", "c", "-log_file", "log").wait() == 0
    runs = {}
    for line in (tmp_path / "log").read_text("utf-8").splitlines():
        date, number, message = re.fullmatch(r"\[(.{23}) (\d+) INFO\] (.*)", line).groups()
        time.strptime(date, "%Y-%m-%d %H:%M:%S,%f")
        runs.setdefault(number, []).append(message)
    assert len(runs) == 3
    for begins, *_, end in runs.values():
        command = re.fullmatch(rf"onmt_lite {__version__} begins on \S+: (.*)", begins)[1]
        words = shlex.split(command)
        assert end.startswith(f"4 lines -> {words[words.index('-output') + 1]} (")


def test_log_of_calling_program_is_unchanged(tmp_path):
    records, handler = [], logging.Handler()
    handler.emit = records.append
    LOG.addHandler(handler)
    try:
        with configure_logging(JobOptions(quiet=True, log_file=str(tmp_path / "log"))):
            add_log_file(str(tmp_path / "second"))
            LOG.info("inside")
        LOG.warning("outside")
    finally:
        LOG.removeHandler(handler)
    assert [record.getMessage() for record in records] == ["outside"]
    for name in ("log", "second"):
        assert (tmp_path / name).read_text("utf-8").endswith(" INFO] inside\n")


@pytest.mark.parametrize("log_file", mark_sweeps(["log", "/dev/full", "/dev/stderr"], ["log"]))
def test_log_file_is_closed(table, src, tmp_path, env, log_file):
    words = ["-src", src, "-model", table, "-output", "out", "-log_file", log_file, "-quiet"]
    command = [sys.executable, "-W", "always::ResourceWarning", SCRIPT, *words]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == (5 if log_file == "/dev/full" else 0)
    assert b"ResourceWarning: " not in done.stderr  # the printed command has the word too


def say_nothing_first(patch):
    """The disk is full when the lines at the start have been written."""
    for name in ("log_start", "log_machine"):
        patch.setattr(f"onmt_lite.jobs.job.{name}", lambda *args: None)


def test_log_file_write_error_leaves_no_output(main, src, tmp_path):
    argv = ["-src", src, "-output", "out", "-log_file"]
    for more in ([], ["-resume"]):
        for full_later in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                if full_later:
                    say_nothing_first(patch)
                done = main(*argv, "/dev/full", *more)
            assert done.code == 5 and "cannot write /dev/full: No space left on device" in done.err
            assert more or full_later == ("out was not written; resume with:" in done.err)
            assert not (tmp_path / "out").exists()
    assert main(*argv, "log", "-resume").code == 0
    assert (tmp_path / "out").read_text("utf-8") == "ein\nü\n\nx y z\n"


def test_log_file_full_at_last_line_leaves_no_output(main, src, tmp_path):
    """A log that is full when a complete job is resumed does not harm the output."""
    argv = ["-src", src, "-output", "out", "-log_file"]
    with pytest.MonkeyPatch.context() as patch:
        say_nothing_first(patch)
        patch.setattr("onmt_lite.jobs.job.Run._log_end", lambda *args: None)
        done = main(*argv, "/dev/full")
    assert done.code == 5 and "error: cannot write /dev/full: No space left on device" in done.err
    assert not (tmp_path / "out").exists()
    assert main(*argv, "log", "-resume").code == 0
    complete = (tmp_path / "out").read_bytes()
    assert complete == "ein\nü\n\nx y z\n".encode()
    assert main(*argv, "/dev/full", "-resume").code == 5
    assert (tmp_path / "out").read_bytes() == complete
