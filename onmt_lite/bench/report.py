"""What was measured, as tables of Markdown and as a chart."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from onmt_lite import __version__
from onmt_lite.bench.systems import PEERS
from onmt_lite.inference.chart import bar_chart

OURS = "onmt_lite"
Record = Mapping[str, Any]  # what the JSON file has


def machine(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the figures depend on besides."""
    import torch

    settings = {
        name: value
        for name, value in environment.items()
        if name.startswith(("OMP_", "ONEDNN_", "DNNL_", "MKL_", "KMP_", "CT2_", "ATEN_", "GOMP_"))
    }
    return {
        "onmt_lite": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processors": os.cpu_count(),
        "environment": settings,
    }


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1] for line in info.split("\n") if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


# -- figures --------------------------------------------------------------------------------------


def reference(work: Record) -> str:
    """The system that ratios are to: the first peer there is, else ours."""
    return next((kind.name for kind in PEERS if kind.name in work["systems"]), OURS)


def ratios(work: Record, name: str, by: str) -> list[float]:
    """How many times as fast as the reference a system was, of each round.

    by: seconds or processor_seconds
    """
    theirs, own = (work["systems"][each][by] for each in (reference(work), name))
    return [a / b for a, b in zip(theirs, own) if a and b]


def spread(values: Sequence[float]) -> str:
    """1.21 (1.18–1.30): the median, the least and the greatest."""
    if not values:
        return "–"
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def titled(name: str, system: Record) -> str:
    more = [part for part in (system["version"], system["detail"]) if part]
    return f"{name} ({', '.join(more)})" if more else name


# -- tables ---------------------------------------------------------------------------------------


LEGEND = """\
×: how many times as fast as that system, the median of the rounds (least–greatest): by the clock,
and by the processor time of all its processes, which counts on a machine that does other work too.
MiB: the most memory while translating.  Equal lines: those that onmt_lite finds with -precision
fp32 and the -search of that system."""


def tables_of(record: Record) -> str:
    """Where it was measured, the tables of each workload, and what the columns mean."""
    workloads = [workload_tables(record, name) for name in record["workloads"]]
    return "\n\n".join([setting_of(record), *workloads, LEGEND])


def setting_of(record: Record) -> str:
    settings = "".join(f", {name}={value}" for name, value in record["environment"].items())
    return f"{record['processor']}, torch {record['torch']} ({record['capability']}){settings}"


def workload_tables(record: Record, name: str) -> str:
    """How fast each system is, what is left out, and where the time of ours goes."""
    work = record["workloads"][name]
    scale = f"beam {record['beam_size']}, {count(record['threads'], 'processor')}"
    parts = [f"**{name}**: {work['about']}; {work['lines']:,} lines, {scale}", speed_table(work)]
    if work["left_out"]:
        left_out = work["left_out"].items()
        parts.append("\n".join(f"- {peer}: left out; {why}" for peer, why in left_out))
    parts += [f"Milliseconds of {OURS} per line, in one process of one thread:", time_table(work)]
    return "\n\n".join(parts)


def headline(record: Record) -> str:
    """The ratios of ours, in a sentence."""
    works = record["workloads"]
    base = reference(next(iter(works.values())))
    figures = [f"{name} {median(ratios(w, OURS, 'seconds')):.2f}" for name, w in works.items()]
    return (
        f"Times as fast as {base}, by the clock, {count(record['threads'], 'processor')}, beam "
        f"{record['beam_size']}, default options: {', '.join(figures)}."
    )


def speed_table(work: Record) -> str:
    """A row per system."""
    base, n = reference(work), work["lines"]
    head = ["system", "lines/s", "tokens/s", f"× {base}, clock", "× processor time", "MiB"]
    has_bleu = any(system["bleu"] is not None for system in work["systems"].values())
    head += ["equal lines", *["BLEU"] * has_bleu]
    rows = []
    for name, system in work["systems"].items():
        seconds, memory = median(system["seconds"]), system["memory"]
        row = [titled(name, system), f"{n / seconds:.1f}", f"{system['n_tokens'] / seconds:.0f}"]
        row += [spread(ratios(work, name, by)) for by in ("seconds", "processor_seconds")]
        row += ["–" if memory is None else f"{memory / 2**20:.0f}", f"{system['equal']:,}"]
        row += ["–" if system["bleu"] is None else f"{system['bleu']:.1f}"] * has_bleu
        rows.append(row)
    return aligned([head, *rows])


def time_table(work: Record) -> str:
    """A row per phase, and the floor; a column per profile."""
    profiles = work["profiles"].values()
    head = ["phase", *(f"{p['precision']}{mark}" for p in profiles for mark in ("", ", share"))]
    rows = []
    totals = [sum(p["phases"].values()) for p in profiles]
    for phase in next(iter(profiles))["phases"]:
        row = [phase]
        for p, total in zip(profiles, totals):
            seconds = p["phases"][phase]
            row += [f"{1000 * seconds / p['lines']:.2f}", f"{seconds / total:.0%}"]
        rows.append(row)
    summed, floors = ["all"], ["the matrix products alone"]
    for (name, p), total in zip(work["profiles"].items(), totals):
        summed += [f"{1000 * total / p['lines']:.2f}", "100%"]
        share = floor_share(work, name)
        floors += [
            f"{1000 * p['floor'] / p['lines']:.2f}",
            "–" if share is None else f"{share:.0%}",
        ]
    return aligned([head, *rows, summed, floors])


def floor_share(work: Record, name: str) -> float | None:
    """The products alone as a part of the processor time of the runs that were compared."""
    spent = [s for s in work["systems"][name]["processor_seconds"] if s]
    profile = work["profiles"][name]
    if not spent:
        return None
    return profile["floor"] / profile["lines"] / (median(spent) / work["lines"])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first row its head, whose columns line up on a terminal, too."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [" | ".join(cell.ljust(n) for cell, n in zip(row, widths)) for row in rows]
    rule = "-|-".join("-" * n for n in widths)
    return "\n".join([f"| {lines[0]} |", f"|-{rule}-|", *(f"| {line} |" for line in lines[1:])])


def count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


# -- the chart ------------------------------------------------------------------------------------


def chart_of(record: Record) -> str:
    """The SVG of the ratios by the clock."""
    groups: dict[str, dict[str, float]] = {}
    for workload, work in record["workloads"].items():
        for name in work["systems"]:
            bar = round(median(ratios(work, name, "seconds")), 2)
            groups.setdefault(name, {})[workload] = bar
    base = reference(next(iter(record["workloads"].values())))
    title = f"Speed on {count(record['threads'], 'processor')}, beam {record['beam_size']}"
    return bar_chart(title, f"times as fast as {base}", groups)
