"""Kits of killed, stopped, damaged and concurrent jobs: K1, K2, K3, K11, K12."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.support.job_runner import (
    Bench,
    Job,
    JobResult,
    TrialResult,
    check_exit,
    check_files,
    fail,
    find_resume_command,
    list_processes,
)

POLITE = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
PATIENCE = 5.0  # seconds that a polite signal may take
STORE = "out.parts"


def get_written_share(bench: Bench, room: Path) -> float:
    """Return how much of the output is written, from 0 to 1."""
    n_parts = len(list((room / STORE).glob("[0-9]*")))
    with contextlib.suppress(FileNotFoundError):
        n_bytes = (room / "out").stat().st_size
        return max(n_parts / bench.n_buckets, n_bytes / len(bench.expected_output))
    return n_parts / bench.n_buckets


def begun(room: Path) -> bool:
    return (room / STORE).exists() or (room / "out").exists()


def measure_run(bench: Bench, *argv: object) -> tuple[float, float]:
    """Return the seconds of a clean run until translation starts, and in total."""
    room = bench.room()
    job = bench.start(room, "-output", "out", *argv)
    job.until(lambda: begun(room))
    loaded = time.monotonic() - job.started
    ended = job.wait()
    row = bench.judge(check_exit(TrialResult("clean", 0, ""), ended, 0), room / "out")
    assert not row.problem, f"a clean run fails: {row.json()}"
    bench.clear(room)
    return loaded, ended.seconds


def wait_for_moment(
    bench: Bench, random: Random, room: Path, job: Job, moment: str, loaded: float
) -> None:
    """Wait for a moment of the job: loading, some share of the output, the rename."""
    if moment == "load":
        time.sleep(random.uniform(0, loaded))
    elif moment == "rename":
        job.until(lambda: get_written_share(bench, room) >= 1)
        time.sleep(random.choice([0.0, 0.001, 0.004, 0.01, 0.03]))
    else:
        before = get_written_share(bench, room)
        wanted = before + random.random() * (1 - before)
        job.until(lambda: get_written_share(bench, room) > wanted)
        time.sleep(random.uniform(0, 0.02))


MOMENTS = ["work", "work", "load", "work", "rename"]


def check_output_is_whole(bench: Bench, row: TrialResult, room: Path) -> None:
    """Check that the output is complete or absent."""
    if (room / "out").exists():
        bench.judge(row, room / "out")


def none_left(row: TrialResult, job: Job) -> None:
    if left := job.find_orphans():
        fail(row, f"processes left: {left}")
        job.stop()


def k1(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """SIGKILL, then -resume.

    Every 5th resume is killed, too.  With `-workers 2`, every 10th kill only hits one worker.
    """
    loaded, _ = measure_run(bench, *argv)
    for i in range(n):
        moment, room = MOMENTS[i % len(MOMENTS)], bench.room()
        row = TrialResult(
            "K1", i, f"SIGKILL, {moment}" + (f", {' '.join(map(str, argv))}" if argv else "")
        )
        job = bench.start(room, "-output", "out", *argv)
        wait_for_moment(bench, random, room, job, moment, loaded)
        if argv and i % 10 == 9:
            yield kill_a_worker(bench, random, row, room, job)
            continue
        job.signal(signal.SIGKILL, everyone=i % 2 == 0)  # else its workers must see to themselves
        job.wait()
        check_output_is_whole(bench, row, room)
        none_left(row, job)
        if i % 5 == 4:
            again = bench.start(room, "-output", "out", *argv, "-resume")
            wait_for_moment(bench, random, room, again, random.choice(MOMENTS), loaded)
            again.signal(signal.SIGKILL)
            again.wait()
            again.find_orphans()
            check_output_is_whole(bench, row, room)
        yield resume(bench, row, room, *argv)


def kill_a_worker(
    bench: Bench, random: Random, row: TrialResult, room: Path, job: Job
) -> TrialResult:
    row.action = "SIGKILL of a worker"
    if workers := list_workers(job):
        os.kill(random.choice(workers), signal.SIGKILL)
    return check_last_run(bench, row, room, job.wait())


def list_workers(job: Job) -> list[int]:
    """Return the processes that translate: those with torch, except the fork server."""
    others = {pid: parent for pid, parent, session in list_processes() if session == job.pid != pid}
    return [pid for pid in sorted(others) if pid not in others.values() and translates(pid)]


def translates(pid: int) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def resume(
    bench: Bench, row: TrialResult, room: Path, *argv: object, codes: tuple[int, ...] = (0,)
) -> TrialResult:
    ended = bench.run(room, "-output", "out", *argv, "-resume")
    return check_last_run(bench, row, room, ended, codes)


def check_last_run(
    bench: Bench, row: TrialResult, room: Path, ended: JobResult, codes: tuple[int, ...] = (0,)
) -> TrialResult:
    """Check the last run of a trial: complete output and no other files."""
    check_exit(row, ended, *codes)
    if ended.code == 0 and not row.problem:
        check_files(bench.judge(row, room / "out"), room, "out")
    if not row.problem:
        bench.clear(room)
    return row


def k2(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """SIGINT, SIGTERM, SIGHUP: the job ends within seconds and prints a command that resumes it."""
    loaded, _ = measure_run(bench, *argv)
    for i in range(n):
        number, moment, room = list(POLITE)[i % 3], MOMENTS[(i // 3) % 4], bench.room()
        row = TrialResult("K2", i, f"{number.name}, {moment}")
        if i % 4 == 3:
            (room / "out").write_bytes(b"older\n")
        job = bench.start(room, "-output", "out", *argv)
        wait_for_moment(bench, random, room, job, moment, loaded)
        told = time.monotonic()
        job.signal(number, everyone=i % 2 == 0)
        ended = job.wait()
        took = time.monotonic() - told
        if ended.code == 0:  # it was done before the signal came
            yield check_last_run(bench, row, room, ended)
            continue
        # A signal may come before the program is there to take it
        codes = [POLITE[number]] if (room / STORE).exists() else [POLITE[number], -number]
        check_exit(row, ended, *codes)
        if took > PATIENCE:
            fail(row, f"the end came {took:.1f} s after the signal")
        none_left(row, job)
        if i % 4 != 3:
            check_output_is_whole(bench, row, room)
        elif (room / "out").read_bytes() not in (b"older\n", bench.expected_output):
            fail(row, "the older output is not as it was")
        yield run_printed_command(bench, row, room, ended)


def run_printed_command(
    bench: Bench, row: TrialResult, room: Path, ended: JobResult
) -> TrialResult:
    """Run the printed command in a shell; a job without a store prints none."""
    command = find_resume_command(ended)
    if command is None:
        if (room / STORE).exists():
            return fail(row, "no command that resumes the job")
        return resume(bench, row, room)
    row.seconds = round(ended.seconds, 2)
    line = ended.err[ended.err.rindex(command[0]) :]
    done = subprocess.run(
        ["sh", "-c", line], cwd=room, capture_output=True, timeout=200, env=bench.env
    )
    if done.returncode != 0:
        return fail(row, f"the command ended with {done.returncode}: {done.stderr[-200:]!r}")
    check_files(bench.judge(row, room / "out"), room, "out")
    if not row.problem:
        bench.clear(room)
    return row


def k3(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Kill a job and damage its store; -resume gives the expected output or exits with 2 or 5."""
    for i in range(n):
        room = bench.room()
        job = bench.start(room, "-output", "out", *argv)
        wait_for_moment(bench, random, room, job, "work", 0.0)
        job.signal(signal.SIGKILL)
        job.wait()
        if not (room / STORE).exists():
            yield resume(bench, TrialResult("K3", i, "too late"), room, *argv)
            continue
        kept = sorted((room / STORE).iterdir())
        others, parts = ([p for p in kept if p.name.isdigit() == is_part] for is_part in (0, 1))
        file = random.choice(random.choice([others, parts or others]))
        row = TrialResult("K3", i, damage_store(random, file))
        yield resume(bench, row, room, *argv, codes=(0, 2, 5))


