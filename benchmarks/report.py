"""Markdown tables and a chart of the measurements.

`python -m benchmarks.report` updates docs/speed.md, docs/speed.svg and README.md from
docs/speed.json.  It needs matplotlib (the extra `plots`).
"""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.systems import OURS, SYSTEMS
from benchmarks.workloads import ROOT
from onmt_lite import __version__
from onmt_lite.models.kernels.build import load_library
from onmt_lite.train.chart import draw_svg

Record = Mapping[str, Any]  # one run of the benchmark; the JSON file has several by name
BEAM_SIZE = 5  # the default; the names of other records contain theirs
PROCESSORS = {  # processor classes, by instruction set of the kernels
    "avx512": "AVX-512 VNNI",
    "amx": "AVX-512 VNNI with AMX",
    "avxvnni": "AVX-VNNI",
    "avx2": "limited to AVX2",
    "neon": "NEON on Linux (arm64), Macs",
}


def describe_machine() -> dict[str, Any]:
    """Return the CPU, versions and environment variables that affect speed."""
    library = load_library()
    prefixes = ("OMP_", "ONMT_LITE_", "ONEDNN_", "DNNL_", "MKL_", "KMP_", "CT2_", "ATEN_", "GOMP_")
    return {
        "onmt_lite": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": get_processor_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "kernels": library.instruction_set if library else "none",
        "processors": os.cpu_count(),
        "environment": {n: value for n, value in os.environ.items() if n.startswith(prefixes)},
    }


def get_processor_name() -> str:
    """Return the model name of the CPU, or its architecture if the name is unknown."""
    with suppress(OSError):
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if name := re.search("^model name.*: *(.*)", info, re.M):
            return name[1]
    return platform.machine()


# -- figures --------------------------------------------------------------------------------------


def choose_baseline(work: Record) -> str:
    """Return the baseline system: the first measured peer, or onmt_lite if no peer was measured."""
    peers = [name for name, system in SYSTEMS.items() if system.package != OURS]
    return next((name for name in peers if name in work["systems"]), OURS)


def compute_speedups(
    work: Record | None, name: str, field: str, baseline_name: str = ""
) -> list[float]:
    """Return the speed of a system relative to a baseline, for each round.

    Args:
        work: measurements of a workload, None if it was not measured
        name: system name
        field: "seconds" (wall-clock time) or "processor_seconds" (CPU time)
        baseline_name: system name (default: see `choose_baseline`)

    Returns:
        The speeds; empty if a system was not measured.
    """
    if work is None:
        return []
    names = baseline_name or choose_baseline(work), name
    baseline, times = (work["systems"].get(n, {}).get(field, ()) for n in names)
    return [a / b for a, b in zip(baseline, times) if a and b]


def format_spread(values: Sequence[float]) -> str:
    """Format the median, minimum and maximum: 1.21 (1.18–1.30)."""
    if not values:
        return "–"
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


# -- tables ---------------------------------------------------------------------------------------

LEGEND = """\
× is the speed relative to that system: median (minimum–maximum) over the rounds. Wall-clock time
compares idle machines; CPU time, the sum over all processes, also compares busy ones. MiB: peak
proportional set size (PSS) of all processes while translating. Identical lines: lines whose
translation equals that of onmt_lite with -precision fp32 and the -search of that system."""


def name_record(record: Record) -> str:
    """Return the name of a record in the JSON file: "avx2", or "avx2, beam 1"."""
    beam_size = record["beam_size"]
    return record["kernels"] + f", beam {beam_size}" * (beam_size != BEAM_SIZE)


def format_processors(records: Mapping[str, Record]) -> str:
    """Return a table of the speed by processor class, in int8 and fp32."""
    peers = {"onmt_lite": "CTranslate2 int8", "onmt_lite fp32": "CTranslate2 float32"}
    workloads = list(next(iter(records.values()))["workloads"])
    head = ["processor", "beam", *(f"{w}, {p}" for p in ("int8", "fp32") for w in workloads)]
    rows = [head]
    for kernels, processor in PROCESSORS.items():
        measured = [r for name, r in records.items() if name.split(",")[0] == kernels]
        for record in measured:
            works = record["workloads"]
            row = [processor, str(record["beam_size"])]
            for system, peer in peers.items():
                for workload in workloads:
                    speeds = compute_speedups(works.get(workload), system, "seconds", peer)
                    row.append(f"{median(speeds):.2f}" if speeds else "–")
            rows.append(row)
        if not measured:
            rows.append([processor, "not measured", *["–"] * (len(head) - 2)])
    return format_table(rows)


def format_tables(record: Record) -> str:
    """Return the machine, the tables of each workload, and the legend."""
    workloads = [format_workload(record, name) for name in record["workloads"]]
    return "\n\n".join([format_machine(record), *workloads, LEGEND])


def format_machine(record: Record) -> str:
    """Return the CPU, torch version and environment in one line."""
    settings = "".join(f", {name}={value}" for name, value in record["environment"].items())
    return f"{record['processor']}, torch {record['torch']} ({record['capability']}){settings}"


