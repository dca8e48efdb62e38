"""A process per system: its model is loaded once, and each run waits to be told to go.

The parent writes JSON objects to the standard input of `python -m onmt_lite.bench.child`, one a
line, and reads as many answers.  The first is a job, see `onmt_lite.bench.systems.Job`; then

    {"do": "translate", "lines": [...]}     seconds by the clock, tokens of the output
    {"do": "texts"}                         what the last run has made
    {"do": "texts as", "search": NAME}      what ours makes of the same lines with that -search
    {"do": "phases"}                        of ours: where the time goes, see onmt_lite.bench.phases
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onmt_lite.bench.systems import Job, build
from onmt_lite.errors import OnmtLiteError

PROC = Path("/proc")


class Gone(OnmtLiteError):
    """A child has ended in place of an answer: the last line of its standard error."""


class Child:
    """The parent's side of one process."""

    def __init__(self, name: str, job: Job, environment: Mapping[str, str], log: Path):
        """`log`: where its standard error goes."""
        self.name, self.log = name, log
        with open(log, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onmt_lite.bench.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=dict(environment),
                start_new_session=True,  # ^C is for the parent, which ends its children
            )
        first = self.ask(**dataclasses.asdict(job))
        self.detail: str = first["detail"]
        self.precision: str = first["precision"]

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer to a command.  Raises Gone where there is none."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it had to say is in its log
        answer = self.process.stdout.readline()
        if not answer:
            raise Gone(f"{self.name} has ended: {self._last_words()}")
        return json.loads(answer)

    def _last_words(self) -> str:
        code = self.process.wait()
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
        return said[-1] or f"it ended with exit code {code}"

    def close(self) -> None:
        """End the process and all that it has started."""
        for pid in family(self.process.pid):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    # -- what the system knows of the processes; None where there is no /proc --

    def processor_seconds(self) -> float | None:
        """Of the process, of those that it has started, and of those that have ended."""
        stats = [stat_of(pid) for pid in family(self.process.pid)]
        ticks = sum(int(number) for stat in stats for number in stat[11:15])
        return ticks / os.sysconf("SC_CLK_TCK") if stats else None

    def forget_peak(self) -> None:
        """Let `peak_memory` begin anew."""
        for pid in family(self.process.pid):
            try:
                (PROC / str(pid) / "clear_refs").write_text("5", encoding="utf-8")
            except OSError:
                return

    def peak_memory(self) -> int | None:
        """Bytes: the peaks of all processes, less what they share now, which counts once."""
        sizes = [sizes_of(pid) for pid in family(self.process.pid)]
        sizes = [size for size in sizes if size]
        if not sizes:
            return None
        peaks = sum(size["VmHWM"] for size in sizes)
        # Libraries are shared with other children, too: those of the largest process count
        own = sum(size["Pss_Anon"] + size["Pss_Shmem"] for size in sizes)
        own += max(size["RssFile"] for size in sizes)
        return peaks - max(0, sum(size["VmRSS"] for size in sizes) - own)


def family(pid: int) -> list[int]:
    """The process and all below it."""
    below: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        if stat := stat_of(int(entry.name)):
            below.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [pid] if stat_of(pid) else []
    for each in found:
        found += below.get(each, [])
    return found


def stat_of(pid: int) -> list[str]:
    """What follows the name in /proc/PID/stat; [] where there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def sizes_of(pid: int) -> dict[str, int]:
    """Bytes by name, of /proc/PID/status and smaps_rollup; {} where they cannot be read."""
    sizes = {}
    try:
        for name in ("status", "smaps_rollup"):
            for line in (PROC / str(pid) / name).read_text(encoding="utf-8").split("\n"):
                words = line.split()
                if words and words[-1] == "kB":
                    sizes[words[0].rstrip(":")] = 1024 * int(words[1])
    except OSError:
        return {}
    return sizes


# -- the child's side -----------------------------------------------------------------------------


def serve() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # some systems print
    system = build(Job(**json.loads(sys.stdin.readline())))
    say(answers, detail=system.detail, precision=system.precision)
    texts: list[str] = []
    lines: list[str] = []
    for command in map(json.loads, sys.stdin):
        if command["do"] == "translate":
            lines = command["lines"]
            start = time.perf_counter()
            texts, n_tokens = system.translate(lines)
            say(answers, seconds=time.perf_counter() - start, n_tokens=n_tokens)
        elif command["do"] == "texts":
            say(answers, texts=texts)
        elif command["do"] == "texts as":
            say(answers, texts=system.translate_as(lines, command["search"]))
        else:
            say(answers, **system.phases(command["lines"]))


def say(answers: Any, **values: Any) -> None:
    answers.write(json.dumps(values).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    serve()
