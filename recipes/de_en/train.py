"""Train on texts in turn: `python -m recipes.de_en.train`, the trainer with one file an epoch.

`recipes.de_en.text` makes the text anew for each epoch, a file each.  Epoch 0 learns from the first
file of `-train`, epoch 1 from the second, and so on, round and round.
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
from onmt_lite.train.trainer import train

USAGE = """\
-train EPOCH.tsv EPOCH.tsv ... -valid PAIRS.tsv -output DIR -train_minutes N [options]

Trains as onmt_lite.train does, but an epoch has the pairs of one training file, each file in its
turn.  The pieces are made of the words of the first file."""


class InTurn(Text):
    """Text of which an epoch has one file."""

    def select_subword_pairs(self) -> list[Pair]:
        return self.files[0]

    def sample_epoch(self, epoch: int, rng: Random) -> list[Pair]:
        return list(self.files[epoch % len(self.files)])


def build_options(resolved: Resolved) -> TrainOptions:
    """Raises OptionError with all problems."""
    options = training.build_options(resolved)
    problems = []
    if not options.data.valid:
        problems.append("valid is missing: no file may lack pairs that another has; give a path")
    if options.data.train_weights:
        problems.append("train_weights: each epoch has one file, once; leave train_weights out")
    if problems:
        raise OptionError(*problems)
    return options


PROGRAM = replace(training.PROGRAM, usage=USAGE, build=build_options)
load_in_turn_options = PROGRAM.load


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, partial(train, text=InTurn))


if __name__ == "__main__":
    sys.exit(main())
