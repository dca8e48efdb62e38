"""Training pairs: from TSV files to padded batches."""

import gzip
import io
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.training.slots import EMOJI, SIGNS
from onmt_lite.training.words import Pair

# Latin letters with their marks, Greek, Cyrillic: what names and quoted words are written with
LETTERS = "".join(
    chr(code)
    for first, last in ((0x21, 0x7F), (0xC0, 0x180), (0x391, 0x3CF), (0x410, 0x450))
    for code in range(first, last)
    if unicodedata.is_normalized("NFKC", chr(code))
)
COMMON_CHARACTERS = LETTERS + SIGNS + EMOJI

Example = tuple[list[int], list[int]]  # ids of the source with </s>, and of the target

PAD, BOS, EOS = 1, 2, 3  # <unk> is 0: OpenNMT-py's order
POOL = 200_000  # pairs that are sorted by length together: the more, the less padding


@dataclass(frozen=True)
class TrainBatch:
    """src (B, S), src_lengths (B,), tgt_in and tgt_out (B, T); tgt padding is PAD."""

    src: Tensor
    src_lengths: Tensor
    tgt_in: Tensor
    tgt_out: Tensor


def read_pairs(path: Path | str, reverse: bool = False) -> list[Pair]:
    """`src<TAB>tgt` lines, plain or gzip; `reverse` swaps the sides.

    FileError where the file cannot be read, DataError for a line that is no pair.
    """
    open_text = gzip.open if str(path).endswith(".gz") else open
    pairs: list[Pair] = []
    try:
        with open_text(path, "rt", encoding="utf-8", newline="\n") as lines:
            for n, line in enumerate(lines, 1):
                src, *rest = line.rstrip("\r\n").split("\t")
                if not rest or not src or not rest[0]:
                    raise DataError(f"{path}:{n}: not a `source<TAB>target` line")
                pairs.append((rest[0], src) if reverse else (src, rest[0]))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from None
    if not pairs:
        raise DataError(f"{path} holds no pairs")
    return pairs


def read_same(path: Path | str) -> list[Pair]:
    """Lines of text, plain or gzip, each as a pair of itself; empty ones are passed over.

    FileError where the file cannot be read.
    """
    open_text = gzip.open if str(path).endswith(".gz") else open
    try:
        with open_text(path, "rt", encoding="utf-8", newline="\n") as lines:
            return [(line, line) for line in map(str.strip, lines) if line]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from None


def weighted(corpora: list[list[Pair]], weights: Sequence[float], rng: Random) -> list[Pair]:
    """The pairs of an epoch: each corpus as often as its weight says, and of what a whole number
    of copies leaves open a random share."""
    pairs: list[Pair] = []
    for corpus, weight in zip(corpora, weights, strict=True):
        copies, share = divmod(weight, 1)
        pairs += corpus * int(copies)
        pairs += rng.sample(corpus, round(share * len(corpus)))
    return pairs


def train_sentencepiece(
    pairs: list[Pair], path: Path, vocab_size: int, all_characters: bool = False
) -> None:
    """One unigram model for both languages, digits apart so that numbers can be copied; with
    `all_characters` it has pieces for any character, if need be for the bytes that encode it."""
    pieces = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(text for pair in pairs for text in pair),
            model_writer=pieces,
            vocab_size=vocab_size,
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
        raise OptionError(f"vocab_size {vocab_size}: {str(error).rpartition('] ')[2]}") from None
    path.write_bytes(pieces.getvalue())


def with_all_characters(pieces: bytes) -> bytes:
    """A sentencepiece model with more pieces behind its own: COMMON_CHARACTERS that it lacks, and
    the 256 bytes for any other.  How it splits what it knows stays as it is."""
    sp = spm.SentencePieceProcessor(model_proto=pieces)
    if any(sp.is_byte(i) for i in range(sp.vocab_size())):
        return pieces
    lacking = [c for c in dict.fromkeys(COMMON_CHARACTERS) if sp.piece_to_id(c) == sp.unk_id()]
    rarest = min(sp.get_score(i) for i in range(sp.vocab_size()))
    more = [_message(1, _piece(c, rarest, NORMAL)) for c in lacking]
    more += [_message(1, _piece(f"<0x{byte:02X}>", 0.0, BYTE)) for byte in range(256)]
    # What is appended to a message in the wire format of protocol buffers is merged into it:
    # entries to a list of entries, here field 1, and a setting of the trainer, field 2
    return pieces + b"".join(more) + _message(2, BYTE_FALLBACK)


NORMAL, BYTE = 1, 6  # kinds of pieces
BYTE_FALLBACK = bytes([35 << 3 & 0x7F | 0x80, 35 << 3 >> 7, 1])  # field 35 is true


def _piece(text: str, score: float, kind: int) -> bytes:
    """The entry of a piece: field 1 its text, 2 its score as a float, 3 its kind."""
    return _message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])


def _message(field: int, content: bytes) -> bytes:
    """A field of fewer than 128 bytes."""
    return bytes([field << 3 | 2, len(content)]) + content


def tokenize(
    sp: spm.SentencePieceProcessor, pairs: list[Pair], src_rate: float, tgt_rate: float, rng: Random
) -> list[Example]:
    """Ids of each pair; a share of each side is segmented at random (Kudo 2018)."""

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


def make_batches(examples: list[Example], batch_tokens: int, rng: Random) -> Iterator[TrainBatch]:
    """The batches of `group`, padded."""
    return map(pad_batch, group(examples, batch_tokens, rng))


def group(examples: list[Example], batch_tokens: int, rng: Random) -> list[list[Example]]:
    """Batches of at most `batch_tokens` padded tokens a side, alike in length, in random order."""
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
