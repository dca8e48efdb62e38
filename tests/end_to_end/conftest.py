"""Fixtures that run translate.py, and a small table model with known translations."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.forked_jobs import WarmStarter
from tests.support.job_runner import LaunchOptions

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "translate.py"
sys.path.insert(0, str(ROOT))

END = [5.0, 0.0, 0.0, 0.0, -9.0]  # logits after the first token
FIRST = {
    "one": [-2.0, 3.0, 1.0, 0.0, -9.0],
    "two": [-2.0, 1.0, 3.0, 0.0, -9.0],
    "odd": [-9.0, -9.0, -9.0, -9.0, 5.0],
}
VOCAB = ["</s>", "ein", "ü", "b", "x\u2028y\nz"]
BEST = {"one": "ein", "two": "ü", "odd": "x y z", "": ""}


@dataclass
class Result:
    code: int
    out: bytes
    err: str

    @property
    def lines(self):
        return self.out.decode("utf-8").split("\n")[:-1]

    def failed(self, code, *errors):
        """Check that stderr contains exactly these errors, one per line."""
        assert self.err == "".join(f"onmt_lite: error: {error}\n" for error in errors)
        assert (self.code, self.out) == (code, b"")


def list_names(folder):
    return sorted(os.listdir(folder))


def write_table(path, vocab, firsts, default=None):
    """Write a table model: logits of the first token of each source, and of the tokens after it."""
    sources = {
        name: {"length": 1, "rows": {"": first}, "default": default or first}
        for name, first in firsts.items()
    }
    model = {"format": "onmt_lite-table-1", "vocab": vocab, "sources": sources}
    path.write_text(json.dumps(model), encoding="ascii")
    return path


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """Path of a table model: see FIRST, VOCAB and BEST."""
    return write_table(tmp_path_factory.mktemp("table") / "model.json", VOCAB, FIRST, END)


@pytest.fixture
def src(tmp_path):
    path = tmp_path / "src.txt"
    path.write_bytes(b"one\ntwo\n\nodd\n")
    return path


@pytest.fixture
def main(table, tmp_path, capfdbinary, monkeypatch):
    """main(*argv) -> Result: run in this process and in tmp_path; -model defaults to the table."""
    import translate

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in signals}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])

    def run(*argv, stdin=None):
        words = [str(word) for word in argv]
        if stdin is not None:
            (tmp_path / "stdin").write_bytes(stdin)
            monkeypatch.setattr(sys, "stdin", open(tmp_path / "stdin", "rb"))  # noqa: SIM115
        capfdbinary.readouterr()
        code = translate.main(words if "-model" in words else [*words, "-model", str(table)])
        out, err = capfdbinary.readouterr()
        text = err.decode("utf-8")
        assert "Traceback" not in text, text
        return Result(code, out, text)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def redirect_descriptor(number, path, flag):
    """Redirect a descriptor of this process to a file: `1>> path` with os.O_APPEND, `1> path` with
    os.O_TRUNC.
    """
    before = os.dup(number)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flag)
    os.dup2(file, number)
    os.close(file)
    try:
        yield
    finally:
        os.dup2(before, number)
        os.close(before)


@pytest.fixture
def command(table):
    """The command that starts translate.py as a process."""
    return lambda *argv: [sys.executable, str(SCRIPT), "-model", str(table), *map(str, argv)]


@pytest.fixture
def env():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class ForkedProcess:
    """A process forked off the warm process, used like `subprocess.Popen`."""

    def __init__(self, warm, start, program="onmt_lite", *, stdin=subprocess.DEVNULL, **outs):
        self.warm, self.returncode, theirs, ours = warm, None, [], []
        for number, given in enumerate([stdin, *(outs.get(n) for n in ("stdout", "stderr"))]):
            pipe = None
            if given is None or given == subprocess.PIPE:
                reading, writing = os.pipe()
                pipe, given = (writing, reading) if number == 0 else (reading, writing)
            elif given == subprocess.DEVNULL:
                given = os.open(os.devnull, os.O_RDWR)
            else:
                given = os.dup(given)
            ours.append(None if pipe is None else open(pipe, "rb" if number else "wb"))
            theirs.append(given)
        self.stdin, self.stdout, self.stderr = ours
        self.pid = warm.fork_job(start, theirs, program)
        for fd in theirs:
            os.close(fd)

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=200):
        if self.returncode is None:
            found = self.warm.reap(self.pid, timeout)
            if found is None:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = found[0]
        return self.returncode

    def communicate(self, timeout=200):
        """Close stdin and return the rest of stdout and stderr."""
        if self.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        with ThreadPoolExecutor() as pool:
            outs = pool.map(lambda stream: stream and stream.read(), (self.stdout, self.stderr))
            self.wait(timeout)
            return tuple(outs)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session")
def warm():
    with WarmStarter() as warm:
        yield warm


def kill_processes(started):
    """Kill the processes of a test and close their streams."""
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()
        for stream in (one.stdin, one.stdout, one.stderr):
            with contextlib.suppress(BrokenPipeError):  # what it did not read
                stream and stream.close()


@pytest.fixture
def process(command, tmp_path, env, warm):
    """process(*argv, **popen) -> a job in tmp_path, killed at the end of the test.

    Its stdout and stderr are pipes by default.  With `preexec_fn`, it is not forked but started as
    a user would start it.
    """
    started = []

    def start(*argv, **popen):
        words = command(*argv)
        if "preexec_fn" in popen:
            popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": env, **popen}
            started.append(subprocess.Popen(words, cwd=tmp_path, **popen))
        else:
            env_of = popen.pop("env", env)
            started.append(
                ForkedProcess(warm, LaunchOptions(words[2:], str(tmp_path), env_of), **popen)
            )
        return started[-1]

    yield start
    kill_processes(started)


@pytest.fixture
def shell(command, tmp_path, env):
    """shell(redirections, *argv) -> Result of a process with these redirections, after `first`."""

    def run(redirections, *argv, first="exec", **kwargs):
        words = ["sh", "-c", f'{first} "$@" {redirections}', "sh", *command(*argv)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        kwargs = {"env": env, **streams, **kwargs}
        done = subprocess.run(words, cwd=tmp_path, timeout=200, **kwargs)
        text = (done.stderr or b"").decode("utf-8")
        assert "Traceback" not in text, text
        return Result(done.returncode, done.stdout, text)

    return run


@pytest.fixture
def until():
    """Wait for a condition that must come true soon."""

    def wait(condition):
        kill_processes = time.monotonic() + 200
        while not (found := condition()):
            assert time.monotonic() < kill_processes, "waited in vain"
            time.sleep(0.01)
        return found

    return wait
