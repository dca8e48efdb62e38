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
from benchmarks.report import LEGEND, machine, setting_of, workload_tables
from benchmarks.workloads import make_workload, read_lines


def parse(argv: Sequence[str]) -> Namespace:
    """Parse the options.  Raises SystemExit with code 2 if they are wrong."""
    usage = "python -m benchmarks [-workload NAME ...] [options]"
    about = """Translate the same lines with the same weights and beam in onmt_lite, CTranslate2
        and transformers, as far as they are installed, in alternating runs on the CPU."""
    made = argparse.ArgumentParser("benchmarks", usage, about, add_help=False, allow_abbrev=False)
    add = made.add_argument
    names, peers = ("base", "tiny", "shipped"), ("ctranslate2", "transformers")
    add("-help", "-h", action="help", help="show this help and exit")
    add("-workload", nargs="+", choices=names, default=names, help="compare on these")
    add("-src", metavar="FILE", help="lines for the shipped model")
    add("-tgt", metavar="FILE", help="their references, for BLEU; needs sacrebleu")
    add("-against", nargs="*", choices=peers, default=peers, help="compare with these")
    add("-beam_size", type=positive, default=5, help="search with this beam in all systems")
    add("-threads", type=positive, help="processors of each system; by default, all there are")
    add("-rounds", type=positive, default=3, help="run each system so many times")
    add("-lines", type=positive, help="translate no more than the first lines of each workload")
    add("-json", metavar="FILE", help="write each run to this file")
    options = made.parse_args(argv)
    if options.tgt and not options.src:
        made.error("-tgt needs the lines that it translates, -src")
    return options


def positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv)
    read_lines(options)  # an unreadable file ends the program before minutes are spent
    if options.json:
        Path(options.json).touch()
    environment = dict(os.environ)
    threads = options.threads or len(os.sched_getaffinity(0))
    record: dict[str, Any] = machine()
    record |= {"threads": threads, "beam_size": options.beam_size, "workloads": {}}
    print(setting_of(record), end="\n\n")
    for name in options.workload:
        with tempfile.TemporaryDirectory(prefix="benchmarks.") as folder:
            print(f"{name}:", file=sys.stderr)
            workload = make_workload(name, options, Path(folder))
            record["workloads"][name] = compare(workload, folder, threads, options, environment)
        print(workload_tables(record, name), end="\n\n", flush=True)
    print(LEGEND)
    if options.json:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
