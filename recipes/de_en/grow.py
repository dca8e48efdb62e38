"""Write a larger model that knows what a trained one knows: `python -m recipes.de_en.grow -help`.

New layers are the identity until they learn (Net2Net, Chen et al. 2016), and a wider model says
what the narrow one says (`recipes.de_en.widen`).  New pieces begin as the sum of the pieces that
spell them.  The trainer goes on from the larger model with `-init_from`.
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
from recipes.de_en.widen import with_width

USAGE = """\
-model DIR -output DIR [options]

Writes a model of the project's own format with more layers, more width or other pieces than a
trained one has, and otherwise with its weights."""

OF_PIECES = (
    "src_embedding.token.weight",
    "tgt_embedding.token.weight",
    "output.weight",
    "output.bias",
)
NORMAL, BYTE = 1, 6  # kinds of pieces
BYTE_FALLBACK = bytes([35 << 3 & 0x7F | 0x80, 35 << 3 >> 7, 1])  # field 35 is true


@dataclass(frozen=True)
class GrowOptions:
    """What grows, how far, and where it is written."""

    title: ClassVar[str] = "Grow"

    model: str = opt(
        "", help="Start from this model directory", metavar="PATH", example="runs/de-en-1"
    )
    enc_layers: int = opt(
        0,
        help="Put encoder layers on top, N in all; fewer than there are change nothing",
        example="8",
    )
    dec_layers: int = opt(
        0,
        help="Put decoder layers on top, N in all; fewer than there are change nothing",
        example="3",
    )
    d_model: int = opt(
        0,
        help="Widen the model to N dimensions; fewer than there are change nothing",
        example="256",
    )
    heads: int = opt(
        0, help="Have N heads, at least as wide as before; fewer than there are change nothing"
    )
    d_ff: int = opt(
        0, help="Widen feed-forward layers to N; a smaller N changes nothing", example="768"
    )
    train: tuple[str, ...] = opt(
        (),
        help="Make new pieces of the words in these files of pairs, plain or .gz; a piece that the "
        "model has keeps its embedding",
        metavar="FILE",
        example="runs/text-4/01.tsv.gz",
    )
    vocab_size: int | None = opt(
        None, help="Make N new pieces", min=16, example="8000 -train my.train.tsv"
    )
    all_characters: bool = opt(
        False,
        help="Have pieces for the letters of Europe and for common signs and emoji, and 256 for "
        "the bytes of any other character; without -train they are added to the model's pieces",
    )
    save_bits: int = opt(16, help="Write weights in 16 or 8 bits, as the trainer does", example="8")
    seed: int = opt(1, help="Seed new weights", min=0, example="2")
    output: str = opt(
        "",
        help="Write to this directory, which must not exist yet",
        metavar="PATH",
        example="runs/start",
    )


RULES = (
    require_paths("model", "output"),
    requires("vocab_size", any_set("train")),
    reject_if(lambda v: v.save_bits not in (8, 16), "save_bits is not 8 or 16; give one of these"),
)
OPTIONS: dict[str, Option] = collect_options(
    (GrowOptions, *META_GROUPS), (), partial(describe_requirements, RULES)
)
PROGRAM = Program(
    "recipes.de_en.grow", USAGE, OPTIONS, RULES, build=lambda resolved: resolved.build(GrowOptions)
)
load_grow_options = PROGRAM.load


def grow(options: GrowOptions) -> None:
    """Run the whole program.  Raises an OnmtLiteError; then there is no larger model."""
    output = Path(options.output)
    check_new(output)
    model, pieces = read_model(Path(options.model), "model")
    old = spm.SentencePieceProcessor(model_proto=pieces)
    if options.train:
        pairs = [pair for path in options.train for pair in read_pairs(path)]
        pieces = train_sentencepiece(pairs, options.vocab_size, options.all_characters)
    elif options.all_characters:
        pieces = with_all_characters(pieces)
    torch.manual_seed(options.seed)
    model = with_pieces(model, old, spm.SentencePieceProcessor(model_proto=pieces))
    model = with_width(model, options.d_model, options.heads, options.d_ff)
    model = with_layers(model, options.enc_layers, options.dec_layers)
    write_model(output, model, pieces, options.save_bits)


# -- layers ---------------------------------------------------------------------------------------


def with_layers(start: Transformer, enc_layers: int, dec_layers: int) -> Transformer:
    """Put new layers on top of `start`, up to these numbers.

    Their last weights are zero.  Raises OptionError for a model with norms after its sublayers, in
    which zero is not the identity.
    """
    cfg = replace(
        start.cfg,
        enc_layers=max(enc_layers, start.cfg.enc_layers),
        dec_layers=max(dec_layers, start.cfg.dec_layers),
    )
    if not cfg.pre_norm and cfg != start.cfg:
        raise OptionError("layers can be put only on a model with norms before its sublayers")
    model = Transformer(cfg)
    init_weights(model)
    model.load_state_dict(model.state_dict() | start.state_dict())
    return model


# -- pieces ---------------------------------------------------------------------------------------


def with_pieces(
    start: Transformer, old: spm.SentencePieceProcessor, new: spm.SentencePieceProcessor
) -> Transformer:
    """Give `start` embeddings and output rows for the pieces of `new` instead of those of `old`.

    A piece of both keeps its row.  A piece that `old` spells with n others begins as the sum of
    their rows over the root of n, so that it is as long.  Any other piece begins near <unk>, at
    random: equal rows would stay equal.
    """
    n, unk = new.vocab_size(), old.unk_id()
    pieces = [new.id_to_piece(i) for i in range(n)]
    # The name of a byte, such as <0xE6>, is no text that could be spelled
    spelled = [
        [old.piece_to_id(piece)] if new.is_byte(i) else spell(piece, old)
        for i, piece in enumerate(pieces)
    ]
    unlike = [i for i, ids in enumerate(spelled) if ids == [unk] and i != new.unk_id()]

    def rows(table: Tensor) -> Tensor:
        table = table.float()
        made = torch.stack([table[ids].sum(0) / len(ids) ** 0.5 for ids in spelled])
        if table.dim() == 2:
            made[unlike] += table.std(0) * torch.randn_like(made[unlike])
        return made

    weights = start.state_dict()
    model = Transformer(replace(start.cfg, src_vocab_size=n, tgt_vocab_size=n))
    model.load_state_dict(
        weights | {name: rows(weights[name]) for name in OF_PIECES if name in weights}
    )
    return model


def spell(piece: str, sp: spm.SentencePieceProcessor) -> list[int]:
    """Ids of the pieces of `sp` that spell `piece`; the id of <unk> where no pieces do."""
    unk = sp.unk_id()
    same = sp.piece_to_id(piece)
    if same != unk or piece == sp.id_to_piece(unk):
        return [same]
    parts = sp.encode(piece.replace("▁", " "), out_type=str)
    if parts and not piece.startswith("▁"):  # encode puts one before any text
        parts[0] = parts[0].removeprefix("▁")
    return [i for i in map(sp.piece_to_id, parts) if i != unk] or [unk]


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


def _piece(text: str, score: float, kind: int) -> bytes:
    """Entry of a piece: field 1 its text, 2 its score as a float, 3 its kind."""
    return _message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])


def _message(field: int, content: bytes) -> bytes:
    """Field of fewer than 128 bytes, in the wire format of protocol buffers."""
    return bytes([field << 3 | 2, len(content)]) + content


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, grow)


if __name__ == "__main__":
    sys.exit(main())
