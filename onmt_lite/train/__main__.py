"""Train a Transformer on sentence pairs: `python -m onmt_lite.train -help`."""

import sys
from collections.abc import Sequence

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.train.options import PROGRAM
from onmt_lite.train.run import train


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, train)


if __name__ == "__main__":
    sys.exit(main())
