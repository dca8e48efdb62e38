"""Format benchmark results as Markdown tables and as a chart.

`python -m benchmarks.report` generates the tables in docs/speed.md, the chart docs/speed.svg and a
sentence in README.md from docs/speed.json. It needs matplotlib, the extra `plots`.
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
from onmt_lite.train.chart import draw_svg

Record = Mapping[str, Any]  # the content of the JSON file


def machine() -> dict[str, Any]:
    """Return the environment of a measurement: versions, processor, variables."""
    prefixes = ("OMP_", "ONEDNN_", "DNNL_", "MKL_", "KMP_", "CT2_", "ATEN_", "GOMP_")
    return {
        "onmt_lite": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processors": os.cpu_count(),
        "environment": {n: value for n, value in os.environ.items() if n.startswith(prefixes)},
    }


def processor() -> str:
    """Return the name of the processor, or the architecture if the name is unknown."""
    with suppress(OSError):
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if name := re.search("^model name.*: *(.*)", info, re.M):
            return name[1]
    return platform.machine()


# -- figures --------------------------------------------------------------------------------------


def reference(work: Record) -> str:
    """Return the baseline of all ratios: the first measured peer, otherwise our system."""
    peers = [name for name, system in SYSTEMS.items() if system.kind != OURS]
    return next((name for name in peers if name in work["systems"]), OURS)


def ratios(work: Record, name: str, by: str) -> list[float]:
    """Return the speed of a system relative to the baseline in each round.

    Args:
        work: one workload of the record.
        name: of the system.
        by: "seconds" (wall-clock) or "processor_seconds" (CPU time of all processes).
    """
    theirs, own = (work["systems"][each][by] for each in (reference(work), name))
    return [a / b for a, b in zip(theirs, own) if a and b]


def spread(values: Sequence[float]) -> str:
    """Format median, minimum and maximum: 1.21 (1.18–1.30)."""
    if not values:
        return "–"
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


# -- tables ---------------------------------------------------------------------------------------

LEGEND = """\
× is the speed relative to that system: median (minimum–maximum) over the rounds. Wall-clock time
compares idle machines; CPU time, the sum over all processes, also compares busy ones. MiB: peak
memory while translating. Identical lines: lines whose translation equals that of onmt_lite with
-precision fp32 and the -search of that system."""


def tables_of(record: Record) -> str:
    """Return the machine, the tables of each workload and a legend."""
    workloads = [workload_tables(record, name) for name in record["workloads"]]
    return "\n\n".join([setting_of(record), *workloads, LEGEND])


def setting_of(record: Record) -> str:
    settings = "".join(f", {name}={value}" for name, value in record["environment"].items())
    return f"{record['processor']}, torch {record['torch']} ({record['capability']}){settings}"


def workload_tables(record: Record, name: str) -> str:
    """Return the speed table, the skipped systems and the time of our phases."""
    work = record["workloads"][name]
    scale = f"beam {record['beam_size']}, {count(record['threads'], 'core')}"
    parts = [f"**{name}**: {work['about']}; {work['lines']:,} lines, {scale}", speed_table(work)]
    if work["left_out"]:
        left_out = work["left_out"].items()
        parts.append("\n".join(f"- {peer}: skipped; {why}" for peer, why in left_out))
    parts.append(f"Milliseconds per line in {OURS}, one single-threaded process: {times(work)}.")
    return "\n\n".join(parts)


def headline(record: Record) -> str:
    """Return our relative speeds in a sentence."""
    works = record["workloads"]
    base = reference(next(iter(works.values())))
    figures = [f"{name} {median(ratios(w, OURS, 'seconds')):.2f}" for name, w in works.items()]
    return (
        f"Speed relative to {base} (wall-clock, {count(record['threads'], 'core')}, beam "
        f"{record['beam_size']}, default options): {', '.join(figures)}."
    )


def speed_table(work: Record) -> str:
    """Return a table with a row per system."""
    base, n = reference(work), work["lines"]
    head = ["system", "lines/s", "tokens/s", f"× {base}, wall-clock", "× CPU time", "MiB"]
    has_bleu = any(system["bleu"] is not None for system in work["systems"].values())
    head += ["identical lines", *["BLEU"] * has_bleu]
    rows = []
    for name, system in work["systems"].items():
        seconds, memory = median(system["seconds"]), system["memory"]
        more = ", ".join(filter(None, (system["version"], system["detail"])))
        row = [
            f"{name} ({more})" if more else name,
            f"{n / seconds:.1f}",
            f"{system['n_tokens'] / seconds:.0f}",
        ]
        row += [spread(ratios(work, name, by)) for by in ("seconds", "processor_seconds")]
        row += ["–" if memory is None else f"{memory / 2**20:.0f}", f"{system['equal']:,}"]
        row += ["–" if system["bleu"] is None else f"{system['bleu']:.1f}"] * has_bleu
        rows.append(row)
    return aligned([head, *rows])


def times(work: Record) -> str:
    """Format our phases and their shares: int8: encode 1.25 (5%), ..., total 23.75."""
    shown = []
    for precision, measured in work["phases"].items():
        total = sum(measured["seconds"].values()) or 0.01  # the resolution of the TIME line
        phases = [
            f"{phase} {1000 * seconds / measured['lines']:.2f} ({seconds / total:.0%})"
            for phase, seconds in measured["seconds"].items()
        ]
        phases.append(f"total {1000 * total / measured['lines']:.2f}")
        shown.append(f"{precision}: {', '.join(phases)}")
    return "; ".join(shown)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [" | ".join(cell.ljust(n) for cell, n in zip(row, widths)) for row in rows]
    rule = "-|-".join("-" * n for n in widths)
    return "\n".join([f"| {lines[0]} |", f"|-{rule}-|", *(f"| {line} |" for line in lines[1:])])


def count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


# -- the chart and the pages ----------------------------------------------------------------------


def chart_of(record: Record) -> bytes:
    """Draw the wall-clock ratios as a bar chart; return the SVG file."""
    works = record["workloads"]
    systems = list(dict.fromkeys(name for work in works.values() for name in work["systems"]))
    thickness = 0.8 / len(works)  # of a bar; the bars of one system share a height of 1

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for i, (workload, work) in enumerate(works.items()):
            names = [name for name in systems if name in work["systems"]]
            rows = [systems.index(name) + (i + 0.5) * thickness - 0.4 for name in names]
            values = [median(ratios(work, name, "seconds")) for name in names]
            bars = axes.barh(rows, values, thickness * 0.9, label=workload)
            axes.bar_label(bars, fmt="%.2f", padding=4)
        axes.set_title(
            f"Translation speed, {count(record['threads'], 'core')}, beam {record['beam_size']}"
        )
        axes.set_xlabel(f"speed relative to {reference(next(iter(works.values())))}")
        axes.set_yticks(range(len(systems)), systems)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.legend()

    return draw_svg(7.2, 1.5 + 0.25 * len(systems) * len(works), draw)


def write_pages() -> None:
    record = json.loads((ROOT / "docs" / "speed.json").read_text(encoding="utf-8"))
    (ROOT / "docs" / "speed.svg").write_bytes(chart_of(record))
    blocks = (("README.md", "speed", headline), ("docs/speed.md", "measured", tables_of))
    for page, block, text_of in blocks:
        text = (ROOT / page).read_text(encoding="utf-8")
        start, end = f"<!-- {block} -->\n", f"\n<!-- /{block} -->"
        before, rest = text.split(start)
        after = rest.split(end)[1]
        (ROOT / page).write_text(before + start + text_of(record) + end + after, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
