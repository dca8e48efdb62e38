"""Train with one file per epoch: `python -m recipes.de_en.train`.

`recipes.de_en.text` writes one file for each epoch.  Epoch 0 trains on the first file of `-train`,
epoch 1 on the second, and so on, starting over after the last file.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.config.sources import Resolved
from onmt_lite.errors import OptionError
from onmt_lite.train import options as training
from onmt_lite.train.data import Pair, Text
from onmt_lite.train.options import TrainOptions
from onmt_lite.train.run import train

USAGE = """\
-train EPOCH.tsv EPOCH.tsv ... -valid PAIRS.tsv -output DIR -train_minutes N [options]

Like onmt_lite.train, but each epoch uses the next training file. The subword model is trained
on the first file."""


class InTurn(Text):
    """Training text with one file per epoch."""

    def select_subword_pairs(self) -> list[Pair]:
        """Return the pairs of the first file."""
        return self.files[0]

    def sample_epoch(self, epoch: int, rng: Random) -> list[Pair]:
        """Return the pairs of the epoch's file."""
        return list(self.files[epoch % len(self.files)])


def build_options(resolved: Resolved) -> TrainOptions:
    """Build the training options.  Raises OptionError if some are not supported."""
    options = training.build_options(resolved)
    problems = []
    if not options.data.valid:
        problems.append("valid: is missing; set it to a file of pairs")
    if options.data.train_weights:
        problems.append("train_weights: is not supported with one file per epoch; remove it")
    if problems:
        raise OptionError(*problems)
    return options


PROGRAM = replace(training.PROGRAM, usage=USAGE, build=build_options)
load_in_turn_options = PROGRAM.load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, partial(train, text=InTurn))


if __name__ == "__main__":
    sys.exit(main())
