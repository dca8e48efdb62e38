"""Translate from the command line: `onmt_lite`, `python -m onmt_lite`, `translate.py`."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from onmt_lite.system.resources import check_memory, prepare_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onmt_lite.config.options import TranslateOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the translator.

    Args:
        argv: Words after the command (default: sys.argv).

    Returns:
        The exit code.
    """
    early: list[int] = []  # signals that arrive while modules are imported
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: early.append(number))
    prepare_environment()
    # Imported here, after the environment is prepared
    from onmt_lite.config.cli import run_program
    from onmt_lite.config.options import PROGRAM
    from onmt_lite.system.terminal import ignore_signals

    code = run_program(argv, PROGRAM, lambda options: translate(options, early))
    ignore_signals()  # the output is complete, or the error has been printed
    return code


def translate(options: TranslateOptions, early: Sequence[int] = ()) -> None:
    """Translate, or print model information.

    Args:
        options: The options.
        early: Signals received during start-up; the first signal stops the program.

    Raises:
        OnmtLiteError: The job fails.
        Interrupted: A signal arrives.
    """
    check_memory()
    # Imported here so that errors in options are reported without importing torch
    from onmt_lite.system.terminal import CONSOLE, Interrupted, is_typed

    if options.information.print_model:
        if early:
            raise Interrupted(early[0])
        print_models(options)
        return
    try:
        if early:
            raise Interrupted(early[0])
        if is_typed(options.data.src) and not options.jobs.quiet:
            print("loading the model ...", file=CONSOLE)
        from onmt_lite.jobs.job import run_job

        run_job(options).check()
    except Interrupted as stop:
        if not stop.status:  # the job has not started
            from onmt_lite.jobs.job import attach_initial_state

            attach_initial_state(stop, options)
        raise


def print_models(options: TranslateOptions) -> None:
    """Print a description of each model and its tokenizer."""
    from onmt_lite.checkpoints.checkpoint import describe
    from onmt_lite.checkpoints.loading import load_checkpoint
    from onmt_lite.checkpoints.shipped import get_model_paths
    from onmt_lite.config.files import write_text
    from onmt_lite.inference.loading import tokenizer_from_options, with_tokenizer

    tokenizer, options = tokenizer_from_options(options), options.with_models()
    models = [
        (with_tokenizer(load_checkpoint(p), options, tokenizer), p)
        for p in get_model_paths(options.model.model)
    ]
    write_text("\n".join(describe(model, str(path)) for model, path in models))


def train() -> int:
    """Run the command `onmt_lite_train`."""
    prepare_environment()
    from onmt_lite.train.__main__ import main

    return main()


def export() -> int:
    """Run the command `onmt_lite_export`."""
    prepare_environment()
    from onmt_lite.export import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
