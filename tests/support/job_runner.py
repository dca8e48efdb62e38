"""A bench for jobs: a folder with a model, an input and its known translations, and a program that
is started, killed and judged from outside.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = [sys.executable, str(ROOT / "translate.py")]
TIMEOUT = 200.0  # seconds after which a job hangs
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
STREAMS = (subprocess.DEVNULL, None, None)

DIGITS = ["</s>", *"0123456789"]


@dataclass
class Row:
    """What one trial showed.  `problem` is empty where all is well."""

    kit: str
    trial: int
    action: str
    code: int | None = None
    seconds: float = 0.0
    problem: str = ""
    lost: int = 0
    doubled: int = 0
    moved: int = 0
    peak_mb: float = 0.0
    stderr: str = ""

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=True)


@dataclass
class Ended:
    """A job that has ended: its code as `subprocess` gives it, -N after signal N."""

    code: int
    out: bytes
    err: str
    seconds: float
    peak_mb: float

    @property
    def last(self) -> str:
        """The last line that was said."""
        return (self.err.strip().split("\n") or [""])[-1]


class Job:
    """A running process, first of a session of its own."""

    def __init__(self, pid: int, folder: Path, reap: Callable[[float], tuple[int, float] | None]):
        self.pid, self.folder, self._reap = pid, folder, reap
        self.started = time.monotonic()

    def signal(self, number: int, everyone: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number) if everyone else os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGKILL to the job and all that it has started."""
        for pid in [self.pid, *self.others()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def others(self) -> list[int]:
        """Other processes of the session that run."""
        return [pid for pid, _, session in processes() if session == self.pid and pid != self.pid]

    def running(self) -> bool:
        return any(pid == self.pid for pid, _, _ in processes())

    def until(self, condition: Callable[[], object], seconds: float = TIMEOUT) -> bool:
        """Wait for what must come true while the job runs; False where it does not."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or not self.running():
                return bool(condition())
            time.sleep(0.002)
        return True

    def wait(self, seconds: float = TIMEOUT) -> Ended:
        """Its end; a job that does not end is stopped and has the code 999."""
        found = self._reap(seconds)
        if found is None:
            self.stop()
            self._reap(10.0)
            found = (999, 0.0)
        took = time.monotonic() - self.started
        out, err = ((self.folder / name).read_bytes() for name in ("stdout", "stderr"))
        return Ended(found[0], out, err.decode("utf-8", "replace"), took, found[1])

    def orphans(self, seconds: float = 5.0) -> list[int]:
        """Processes that the job has left behind, so many seconds after its end."""
        end = time.monotonic() + seconds
        while (left := self.others()) and time.monotonic() < end:
            time.sleep(0.02)
        return left


def processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, session) of each process that is not a zombie."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield int(name), int(fields[1]), int(fields[3])


@dataclass
class Start:
    """How a job is started.  `limits`: of `resource`, by name; `streams`: descriptors or None for
    the files stdout and stderr; `close`: descriptors that the job does not have; `modes_count`:
    also for root; `ignored`: signals, as nohup ignores SIGHUP."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    streams: tuple[int | None, int | None, int | None] = STREAMS
    limits: dict[str, int] = dataclasses.field(default_factory=dict)
    close: tuple[int, ...] = ()
    modes_count: bool = False
    ignored: tuple[int, ...] = ()

    def apply(self) -> None:
        """In the child: everything but the streams."""
        for name, limit in self.limits.items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        for fd in self.close:
            os.close(fd)
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
        if self.modes_count and os.getuid() == 0:
            # After the next exec, root is stopped by modes too
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@contextlib.contextmanager
def opened_streams(start: Start, folder: Path) -> Iterator[list[int]]:
    """Descriptors of the three streams of a job; those that nobody gives are files in `folder`."""
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as files:
        stdin, *outs = start.streams
        if stdin is None or stdin == subprocess.DEVNULL:
            stdin = files.enter_context(open(os.devnull, "rb")).fileno()
        made = [files.enter_context(open(folder / name, "wb")) for name in ("stdout", "stderr")]
        yield [stdin, *(m.fileno() if fd is None else fd for fd, m in zip(outs, made))]


def reap(pid: int, seconds: float) -> tuple[int, float] | None:
    """Exit code and peak memory in MB of a child that ends within these seconds."""
    end = time.monotonic() + seconds
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024
        if time.monotonic() > end:
            return None
        time.sleep(0.003)


class Cold:
    """Starts jobs as a user does, each in a process of its own."""

    execs = True

    def __init__(self, tool: Sequence[str] = TOOL):
        self.tool = list(tool)

    def start(self, start: Start, folder: Path) -> Job:
        with opened_streams(start, folder) as (stdin, stdout, stderr):
            process = subprocess.Popen(
                [*self.tool, *start.argv],
                cwd=start.cwd,
                env=start.env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=start.apply,
            )
        process.returncode = 0  # it is waited for by its number
        return Job(process.pid, folder, partial(reap, process.pid))


class Bench:
    """A folder with a table model, an input whose lines are all different, and what must come out.

    model.json   reads the line nK as the four digits of K, also one that ends in a bad byte
    in.txt       lines: known words, blank ones, some with a CR, a BOM, bad UTF-8
    """

    def __init__(
        self, folder: Path, starter, n_lines: int = 3000, seed: int = 1, simple: bool = False
    ):
        """`simple`: the program knows the table model alone."""
        self.folder, self.starter, self.simple = folder, starter, simple
        self.random = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.model, self.src = folder / "model.json", folder / "in.txt"
        write_model(self.model, n_lines)
        numbers = list(range(n_lines))
        self.random.shuffle(numbers)
        kinds = self.random.choices(["", "\r", "blank", "bad"], [90, 4, 4, 2], k=n_lines)
        kinds[-1] = ""  # has no line feed after it, so there must be something before
        pairs = [line_of(k, kind) for k, kind in zip(numbers, kinds)]
        self.lines = [line for line, _ in pairs]
        self.truth = b"".join(text for _, text in pairs)
        self.src.write_bytes(b"\xef\xbb\xbf" + b"\n".join(self.lines))  # no final line feed
        self.base = ["-model", str(self.model), "-src", str(self.src)]
        bucket_lines = max(1, n_lines // 30)
        self.n_buckets = -(-n_lines // bucket_lines)
        self.base += ["-bucket_lines", str(bucket_lines)]
        self.base += ["-batch_size", "8", "-batch_type", "sents"]  # slow enough to be met at work
        self.env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.n_started = 0

    def room(self) -> Path:
        """An empty folder for a trial."""
        self.n_started += 1
        room = self.folder / f"trial-{self.n_started}"
        room.mkdir()
        return room

    def start(self, room: Path, *argv: object, **how) -> Job:
        """Start the program in `room`; streams are kept beside it."""
        env = {**self.env, **how.pop("env", {})}
        env = {name: value for name, value in env.items() if value is not None}
        words = list(map(str, argv)) if how.pop("bare", False) else [*self.base, *map(str, argv)]
        start = Start(words, str(how.pop("cwd", room)), env, **how)
        self.n_started += 1
        return self.starter.start(start, self.folder / f"{room.name}-{self.n_started}.streams")

    def run(self, room: Path, *argv: object, seconds: float = TIMEOUT, **how) -> Ended:
        return self.start(room, *argv, **how).wait(seconds)

    def clear(self, room: Path) -> None:
        """Remove a trial that went well."""
        shutil.rmtree(room, ignore_errors=True)
        for streams in self.folder.glob(f"{room.name}-*.streams"):
            shutil.rmtree(streams)

    def judge(self, row: Row, path: Path) -> Row:
        """Compare an output with the truth, line by line."""
        if not path.exists():
            return fail(row, "no output")
        return self.compare(row, path.read_bytes())

    def compare(self, row: Row, out: bytes, truth: bytes | None = None) -> Row:
        truth = self.truth if truth is None else truth
        if out == truth:
            return row
        got, expected = Counter(out.split(b"\n")[:-1]), Counter(truth.split(b"\n")[:-1])
        row.lost, row.doubled = (expected - got).total(), (got - expected).total()
        pairs = zip(out.split(b"\n"), truth.split(b"\n"))
        row.moved = sum(a != b for a, b in pairs) if got == expected else 0
        return fail(row, f"the output is another one ({len(out)} of {len(truth)} bytes)")


def fail(row: Row, problem: str) -> Row:
    row.problem = f"{row.problem}; {problem}" if row.problem else problem
    return row


def expect(row: Row, ended: Ended, *codes: int) -> Row:
    """Check what holds of every end: the code, and no traceback."""
    row.code, row.seconds, row.peak_mb = ended.code, round(ended.seconds, 2), ended.peak_mb
    row.stderr = ended.err[-400:]
    if ended.code not in codes:
        fail(row, f"exit {ended.code} instead of {' or '.join(map(str, codes))}")
    if "Traceback" in ended.err:
        fail(row, "a traceback")
    return row


def only(row: Row, room: Path, *names: str) -> Row:
    """Check that a trial has left no other files."""
    if more := {path.name for path in room.iterdir()} - set(names):
        fail(row, f"files left: {sorted(more)}")
    return row


def printed_command(ended: Ended) -> list[str] | None:
    """The command that goes on, as the last line that has one tells it to a person."""
    for line in reversed(ended.err.split("\n")):
        if " -resume" in line:
            words = line[line.find(shlex.quote(sys.executable)) :]
            with contextlib.suppress(ValueError):
                return shlex.split(words)
    return None


def write_model(path: Path, n_sources: int) -> None:
    """A table model of the lines n0, n1, ... whose translations are digits, surely enough."""

    def sure(token: int) -> list[float]:
        return [9.0 if i == token else 0.0 for i in range(len(DIGITS))]

    sources = {}
    for k in range(n_sources):
        ids = [DIGITS.index(digit) for digit in f"{k:04}"]
        rows = {" ".join(map(str, ids[:i])): sure(token) for i, token in enumerate(ids)}
        sources[f"n{k}"] = {"length": 1, "rows": rows, "default": sure(0)}
        sources[f"n{k}\ufffd"] = sources[f"n{k}"]
    model = {"format": "onmt_lite-table-1", "vocab": DIGITS, "sources": sources}
    path.write_text(json.dumps(model), encoding="ascii")


def line_of(k: int, kind: str) -> tuple[bytes, bytes]:
    """A line of the input without its end, and its line of the output."""
    text = " ".join(f"{k:04}").encode() + b"\n"
    line = f"n{k}".encode()
    if kind == "blank":
        return random.Random(k).choice([b"", b" ", b"\t", b"\xc2\xa0"]), b"\n"
    return line + {"": b"", "\r": b"\r", "bad": b"\xff"}[kind], text


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
