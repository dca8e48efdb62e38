"""Translate on a cluster: `python -m onmt_lite.ray -help`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from onmt_lite.system.resources import prepare_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onmt_lite.ray.options import RayOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job and return its exit code; `argv` defaults to the command line."""
    prepare_environment("yaml")
    # After the check that required packages are installed
    from onmt_lite.config.cli import run_program
    from onmt_lite.ray.options import PROGRAM

    return run_program(argv, PROGRAM, translate)


def translate(options: RayOptions) -> None:
    """Translate files on a cluster."""
    prepare_environment()
    from onmt_lite.ray.job import run_job

    run_job(options)


if __name__ == "__main__":
    sys.exit(main())
