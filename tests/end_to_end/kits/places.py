"""Kits of inputs and outputs: full disks, foreign files, pipes, unusual environments (K4, K5, K10,
K13), and a fault at every write, fsync and rename.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.end_to_end.kits.kills import check_last_run, resume
from tests.support.job_runner import (
    Bench,
    JobResult,
    TrialResult,
    check_exit,
    check_files,
    fail,
    hash_file,
)

SMALL_DISKS = ("size=8k", "size=12k", "size=16k", "nr_inodes=2", "nr_inodes=3")
FULL = ("No space left", "File too large")
STORED = ("out.parts", "out.parts/.lock", "out.parts/manifest.json", "out.parts/000000")


# -- K4: full disks --------------------------------------------------------------------------------


def k4(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Fill the disk at n points; with space again, -resume succeeds."""
    for i in range(n):
        least, most = (
            min(1024, len(bench.expected_output) // 2),
            len(bench.expected_output) - 1,
        )  # stderr is a file too
        limit = [least, most][i] if i < 2 else random.randrange(least, most)
        yield file_limit(
            bench, TrialResult("K4", i, f"files of at most {limit} bytes"), limit, i, argv
        )
    for device in ("/dev/full", "-"):
        yield full_device(bench, TrialResult("K4", n, f"-output {device}, which is full"), device)
    for options in SMALL_DISKS if n > 2 else ():
        row = TrialResult("K4", n, f"a file system of {options}")
        with contextlib.suppress(PermissionError, FileNotFoundError):
            yield mount_small_disk(bench, row, options, argv)


def file_limit(
    bench: Bench, row: TrialResult, limit: int, i: int, argv: tuple[object, ...]
) -> TrialResult:
    room = bench.room()
    if older := i % 2 == 1:
        (room / "out").write_bytes(b"older\n")
    ended = bench.run(room, "-output", "out", *argv, limits={"RLIMIT_FSIZE": limit})
    check_rejected(row, ended)
    if older and (room / "out").read_bytes() != b"older\n":
        fail(row, "the older output is not as it was")
    if not older and (room / "out").exists():
        fail(row, "an output")
    return resume(bench, row, room, *argv)


def check_rejected(row: TrialResult, ended: JobResult, path: str = "out") -> TrialResult:
    """Check for exit code 5 and an error with path and reason."""
    check_exit(row, ended, 5)
    errors = [line for line in ended.err.split("\n") if "error:" in line]
    if len(errors) != 1 or path not in errors[0] or not any(why in errors[0] for why in FULL):
        fail(row, f"says {errors}")
    return row


def full_device(bench: Bench, row: TrialResult, device: str) -> TrialResult:
    room = bench.room()
    with open("/dev/full", "wb") as full:
        streams = (subprocess.DEVNULL, full.fileno() if device == "-" else None, None)
        ended = bench.run(room, "-output", device, streams=streams)
    check_rejected(row, ended, "standard output" if device == "-" else device)
    return check_files(row, room)


def mount_small_disk(
    bench: Bench, row: TrialResult, options: str, argv: tuple[object, ...]
) -> TrialResult:
    """Run on a small disk.  Raises PermissionError if mounting is not allowed."""
    room = bench.room()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(room)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        raise PermissionError
    try:
        ended = bench.run(room, "-output", "out", *argv)
        if ended.code:  # there may have been room enough
            check_rejected(row, ended)
            if (room / "out").exists():
                fail(row, "an output")
            roomy = ["mount", "-o", "remount,size=9m,nr_inodes=99", str(room)]
            subprocess.run(roomy, check=True)
            ended = bench.run(room, "-output", "out", *argv, "-resume")
        return check_files(bench.judge(check_exit(row, ended, 0), room / "out"), room, "out")
    finally:
        subprocess.run(["umount", str(room)], check=True)


# -- K5: other people's files ----------------------------------------------------------------------


def k5(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Invalid outputs and foreign files with our names: rejected at once, nothing is changed.

    Runs the first n cases; 0: all.
    """
    for i, (action, prepare, words, codes) in enumerate(CASES[: n or None]):
        row, room = TrialResult("K5", i, action), bench.room()
        (room / "precious").write_bytes(b"precious\n")
        words = [word.format(src=bench.src, model=bench.model) for word in words]
        how = prepare(room, bench) or {}
        if how.get("modes_count") and not bench.starter.execs:
            continue
        before = list_state(room), hash_file(bench.src), hash_file(bench.model)
        ended = bench.run(room, *words, *argv, seconds=20, **how)
        check_exit(row, ended, *codes)
        if ended.code == 0:
            target = room / ("target" if (room / "target").exists() else "out")
            bench.judge(row, target)
        elif "error:" not in ended.err or len(ended.err.strip().split("\n")) != 1:
            fail(row, f"says {ended.err!r}")
        if (
            after := (list_state(room), hash_file(bench.src), hash_file(bench.model))
        ) != before and ended.code:
            fail(row, f"files are not as they were: {after} instead of {before}")
        if (room / "precious").read_bytes() != b"precious\n":
            fail(row, "another's file was written to")
        os.chmod(room, 0o755)
        if not row.problem:
            bench.clear(room)
        yield row


def list_state(room: Path) -> list[tuple[str, str]]:
    """Return the names in a directory and their contents."""

    def kind(path: Path) -> str:
        if path.is_symlink():
            return f"-> {os.readlink(path)}"
        return hash_file(path) if path.is_file() else "other"

    return sorted((str(path.relative_to(room)), kind(path)) for path in room.rglob("*"))


def create_foreign_file(name: str) -> list[tuple[str, Callable, list[str], tuple[int, ...]]]:
    """Create a foreign file `name` next to the output, or in a directory there."""

    def made(what: str, make: Callable[[Path], object], *more: str):
        def prepare(room: Path, bench: Bench) -> None:
            (room / name).parent.mkdir(exist_ok=True)
            make(room / name)

        words = ["-output", "out", *more]
        return f"{name} is {what}" + " ".join(["", *more]), prepare, words, (5,)

    def bind(path: Path) -> None:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
        os.chdir(here)

    makes = {
        "a file of text": lambda path: path.write_bytes(b"precious\n"),
        "an empty file": lambda path: path.touch(),
        "a link to a file": lambda path: path.symlink_to(get_protected_file(path)),
        "a second name of a file": lambda path: path.hardlink_to(get_protected_file(path)),
        "a link to nothing": lambda path: path.symlink_to("nothing"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a FIFO": os.mkfifo,
        "a directory": Path.mkdir,
        "a link to a directory": lambda path: path.symlink_to("."),
        "a socket": bind,
        "a link to /dev/null": lambda path: path.symlink_to("/dev/null"),
    }
    return [made(what, make, *more) for what, make in makes.items() for more in ((), ("-resume",))]


def get_protected_file(path: Path) -> Path:
    """Return the file of the trial that must not change."""
    folder = path.parent
    return (folder if (folder / "precious").exists() else folder.parent) / "precious"


def nothing(room: Path, bench: Bench) -> None:
    pass


def link_output(to: str) -> Callable[[Path, Bench], None]:
    """Make the output a link to a file of the trial, of the bench (src, model) or to nothing."""
    return lambda room, bench: (room / "out").symlink_to(getattr(bench, to, to))


def second_name(room: Path, bench: Bench) -> None:
    (room / "out").hardlink_to(bench.src)


def read_only(room: Path, bench: Bench) -> dict:
    room.chmod(0o555)
    return {"modes_count": True}


CASES = [
    *[case for name in STORED for case in create_foreign_file(name)],
    ("out is a directory", lambda room, bench: (room / "out").mkdir(), ["-output", "out"], (5,)),
    ("its folder is a file", nothing, ["-output", "precious/out"], (5,)),
    ("its folder is missing", nothing, ["-output", "no/out"], (5,)),
    ("its folder is read-only", read_only, ["-output", "out"], (5,)),
    ("the name is too long", nothing, ["-output", "x" * 254], (5,)),
    ("the name is empty", nothing, ["-output", ""], (2, 5)),
    ("the name is a folder's", nothing, ["-output", "none/"], (5,)),
    ("out is the input", nothing, ["-output", "{src}"], (2,)),
    ("out is the model", nothing, ["-output", "{model}"], (2,)),
    ("out is a link to the input", link_output("src"), ["-output", "out"], (2,)),
    ("out is a second name of the input", second_name, ["-output", "out"], (2,)),
    ("out is a link to the model", link_output("model"), ["-output", "out"], (2,)),
    ("the log is the input", nothing, ["-output", "out", "-log_file", "{src}"], (2,)),
    ("the log is the model", nothing, ["-output", "out", "-log_file", "{model}"], (2,)),
    ("out is a link to a file to be made", link_output("target"), ["-output", "out"], (0,)),
    ("out is a link to a folder", link_output("."), ["-output", "out"], (5,)),
]


# -- K10: pipes ------------------------------------------------------------------------------------


def k10(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Readers and writers that leave, closed and full streams; n trials of each random case."""
    for i in range(n):
        yield reader_leaves(bench, TrialResult("K10", i, "the reader of stdout leaves"), random)
        yield run_until_writer_dies(
            bench, TrialResult("K10", i, "the writer of stdin stops"), random
        )
    for i, close in enumerate([(2,), (0,), (0, 1, 2)]):
        row, room = TrialResult("K10", i, f"closed: {close}"), bench.room()
        yield check_last_run(
            bench, row, room, bench.run(room, "-output", "out", *argv, close=close)
        )
    with open("/dev/full", "wb") as full:
        for i, more in enumerate([[], ["-report_time", "-verbose"]]):
            row, room = TrialResult("K10", i, f"stderr is full {more}"), bench.room()
            streams = (subprocess.DEVNULL, None, full.fileno())
            ended = bench.run(room, "-output", "out", *argv, *more, streams=streams)
            yield check_last_run(bench, row, room, ended)
    yield stderr_without_reader(bench, TrialResult("K10", 0, "the reader of stderr is gone"))
    row, room = TrialResult("K10", 0, "stdout closed"), bench.room()
    yield check_files(check_exit(row, bench.run(room, close=(1,)), 5), room)
    for path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"):
        yield check_appended_output(bench, TrialResult("K10", 0, f"-output {path} >> file"), path)


def reader_leaves(bench: Bench, row: TrialResult, random: Random) -> TrialResult:
    ours, theirs = os.pipe()
    job = bench.start(bench.room(), streams=(subprocess.DEVNULL, theirs, None))
    os.close(theirs)
    wanted = random.choice([0, 1, 9, random.randrange(len(bench.expected_output))])
    data = b""
    while len(data) < wanted and (more := os.read(ours, wanted - len(data))):
        data += more
    os.close(ours)
    ended = job.wait()
    # A pipe takes 64 KB, which may be all of it
    codes = (
        (0, 141, -signal.SIGPIPE) if len(bench.expected_output) - wanted < 70_000 else (141, -13)
    )
    check_exit(row, ended, *codes)
    if not bench.expected_output.startswith(data):
        fail(row, "the received output is not a prefix of the expected output")
    if ended.code and "error:" in ended.err:
        fail(row, f"says {ended.last_line}")
    return row


def run_until_writer_dies(bench: Bench, row: TrialResult, random: Random) -> TrialResult:
    """Check that the job ends within seconds after its input, with all lines received."""
    data = bench.src.read_bytes()
    cut = random.randrange(1, len(data) // 4)
    ours, theirs = os.pipe()
    job = bench.start(bench.room(), "-src", "-", streams=(ours, None, None))
    os.close(ours)
    for start in range(0, cut, 1000):
        os.write(theirs, data[start : min(cut, start + 1000)])
        time.sleep(random.choice([0, 0, 0.05]))
    os.close(theirs)
    ended = job.wait()
    whole = data[:cut].count(b"\n")
    lines = ended.out.split(b"\n")[:-1]
    expected = bench.expected_output.split(b"\n")[:whole]
    # The last line may be cut off in its middle: then it is another one, or unknown to the table
    codes = (0,) if data[cut - 1 : cut] == b"\n" else (0, 3)
    check_exit(row, ended, *codes)
    if ended.code == 0 and (lines[:whole] != expected or len(lines) - whole not in (0, 1)):
        fail(row, f"{len(lines)} output lines for {whole} input lines")
    return row


def stderr_without_reader(bench: Bench, row: TrialResult) -> TrialResult:
    ours, theirs = os.pipe()
    room = bench.room()
    job = bench.start(
        room, "-output", "out", "-report_time", streams=(subprocess.DEVNULL, None, theirs)
    )
    os.close(theirs)
    os.close(ours)
    return check_last_run(bench, row, room, job.wait())


def check_appended_output(bench: Bench, row: TrialResult, path: str) -> TrialResult:
    """Check that shell appending keeps the existing contents."""
    room = bench.room()
    (room / "all").write_bytes(b"earlier\n")
    with open(room / "all", "ab") as out:
        streams = (subprocess.DEVNULL, out.fileno(), None)
        ended = bench.run(room, "-output", path, streams=streams)
    check_exit(row, ended, 0)
    bench.compare(row, (room / "all").read_bytes(), b"earlier\n" + bench.expected_output)
    return check_files(row, room, "all")


# -- K13: environments -----------------------------------------------------------------------------

ENVIRONMENTS: dict[str, dict] = {
    "LANG=C": {"env": {"LANG": "C", "LC_ALL": "C"}},
    "PYTHONUTF8=0 in LC_ALL=POSIX": {"env": {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}},
    "PYTHONIOENCODING=ascii": {"env": {"PYTHONIOENCODING": "ascii:strict"}},
    "HOME unset": {"env": {"HOME": None, "USER": None, "LOGNAME": None}},
    "HOME is not a directory": {"env": {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}},
    "no folder for temporary files": {"env": {"TMPDIR": "/no/such/folder"}},
    "PATH empty": {"env": {"PATH": ""}},
    "odd time zone": {"env": {"TZ": "Antarctica/Troll"}},
    "no TERM, COLUMNS=0": {"env": {"TERM": None, "COLUMNS": "0"}},
    "assertions off": {"env": {"PYTHONOPTIMIZE": "2"}},
    "no byte code": {"env": {"PYTHONDONTWRITEBYTECODE": "1"}},
    "2 threads": {"words": ["-threads", "2"]},
    "OMP_NUM_THREADS unset": {"env": {"OMP_NUM_THREADS": None}},
    "32 open files": {"limits": {"RLIMIT_NOFILE": 32}},
    "stderr closed": {"close": (2,)},
    "SIGHUP ignored": {"words": []},
}


def k13(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Check for the same output in every environment.  `n` is ignored: each case runs once."""
    for i, (action, how) in enumerate(ENVIRONMENTS.items()):
        row, room, how = TrialResult("K13", i, action), bench.room(), dict(how)
        words = how.pop("words", [])
        ended = bench.run(room, "-output", "out", *argv, *words, **how)
        yield check_last_run(bench, row, room, ended)
    if os.getuid() == 0:
        row, room = (
            TrialResult("K13", len(ENVIRONMENTS), "the current folder is read-only"),
            bench.room(),
        )
        elsewhere = bench.room()
        elsewhere.chmod(0o777)
        room.chmod(0o555)
        ended = bench.run(room, "-output", elsewhere / "out", *argv)
        yield check_last_run(bench, row, elsewhere, ended)


# -- a fault at every write, fsync and rename ------------------------------------------------------


def inject_faults(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Let each system call on the output fail once, or kill the process before it; then resume.

    Runs n of all such faults; 0: all.
    """
    kinds, calls = ("ENOSPC", "EIO", "die"), count_calls(bench, argv)
    every = [(kind, name, k) for kind in kinds for name in calls for k in range(calls[name])]
    for kind, name, k in random.sample(every, n) if n else every:
        row = TrialResult("faults", k, f"{kind} at {name} {k + 1} of {calls[name]}")
        yield fault(bench, row, f"{kind}:{name}:{k}", kind, argv)


def count_calls(bench: Bench, argv: tuple[object, ...]) -> dict[str, int]:
    """Return how many calls of each type a clean run makes."""
    room = bench.room()
    with open(room / "calls", "wb") as calls:
        env = {"KIT_FAULT": f"count:{calls.name}:0"}
        ended = bench.run(room, "-output", "out", *argv, env=env)
    assert ended.code == 0, ended
    names = (room / "calls").read_text().split()
    return {name: names.count(name) for name in sorted(set(names))}


def fault(
    bench: Bench, row: TrialResult, spec: str, kind: str, argv: tuple[object, ...]
) -> TrialResult:
    room = bench.room()
    ended = bench.run(room, "-output", "out", *argv, env={"KIT_FAULT": spec})
    check_exit(row, ended, *((9,) if kind == "die" else (0, 5)))
    if (room / "out").exists():
        bench.judge(row, room / "out")
    return resume(bench, row, room, *argv)
