"""The batches of each epoch: drawn, changed and tokenized here or in a process beside."""

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random

import sentencepiece as spm

from onmt_lite.errors import DataError
from onmt_lite.training.augment import Augment
from onmt_lite.training.data import Example, fitting, group, tokenize, weighted
from onmt_lite.training.words import Pair

Batches = list[list[Example]]


@dataclass(frozen=True)
class Epochs:
    """Makes any epoch of a run from its number and the seed alone, but for the segmentations that
    are drawn by sentencepiece, which starts from elsewhere in each process.

    `corpora` are the pairs of each file, `weights` how often an epoch has them, `same` pairs of
    equal sides, of which it has `same_lines`; `max_length` is in tokens.
    """

    corpora: list[list[Pair]]
    weights: Sequence[float]
    same: list[Pair]
    same_lines: int
    augment: Augment
    sp: spm.SentencePieceProcessor
    src_sampling: float
    tgt_sampling: float
    max_length: int
    batch_tokens: int
    seed: int

    def pairs(self, rng: Random) -> list[Pair]:
        """The text of one epoch."""
        pairs = weighted(self.corpora, self.weights, rng)
        pairs += rng.sample(self.same, min(self.same_lines, len(self.same)))
        return self.augment(pairs, rng)

    def __call__(self, epoch: int) -> Batches:
        rng = Random(f"{self.seed} {epoch}")
        examples = tokenize(self.sp, self.pairs(rng), self.src_sampling, self.tgt_sampling, rng)
        unk = self.sp.unk_id()  # never to be learned as something to say
        examples = fitting([e for e in examples if unk not in e[1]], self.max_length)
        return group(examples, self.batch_tokens, rng)


def one_ahead(make: Callable[[int], Batches], first: int) -> Iterator[Batches]:
    """`make(first)`, `make(first + 1)`, ...; each made in another process while the caller works
    with the one before.  DataError where that process is gone."""
    spawn = multiprocessing.get_context("spawn")  # a fork may deadlock in torch's threads
    pipe, far_end = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(make, far_end), daemon=True)
    process.start()
    far_end.close()  # so that the end of the process ends the pipe
    try:
        pipe.send(first)
        for epoch in itertools.count(first):
            batches = pipe.recv()
            pipe.send(epoch + 1)
            yield batches
    except (EOFError, OSError):
        raise DataError(
            "the process that prepares epochs is gone; train without -prepare"
        ) from None
    finally:
        process.terminate()
        process.join()


def _serve(make: Callable[[int], Batches], pipe: Connection) -> None:
    """Until the other end is closed.  A Ctrl-C in the terminal is the other process's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(make(pipe.recv()))
