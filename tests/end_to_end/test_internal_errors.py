"""Bugs of the program are reported as such; only file operations are file errors."""

import contextlib
import logging
import os
import re
import resource
import subprocess
import sys

import pytest

from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs.output import Output
from onmt_lite.jobs.progress import StrictFileHandler
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.tasks import BucketResult
from tests.end_to_end.conftest import ROOT

LINE = "onmt_lite: error: internal error ({}); please report the traceback below\n"


@pytest.fixture(params=[ValueError, OSError, KeyError], ids=lambda kind: kind.__name__)
def broken(request, monkeypatch):
    """A translation that fails unexpectedly, and the name of its error."""
    error = request.param("a bug")

    def fail(*args):
        raise error

    monkeypatch.setattr(Pipeline, "translate_lines", fail)
    return error


@pytest.mark.parametrize("output", ["-", "out", "/dev/null"])
def test_translation_error_is_not_masked(main, src, tmp_path, broken, output, capfdbinary):
    (tmp_path / "out").write_bytes(b"older\n")
    with pytest.raises(type(broken)) as caught:
        main("-src", src, "-output", output, "-quiet")
    assert caught.value is broken
    error_line = LINE.format(f"{type(broken).__name__}: {broken}")
    out, err = capfdbinary.readouterr()
    first, *goes_on = err.decode().splitlines(keepends=True)
    assert (out, first) == (b"", error_line)
    left = [path.name for path in tmp_path.iterdir() if path.name not in ("out", "src.txt")]
    if output == "out":
        state = "before the first line; out is as it was before; resume with:"
        assert goes_on[0] == f"onmt_lite: stopped {state}\n"
        assert goes_on[1].endswith(" -resume\n") and len(goes_on) == 2
        assert left == ["out.parts"]
    else:
        assert not goes_on and not left
    assert (tmp_path / "out").read_bytes() == b"older\n"


def test_internal_error_prints_traceback_and_exits_1(table, tmp_path, env):
    program = (
        "import sys; from onmt_lite.__main__ import main\n"
        "from onmt_lite.inference.pipeline import Pipeline\n"
        "def translate_lines(*args): raise ValueError('two\\nlines')\n"
        "Pipeline.translate_lines = translate_lines; sys.exit(main())"
    )
    words = ["-model", table, "-output", "out"]
    env = {**env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env=env,
        input=b"one\n",
        capture_output=True,
    )
    error_line, _, traceback = done.stderr.decode().partition(
        "Traceback (most recent call last):\n"
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert error_line == LINE.format("ValueError: two lines")
    assert "in translate_lines\n" in traceback
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["out", "pipe"])
def test_error_is_not_masked_by_error_while_closing(tmp_path, name):
    """Closing a file may report an earlier write error."""
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ValueError, match="a bug"), Output(str(path)) as out:
        out.begin({}, [], {})
        out.append(BucketResult(0, 1, b"", Summary()))
        (sink,) = out.sinks
        os.close(sink._fd if name == "out" else sink.file.fileno())
        raise ValueError("a bug")
    if name == "pipe":
        os.close(reader)
    assert os.listdir(tmp_path) in ([], ["pipe"])


def test_disk_full_during_job_is_an_output_error(process, tmp_path, env):
    """A file size limit of 4,096 bytes simulates a full disk."""
    (tmp_path / "src.txt").write_bytes(b"two\n" * 4000)
    (tmp_path / "out").write_bytes(b"older\n")
    limit = resource.RLIMIT_FSIZE
    job = process(
        *("-src", "src.txt", "-output", "out", "-quiet", "-bucket_lines", 100),
        preexec_fn=lambda: resource.setrlimit(limit, (4096, 4096)),
    )
    out, err = job.communicate(timeout=200)
    assert (job.returncode, out) == (5, b"")
    error, stopped, command = err.decode().splitlines()
    assert error.startswith(
        "onmt_lite: error: cannot write out: File too large; raise the file size limit "
    )
    state = r"after [\d,]*00 of 4,000 lines; out is as it was before; resume with:"
    assert re.fullmatch(f"onmt_lite: stopped {state}", stopped)
    assert (tmp_path / "out").read_bytes() == b"older\n"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=env, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "out").read_text() == "ü\n" * 4000
    assert sorted(os.listdir(tmp_path)) == ["out", "src.txt"]


def test_internal_error_in_log_message_is_not_a_log_file_error(tmp_path):
    handler = StrictFileHandler(tmp_path / "log")
    record = logging.LogRecord("", logging.INFO, "", 0, "no place for it", ("an argument",), None)
    with contextlib.closing(handler), pytest.raises(TypeError, match="not all arguments"):
        handler.emit(record)
