"""Text to learn from: files of pairs, held-out pairs, pieces, and the batches of each epoch."""

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
from onmt_lite.system.byte_stream import text_stream
from onmt_lite.train.options import DataOptions

Pair = tuple[str, str]  # a source line and its translation
Example = tuple[list[int], list[int]]  # ids of a source with </s>, and of its target

PAD, BOS, EOS = 1, 2, 3  # <unk> is 0, as in OpenNMT-py
HELD_OUT = 500
POOL = 200_000  # pairs that are sorted by length together; more leave less padding

# Latin letters with their marks, Greek and Cyrillic, for names and quoted words
LETTERS = "".join(
    chr(code)
    for first, last in ((0x21, 0x7F), (0xC0, 0x180), (0x391, 0x3CF), (0x410, 0x450))
    for code in range(first, last)
    if unicodedata.is_normalized("NFKC", chr(code))
)
EMOJI = "🙂😀😂😊😍😉😢😭😎🤔👍👎👏🙏💪🎉🎁🎂❤💔⭐🔥✨☀🌧❄🌹🐶🐱🍕🍺☕🚗🚲🏠📞📧📅✅❌⚠➡"
SIGNS = "€£$¥%§&@#*+=→←↑↓•·–—°±×÷©®†✓■★"
COMMON_CHARACTERS = LETTERS + SIGNS + EMOJI

