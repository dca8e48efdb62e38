"""Start, kill and check jobs in a directory with a model and known translations."""

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
class TrialResult:
    """The result of a trial.  `problem` is empty if it passed."""

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
class JobResult:
    """A finished job; `code` as in `subprocess`, -N for signal N."""

    code: int
    out: bytes
    err: str
    seconds: float
    peak_mb: float

    @property
    def last_line(self) -> str:
        """The last line of stderr."""
        return (self.err.strip().split("\n") or [""])[-1]


class Job:
    """A running process, the leader of a session."""

    def __init__(self, pid: int, folder: Path, reap: Callable[[float], tuple[int, float] | None]):
        self.pid, self.folder, self._reap = pid, folder, reap
        self.started = time.monotonic()

    def signal(self, number: int, everyone: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number) if everyone else os.kill(self.pid, number)

    def stop(self) -> None:
        """Kill the job and all its descendants."""
        for pid in [self.pid, *self.list_other_processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def list_other_processes(self) -> list[int]:
        """Return all running processes of the session except the job."""
        return [
            pid for pid, _, session in list_processes() if session == self.pid and pid != self.pid
        ]

    def running(self) -> bool:
        return any(pid == self.pid for pid, _, _ in list_processes())

    def until(self, condition: Callable[[], object], seconds: float = TIMEOUT) -> bool:
        """Wait for a condition while the job runs; return False if it does not come true."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or not self.running():
                return bool(condition())
            time.sleep(0.002)
        return True

    def wait(self, seconds: float = TIMEOUT) -> JobResult:
        """Wait for the end; a job that does not end is killed and gets exit code 999."""
        found = self._reap(seconds)
        if found is None:
            self.stop()
            self._reap(10.0)
            found = (999, 0.0)
        took = time.monotonic() - self.started
        out, err = ((self.folder / name).read_bytes() for name in ("stdout", "stderr"))
        return JobResult(found[0], out, err.decode("utf-8", "replace"), took, found[1])

    def find_orphans(self, seconds: float = 5.0) -> list[int]:
        """Return the processes of the job that are still running after some seconds."""
        end = time.monotonic() + seconds
        while (left := self.list_other_processes()) and time.monotonic() < end:
            time.sleep(0.02)
        return left


def list_processes() -> Iterator[tuple[int, int, int]]:
    """Return (pid, parent, session) of each process that is not a zombie."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield int(name), int(fields[1]), int(fields[3])


@dataclass
class LaunchOptions:
    """Arguments, streams and limits of a job.

    Attributes:
        limits: limits of the module `resource`, by name
        streams: descriptors; None: the files stdout and stderr
        close: descriptors to close
        modes_count: file modes apply to root, too
        ignored: signals to ignore, for example SIGHUP as with nohup
    """

    argv: list[str]
    cwd: str
    env: dict[str, str]
    streams: tuple[int | None, int | None, int | None] = STREAMS
    limits: dict[str, int] = dataclasses.field(default_factory=dict)
    close: tuple[int, ...] = ()
    modes_count: bool = False
    ignored: tuple[int, ...] = ()

    def apply(self) -> None:
        """In the child: apply everything except the streams."""
        for name, limit in self.limits.items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        for fd in self.close:
            os.close(fd)
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
        if self.modes_count and os.getuid() == 0:
            # After the next exec, file modes apply to root, too
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@contextlib.contextmanager
def open_streams(start: LaunchOptions, folder: Path) -> Iterator[list[int]]:
    """Yield descriptors for the standard streams; the default is files in `folder`."""
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as files:
        stdin, *outs = start.streams
        if stdin is None or stdin == subprocess.DEVNULL:
            stdin = files.enter_context(open(os.devnull, "rb")).fileno()
        made = [files.enter_context(open(folder / name, "wb")) for name in ("stdout", "stderr")]
        yield [stdin, *(m.fileno() if fd is None else fd for fd, m in zip(outs, made))]


def reap(pid: int, seconds: float) -> tuple[int, float] | None:
    """Return exit code and peak memory in MB of a child, if it ends in time."""
    end = time.monotonic() + seconds
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024
        if time.monotonic() > end:
            return None
        time.sleep(0.003)


class ColdStarter:
    """Starts each job in a new process, as a user does."""

    execs = True

    def __init__(self, tool: Sequence[str] = TOOL):
        self.tool = list(tool)

    def start(self, start: LaunchOptions, folder: Path) -> Job:
        with open_streams(start, folder) as (stdin, stdout, stderr):
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
        process.returncode = 0  # `reap` waits for it by its pid
        return Job(process.pid, folder, partial(reap, process.pid))


class Bench:
    """A directory with a table model, an input with distinct lines, and the expected output.

    model.json   translates the line nK to the four digits of K, even if it ends in a bad byte
    in.txt       known words and empty lines, some with CR, a BOM or bad UTF-8
    """

    def __init__(
        self, folder: Path, starter, n_lines: int = 3000, seed: int = 1, simple: bool = False
    ):
        """Write the model and the input.

        Args:
            folder: directory of the bench
            starter: starts jobs
            n_lines: number of input lines
            seed: random seed
            simple: the program only supports the table model
        """
        self.folder, self.starter, self.simple = folder, starter, simple
        self.random = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.model, self.src = folder / "model.json", folder / "in.txt"
        write_model(self.model, n_lines)
        numbers = list(range(n_lines))
        self.random.shuffle(numbers)
        kinds = self.random.choices(["", "\r", "blank", "bad"], [90, 4, 4, 2], k=n_lines)
        kinds[-1] = ""  # has no line feed after it, so there must be something before
        pairs = [make_line(k, kind) for k, kind in zip(numbers, kinds)]
        self.lines = [line for line, _ in pairs]
        self.expected_output = b"".join(text for _, text in pairs)
        self.src.write_bytes(b"\xef\xbb\xbf" + b"\n".join(self.lines))  # no final line feed
        self.base = ["-model", str(self.model), "-src", str(self.src)]
        bucket_lines = max(1, n_lines // 30)
        self.n_buckets = -(-n_lines // bucket_lines)
        self.base += ["-bucket_lines", str(bucket_lines)]
        self.base += ["-batch_size", "8", "-batch_type", "sents"]  # slow enough to be interrupted
        self.env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.n_started = 0

    def room(self) -> Path:
        """Create an empty directory for a trial."""
        self.n_started += 1
        room = self.folder / f"trial-{self.n_started}"
        room.mkdir()
        return room

    def start(self, room: Path, *argv: object, **how) -> Job:
        """Start the program in `room`; its streams are stored next to it."""
        env = {**self.env, **how.pop("env", {})}
        env = {name: value for name, value in env.items() if value is not None}
        words = list(map(str, argv)) if how.pop("bare", False) else [*self.base, *map(str, argv)]
        start = LaunchOptions(words, str(how.pop("cwd", room)), env, **how)
        self.n_started += 1
        return self.starter.start(start, self.folder / f"{room.name}-{self.n_started}.streams")

    def run(self, room: Path, *argv: object, seconds: float = TIMEOUT, **how) -> JobResult:
        return self.start(room, *argv, **how).wait(seconds)

    def clear(self, room: Path) -> None:
        """Remove the directory of a trial that passed."""
        shutil.rmtree(room, ignore_errors=True)
        for streams in self.folder.glob(f"{room.name}-*.streams"):
            shutil.rmtree(streams)

    def judge(self, row: TrialResult, path: Path) -> TrialResult:
        """Compare an output with the expected lines."""
        if not path.exists():
            return fail(row, "no output")
        return self.compare(row, path.read_bytes())

    def compare(
        self, row: TrialResult, out: bytes, expected_output: bytes | None = None
    ) -> TrialResult:
        expected_output = self.expected_output if expected_output is None else expected_output
        if out == expected_output:
            return row
        got, expected = Counter(out.split(b"\n")[:-1]), Counter(expected_output.split(b"\n")[:-1])
        row.lost, row.doubled = (expected - got).total(), (got - expected).total()
        pairs = zip(out.split(b"\n"), expected_output.split(b"\n"))
        row.moved = sum(a != b for a, b in pairs) if got == expected else 0
        return fail(row, f"the output differs ({len(out)} of {len(expected_output)} bytes)")


def fail(row: TrialResult, problem: str) -> TrialResult:
    row.problem = f"{row.problem}; {problem}" if row.problem else problem
    return row


def check_exit(row: TrialResult, ended: JobResult, *codes: int) -> TrialResult:
    """Check the exit code, and that stderr contains no traceback."""
    row.code, row.seconds, row.peak_mb = ended.code, round(ended.seconds, 2), ended.peak_mb
    row.stderr = ended.err[-400:]
    if ended.code not in codes:
        fail(row, f"exit {ended.code} instead of {' or '.join(map(str, codes))}")
    if "Traceback" in ended.err:
        fail(row, "a traceback")
    return row


def check_files(row: TrialResult, room: Path, *names: str) -> TrialResult:
    """Check that a trial has left no additional files."""
    if more := {path.name for path in room.iterdir()} - set(names):
        fail(row, f"files left: {sorted(more)}")
    return row


def find_resume_command(ended: JobResult) -> list[str] | None:
    """Return the printed command that resumes the job."""
    for line in reversed(ended.err.split("\n")):
        if " -resume" in line:
            words = line[line.find(shlex.quote(sys.executable)) :]
            with contextlib.suppress(ValueError):
                return shlex.split(words)
    return None


def write_model(path: Path, n_sources: int) -> None:
    """Write a table model for the lines n0, n1, ...; translations are digits."""

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


def make_line(k: int, kind: str) -> tuple[bytes, bytes]:
    """Return an input line without line end, and its output line."""
    text = " ".join(f"{k:04}").encode() + b"\n"
    line = f"n{k}".encode()
    if kind == "blank":
        return random.Random(k).choice([b"", b" ", b"\t", b"\xc2\xa0"]), b"\n"
    return line + {"": b"", "\r": b"\r", "bad": b"\xff"}[kind], text


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