def damage_store(random: Random, file: Path) -> str:
    """Damage a file as a crash or a bad disk might; return a description."""
    if not file.exists():
        return f"{file.name}: was not there"
    data = bytearray(file.read_bytes())
    kinds = ["cut", "flip", "junk", "zero page", "deleted", "line doubled", "line gone", "empty"]
    kind = random.choice(kinds)
    if kind == "cut":
        del data[len(data) - random.randint(1, 4096) :]
    elif kind == "flip" and data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif kind == "junk":
        data += random.randbytes(random.randint(1, 300))
    elif kind == "zero page":
        start = random.randrange(max(1, len(data)))
        data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    elif kind in ("line doubled", "line gone"):
        lines = bytes(data).split(b"\n")
        at = random.randrange(len(lines))
        lines[at : at + 1] = [lines[at]] * (2 if kind == "line doubled" else 0)
        data = bytearray(b"\n".join(lines))
    elif kind == "empty":
        data.clear()
    file.write_bytes(data)
    if kind == "deleted":
        file.unlink()
    return f"{file.name}: {kind}"


def k11(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Run two to five jobs on one output.

    One writes, the rest are rejected.  If the job that has the lock is killed, the output is free.
    """
    loaded, _ = measure_run(bench, *argv)
    for i in range(n):
        room, jobs = bench.room(), list[Job]()
        row = TrialResult("K11", i, f"{2 + i % 4} jobs")
        for _ in range(2 + i % 4):
            jobs.append(bench.start(room, "-output", "out", *argv))
            time.sleep(random.uniform(0, loaded / 4))
        ends = [job.wait() for job in jobs]
        codes = sorted(ended.code for ended in ends)
        # One that comes when another is done does its work once more
        if codes[0] != 0 or set(codes) - {0, 5}:
            fail(row, f"exit codes {codes}")
        for ended in ends:
            check_exit(row, ended, 0, 5)
        check_files(bench.judge(row, room / "out"), room, "out")
        yield after_the_holder(bench, random, row, *argv)


def after_the_holder(bench: Bench, random: Random, row: TrialResult, *argv: object) -> TrialResult:
    room = bench.room()
    holder = bench.start(room, "-output", "out", *argv)
    wait_for_moment(bench, random, room, holder, "work", 0.0)
    if holder.running() and not (room / "out").exists():
        refused = bench.run(room, "-output", "out", *argv, "-resume")
        finished = (room / "out").exists()
        if not finished and refused.code != 5:
            fail(row, f"a second job ended with {refused.code}")
        if refused.code == 5 and str(holder.pid) not in refused.err:
            fail(row, f"the refusal does not name the process {holder.pid}: {refused.last_line}")
    holder.signal(signal.SIGKILL)
    holder.wait()
    return resume(bench, row, room, *argv)


def k12(bench: Bench, random: Random, n: int) -> Iterator[TrialResult]:
    """SIGKILL and SIGSTOP of workers, SIGKILL of the parent."""
    argv = ("-workers", "2")
    for i in range(n):
        room, action = bench.room(), ["SIGKILL", "SIGSTOP", "SIGKILL", "parent"][i % 4]
        row = TrialResult(
            "K12", i, f"{action} of a worker" if action != "parent" else "parent killed"
        )
        job = bench.start(room, "-output", "out", *argv)
        wait_for_moment(bench, random, room, job, "work", 0.0)
        workers = list_workers(job)
        if action == "parent":
            job.signal(signal.SIGKILL)
            job.wait()
            none_left(row, job)
            yield resume(bench, row, room, *argv)
            continue
        if not workers and job.running() and not (room / "out").exists():
            fail(row, "no workers are seen")
        if workers:
            os.kill(random.choice(workers), getattr(signal, action))
        check_last_run(bench, row, room, job.wait())
        none_left(row, job)
        yield row
