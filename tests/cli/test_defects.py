"""A defect of the program is told as one; only what happens to files is called that."""

import contextlib
import logging
import os
import resource
import subprocess
import sys

import pytest

from onmt_lite import Translator
from onmt_lite.output import open_output
from onmt_lite.progress import StrictFileHandler
from tests.cli.conftest import ROOT

LINE = "onmt_lite: error: a defect of the program ({}); please report the traceback below\n"


@pytest.fixture(params=[ValueError, OSError, KeyError], ids=lambda kind: kind.__name__)
def broken(request, monkeypatch):
    """A translation that fails as no job should, and what its error is called."""
    error = request.param("a bug")

    def fail(*args):
        raise error

    monkeypatch.setattr(Translator, "translate_lines", fail)
    return error


@pytest.mark.parametrize("output", ["-", "out", "/dev/null"])
def test_an_error_of_the_translation_stays_itself(main, src, tmp_path, broken, output, capfdbinary):
    (tmp_path / "out").write_bytes(b"older\n")
    with pytest.raises(type(broken)) as caught:
        main("-src", src, "-output", output, "-quiet")
    assert caught.value is broken
    said = LINE.format(f"{type(broken).__name__}: {broken}")
    assert capfdbinary.readouterr() == (b"", said.encode())
    assert (tmp_path / "out").read_bytes() == b"older\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "src.txt"]


def test_a_defect_ends_in_its_traceback_and_exit_code_1(table, tmp_path, env):
    program = (
        "import sys; from onmt_lite.__main__ import main; from onmt_lite import Translator\n"
        "def translate_lines(*args): raise ValueError('two\\nlines')\n"
        "Translator.translate_lines = translate_lines; sys.exit(main())"
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
    said, _, traceback = done.stderr.decode().partition("Traceback (most recent call last):\n")
    assert (done.returncode, done.stdout) == (1, b"")
    assert said == LINE.format("ValueError: two lines")
    assert "in translate_lines\n" in traceback
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["out", "pipe"])
def test_an_error_inside_counts_more_than_one_of_closing(tmp_path, name):
    """What was written before may fail only when the file is closed."""
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ValueError, match="a bug"), open_output(str(path)) as out:
        os.close(out.fileno())
        raise ValueError("a bug")
    if name == "pipe":
        os.close(reader)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()


def test_a_disk_that_fills_up_is_an_error_of_the_output(process, tmp_path):
    """A file that may not grow beyond 4,096 bytes stands for the disk."""
    (tmp_path / "src.txt").write_bytes(b"two\n" * 4000)
    (tmp_path / "out").write_bytes(b"older\n")
    limit = resource.RLIMIT_FSIZE
    job = process(
        *("-src", "src.txt", "-output", "out", "-quiet"),
        preexec_fn=lambda: resource.setrlimit(limit, (4096, 4096)),
    )
    out, err = job.communicate(timeout=200)
    assert (job.returncode, out) == (5, b"")
    assert err == b"onmt_lite: error: cannot write out: File too large\n"
    assert (tmp_path / "out").read_bytes() == b"older\n"
    assert not (tmp_path / "out.part").exists()


def test_a_defect_in_a_message_is_not_called_an_error_of_the_log_file(tmp_path):
    handler = StrictFileHandler(tmp_path / "log")
    record = logging.LogRecord("", logging.INFO, "", 0, "no place for it", ("an argument",), None)
    with contextlib.closing(handler), pytest.raises(TypeError, match="not all arguments"):
        handler.emit(record)
