#!/usr/bin/env python
"""Translate files from the command line; `python translate.py -help` lists the options."""

import sys
from collections.abc import Sequence

from onmt_lite.cli import print_out, run_program
from onmt_lite.options import OPTIONS, USAGE, TranslateOptions, load_options


def run(options: TranslateOptions) -> None:
    # It loads torch, which bad options need not wait for
    from onmt_lite.job import describe_models, run_job

    if options.information.print_model:
        print_out(describe_models(options))
    else:
        run_job(options)


def main(argv: Sequence[str]) -> int:
    return run_program(argv, OPTIONS, USAGE, load_options, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
