#!/usr/bin/env python
"""Translate files from the command line; `python translate.py -help` lists the options."""

import os
import sys

from onmt_lite.errors import OnmtLiteError, OptionError
from onmt_lite.interrupt import Interrupted, stop_on_signals
from onmt_lite.options import MetaOptions, load_options, print_help


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 2 options, 3 input, 4 model, 5 files, 6 memory, 128+N signal N."""
    if {"-help", "--help", "-h"} & set(argv):
        print_help()
        return 0
    try:
        stop_on_signals()
        options, resolved = load_options(argv)
        if options.meta.print_config:
            print(resolved.without(MetaOptions).to_yaml(), end="")
            return 0
        from onmt_lite.job import run_job  # loads torch, which bad options need not wait for

        run_job(options)
    except OnmtLiteError as error:
        problems = error.problems if isinstance(error, OptionError) else (str(error),)
        for problem in problems:
            print(f"onmt_lite: error: {' '.join(problem.split())}", file=sys.stderr)
        return error.exit_code
    except Interrupted as interrupted:
        # The interpreter must not flush into a pipe that nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return interrupted.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
