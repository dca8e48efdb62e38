"""Grow a trained model: `python -m recipes.de_en.grow -help`.

New layers start as the identity (Net2Net, Chen et al. 2016), and a wider model computes the same
function (`recipes.de_en.widen`).  A new subword starts as the sum of its parts.
Training continues from the larger model with `-init_from`.
"""

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.config.cli import run_program
from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.rules import (
    any_set,
    describe_requirements,
    reject_if,
    require_paths,
    requires,
)
from onmt_lite.config.sources import Program
from onmt_lite.errors import OptionError
from onmt_lite.models.transformer import Transformer
from onmt_lite.train.data import COMMON_CHARACTERS, read_pairs, train_sentencepiece
from onmt_lite.train.network import init_weights
from recipes.de_en.models import check_new, read_model, write_model
from recipes.de_en.widen import widen

USAGE = """\
-model DIR -output DIR [options]

Writes a copy of an onmt_lite model with more layers, a larger width or new subwords."""

SUBWORD_WEIGHTS = (
    "src_embedding.token.weight",
    "tgt_embedding.token.weight",
    "output.weight",
    "output.bias",
)
NORMAL, BYTE = 1, 6  # types of subwords in a sentencepiece model
BYTE_FALLBACK = bytes([35 << 3 & 0x7F | 0x80, 35 << 3 >> 7, 1])  # field 35 is true


@dataclass(frozen=True)
class GrowOptions:
    """Options of the program."""

    title: ClassVar[str] = "Grow"

    model: str = opt(
        "", help="Start from this model directory", metavar="PATH", example="runs/de-en-1"
    )
    enc_layers: int = opt(
        0,
        help="Add encoder layers on top, up to N in total; a smaller N changes nothing",
        example="8",
    )
    dec_layers: int = opt(
        0,
        help="Add decoder layers on top, up to N in total; a smaller N changes nothing",
        example="3",
    )
    d_model: int = opt(
        0, help="Widen the model to N dimensions; a smaller N changes nothing", example="256"
    )
    heads: int = opt(
        0, help="Number of heads, at least as wide as before; a smaller N changes nothing"
    )
    d_ff: int = opt(
        0, help="Widen feed-forward layers to N; a smaller N changes nothing", example="768"
    )
    train: tuple[str, ...] = opt(
        (),
        help="Train a new subword model on these files of pairs, plain or .gz; subwords that the "
        "model already has keep their embeddings",
        metavar="FILE",
        example="runs/text-4/01.tsv.gz",
    )
    vocab_size: int | None = opt(
        None, help="Size of the new vocabulary", min=16, example="8000 -train my.train.tsv"
    )
    all_characters: bool = opt(
        False,
        help="Add subwords for European letters, common signs and emoji, and 256 byte-fallback "
        "subwords; without -train they are added to the subwords of the model",
    )
    save_bits: int = opt(16, help="Write weights in 16 or 8 bits, as the trainer does", example="8")
    seed: int = opt(1, help="Random seed of new weights", min=0, example="2")
    output: str = opt(
        "",
        help="Write the model to this new directory",
        metavar="PATH",
        example="runs/start",
    )


RULES = (
    require_paths("model", "output"),
    requires("vocab_size", any_set("train")),
    reject_if(lambda v: v.save_bits not in (8, 16), "save_bits: must be 8 or 16"),
)
OPTIONS: dict[str, Option] = collect_options(
    (GrowOptions, *META_GROUPS), (), partial(describe_requirements, RULES)
)
PROGRAM = Program(
    "recipes.de_en.grow", USAGE, OPTIONS, RULES, build=lambda resolved: resolved.build(GrowOptions)
)
load_grow_options = PROGRAM.load


def grow(options: GrowOptions) -> None:
    """Grow a model and write it; on an error nothing is written.

    Raises:
        OnmtLiteError: an input cannot be read, the model cannot be grown, or the output exists
    """
    output = Path(options.output)
    check_new(output)
    model, pieces = read_model(Path(options.model), "model")
    old = spm.SentencePieceProcessor(model_proto=pieces)
    if options.train:
        pairs = [pair for path in options.train for pair in read_pairs(path)]
        pieces = train_sentencepiece(pairs, options.vocab_size, options.all_characters)
    elif options.all_characters:
        pieces = add_all_characters(pieces)
    torch.manual_seed(options.seed)
    model = replace_subwords(model, old, spm.SentencePieceProcessor(model_proto=pieces))
    model = widen(model, options.d_model, options.heads, options.d_ff)
    model = add_layers(model, options.enc_layers, options.dec_layers)
    write_model(output, model, pieces, options.save_bits)


# -- layers ---------------------------------------------------------------------------------------


