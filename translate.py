#!/usr/bin/env python
"""Translate files from the command line; `python translate.py -help` lists the options."""

import sys
from collections.abc import Sequence

from onmt_lite.cli import run_program
from onmt_lite.options import OPTIONS, USAGE, TranslateOptions, load_options


def run(options: TranslateOptions) -> None:
    from onmt_lite.job import run_job  # loads torch, which bad options need not wait for

    run_job(options)


def main(argv: Sequence[str]) -> int:
    return run_program(argv, OPTIONS, USAGE, load_options, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
