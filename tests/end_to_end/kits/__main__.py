"""Test the command line against everything that goes wrong with a job.

    python -m tests.end_to_end.kits                       all kits; see docs/jobs-reference.md
    python -m tests.end_to_end.kits -kits K1,K4 -n 10     some kits with fewer trials
    python -m tests.end_to_end.kits -warm                 jobs forked from a warm process

Prints a row for each kit; `-rows FILE` receives each trial as JSON.  Directories of failed trials
are kept.  The exit code is 1 if any trial failed.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.end_to_end.kits import damage, kills, places, texts
from tests.support.forked_jobs import WarmStarter
from tests.support.job_runner import TOOL, Bench, ColdStarter, TrialResult

WORKERS = ("-workers", "2")

# Name -> function, trials, and whether it needs separate processes
KITS: dict[str, tuple[Callable[..., Iterator[TrialResult]], int, bool]] = {
    "K1": (kills.k1, 50, False),
    "K1w": (lambda *given: kills.k1(*given, *WORKERS), 20, False),
    "K2": (kills.k2, 30, False),
    "K2w": (lambda *given: kills.k2(*given, *WORKERS), 9, False),
    "K3": (kills.k3, 100, False),
    "K4": (places.k4, 10, False),
    "K5": (places.k5, 0, False),
    "K6": (damage.k6, 500, False),
    "K7": (damage.k7, 200, False),
    "K8": (damage.k8, 500, False),
    "K9": (texts.k9, 100, False),
    "K10": (places.k10, 10, True),
    "K11": (kills.k11, 10, False),
    "K12": (kills.k12, 20, False),
    "K13": (places.k13, 1, True),
    "K14": (texts.k14, 1, False),
    "K15": (texts.k15, 1_000_000, True),
    "faults": (places.inject_faults, 0, False),
}
MANY = ("K6", "K7", "K8", "faults")  # hundreds of trials: always forked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-seed", type=int, default=1)
    parser.add_argument("-kits", default=",".join(KITS))
    parser.add_argument("-n", type=int, help="trials of each kit")
    parser.add_argument("-lines", type=int, default=3000, help="of the input")
    parser.add_argument("-warm", action="store_true")
    parser.add_argument("-rows", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jobs-"))
    n_failed = 0
    print(f"seed {args.seed}, {args.lines} lines, folder {folder}")
    print(f"{'kit':7} trials failed  lost doubled moved  peak MB  seconds  exit codes")
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(args.rows, "w")) if args.rows else None
        warm = stack.enter_context(WarmStarter())
        for name in args.kits.split(","):
            kit, n, own_process = KITS[name]
            fork = (args.warm or name in MANY) and not own_process
            starter = warm if fork else ColdStarter(TOOL)
            bench = Bench(folder / name, starter, args.lines, args.seed)
            trials = kit(bench, Random(args.seed), n if args.n is None else args.n)
            rows = list(report_results(trials, out))
            print(summary(name, rows), flush=True)
            n_failed += sum(bool(row.problem) for row in rows)
    return int(n_failed > 0)


def report_results(trials: Iterator[TrialResult], out) -> Iterator[TrialResult]:
    """Yield results as they arrive: write all to the file and failures to stderr."""
    for row in trials:
        if out:
            print(row.json(), file=out, flush=True)
        if row.problem:
            print(f"  {row.kit} {row.trial} ({row.action}): {row.problem}", file=sys.stderr)
            print(f"    {row.stderr.strip()[-300:]}", file=sys.stderr)
        yield row


def summary(name: str, rows: list[TrialResult]) -> str:
    codes: dict[int | None, int] = {}
    for row in rows:
        codes[row.code] = codes.get(row.code, 0) + 1
    failed = sum(bool(row.problem) for row in rows)
    totals = [sum(getattr(row, field) for row in rows) for field in ("lost", "doubled", "moved")]
    peak = max((row.peak_mb for row in rows), default=0)
    seconds = sum(row.seconds for row in rows)
    said = ", ".join(f"{code}: {n}" for code, n in sorted(codes.items(), key=str))
    lost, doubled, moved = totals
    return (
        f"{name:7} {len(rows):6} {failed:6} {lost:5} {doubled:7} {moved:5}  "
        f"{peak:7.0f}  {seconds:7.0f}  {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