def add_layers(start: Transformer, enc_layers: int, dec_layers: int) -> Transformer:
    """Return a copy of a model with new layers on top, whose output weights are zero.

    Args:
        start: trained pre-norm model
        enc_layers: total number of encoder layers; smaller values change nothing
        dec_layers: total number of decoder layers; smaller values change nothing

    Raises:
        OptionError: the model is post-norm, where a layer with zero output is not the identity
    """
    cfg = replace(
        start.cfg,
        enc_layers=max(enc_layers, start.cfg.enc_layers),
        dec_layers=max(dec_layers, start.cfg.dec_layers),
    )
    if not cfg.pre_norm and cfg != start.cfg:
        raise OptionError("model: layers can only be added to a pre-norm model")
    model = Transformer(cfg)
    init_weights(model)
    model.load_state_dict(model.state_dict() | start.state_dict())
    return model


# -- subwords -------------------------------------------------------------------------------------


def replace_subwords(
    start: Transformer, old: spm.SentencePieceProcessor, new: spm.SentencePieceProcessor
) -> Transformer:
    """Return a copy of a model with the embeddings and output rows for another vocabulary.

    Subwords in both vocabularies keep their rows.  A new subword that `old` splits into n subwords
    starts as the sum of their rows divided by sqrt(n), to keep the norm.  All other subwords start
    at random near <unk>, because equal rows would stay equal.

    Args:
        start: trained model
        old: subword model of `start`
        new: subword model of the result
    """
    n, unk = new.vocab_size(), old.unk_id()
    subwords = [new.id_to_piece(i) for i in range(n)]
    # Byte tokens such as <0xE6> cannot be split into subwords
    spellings = [
        [old.piece_to_id(subword)] if new.is_byte(i) else spell(subword, old)
        for i, subword in enumerate(subwords)
    ]
    unknown = [i for i, ids in enumerate(spellings) if ids == [unk] and i != new.unk_id()]

    def make_rows(table: Tensor) -> Tensor:  # (old vocab, d_model) or (old vocab,)
        table = table.float()
        rows = torch.stack([table[ids].sum(0) / len(ids) ** 0.5 for ids in spellings])
        if table.dim() == 2:
            rows[unknown] += table.std(0) * torch.randn_like(rows[unknown])
        return rows  # (vocab, d_model) or (vocab,)

    weights = start.state_dict()
    model = Transformer(replace(start.cfg, src_vocab_size=n, tgt_vocab_size=n))
    model.load_state_dict(
        weights | {name: make_rows(weights[name]) for name in SUBWORD_WEIGHTS if name in weights}
    )
    return model


def spell(piece: str, sp: spm.SentencePieceProcessor) -> list[int]:
    """Split `piece` into subwords of `sp` and return their IDs, or the ID of <unk>."""
    unk = sp.unk_id()
    piece_id = sp.piece_to_id(piece)
    if piece_id != unk or piece == sp.id_to_piece(unk):
        return [piece_id]
    parts = sp.encode(piece.replace("▁", " "), out_type=str)
    if parts and not piece.startswith("▁"):  # encode() adds "▁" before any text
        parts[0] = parts[0].removeprefix("▁")
    return [i for i in map(sp.piece_to_id, parts) if i != unk] or [unk]


def add_all_characters(pieces: bytes) -> bytes:
    """Append missing COMMON_CHARACTERS and the 256 bytes to a serialized sentencepiece model.

    Text without these characters is tokenized as before.
    """
    sp = spm.SentencePieceProcessor(model_proto=pieces)
    if any(sp.is_byte(i) for i in range(sp.vocab_size())):
        return pieces
    missing = [c for c in dict.fromkeys(COMMON_CHARACTERS) if sp.piece_to_id(c) == sp.unk_id()]
    lowest = min(sp.get_score(i) for i in range(sp.vocab_size()))
    entries = [_encode_field(1, _encode_piece(c, lowest, NORMAL)) for c in missing]
    entries += [_encode_field(1, _encode_piece(f"<0x{b:02X}>", 0.0, BYTE)) for b in range(256)]
    # Bytes appended to a protocol buffer are merged into the message: pieces (field 1) extend the
    # list of pieces, and BYTE_FALLBACK is merged into the trainer settings (field 2)
    return pieces + b"".join(entries) + _encode_field(2, BYTE_FALLBACK)


def _encode_piece(text: str, score: float, piece_type: int) -> bytes:
    """Encode a SentencePiece message.

    Args:
        text: the subword, field 1
        score: its score, field 2 (float)
        piece_type: its type, field 3
    """
    type_field = bytes([3 << 3, piece_type])
    return _encode_field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + type_field


def _encode_field(field: int, content: bytes) -> bytes:
    """Encode a length-delimited protocol buffer field of fewer than 128 bytes."""
    return bytes([field << 3 | 2, len(content)]) + content


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, grow)


if __name__ == "__main__":
    sys.exit(main())
