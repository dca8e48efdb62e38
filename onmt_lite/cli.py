"""What every program of the project does around its work: help, errors, signals, exit codes."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from onmt_lite.errors import OnmtLiteError, OptionError
from onmt_lite.interrupt import Interrupted, stop_on_signals
from onmt_lite.schema import MetaOptions, Option, Resolved, help_text

T = TypeVar("T")


def run_program(
    argv: Sequence[str],
    options: dict[str, Option],
    usage: str,
    load: Callable[[Sequence[str]], tuple[T, Resolved]],
    run: Callable[[T], None],
) -> int:
    """Returns the exit code.

    0 done, 2 options, 3 input, 4 model, 5 files, 6 out of memory, 128+N stopped by signal N.
    """
    if {"-help", "--help", "-h"} & set(argv):
        print(help_text(options, usage))
        return 0
    # torch works without numpy and says at length that it is missing
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        stop_on_signals()
        loaded, resolved = load(argv)
        if resolved.values["print_config"]:
            print(resolved.without(MetaOptions).to_yaml(), end="")
        else:
            run(loaded)
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
