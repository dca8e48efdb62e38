"""One workload: the systems take turns, round after round; then the phases of onmt_lite."""

import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, Child
from benchmarks.systems import EXACT, OURS, SYSTEMS, search_of, version_of
from benchmarks.workloads import Workload, write_formats

WARM_UP = 64  # lines of the first run, which is not counted: enough for all workers
PHASE_LINES = 512
PAUSE = 0.2  # seconds after a run, until idle threads of its system sleep


def compare(
    workload: Workload,
    folder: str,
    threads: int,
    options: Namespace,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return everything about a workload, as the JSON file has it."""
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
            children[name].ask(lines=workload.lines[:WARM_UP])
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
    children: Mapping[str, Child], lines: list[str], n_rounds: int
) -> dict[str, dict[str, Any]]:
    """By name of the system, the seconds of each round and what else is measured."""
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
            answer = child.ask(lines=lines)
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
    children: Mapping[str, Child], systems: dict[str, dict[str, Any]], workload: Workload
) -> None:
    """Count the lines that equal what onmt_lite finds in fp32 with the search of each system, and
    compute BLEU if there are references."""
    exact = children.get(EXACT, children[OURS])
    expected = {search_of(EXACT): exact.texts}
    for name, child in children.items():
        search, texts = search_of(name), child.texts
        if search not in expected:
            expected[search] = exact.ask(lines=workload.lines, search=search)["texts"]
        systems[name] |= {
            "search": search,
            "equal": sum(map(str.__eq__, texts, expected[search])),
            "bleu": bleu(texts, workload.references),
        }


def bleu(texts: list[str], references: list[str] | None) -> float | None:
    """None without references or sacrebleu."""
    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        return None
    return None if references is None else round(corpus_bleu(texts, [references]).score, 2)


def measure_phases(lines: Sequence[str], precision: str, job: dict[str, Any]) -> dict[str, float]:
    """Seconds by phase that -report_time says, of one process with one thread."""
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
