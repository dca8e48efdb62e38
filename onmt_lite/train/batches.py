"""Batches of each epoch: pairs are tokenized, grouped by length and padded."""

import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random
from typing import NamedTuple

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.config.console import ignore_signals
from onmt_lite.errors import DataError
from onmt_lite.train.data import BOS, EOS, PAD, Pair, Text

Example = tuple[list[int], list[int]]  # ids of the source with </s>, and of the target

POOL = 200_000  # pairs sorted by length together: the more, the less padding


class Epoch(NamedTuple):
    """Batches of examples, not padded yet, and the number of pairs that are in none of them."""

    batches: list[list[Example]]
    n_left_out: int


@dataclass(frozen=True)
class Epochs:
    """Makes any epoch: `epochs(number)`.

    Number and seed decide everything but the random segmentations: sentencepiece draws these from
    a generator that each process seeds differently.

    max_length  in tokens; longer pairs are left out
    """

    text: Text
    sp: spm.SentencePieceProcessor
    src_sampling: float
    tgt_sampling: float
    max_length: int
    batch_tokens: int
    seed: int

    def __call__(self, number: int) -> Epoch:
        """Raises DataError if nothing is left to learn from."""
        rng = Random(f"{self.seed} {number}")
        pairs = self.text.of_epoch(number, rng)
        if not pairs:
            raise DataError("train_weights leave no pair for an epoch; give larger ones")
        examples = tokenize(self.sp, pairs, self.src_sampling, self.tgt_sampling, rng)
        examples = fitting(examples, self.max_length)
        unk = self.sp.unk_id()  # never to be learned as an output
        examples = [example for example in examples if unk not in example[1]]
        if not examples:
            raise DataError(
                "every target has a character without a piece; train a new model with "
                "-all_characters"
            )
        return Epoch(group(examples, self.batch_tokens, rng), len(pairs) - len(examples))


def tokenize(
    sp: spm.SentencePieceProcessor, pairs: list[Pair], src_rate: float, tgt_rate: float, rng: Random
) -> list[Example]:
    """Encode pairs as ids, a share of each side segmented at random (Kudo 2018)."""

    def encode(texts: list[str], rate: float) -> list[list[int]]:
        sampled = [rng.random() < rate for _ in texts]
        best = sp.encode(texts)
        return [
            sp.encode(text, enable_sampling=True, alpha=0.3, nbest_size=-1) if s else ids
            for text, ids, s in zip(texts, best, sampled)
        ]

    spm.set_random_generator_seed(rng.randrange(2**31))  # sentencepiece draws for itself
    srcs = encode([src for src, _ in pairs], src_rate)
    tgts = encode([tgt for _, tgt in pairs], tgt_rate)
    return [(src + [EOS], tgt) for src, tgt in zip(srcs, tgts)]


def fitting(examples: list[Example], max_positions: int) -> list[Example]:
    """Examples shorter than `max_positions` tokens.  Raises DataError if there are none."""
    kept = [e for e in examples if max(map(len, e)) < max_positions]
    if not kept:
        raise DataError(f"every pair is longer than max_positions {max_positions}")
    return kept


def group(examples: list[Example], batch_tokens: int, rng: Random) -> list[list[Example]]:
    """Group examples of like length into batches, in random order.

    A batch has at most `batch_tokens` padded tokens a side, and at least one example.
    """
    batches: list[list[Example]] = []
    for start in range(0, len(examples), POOL):
        pool = sorted(examples[start : start + POOL], key=lambda e: (len(e[1]), len(e[0])))
        batch: list[Example] = []
        widest = 0
        for example in pool:
            width = max(len(example[0]), len(example[1]) + 1)
            if batch and max(widest, width) * (len(batch) + 1) > batch_tokens:
                batches.append(batch)
                batch, widest = [], 0
            batch.append(example)
            widest = max(widest, width)
        batches.append(batch)
    rng.shuffle(batches)
    return batches


# -- padding --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainBatch:
    """src (B, S), src_lengths (B,), tgt_in and tgt_out (B, T); tgt padding is PAD."""

    src: Tensor
    src_lengths: Tensor
    tgt_in: Tensor
    tgt_out: Tensor

    @property
    def n_tokens(self) -> int:
        """Target tokens, each of which has a loss."""
        return int((self.tgt_out != PAD).sum())


def pad_batch(batch: list[Example]) -> TrainBatch:
    return TrainBatch(
        _pad([src for src, _ in batch]),
        torch.tensor([len(src) for src, _ in batch]),
        _pad([[BOS, *tgt] for _, tgt in batch]),
        _pad([[*tgt, EOS] for _, tgt in batch]),
    )


def _pad(ids: list[list[int]]) -> Tensor:
    width = max(map(len, ids))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in ids])


def held_out_batches(
    sp: spm.SentencePieceProcessor, pairs: list[Pair], max_length: int, batch_tokens: int
) -> list[TrainBatch]:
    """Padded batches of pairs in their usual segmentation; those that are too long are left out."""
    examples = fitting(tokenize(sp, pairs, 0, 0, Random(0)), max_length)
    return list(map(pad_batch, group(examples, batch_tokens, Random(0))))


# -- in another process ---------------------------------------------------------------------------


def one_ahead(make: Callable[[int], Epoch], first: int) -> Iterator[Epoch]:
    """Yield `make(first)`, `make(first + 1)`, ..., each made while the caller uses the one before.

    Another process makes them.  Raises DataError if `make` does, or if that process has died.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork may deadlock in torch's threads
    pipe, far_end = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(make, far_end), daemon=True)
    process.start()
    far_end.close()  # so that the end of the process ends the pipe
    try:
        pipe.send(first)
        for number in itertools.count(first):
            epoch = pipe.recv()
            if isinstance(epoch, DataError):
                raise epoch
            pipe.send(number + 1)
            yield epoch
    except (EOFError, OSError):
        raise DataError(
            "the process that prepares epochs is gone; train without -prepare"
        ) from None
    finally:
        process.kill()
        process.join()


def _serve(make: Callable[[int], Epoch], pipe: Connection) -> None:
    """Make epochs until the other end is closed.  The parent process handles signals.

    Sends the DataError in place of an epoch that cannot be made.
    """
    ignore_signals()
    with suppress(EOFError, OSError):
        while True:
            number = pipe.recv()
            try:
                pipe.send(make(number))
            except DataError as error:
                pipe.send(error)
