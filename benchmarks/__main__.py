"""Compare the speed of systems: `python -m benchmarks -help`."""

import argparse
import json
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import compare
from benchmarks.report import (
    LEGEND,
    describe_machine,
    format_machine,
    format_phases,
    format_workload,
    name_record,
    read_records,
)
from benchmarks.workloads import make_workload, read_lines

LIMITED_TO_AVX2 = {
    "ONMT_LITE_KERNELS": "avx2",
    "CT2_FORCE_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def parse(argv: Sequence[str]) -> Namespace:
    """Parse the options.  Raises SystemExit with code 2 if they are invalid."""
    usage = "python -m benchmarks [-workload NAME ...] [options]"
    about = """Translate the same lines with the same weights and beam size in onmt_lite,
        CTranslate2 and transformers (if installed), in alternating runs on the CPU."""
    parser = argparse.ArgumentParser("benchmarks", usage, about, add_help=False, allow_abbrev=False)
    add = parser.add_argument
    names, peers = ("base", "tiny", "shipped"), ("ctranslate2", "transformers")
    add("-help", "-h", action="help", help="Show this help and exit")
    add("-workload", nargs="+", choices=names, default=names, help="Workloads (default: all)")
    add("-src", metavar="FILE", help="Source lines for the shipped model")
    add("-tgt", metavar="FILE", help="References of src, for BLEU; needs sacrebleu")
    add("-against", nargs="*", choices=peers, default=peers, help="Other systems (default: all)")
    add("-beam_size", type=parse_positive, default=5, help="Beam size of all systems (default: 5)")
    add("-threads", type=parse_positive, help="CPU cores per system (default: all)")
    add("-rounds", type=parse_positive, default=3, help="Runs of each system (default: 3)")
    add("-lines", type=parse_positive, help="Use only the first N lines of each workload")
    add("-isa", choices=("avx2",), help="Limit all systems to this instruction set")
    add("-json", metavar="FILE", help="Add all measurements to this file")
    options = parser.parse_args(argv)
    if options.tgt and not options.src:
        parser.error("-tgt: requires -src, the source lines of these references")
    return options


def parse_positive(text: str) -> int:
    """Parse a positive integer.  Raises ValueError for any other text."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    read_lines(options)  # fail early if a file cannot be read
    if options.isa:
        os.environ.update(LIMITED_TO_AVX2)
    if options.json:
        Path(options.json).touch()
    environment = dict(os.environ)
    threads = options.threads or len(os.sched_getaffinity(0))
    record: dict[str, Any] = describe_machine()
    record |= {"threads": threads, "beam_size": options.beam_size, "workloads": {}}
    print(format_machine(record), end="\n\n")
    for name in options.workload:
        with tempfile.TemporaryDirectory(prefix="benchmarks.") as directory:
            print(f"{name}:", file=sys.stderr)
            workload = make_workload(name, options, Path(directory))
            record["workloads"][name] = compare(workload, directory, threads, options, environment)
        print(format_workload(record, name), end="\n\n")
        print(format_phases(record["workloads"][name]), end="\n\n", flush=True)
    print(LEGEND)
    if options.json:
        path = Path(options.json)
        records = read_records(path) if path.stat().st_size else {}
        records[name_record(record)] = record
        text = json.dumps(records, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