def format_workload(record: Record, name: str) -> str:
    """Return the speed table and the skipped systems."""
    work = record["workloads"][name]
    setting = f"beam {record['beam_size']}, {format_count(record['threads'], 'core')}"
    parts = [
        f"**{name}**: {work['about']}; {work['lines']:,} lines, {setting}",
        format_speed_table(work),
    ]
    if work["left_out"]:
        left_out = work["left_out"].items()
        parts.append("\n".join(f"- {peer}: skipped; {reason}" for peer, reason in left_out))
    return "\n\n".join(parts)


def format_headline(record: Record) -> str:
    """Return the speed of onmt_lite on all workloads in a sentence."""
    works = record["workloads"]
    baseline = choose_baseline(next(iter(works.values())))
    figures = [
        f"{name} {median(compute_speedups(w, OURS, 'seconds')):.2f}" for name, w in works.items()
    ]
    return (
        f"Speed relative to {baseline} (wall-clock, {format_count(record['threads'], 'core')}, "
        f"beam {record['beam_size']}, default options): {', '.join(figures)}."
    )


def format_speed_table(work: Record) -> str:
    """Return a table with one row per system."""
    baseline, n = choose_baseline(work), work["lines"]
    head = ["system", "lines/s", "tokens/s", f"× {baseline}, wall-clock", "× CPU time", "MiB"]
    has_bleu = any(system["bleu"] is not None for system in work["systems"].values())
    head += ["identical lines", *["BLEU"] * has_bleu]
    rows = []
    for name, system in work["systems"].items():
        seconds, memory = median(system["seconds"]), system["memory"]
        details = ", ".join(filter(None, (system["version"], system["detail"])))
        row = [
            f"{name} ({details})" if details else name,
            f"{n / seconds:.1f}",
            f"{system['n_tokens'] / seconds:.0f}",
        ]
        for field in ("seconds", "processor_seconds"):
            row.append(format_spread(compute_speedups(work, name, field)))
        row += ["–" if memory is None else f"{memory / 2**20:.0f}", f"{system['equal']:,}"]
        row += ["–" if system["bleu"] is None else f"{system['bleu']:.1f}"] * has_bleu
        rows.append(row)
    return format_table([head, *rows])


def format_phases(work: Record) -> str:
    """Return a sentence: "Milliseconds per line...: int8: encode 1.25 (5%), total 23.75."."""
    results = []
    for precision, measured in work["phases"].items():
        total = sum(measured["seconds"].values()) or 0.01  # the resolution of TIME
        phases = [
            f"{phase} {1000 * seconds / measured['lines']:.2f} ({seconds / total:.0%})"
            for phase, seconds in measured["seconds"].items()
        ]
        phases.append(f"total {1000 * total / measured['lines']:.2f}")
        results.append(f"{precision}: {', '.join(phases)}")
    about = f"Milliseconds per line in {OURS}, one single-threaded process"
    return f"{about}: {'; '.join(results)}."


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [" | ".join(cell.ljust(n) for cell, n in zip(row, widths)) for row in rows]
    rule = "-|-".join("-" * n for n in widths)
    return "\n".join([f"| {lines[0]} |", f"|-{rule}-|", *(f"| {line} |" for line in lines[1:])])


def format_count(n: int, noun: str) -> str:
    """Return a number with a noun in singular or plural."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# -- the chart and the pages ----------------------------------------------------------------------


def draw_chart(record: Record) -> bytes:
    """Draw the wall-clock speedups as a bar chart and return the SVG file."""
    works = record["workloads"]
    systems = list(dict.fromkeys(name for work in works.values() for name in work["systems"]))
    thickness = 0.8 / len(works)  # height of a bar; a system has height 1

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for i, (workload, work) in enumerate(works.items()):
            names = [name for name in systems if name in work["systems"]]
            rows = [systems.index(name) + (i + 0.5) * thickness - 0.4 for name in names]
            values = [median(compute_speedups(work, name, "seconds")) for name in names]
            bars = axes.barh(rows, values, thickness * 0.9, label=workload)
            axes.bar_label(bars, fmt="%.2f", padding=4)
        axes.set_title(
            f"Translation speed, {format_count(record['threads'], 'core')}, "
            f"beam {record['beam_size']}"
        )
        axes.set_xlabel(f"speed relative to {choose_baseline(next(iter(works.values())))}")
        axes.set_yticks(range(len(systems)), systems)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.legend()

    return draw_svg(7.2, 1.5 + 0.25 * len(systems) * len(works), draw)


def read_records(path: Path) -> dict[str, Any]:
    """Read the records of a JSON file by name; the pages show the first in detail."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_pages() -> None:
    """Update the figures in README.md and docs/ from docs/speed.json."""
    records = read_records(ROOT / "docs" / "speed.json")
    record = next(iter(records.values()))
    (ROOT / "docs" / "speed.svg").write_bytes(draw_chart(record))
    blocks = (
        ("README.md", "speed", format_headline(record)),
        ("docs/speed.md", "processors", format_processors(records)),
        ("docs/speed.md", "measured", format_tables(record)),
    )
    for page, block, content in blocks:
        text = (ROOT / page).read_text(encoding="utf-8")
        start, end = f"<!-- {block} -->\n", f"\n<!-- /{block} -->"
        before, rest = text.split(start)
        after = rest.split(end)[1]
        text = before + start + content + end + after
        (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
