"""Training data: sentence pairs, held-out pairs, SentencePiece training, and batches."""

import io
import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.errors import DataError, OptionError, wrap_os_errors
from onmt_lite.system.byte_stream import open_text_stream
from onmt_lite.train.options import DataOptions

Pair = tuple[str, str]  # source line, target line
Example = tuple[list[int], list[int]]  # source ids with </s>, target ids without

PAD, BOS, EOS = 1, 2, 3  # <unk> is 0, as in OpenNMT-py
HELD_OUT = 500  # maximum number of pairs held out without -valid
POOL = 200_000  # pairs that are sorted by length together; larger pools need less padding

# Latin letters with diacritics, Greek and Cyrillic, for names and quoted words
LETTERS = "".join(
    chr(code)
    for first, last in ((0x21, 0x7F), (0xC0, 0x180), (0x391, 0x3CF), (0x410, 0x450))
    for code in range(first, last)
    if unicodedata.is_normalized("NFKC", chr(code))
)
EMOJI = "🙂😀😂😊😍😉😢😭😎🤔👍👎👏🙏💪🎉🎁🎂❤💔⭐🔥✨☀🌧❄🌹🐶🐱🍕🍺☕🚗🚲🏠📞📧📅✅❌⚠➡"
SIGNS = "€£$¥%§&@#*+=→←↑↓•·–—°±×÷©®†✓■★"
COMMON_CHARACTERS = LETTERS + SIGNS + EMOJI

# -- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """Sentence pairs of each training file, and the weight of each file in an epoch.

    Subclasses can sample epochs differently.
    """

    files: list[list[Pair]]
    weights: Sequence[float]

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of all files."""
        return [pair for file in self.files for pair in file]

    def select_subword_pairs(self) -> list[Pair]:
        """Return the pairs on which the SentencePiece model is trained."""
        return self.pairs

    def sample_epoch(self, epoch: int, rng: Random) -> list[Pair]:
        """Return the pairs of an epoch as a new list."""
        return repeat_by_weight(self.files, self.weights, rng)


def repeat_by_weight(
    corpora: list[list[Pair]], weights: Sequence[float], rng: Random
) -> list[Pair]:
    """Repeat each corpus by its weight: 2.3 means twice, plus a random 30 % of the pairs.

    Args:
        corpora: N lists of pairs
        weights: N weights
        rng: samples the fractional parts

    Returns:
        The pairs of all corpora.
    """
    pairs: list[Pair] = []
    for corpus, weight in zip(corpora, weights, strict=True):
        copies, share = divmod(weight, 1)
        pairs += corpus * int(copies)
        pairs += rng.sample(corpus, round(share * len(corpus)))
    return pairs


def read_corpora(data: DataOptions, text_class: type[Text]) -> tuple[Text, list[list[Pair]]]:
    """Read the training text and the pairs of each held-out file.

    Raises:
        FileError: a file cannot be read
        DataError: a file contains no pairs, or a line is not a pair
    """
    files = [read_pairs(path, data.reverse) for path in data.train]
    held_out = [read_pairs(path, data.reverse) for path in data.valid]
    if not held_out:
        files, pairs = hold_out(files)
        held_out = [pairs]
    return text_class(files, data.train_weights or [1.0] * len(files)), held_out


def check_held_out(data: DataOptions, pairs: list[Pair], bleu_pairs: list[Pair]) -> list[str]:
    """Check how reliable the validation scores will be.

    Args:
        data: the data options
        pairs: all training pairs
        bleu_pairs: the held-out pairs on which BLEU is computed

    Returns:
        Notices for the log.
    """
    if not data.valid:
        return [
            "valid: not set, so every 50th pair of train is held out; pairs that share a source "
            "or target line with a held-out pair are removed from train"
        ]
    n_known = sum(map(set(pairs).__contains__, bleu_pairs))
    if not n_known:
        return []
    return [
        f"valid: {n_known} of {len(bleu_pairs)} held-out pairs also occur in train, so validation "
        "scores will be too high"
    ]


def read_lines(path: Path | str) -> list[str]:
    """Read the lines of a UTF-8 file, plain or gzip, without line ends and byte order mark.

    Raises:
        FileError: the file cannot be read
        DataError: the file is not UTF-8
    """
    with wrap_os_errors(f"read {path}"):
        file = open(path, "rb")
    with file:
        stream = open_text_stream(file.fileno(), str(path))
        data = b"".join(iter(lambda: stream.read(2**20), b""))
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        n = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{n}: the line is not UTF-8; convert the file: iconv -f latin1 -t utf-8"
        ) from None
    return [line.removesuffix("\r") for line in lines]


