"""Training pairs: from TSV files to padded batches."""

import gzip
import io
import re
import struct
import threading
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.errors import DataError, FileError, OptionError

Pair = tuple[str, str]  # a source line and its translation
Example = tuple[list[int], list[int]]  # ids of the source with </s>, and of the target

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
POOL = 200_000  # pairs sorted by length together: the more, the less padding


@dataclass(frozen=True)
class TrainBatch:
    """src (B, S), src_lengths (B,), tgt_in and tgt_out (B, T); tgt padding is PAD."""

    src: Tensor
    src_lengths: Tensor
    tgt_in: Tensor
    tgt_out: Tensor


def read_lines(path: Path | str) -> list[str]:
    """Read the lines of a UTF-8 file, plain or gzip, without line ends and byte order mark.

    Raises FileError where the file cannot be read, DataError where its content is not text.
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

    Blank lines and further columns are skipped.  Raises FileError where the file cannot be read,
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
    """Read lines of text, plain or gzip, as pairs of equal sides; empty lines are skipped.

    Raises FileError where the file cannot be read, DataError where its content is not text.
    """
    return [(line, line) for line in map(str.strip, read_lines(path)) if line]


def spread(pairs: list[Pair], at_most: int) -> list[Pair]:
    """`at_most` pairs at equal distances, or all pairs where there are fewer."""
    n = min(at_most, len(pairs))
    return [pairs[i * len(pairs) // n] for i in range(n)]


def hold_out(corpora: list[list[Pair]]) -> tuple[list[list[Pair]], list[Pair]]:
    """Hold out every fiftieth pair, at most HELD_OUT, at equal distances over the corpora.

    Returns the corpora without these pairs and without pairs that share a side with one of them,
    then the pairs held out.  Raises DataError where nothing would be left to learn from.
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
    Raises OptionError where the text gives fewer pieces than `vocab_size`, or needs more.
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


def with_all_characters(pieces: bytes) -> bytes:
    """Append pieces to a sentencepiece model: missing COMMON_CHARACTERS, and the 256 bytes.

    Text of characters that had pieces before is split as before.
    """
    sp = spm.SentencePieceProcessor(model_proto=pieces)
    if any(sp.is_byte(i) for i in range(sp.vocab_size())):
        return pieces
    lacking = [c for c in dict.fromkeys(COMMON_CHARACTERS) if sp.piece_to_id(c) == sp.unk_id()]
    rarest = min(sp.get_score(i) for i in range(sp.vocab_size()))
    more = [_message(1, _piece(c, rarest, NORMAL)) for c in lacking]
    more += [_message(1, _piece(f"<0x{byte:02X}>", 0.0, BYTE)) for byte in range(256)]
    # Bytes appended to a protocol buffer are merged into the message: pieces, field 1, join the
    # list of pieces, and the setting joins those of the trainer, field 2
    return pieces + b"".join(more) + _message(2, BYTE_FALLBACK)


NORMAL, BYTE = 1, 6  # kinds of pieces
BYTE_FALLBACK = bytes([35 << 3 & 0x7F | 0x80, 35 << 3 >> 7, 1])  # field 35 is true


def _piece(text: str, score: float, kind: int) -> bytes:
    """Entry of a piece: field 1 its text, 2 its score as a float, 3 its kind."""
    return _message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])


def _message(field: int, content: bytes) -> bytes:
    """Field of fewer than 128 bytes, in the wire format of protocol buffers."""
    return bytes([field << 3 | 2, len(content)]) + content


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
    """Examples shorter than `max_positions` tokens.  Raises DataError where there are none."""
    kept = [e for e in examples if max(map(len, e)) < max_positions]
    if not kept:
        raise DataError(f"every pair is longer than max_positions {max_positions}")
    return kept


def make_batches(examples: list[Example], batch_tokens: int, rng: Random) -> Iterator[TrainBatch]:
    """Group examples into padded batches."""
    return map(pad_batch, group(examples, batch_tokens, rng))


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
