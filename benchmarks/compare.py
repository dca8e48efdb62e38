"""One workload: the systems take turns, round after round; then the phases of onmt_lite."""

import json
import os
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.systems import EXACT, OURS, SYSTEMS, search_of, version_of
from benchmarks.workloads import ROOT, Workload, write_formats

WARM_UP = 64  # lines of the first run, which is not counted; enough for all workers
PHASE_LINES = 512
PAUSE = 0.2  # seconds after a run, until idle threads of its system sleep
PROC = Path("/proc")


def compare(
    workload: Workload,
    folder: str,
    threads: int,
    options: Namespace,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return everything about a workload, as the JSON file has it.

    `environment` is that of the systems: imports change the one of this process.
    """
    tell(f"  {workload.about}, {len(workload.lines)} lines")
    job = {
        "model": workload.model,
        "is_marian": workload.is_marian,
        "length": workload.length,
        "folder": folder,
        "threads": threads,
        "beam_size": options.beam_size,
    }
    wanted = {n: s for n, s in SYSTEMS.items() if s.kind in (OURS, *options.against)}
    left_out = {
        name: f"it is not installed; run: pip install {system.kind}"
        for name, system in wanted.items()
        if system.kind != OURS and not version_of(name)
    }
    wanted = {name: system for name, system in wanted.items() if name not in left_out}
    write_formats(workload, Path(folder), any(s.kind == "ctranslate2" for s in wanted.values()))
    with ExitStack() as running:
        children: dict[str, Child] = {}
        for name, system in wanted.items():
            if children and system == (OURS, children[OURS].precision):
                continue  # the default is the same
            children[name] = Child(name, job | system._asdict(), environment)
            running.callback(children[name].close)
            children[name].translate(workload.lines[:WARM_UP])
            children[name].forget_peak()
            tell(f"  {name} is ready")
        systems = take_turns(children, workload.lines, options.rounds)
        judge(children, systems, workload)
    precisions = dict.fromkeys((systems[OURS]["precision"], "fp32"))
    lines = workload.lines[: max(1, min(PHASE_LINES, len(workload.lines) // threads))]
    return {
        "about": workload.about,
        "lines": len(workload.lines),
        "systems": systems,
        "left_out": left_out,
        "phases": {
            precision: {"lines": len(lines), "seconds": measure_phases(lines, precision, job)}
            for precision in precisions
        },
    }


def take_turns(
    children: Mapping[str, "Child"], lines: list[str], n_rounds: int
) -> dict[str, dict[str, Any]]:
    """Return by name of the system the seconds of each round and what else is measured."""
    systems: dict[str, dict[str, Any]] = {
        name: {
            "version": version_of(name),
            "detail": child.detail,
            "precision": child.precision,
            "seconds": [],
            "processor_seconds": [],
        }
        for name, child in children.items()
    }
    for i in range(n_rounds):
        for name, child in children.items():
            system, before = systems[name], child.processor_seconds()
            answer = child.translate(lines)
            after = child.processor_seconds()
            system["seconds"].append(round(answer["seconds"], 4))
            system["n_tokens"] = answer["n_tokens"]
            if before is not None and after is not None:
                system["processor_seconds"].append(round(after - before, 2))
            rate = len(lines) / answer["seconds"]
            tell(f"  round {i + 1} of {n_rounds}: {name:22} {rate:8.1f} lines/s")
            time.sleep(PAUSE)
    for name, child in children.items():
        systems[name]["memory"] = child.peak_memory()
    return systems


def judge(
    children: Mapping[str, "Child"], systems: dict[str, dict[str, Any]], workload: Workload
) -> None:
    """Count the lines that equal those of onmt_lite in fp32 with the same search, and compute BLEU
    if there are references and sacrebleu."""
    exact = children.get(EXACT, children[OURS])
    expected = {search_of(EXACT): exact.texts}
    for name, child in children.items():
        search, texts, bleu = search_of(name), child.texts, None
        if search not in expected:
            expected[search] = exact.translate(workload.lines, search)["texts"]
        with suppress(ImportError):
            from sacrebleu import corpus_bleu

            if workload.references is not None:
                bleu = round(corpus_bleu(texts, [workload.references]).score, 2)
        equal = sum(map(str.__eq__, texts, expected[search]))
        systems[name] |= {"search": search, "equal": equal, "bleu": bleu}


def measure_phases(lines: Sequence[str], precision: str, job: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each phase that -report_time prints, in one process of one thread."""
    folder = Path(job["folder"])
    src = folder / "phases.src"
    src.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["-model", job["model"], "-src", src, "-output", folder / f"phases.{precision}"]
    words += ["-precision", precision, "-beam_size", job["beam_size"], "-device", "cpu"]
    words += ["-workers", 1, "-threads", 1, "-report_time"]
    if job["length"]:
        words += ["-min_length", job["length"], "-max_length", job["length"]]
    command = [sys.executable, "-m", "onmt_lite", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (report,) = re.findall(r"^TIME: (.*)", done.stderr, re.M)
    found = re.findall(r"([\d.]+) s to (\w+)", report)
    return {phase: float(seconds) for seconds, phase in found if phase != "load"}


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# -- processes ------------------------------------------------------------------------------------


class Child:
    """A process of `benchmarks.systems`: one system, with its model loaded.

    detail, precision  what the system has chosen by itself
    texts              its translations of the last run

    Time and memory are None if there is no /proc.
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

    def translate(self, lines: list[str], search: str = "") -> dict[str, Any]:
        """Translate lines, by another -search if the system is onmt_lite.

        Raises RuntimeError if the process ended, which says why on standard error.
        """
        answer = self._ask({"lines": lines, "search": search})
        self.texts = answer["texts"]
        return answer

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Kill the process and its descendants."""
        for pid in family(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.communicate()

    def processor_seconds(self) -> float | None:
        """Return the time of the process and its descendants, running or not."""
        stats = [stat_of(pid) for pid in family(self._process.pid)]
        ticks = sum(int(number) for stat in stats for number in stat[11:15])
        return ticks / os.sysconf("SC_CLK_TCK") if stats else None

    def forget_peak(self) -> None:
        """Let `peak_memory` begin anew."""
        for pid in family(self._process.pid):
            with suppress(OSError):
                (PROC / str(pid) / "clear_refs").write_text("5", encoding="utf-8")

    def peak_memory(self) -> int | None:
        """Return the peaks of all processes in bytes, with shared pages counted once."""
        sizes = [size for pid in family(self._process.pid) if (size := sizes_of(pid))]
        if not sizes:
            return None
        peaks = sum(size["VmHWM"] for size in sizes)
        # Libraries are shared with other systems, too: those of the largest process count
        own = sum(size["Pss_Anon"] + size["Pss_Shmem"] for size in sizes)
        own += max(size["RssFile"] for size in sizes)
        return peaks - max(0, sum(size["VmRSS"] for size in sizes) - own)


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    below: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        if stat := stat_of(int(entry.name)):
            below.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [pid] if stat_of(pid) else []
    for each in found:
        found += below.get(each, [])
    return found


def stat_of(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat; [] if there is no such process."""
    with suppress(OSError):
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()
    return []


def sizes_of(pid: int) -> dict[str, int]:
    """Return bytes by name, of /proc/PID/status and smaps_rollup; {} if they cannot be read."""
    with suppress(OSError):
        files = (PROC / str(pid) / name for name in ("status", "smaps_rollup"))
        words = [line.split() for file in files for line in file.read_text("utf-8").splitlines()]
        return {w[0].rstrip(":"): 1024 * int(w[1]) for w in words if w and w[-1] == "kB"}
    return {}
