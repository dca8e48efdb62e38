"""Text to learn from: files of pairs, the pairs of an epoch, held-out pairs, and pieces."""

import gzip
import io
import re
import threading
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import sentencepiece as spm

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.train.options import DataOptions

Pair = tuple[str, str]  # a source line and its translation

# Latin letters with their marks, Greek, Cyrillic: what names and quoted words are written with
LETTERS = "".join(
    chr(code)
    for first, last in ((0x21, 0x7F), (0xC0, 0x180), (0x391, 0x3CF), (0x410, 0x450))
    for code in range(first, last)
    if unicodedata.is_normalized("NFKC", chr(code))
)
EMOJI = "🙂😀😂😊😍😉😢😭😎🤔👍👎👏🙏💪🎉🎁🎂❤💔⭐🔥✨☀🌧❄🌹🐶🐱🍕🍺☕🚗🚲🏠📞📧📅✅❌⚠➡"
SIGNS = "€£$¥%§&@#*+=→←↑↓•·–—°±×÷©®†✓■★"
COMMON_CHARACTERS = LETTERS + SIGNS + EMOJI

PAD, BOS, EOS = 1, 2, 3  # <unk> is 0: OpenNMT-py's order
GZIP = b"\x1f\x8b"
HELD_OUT = 500


@dataclass(frozen=True)
class Text:
    """Pairs to learn from.  A subclass may choose the pairs of an epoch in another way.

    files       the pairs of each file
    weights     how often an epoch has the pairs of each file
    same        pairs of equal sides, of which an epoch has `same_lines`
    """

    files: list[list[Pair]]
    weights: Sequence[float]
    same: list[Pair]
    same_lines: int

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of all files."""
        return [pair for file in self.files for pair in file]

    def for_pieces(self) -> list[Pair]:
        """The pairs whose words become pieces."""
        return self.pairs

    def of_epoch(self, epoch: int, rng: Random) -> list[Pair]:
        """The pairs of an epoch, shuffled."""
        pairs = self.from_files(epoch, rng)
        pairs += rng.sample(self.same, min(self.same_lines, len(self.same)))
        rng.shuffle(pairs)
        return pairs

    def from_files(self, epoch: int, rng: Random) -> list[Pair]:
        """The pairs that an epoch has of the files, in a new list."""
        return weighted(self.files, self.weights, rng)


def read_text(data: DataOptions, kind: type[Text]) -> tuple[Text, list[list[Pair]]]:
    """Read the text to learn from, and the pairs of each held-out file.

    Raises FileError or DataError if a file cannot be read or holds no pairs.
    """
    files = [read_pairs(path, data.reverse) for path in data.train]
    if data.valid:
        held_out = [read_pairs(path, data.reverse) for path in data.valid]
    else:
        files, pairs = hold_out(files)
        held_out = [pairs]
    same = [pair for path in data.train_same for pair in read_same(path)]
    weights = data.train_weights or [1.0] * len(files)
    return kind(files, weights, same, data.same_lines), held_out


def read_lines(path: Path | str) -> list[str]:
    """Read the lines of a UTF-8 file, plain or gzip, without line ends and byte order mark.

    Raises FileError if the file cannot be read, DataError if its content is not text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data.startswith(GZIP):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
    if b"\0" in data[:4096]:
        raise DataError(f"{path} is not text; give UTF-8 text, plain or gzip")
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


def read_same(path: Path | str) -> list[Pair]:
    """Read lines of text as pairs of equal sides; empty lines are skipped.  Errors as above."""
    return [(line, line) for line in map(str.strip, read_lines(path)) if line]


def spread(pairs: list[Pair], at_most: int) -> list[Pair]:
    """`at_most` pairs at equal distances, or all pairs if there are fewer."""
    n = min(at_most, len(pairs))
    return [pairs[i * len(pairs) // n] for i in range(n)]


def hold_out(corpora: list[list[Pair]]) -> tuple[list[list[Pair]], list[Pair]]:
    """Hold out every fiftieth pair, at most HELD_OUT, at equal distances over the corpora.

    Returns the corpora without these pairs and without pairs that share a side with one of them,
    then the pairs held out.  Raises DataError if nothing would be left to learn from.
    """
    pairs = [pair for corpus in corpora for pair in corpus]
    held_out = spread(pairs, max(1, min(HELD_OUT, len(pairs) // 50)))
    sources, targets = ({pair[side] for pair in held_out} for side in (0, 1))
    rest = [
        [p for p in corpus if p[0] not in sources and p[1] not in targets] for corpus in corpora
    ]
    if not any(rest):
        raise DataError("train: too few different pairs to hold some out; name others with -valid")
    return rest, held_out


def weighted(corpora: list[list[Pair]], weights: Sequence[float], rng: Random) -> list[Pair]:
    """The pairs of an epoch: a corpus of weight 2.3 twice, and a random 30 % of its pairs."""
    pairs: list[Pair] = []
    for corpus, weight in zip(corpora, weights, strict=True):
        copies, share = divmod(weight, 1)
        pairs += corpus * int(copies)
        pairs += rng.sample(corpus, round(share * len(corpus)))
    return pairs


def train_sentencepiece(
    pairs: list[Pair], vocab_size: int | None = None, all_characters: bool = False
) -> bytes:
    """Train one sentencepiece unigram model for both languages.

    vocab_size      None: grows with the square root of the text's length, about 1,200 pieces for
                    10,000 pairs of short sentences, 4,600 for 150,000
    all_characters  adds pieces for common characters, and for the bytes of all others

    Each digit is a piece, so that numbers can be copied.  Returns the content of the model's file.
    Raises OptionError if the text gives fewer pieces than `vocab_size`, or needs more.
    """
    texts = [text for pair in pairs for text in pair]
    size = vocab_size or _pieces_for(texts, all_characters)
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
            problems.append(_limit(str(error)))

    # Training may take half a minute; in another thread, so that a signal is handled at once
    training = threading.Thread(target=run, daemon=True)
    training.start()
    training.join()
    if problems:
        raise OptionError(f"vocab_size {size}: {problems[0]}")
    return pieces.getvalue()


def _pieces_for(texts: list[str], all_characters: bool) -> int:
    """A number of pieces that a text of this size has examples for, above its characters'."""
    always = 2 * len(set().union(*texts)) + 300
    if all_characters:
        always += len(COMMON_CHARACTERS) + 256
    return max(always, round(1.4 * sum(map(len, texts)) ** 0.5))


def _limit(problem: str) -> str:
    """Explain sentencepiece's message on a number of pieces that does not suit the text."""
    if most := re.search(r"value <= (\d+)", problem):
        return f"more than the text gives; the largest that works is {most[1]}"
    if least := re.search(r"required_chars. \d+ vs (\d+)", problem):
        return f"fewer than the text has characters; the smallest that works is {least[1]}"
    return problem.rpartition("] ")[2]