def read_pairs(path: Path | str, reverse: bool = False) -> list[Pair]:
    """Read `source<TAB>target` lines, plain or gzip; `reverse` swaps the sides.

    Empty lines and additional columns are ignored.

    Raises:
        FileError: the file cannot be read
        DataError: a line does not have two columns, or there are no pairs
    """
    pairs: list[Pair] = []
    problems: list[str] = []
    for n, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        src, *rest = (column.strip() for column in line.split("\t")[:2])
        if rest and src and rest[0]:
            pairs.append((rest[0], src) if reverse else (src, rest[0]))
        else:
            problems.append(f"{path}:{n}: the line is not `source<TAB>target`: {line[:40]!r}")
    if problems:
        n_more = f" (and {len(problems) - 1:,} more lines)" if len(problems) > 1 else ""
        raise DataError(
            f"{problems[0]}{n_more}; separate the sides with a TAB or remove the line; "
            "to join two parallel files: paste a.src a.tgt > pairs.tsv"
        )
    if not pairs:
        raise DataError(f"{path}: the file contains no pairs; add `source<TAB>target` lines")
    return pairs


def hold_out(corpora: list[list[Pair]]) -> tuple[list[list[Pair]], list[Pair]]:
    """Hold out every 50th pair, at most HELD_OUT, evenly spaced over the corpora.

    Returns:
        The corpora without the held-out pairs and all pairs that share a source or target line
        with a held-out pair; and the held-out pairs.

    Raises:
        DataError: no training pairs would be left
    """
    pairs = [pair for corpus in corpora for pair in corpus]
    held_out = pick_evenly(pairs, max(1, min(HELD_OUT, len(pairs) // 50)))
    sources, targets = ({pair[side] for pair in held_out} for side in (0, 1))
    rest = [
        [p for p in corpus if p[0] not in sources and p[1] not in targets] for corpus in corpora
    ]
    if not any(rest):
        raise DataError("train: too few distinct pairs to hold some out; set -valid to a file")
    return rest, held_out


def pick_evenly(pairs: list[Pair], at_most: int) -> list[Pair]:
    """Return `at_most` evenly spaced pairs, or all pairs if there are fewer."""
    n = min(at_most, len(pairs))
    return [pairs[i * len(pairs) // n] for i in range(n)]


# -- subwords --------------------------------------------------------------------------------------


def train_sentencepiece(
    pairs: list[Pair], vocab_size: int | None = None, all_characters: bool = False
) -> bytes:
    """Train one SentencePiece unigram model for both languages.

    Each digit is a subword, so that numbers can be copied.

    Args:
        pairs: the training pairs
        vocab_size: number of subwords; by default it grows with the square root of the text length
        all_characters: add subwords for common characters, and bytes for all other characters

    Returns:
        The content of the model file.

    Raises:
        OptionError: vocab_size is larger or smaller than the text allows
    """
    texts = [text for pair in pairs for text in pair]
    min_size = 2 * len(set().union(*texts)) + 300  # characters, and some words
    if all_characters:
        min_size += len(COMMON_CHARACTERS) + 256
    size = vocab_size or max(min_size, round(1.4 * sum(map(len, texts)) ** 0.5))
    model_file = io.BytesIO()
    problems: list[str] = []

    def run() -> None:
        try:
            spm.SentencePieceTrainer.train(
                sentence_iterator=(text for text in texts),  # lets other threads run
                model_writer=model_file,
                vocab_size=size,
                hard_vocab_limit=vocab_size is not None,
                model_type="unigram",
                character_coverage=1.0,
                split_digits=True,
                unk_id=0,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                pad_piece="<blank>",
                byte_fallback=all_characters,
                required_chars=COMMON_CHARACTERS if all_characters else "",
                num_threads=2,
                minloglevel=3,
            )
        except RuntimeError as error:
            problems.append(str(error))

    # Training can take half a minute; the main thread stays free to handle signals
    training = threading.Thread(target=run, daemon=True)
    training.start()
    training.join()
    for problem in problems:
        reason = problem.rpartition("] ")[2]
        if highest := re.search(r"value <= (\d+)", problem):
            reason = f"the text has too few subwords; the largest possible value is {highest[1]}"
        elif lowest := re.search(r"required_chars. \d+ vs (\d+)", problem):
            reason = f"the text has more characters; the smallest possible value is {lowest[1]}"
        raise OptionError(f"vocab_size {size}: {reason}")
    return model_file.getvalue()


# -- batches ---------------------------------------------------------------------------------------


class Epoch(NamedTuple):
    """Unpadded batches of examples, and the number of skipped pairs."""

    batches: list[list[Example]]
    n_skipped: int


@dataclass(frozen=True)
class Epochs:
    """Builds the epoch with a given number: `epochs(number)`.

    Pairs of `max_length` tokens or more are skipped.  Number and seed determine everything except
    the sampled segmentations, because SentencePiece seeds its generator differently in each
    process.
    """

    text: Text
    sp: spm.SentencePieceProcessor
    src_sampling: float
    tgt_sampling: float
    max_length: int
    batch_tokens: int
    seed: int

    def __call__(self, number: int) -> Epoch:
        """Build the batches of an epoch.  Raises DataError if no training pair is left."""
        rng = Random(f"{self.seed} {number}")
        pairs = self.text.sample_epoch(number, rng)
        if not pairs:
            raise DataError("train_weights: an epoch would be empty; use larger weights")
        rng.shuffle(pairs)
        rates = self.src_sampling, self.tgt_sampling
        examples = tokenize(self.sp, pairs, *rates, self.max_length, rng)
        unk = self.sp.unk_id()  # must never be learned as output
        examples = [example for example in examples if unk not in example[1]]
        if not examples:
            raise DataError(
                "train: every target has a character outside the vocabulary; use -all_characters"
            )
        return Epoch(make_batches(examples, self.batch_tokens, rng), len(pairs) - len(examples))


def tokenize(
    sp: spm.SentencePieceProcessor,
    pairs: list[Pair],
    src_rate: float,
    tgt_rate: float,
    max_length: int,
    rng: Random,
) -> list[Example]:
    """Encode pairs as ids, with subword regularization (Kudo 2018).

    Args:
        sp: the SentencePiece model
        pairs: the pairs
        src_rate: fraction of source lines whose segmentation is sampled
        tgt_rate: fraction of target lines whose segmentation is sampled
        max_length: examples of this many tokens or more are dropped
        rng: the source of randomness

    Returns:
        Source ids with </s>, and target ids, of each remaining pair.

    Raises:
        DataError: no pair is shorter than max_length
    """

    def encode(texts: list[str], rate: float) -> list[list[int]]:
        sampled = [rng.random() < rate for _ in texts]
        best = sp.encode(texts)
        return [
            sp.encode(text, enable_sampling=True, alpha=0.3, nbest_size=-1) if s else ids
            for text, ids, s in zip(texts, best, sampled)
        ]

    spm.set_random_generator_seed(rng.randrange(2**31))  # SentencePiece has a separate generator
    srcs = encode([src for src, _ in pairs], src_rate)
    tgts = encode([tgt for _, tgt in pairs], tgt_rate)
    examples = [(src + [EOS], tgt) for src, tgt in zip(srcs, tgts)]
    examples = [example for example in examples if max(map(len, example)) < max_length]
    if not examples:
        raise DataError(
            f"max_positions {max_length}: every training pair is longer; raise max_positions"
        )
    return examples


def make_batches(examples: list[Example], batch_tokens: int, rng: Random) -> list[list[Example]]:
    """Group examples of similar length into batches, in random order.

    Args:
        examples: source and target ids
        batch_tokens: maximum tokens per side and batch, padding included; a batch has at
            least one example
        rng: shuffles the batches

    Returns:
        The batches.
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


@dataclass(frozen=True)
class TrainBatch:
    """A batch of token ids (int64), padded with PAD."""

    src: Tensor  # (B, S)
    src_lengths: Tensor  # (B,)
    tgt_in: Tensor  # (B, T), with BOS
    tgt_out: Tensor  # (B, T), with EOS

    @property
    def n_tokens(self) -> int:
        """Number of target tokens, EOS included."""
        return int((self.tgt_out != PAD).sum())


def pad_batch(batch: list[Example]) -> TrainBatch:
    """Pad examples to tensors (B, S) and (B, T)."""

    def pad(ids: list[list[int]]) -> Tensor:
        width = max(map(len, ids))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in ids])

    return TrainBatch(
        pad([src for src, _ in batch]),
        torch.tensor([len(src) for src, _ in batch]),
        pad([[BOS, *tgt] for _, tgt in batch]),
        pad([[*tgt, EOS] for _, tgt in batch]),
    )


def make_held_out_batches(
    sp: spm.SentencePieceProcessor, pairs: list[Pair], max_length: int, batch_tokens: int
) -> list[TrainBatch]:
    """Build padded validation batches with the best segmentation of each line.

    Args:
        sp: the SentencePiece model
        pairs: the held-out pairs
        max_length: pairs of this many tokens or more are dropped
        batch_tokens: maximum tokens per side and batch, padding included

    Returns:
        The batches.
    """
    examples = tokenize(sp, pairs, 0, 0, max_length, Random(0))
    return list(map(pad_batch, make_batches(examples, batch_tokens, Random(0))))
