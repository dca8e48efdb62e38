"""The comparison on one workload: alternating rounds, then the decoding phases of onmt_lite."""

import json
import os
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.systems import EXACT, OURS, SYSTEMS, get_matching_search, get_package_version
from benchmarks.workloads import ROOT, Workload, write_formats

WARM_UP = 64  # lines of the first, uncounted run; enough for all workers
PHASE_LINES = 512
PAUSE = 0.2  # seconds after a run, so that its threads become idle
MEMORY_INTERVAL = 0.01  # seconds between measurements of the memory
PROC = Path("/proc")


def compare(
    workload: Workload,
    directory: str,
    threads: int,
    options: Namespace,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Measure all systems on a workload.

    Args:
        workload: model and lines
        directory: empty directory for converted models and outputs
        threads: CPU cores per system
        options: options of the program
        environment: environment of the systems' processes, saved before imports changed it

    Returns:
        The measurements, in the format of the JSON file.
    """
    log(f"  {workload.about}, {len(workload.lines)} lines")
    job = {
        "model": workload.model,
        "is_marian": workload.is_marian,
        "length": workload.length,
        "directory": directory,
        "threads": threads,
        "beam_size": options.beam_size,
    }
    selected = {n: s for n, s in SYSTEMS.items() if s.package in (OURS, *options.against)}
    left_out = {
        name: f"not installed; run: pip install {system.package}"
        for name, system in selected.items()
        if system.package != OURS and not get_package_version(name)
    }
    selected = {name: system for name, system in selected.items() if name not in left_out}
    needs_ctranslate2 = any(s.package == "ctranslate2" for s in selected.values())
    write_formats(workload, Path(directory), needs_ctranslate2)
    with ExitStack() as stack:
        processes: dict[str, SystemProcess] = {}
        for name, system in selected.items():
            if processes and system == (OURS, processes[OURS].precision):
                continue  # identical to the default
            processes[name] = SystemProcess(name, job | system._asdict(), environment)
            stack.callback(processes[name].close)
            processes[name].translate(workload.lines[:WARM_UP])
            log(f"  {name} is ready")
        systems = run_rounds(processes, workload.lines, options.rounds)
        compare_outputs(processes, systems, workload)
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


def run_rounds(
    processes: Mapping[str, "SystemProcess"], lines: list[str], n_rounds: int
) -> dict[str, dict[str, Any]]:
    """Run the systems in alternating rounds.

    Args:
        processes: running processes by system name
        lines: source lines of each round
        n_rounds: number of rounds

    Returns:
        Measurements by system name: seconds and CPU seconds of each round, tokens, and the peak
        memory of one more run.
    """
    systems: dict[str, dict[str, Any]] = {
        name: {
            "version": get_package_version(name),
            "detail": process.detail,
            "precision": process.precision,
            "seconds": [],
            "processor_seconds": [],
        }
        for name, process in processes.items()
    }
    for i in range(n_rounds):
        for name, process in processes.items():
            system, before = systems[name], process.cpu_seconds()
            result = process.translate(lines)
            after = process.cpu_seconds()
            system["seconds"].append(round(result["seconds"], 4))
            system["n_tokens"] = result["n_tokens"]
            if before is not None and after is not None:
                system["processor_seconds"].append(round(after - before, 2))
            rate = len(lines) / result["seconds"]
            log(f"  round {i + 1} of {n_rounds}: {name:22} {rate:8.1f} lines/s")
            time.sleep(PAUSE)
    for name, process in processes.items():
        systems[name]["memory"] = process.measure_peak_memory(lines)
    return systems


def compare_outputs(
    processes: Mapping[str, "SystemProcess"],
    systems: dict[str, dict[str, Any]],
    workload: Workload,
) -> None:
    """Add to `systems` the number of lines equal to onmt_lite in fp32, and BLEU.

    BLEU is computed if there are references and sacrebleu is installed.

    Args:
        processes: running processes by system name
        systems: measurements by system name, changed in place
        workload: lines and references
    """
    exact = processes.get(EXACT, processes[OURS])
    expected = {get_matching_search(EXACT): exact.texts}
    for name, process in processes.items():
        search, texts, bleu = get_matching_search(name), process.texts, None
        if search not in expected:
            expected[search] = exact.translate(workload.lines, search)["texts"]
        with suppress(ImportError):
            from sacrebleu import corpus_bleu

            if workload.references is not None:
                bleu = round(corpus_bleu(texts, [workload.references]).score, 2)
        equal = sum(map(str.__eq__, texts, expected[search]))
        systems[name] |= {"search": search, "equal": equal, "bleu": bleu}


def measure_phases(lines: Sequence[str], precision: str, job: dict[str, Any]) -> dict[str, float]:
    """Return the seconds per phase, as printed by -report_time with one single-threaded worker.

    Args:
        lines: source lines
        precision: int8 or fp32
        job: model and search settings, see `compare`
    """
    directory = Path(job["directory"])
    src = directory / "phases.src"
    src.write_text("\n".join(lines) + "\n", encoding="utf-8")
    args = ["-model", job["model"], "-src", src, "-output", directory / f"phases.{precision}"]
    args += ["-precision", precision, "-beam_size", job["beam_size"], "-device", "cpu"]
    args += ["-workers", 1, "-threads", 1, "-report_time"]
    if job["length"]:
        args += ["-min_length", job["length"], "-max_length", job["length"]]
    command = [sys.executable, "-m", "onmt_lite", *map(str, args)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (report,) = re.findall(r"^TIME: (.*)", process.stderr, re.M)
    phases = re.findall(r"([\d.]+) s to (\w+)", report)
    return {phase: float(seconds) for seconds, phase in phases if phase != "load"}


def log(line: str) -> None:
    """Print a progress line to standard error."""
    print(line, file=sys.stderr, flush=True)


# -- processes ------------------------------------------------------------------------------------


class SystemProcess:
    """A process of `benchmarks.systems`: one system with its model loaded.

    Time and memory are None without /proc.

    Attributes:
        detail: settings chosen by the system, for the table
        precision: dtype chosen by the system
        texts: translations of the last run
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
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends its children
        )
        settings = self._request(job)
        self.detail: str = settings["detail"]
        self.precision: str = settings["precision"]

    def translate(self, lines: list[str], search: str = "") -> dict[str, Any]:
        """Translate lines and return the texts, seconds and number of tokens.

        Args:
            lines: source lines
            search: -search of onmt_lite; other systems ignore it

        Raises:
            RuntimeError: the process ended; its error is on standard error
        """
        result = self._request({"lines": lines, "search": search})
        self.texts = result["texts"]
        return result

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a JSON object to the process and return its response."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        response = self._process.stdout.readline()
        if not response:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")
        return json.loads(response)

    def close(self) -> None:
        """Kill the process and its descendants."""
        for pid in list_process_tree(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.communicate()

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the process and its descendants, running or ended."""
        stats = [read_stat(pid) for pid in list_process_tree(self._process.pid)]
        ticks = sum(int(number) for stat in stats for number in stat[11:15])
        return ticks / os.sysconf("SC_CLK_TCK") if stats else None

    def measure_peak_memory(self, lines: list[str]) -> int | None:
        """Translate lines and return the peak memory meanwhile in bytes.

        The run is not timed, because reading the memory slows down the process.
        """
        peak = 0
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(self.translate, lines)
            while not run.done():
                peak = max(peak, read_memory(list_process_tree(self._process.pid)))
                time.sleep(MEMORY_INTERVAL)
        run.result()  # raises if the process ended
        return peak or None


def list_process_tree(pid: int) -> list[int]:
    """Return the IDs of a process and its descendants; [] if it does not exist."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        if stat := read_stat(int(entry.name)):
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    tree = [pid] if read_stat(pid) else []
    for parent in tree:
        tree += children.get(parent, [])
    return tree


def read_stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat; [] if the process does not exist."""
    with suppress(OSError):
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()
    return []


def read_memory(pids: Sequence[int]) -> int:
    """Return the proportional set size (PSS) of processes in bytes; 0 if it is not readable.

    PSS divides shared pages by the number of processes that share them.  Here pages of files, such
    as libraries, are counted once even if a program outside of `pids` maps them, too.
    """
    private, files = 0, [0]
    for pid in pids:
        with suppress(OSError):  # the process has ended
            text = (PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8")
            rows = [line.split() for line in text.splitlines() if line.endswith(" kB")]
            sizes = {name.rstrip(":"): 1024 * int(size) for name, size, _ in rows}
            private += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
            files.append(sizes["Rss"] - sizes["Anonymous"])
    return private + max(files)
