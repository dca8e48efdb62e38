"""A process of `benchmarks.systems` as its parent knows it: what it answers, costs and holds."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROC = Path("/proc")


class Child:
    """One system, with its model loaded.  It translates when it is told to.

    detail, precision  what it has chosen by itself
    texts              its translations of the last run
    """

    def __init__(self, name: str, job: dict[str, Any], environment: Mapping[str, str]):
        self.name = name
        self.texts: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.systems"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            cwd=ROOT,
            text=True,
            start_new_session=True,  # ^C is for the parent, which ends its children
        )
        ready = self._ask(job)
        self.detail: str = ready["detail"]
        self.precision: str = ready["precision"]

    def ask(self, lines: list[str], search: str = "") -> dict[str, Any]:
        """Let it translate.  `search`: another -search, of onmt_lite alone.

        Raises RuntimeError if it has ended, and has said why on standard error."""
        answer = self._ask({"lines": lines, "search": search})
        self.texts = answer["texts"]
        return answer

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it has said why on standard error
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} has ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process and all that it has started."""
        for pid in family(self._process.pid):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self._process.communicate()

    # -- what the system knows of the processes; None if there is no /proc --

    def processor_seconds(self) -> float | None:
        """Of the process and all that it has started, running or not."""
        stats = [stat_of(pid) for pid in family(self._process.pid)]
        ticks = sum(int(number) for stat in stats for number in stat[11:15])
        return ticks / os.sysconf("SC_CLK_TCK") if stats else None

    def forget_peak(self) -> None:
        """Let `peak_memory` begin anew."""
        for pid in family(self._process.pid):
            try:
                (PROC / str(pid) / "clear_refs").write_text("5", encoding="utf-8")
            except OSError:
                return

    def peak_memory(self) -> int | None:
        """Bytes: the peaks of all its processes; what they share now counts once."""
        sizes = [each for pid in family(self._process.pid) if (each := sizes_of(pid))]
        if not sizes:
            return None
        peaks = sum(size["VmHWM"] for size in sizes)
        # Libraries are shared with other systems, too: those of the largest process count
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
    """What follows the name in /proc/PID/stat; [] if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def sizes_of(pid: int) -> dict[str, int]:
    """Bytes by name, of /proc/PID/status and smaps_rollup; {} if they cannot be read."""
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
