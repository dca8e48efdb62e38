"""Compare the speed of systems: `python -m onmt_lite.bench -help`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from onmt_lite.config.environment import prepare_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onmt_lite.bench.options import Options


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a run with these words, those of the command line by default."""
    environment = dict(os.environ)  # as the user has it: other systems run in this one
    prepare_environment("yaml")
    # Imported late: what follows needs the package
    from onmt_lite.bench.options import PROGRAM, load_bench_options
    from onmt_lite.config.cli import run_program

    def run(options: Options) -> None:
        prepare_environment()
        bench(options, environment)

    return run_program(argv, PROGRAM, load_bench_options, run)


def bench(options: Options, environment: Mapping[str, str]) -> dict[str, Any]:
    """Compare, print and write; returned is what the JSON file has."""
    import tempfile
    from pathlib import Path

    from onmt_lite.bench.compare import compare
    from onmt_lite.bench.report import LEGEND, chart_of, machine, setting_of, workload_tables
    from onmt_lite.bench.workloads import check_files, make_workload
    from onmt_lite.config.cli import print_out, save

    given = options.bench
    check_files(options)  # before minutes are spent
    workloads: dict[str, Any] = {}
    record = {**machine(environment), "threads": options.n_threads, "beam_size": given.beam_size}
    record["workloads"] = workloads
    print_out(setting_of(record) + "\n\n")
    for name in given.workload if given.model is None else ("given",):
        with tempfile.TemporaryDirectory(prefix="onmt_lite.bench.") as folder:
            workload = make_workload(name, given, Path(folder))
            workloads[name] = compare(workload, options, environment, Path(folder))
        print_out(workload_tables(record, name) + "\n\n")
    print_out(LEGEND + "\n")
    if options.output.json is not None:
        save(json_of(record), options.output.json)
    if options.output.svg is not None:
        save(chart_of(record), options.output.svg)
    return record


def json_of(record: dict[str, Any]) -> str:
    import json

    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
