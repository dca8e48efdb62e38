"""The batches of each epoch: drawn and tokenized here or in another process."""

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random

import sentencepiece as spm

from onmt_lite.config.interrupt import SIGNALS
from onmt_lite.errors import DataError
from onmt_lite.train.data import Example, Pair, fitting, group, tokenize, weighted

Batches = list[list[Example]]


@dataclass(frozen=True)
class Epochs:
    """Makes the batches of any epoch: `epochs(number)`.

    Number and seed decide everything but the random segmentations: sentencepiece draws these from
    a generator that each process seeds differently.

    corpora     the pairs of each file
    weights     how often an epoch has the pairs of each file
    in_turn     epoch n has the pairs of file n alone, counted from 0 and round and round
    same        pairs of equal sides, of which an epoch has `same_lines`
    max_length  in tokens; longer pairs are left out
    """

    corpora: list[list[Pair]]
    weights: Sequence[float]
    in_turn: bool
    same: list[Pair]
    same_lines: int
    sp: spm.SentencePieceProcessor
    src_sampling: float
    tgt_sampling: float
    max_length: int
    batch_tokens: int
    seed: int

    def dice(self, epoch: int) -> Random:
        return Random(f"{self.seed} {epoch}")

    def n_left_out(self, epoch: int, batches: Batches) -> int:
        """How many pairs of an epoch are not in its batches."""
        return len(self.pairs(epoch, self.dice(epoch))) - sum(map(len, batches))

    def pairs(self, epoch: int, rng: Random) -> list[Pair]:
        """The text of one epoch, shuffled."""
        if self.in_turn:
            pairs = list(self.corpora[epoch % len(self.corpora)])
        else:
            pairs = weighted(self.corpora, self.weights, rng)
        pairs += rng.sample(self.same, min(self.same_lines, len(self.same)))
        rng.shuffle(pairs)
        return pairs

    def __call__(self, epoch: int) -> Batches:
        """Raises DataError where nothing is left to learn from."""
        rng = self.dice(epoch)
        pairs = self.pairs(epoch, rng)
        if not pairs:
            raise DataError("train_weights leave no pair for an epoch; give larger ones")
        examples = tokenize(self.sp, pairs, self.src_sampling, self.tgt_sampling, rng)
        examples = fitting(examples, self.max_length)
        unk = self.sp.unk_id()  # never to be learned as something to say
        examples = [example for example in examples if unk not in example[1]]
        if not examples:
            raise DataError("every target has a character without a piece; give -all_characters")
        return group(examples, self.batch_tokens, rng)


def one_ahead(make: Callable[[int], Batches], first: int) -> Iterator[Batches]:
    """Yield `make(first)`, `make(first + 1)`, ..., each made while the caller uses the one before.

    Another process makes them.  Raises DataError where `make` does, or that process has died.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork may deadlock in torch's threads
    pipe, far_end = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(make, far_end), daemon=True)
    process.start()
    far_end.close()  # so that the end of the process ends the pipe
    try:
        pipe.send(first)
        for epoch in itertools.count(first):
            batches = pipe.recv()
            if isinstance(batches, DataError):
                raise batches
            pipe.send(epoch + 1)
            yield batches
    except (EOFError, OSError):
        raise DataError(
            "the process that prepares epochs is gone; train without -prepare"
        ) from None
    finally:
        process.kill()
        process.join()


def _serve(make: Callable[[int], Batches], pipe: Connection) -> None:
    """Make epochs until the other end is closed.  The parent process handles signals.

    In place of an epoch that cannot be made it sends the DataError that says why.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            epoch = pipe.recv()
            try:
                pipe.send(make(epoch))
            except DataError as error:
                pipe.send(error)
