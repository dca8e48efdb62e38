"""Non-blocking streams, and file systems without locks or modes."""

import errno
import fcntl
import logging
import os
import resource
import shutil
import threading

import pytest

from onmt_lite.config.files import OutputStream
from onmt_lite.errors import FileError
from onmt_lite.jobs.inputs import open_input
from onmt_lite.jobs.output import Output
from onmt_lite.jobs.progress import StrictFileHandler
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.tasks import BucketResult
from onmt_lite.text.lines import LineReader

JOB_LIMIT = 60  # seconds, after which a job hangs

TEXT = "".join(f"line {i} ü\n" for i in range(50_000))


@pytest.mark.timeout(JOB_LIMIT)
@pytest.mark.parametrize("buffering", [-1, 0], ids=["stdout", "device"])
def test_nonblocking_output_pipe_receives_everything(buffering):
    """Another program may have set O_NONBLOCK on a terminal or pipe."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found: list[bytes] = []

    def read_slowly() -> None:
        while data := os.read(reading, 10_000):
            found.append(data)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    with open(writing, "wb", buffering=buffering) as out:
        stream = OutputStream("-")
        stream.file = out
        stream.append(TEXT.encode())
        stream.append(b"end\n")
    reader.join()
    os.close(reading)
    assert b"".join(found).decode() == TEXT + "end\n"


def texts(fd: int) -> list[str]:
    return [line.text for window in LineReader(fd, "src").windows() for line in window]


@pytest.mark.timeout(JOB_LIMIT)
def test_nonblocking_input_is_polled():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    later = threading.Timer(0.2, lambda: (os.write(writing, b"one\n"), os.close(writing)))
    later.start()
    assert texts(reading) == ["one"]
    os.close(reading)


def test_input_with_large_descriptor_number(tmp_path):
    """A program may have thousands of open files."""
    (tmp_path / "src").write_bytes(b"one\ntwo\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("this machine allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    try:
        with open_input(str(tmp_path / "src")) as fd:
            os.dup2(fd, 2500)
            assert texts(2500) == ["one", "two"]
            os.close(2500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def write(path, text):
    with Output(str(path)) as out:
        out.begin({}, [], {})
        out.append(BucketResult(0, 1, text, Summary()))
        out.publish()


def refuse(number: int):
    def operation(*args):
        raise OSError(number, os.strerror(number))

    return operation


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_output_on_file_system_without_modes(tmp_path, monkeypatch, number):
    """The mode is copied last, when all the work is done."""
    path = tmp_path / "out"
    path.write_bytes(b"older\n")
    monkeypatch.setattr(os, "fchmod", refuse(number))
    monkeypatch.setattr(os, "fchown", refuse(number))
    write(path, b"new\n")
    assert path.read_bytes() == b"new\n"


@pytest.mark.parametrize(
    "number, problem",
    [
        (errno.EWOULDBLOCK, "another job is writing it"),
        (
            errno.ENOSYS,
            "Function not implemented; choose a directory on a file system",
        ),
        (
            errno.ENOLCK,
            "No locks available; choose a directory on a file system",
        ),
    ],
)
def test_lock_failure_is_an_error(tmp_path, monkeypatch, number, problem):
    monkeypatch.setattr(fcntl, "flock", refuse(number))
    with pytest.raises(FileError, match=f"cannot write .*out: {problem}"):
        with Output(str(tmp_path / "out")):
            pytest.fail("written without a lock")
    left = ["out.parts"] if number == errno.EWOULDBLOCK else []
    assert os.listdir(tmp_path) == left


def test_store_removed_by_another_job_is_created_again(tmp_path, monkeypatch):
    """The job that has just finished removes it."""
    store, flock = tmp_path / "out.parts", fcntl.flock
    times = []

    def lock(*args):
        times.append(args)
        flock(*args)
        if len(times) == 1:
            shutil.rmtree(store)

    monkeypatch.setattr(fcntl, "flock", lock)
    write(tmp_path / "out", b"new\n")
    assert (tmp_path / "out").read_bytes() == b"new\n" and len(times) == 2


def test_log_file_with_unusual_name(tmp_path):
    """A path may contain bytes that are not text."""
    handler = StrictFileHandler(tmp_path / "log")
    handler.emit(logging.makeLogRecord({"msg": "cannot read caf\udce9"}))
    handler.close()
    assert (tmp_path / "log").read_text("utf-8") == "cannot read caf\\udce9\n"


@pytest.mark.timeout(JOB_LIMIT)
def test_model_from_pipe_is_rejected(main, src, tmp_path):
    """Opening a pipe without a writer would block forever."""
    os.mkfifo(tmp_path / "pipe")
    done = main("-src", src, "-model", "pipe")
    assert done.code == 4 and "no model at pipe: it is neither a file nor a directory" in done.err