# -- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """Pairs of each training file, and how many times an epoch has them.

    A subclass may choose the pairs of an epoch in another way.
    """

    files: list[list[Pair]]
    weights: Sequence[float]

    @property
    def pairs(self) -> list[Pair]:
        """Pairs of all files."""
        return [pair for file in self.files for pair in file]

    def select_subword_pairs(self) -> list[Pair]:
        """Return the pairs whose words become pieces."""
        return self.pairs

    def sample_epoch(self, epoch: int, rng: Random) -> list[Pair]:
        """Return the pairs of an epoch in a new list."""
        return repeat_by_weight(self.files, self.weights, rng)


def repeat_by_weight(
    corpora: list[list[Pair]], weights: Sequence[float], rng: Random
) -> list[Pair]:
    """Return each corpus as many times as its weight says: with 2.3 twice, and a random 30 %."""
    pairs: list[Pair] = []
    for corpus, weight in zip(corpora, weights, strict=True):
        copies, share = divmod(weight, 1)
        pairs += corpus * int(copies)
        pairs += rng.sample(corpus, round(share * len(corpus)))
    return pairs


def read_corpora(data: DataOptions, kind: type[Text]) -> tuple[Text, list[list[Pair]]]:
    """Read the text to learn from, and the pairs of each held-out file.

    Raises FileError or DataError if a file cannot be read or holds no pairs.
    """
    files = [read_pairs(path, data.reverse) for path in data.train]
    held_out = [read_pairs(path, data.reverse) for path in data.valid]
    if not held_out:
        files, pairs = hold_out(files)
        held_out = [pairs]
    return kind(files, data.train_weights or [1.0] * len(files)), held_out


def check_held_out(data: DataOptions, pairs: list[Pair], shown: list[Pair]) -> list[str]:
    """Return notes on how far the scores of the `shown` held-out pairs can be trusted."""
    if not data.valid:
        return [
            "without -valid, every fiftieth pair of train is held out; pairs that share a side "
            "with one of them are left out"
        ]
    n_known = sum(map(set(pairs).__contains__, shown))
    told = f"{n_known} of {len(shown)} held-out pairs are in train too: their scores tell little"
    return [told] if n_known else []


def read_lines(path: Path | str) -> list[str]:
    """Read the lines of a UTF-8 file, plain or gzip, without line ends and byte order mark.

    Raises FileError if the file cannot be read, DataError if its content is not text.
    """
    with wrap_os_errors(f"read {path}"):
        file = open(path, "rb")
    with file:
        stream = text_stream(file.fileno(), str(path))
        data = b"".join(iter(lambda: stream.read(2**20), b""))
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        n = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{n}: not utf-8; convert the file: iconv -f latin1 -t utf-8"
        ) from None
    return [line.removesuffix("\r") for line in lines]


def read_pairs(path: Path | str, reverse: bool = False) -> list[Pair]:
    """Read `src<TAB>tgt` lines, plain or gzip; `reverse` swaps the sides.

    Blank lines and further columns are skipped.  Raises FileError if the file cannot be read,
    DataError for a line without two columns.
    """
    pairs: list[Pair] = []
    wrong: list[str] = []
    for n, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        src, *rest = (column.strip() for column in line.split("\t")[:2])
        if rest and src and rest[0]:
            pairs.append((rest[0], src) if reverse else (src, rest[0]))
        else:
            wrong.append(f"{path}:{n}: not a `source<TAB>target` line: {line[:40]!r}")
    if wrong:
        others = f" (and {len(wrong) - 1:,} more lines)" if len(wrong) > 1 else ""
        raise DataError(
            f"{wrong[0]}{others}; put a TAB between the sides or remove the line; "
            "two files that match line by line: paste a.src a.tgt > pairs.tsv"
        )
    if not pairs:
        raise DataError(f"{path} holds no pairs; give `source<TAB>target` lines")
    return pairs


def hold_out(corpora: list[list[Pair]]) -> tuple[list[list[Pair]], list[Pair]]:
    """Hold out every fiftieth pair, at most HELD_OUT, at equal distances over the corpora.

    Returns the corpora without these pairs and without pairs that share a side with one of them,
    then the pairs held out.  Raises DataError if nothing would be left to learn from.
    """
    pairs = [pair for corpus in corpora for pair in corpus]
    held_out = pick_evenly(pairs, max(1, min(HELD_OUT, len(pairs) // 50)))
    sources, targets = ({pair[side] for pair in held_out} for side in (0, 1))
    rest = [
        [p for p in corpus if p[0] not in sources and p[1] not in targets] for corpus in corpora
    ]
    if not any(rest):
        raise DataError("train: too few different pairs to hold some out; name others with -valid")
    return rest, held_out


def pick_evenly(pairs: list[Pair], at_most: int) -> list[Pair]:
    """Return `at_most` pairs at equal distances, or all pairs if there are fewer."""
    n = min(at_most, len(pairs))
    return [pairs[i * len(pairs) // n] for i in range(n)]


# -- pieces ---------------------------------------------------------------------------------------


def train_sentencepiece(
    pairs: list[Pair], vocab_size: int | None = None, all_characters: bool = False
) -> bytes:
    """Train one sentencepiece unigram model for both languages, and return its file's content.

    Each digit is a piece, so that numbers can be copied.  `all_characters` adds pieces for common
    characters, and for the bytes of all others.  Without `vocab_size` the number of pieces grows
    with the square root of the text's length.  Raises OptionError if the text gives fewer pieces
    than `vocab_size`, or needs more.
    """
    texts = [text for pair in pairs for text in pair]
    least = 2 * len(set().union(*texts)) + 300  # room for words besides the characters
    if all_characters:
        least += len(COMMON_CHARACTERS) + 256
    size = vocab_size or max(least, round(1.4 * sum(map(len, texts)) ** 0.5))
    pieces = io.BytesIO()
    problems: list[str] = []

    def run() -> None:
        try:
            spm.SentencePieceTrainer.train(
                sentence_iterator=(text for text in texts),  # Python lets others run in between
                model_writer=pieces,
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

    # Training may take half a minute; in another thread, so that a signal is handled at once
    training = threading.Thread(target=run, daemon=True)
    training.start()
    training.join()
    for problem in problems:
        why = problem.rpartition("] ")[2]
        if most := re.search(r"value <= (\d+)", problem):
            why = f"more than the text gives; the largest that works is {most[1]}"
        elif lowest := re.search(r"required_chars. \d+ vs (\d+)", problem):
            why = f"fewer than the text has characters; the smallest that works is {lowest[1]}"
        raise OptionError(f"vocab_size {size}: {why}")
    return pieces.getvalue()


# -- batches --------------------------------------------------------------------------------------


class Epoch(NamedTuple):
    """Batches of examples, not padded yet, and the number of pairs that are in none of them."""

    batches: list[list[Example]]
    n_left_out: int


@dataclass(frozen=True)
class Epochs:
    """Makes any epoch: `epochs(number)`.  Pairs of `max_length` tokens or more are left out.

    Number and seed decide everything but the random segmentations: sentencepiece draws these from
    a generator that each process seeds differently.
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
        pairs = self.text.sample_epoch(number, rng)
        if not pairs:
            raise DataError("train_weights leave no pair for an epoch; give larger ones")
        rng.shuffle(pairs)
        rates = self.src_sampling, self.tgt_sampling
        examples = tokenize(self.sp, pairs, *rates, self.max_length, rng)
        unk = self.sp.unk_id()  # never to be learned as an output
        examples = [example for example in examples if unk not in example[1]]
        if not examples:
            raise DataError(
                "every target has a character without a piece; -all_characters makes them"
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
    """Encode pairs as ids, a fraction of each side segmented at random (Kudo 2018).

    Examples of `max_length` tokens or more are left out.  Raises DataError if no others are left.
    """

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
    examples = [(src + [EOS], tgt) for src, tgt in zip(srcs, tgts)]
    examples = [example for example in examples if max(map(len, example)) < max_length]
    if not examples:
        raise DataError(
            f"every pair is longer than max_positions {max_length}; raise max_positions"
        )
    return examples


def make_batches(examples: list[Example], batch_tokens: int, rng: Random) -> list[list[Example]]:
    """Group examples of similar length into batches, in random order.

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


@dataclass(frozen=True)
class TrainBatch:
    """src (B, S), src_lengths (B,), tgt_in and tgt_out (B, T); padded with PAD."""

    src: Tensor
    src_lengths: Tensor
    tgt_in: Tensor
    tgt_out: Tensor

    @property
    def n_tokens(self) -> int:
        """Number of target tokens, each of which has a loss."""
        return int((self.tgt_out != PAD).sum())


def pad_batch(batch: list[Example]) -> TrainBatch:
    def padded(ids: list[list[int]]) -> Tensor:
        width = max(map(len, ids))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in ids])

    return TrainBatch(
        padded([src for src, _ in batch]),
        torch.tensor([len(src) for src, _ in batch]),
        padded([[BOS, *tgt] for _, tgt in batch]),
        padded([[*tgt, EOS] for _, tgt in batch]),
    )


def make_held_out_batches(
    sp: spm.SentencePieceProcessor, pairs: list[Pair], max_length: int, batch_tokens: int
) -> list[TrainBatch]:
    """Return padded batches of the pairs, none of which is segmented at random."""
    examples = tokenize(sp, pairs, 0, 0, max_length, Random(0))
    return list(map(pad_batch, make_batches(examples, batch_tokens, Random(0))))
