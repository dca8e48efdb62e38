"""Reads Marian models as Hugging Face transformers stores them (OPUS-MT): a directory.

`vocab.json` gives the ids of the pieces that `source.spm` and `target.spm` cut; their own ids mean
nothing here.
"""

import re
from pathlib import Path

from torch import Tensor

from onmt_lite.checkpoints.description import Description, checked_tokens, read_json, shown
from onmt_lite.checkpoints.huggingface.bart import read_transformer
from onmt_lite.checkpoints.huggingface.directory import Directory, banned_ids, checkpoint, token_id
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.subwords import SIDES, read_pieces
from onmt_lite.checkpoints.weights import Weights, layout_of
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import MarianTokenizer
from onmt_lite.text.vocab import Vocab


def load(directory: Directory) -> Checkpoint:
    """CheckpointError for a directory that is damaged."""
    path, config = directory.path, directory.config
    _check_variant(directory)
    directory.check(None)
    model = _read_model(directory, directory.weights())
    vocabs = _read_vocabularies(directory, model)
    start = config.number("decoder_start_token_id", config.number("pad_token_id"))
    cutters = {}
    missing = [path / name for name in SIDES if not (path / name).exists()]
    if path / SIDES[0] not in missing:
        pieces = (read_pieces(str(path / name)) for name in SIDES)
        cutters["sentencepiece"] = MarianTokenizer(*pieces)
    if config.get("forced_bos_token_id") is not None:
        raise CheckpointError(f"{config.path}: forces tokens other than the end")
    never = banned_ids(config, len(vocabs[1]))
    if start == config.number("pad_token_id"):
        never = tuple(sorted({*never, start}))
    return checkpoint(
        directory,
        model,
        vocabs,
        cutters,
        start,
        never_ids=never,
        never_in_softmax=True,
        missing=tuple(map(str, missing)),
        notes=(),
        toolkit="marian",
    )


def _check_variant(directory: Directory) -> None:
    directory.check_special_tokens("eos_token_id", "pad_token_id", "decoder_start_token_id")
    config = directory.model
    for name in ("normalize_embedding", "add_final_layer_norm", "normalize_before"):
        if config.flag(name):
            raise CheckpointError(f"{config.path}: a Marian model with {name}, which is not read")


def _read_model(directory: Directory, weights: Weights) -> Transformer:
    positions, tables, rows = _positions(directory.config, weights)
    switches = dict(pre_norm=False, final_norm=False, positions=positions, max_positions=rows)
    return read_transformer(directory, weights, tables, **switches)


def _positions(config: Description, weights: Weights) -> tuple[str, dict[str, Tensor], int]:
    """Layout, tables where they are not computed, and how many positions there are."""
    rows = config.number("max_position_embeddings")
    names = {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    stored = [name for name in names.values() if name in weights]
    for name in stored:
        weights.shape(name)
    if all(layout_of(weights.tensors[name]) == "concat" for name in stored):
        if any(weights.shape(name)[0] != rows for name in stored):
            raise CheckpointError(f"{config.path}: max_position_embeddings is not what is stored")
        weights.drop("|".join(map(re.escape, stored)))
        return "concat", {}, rows
    src, tgt = (weights.take(name) for name in names.values())
    tables = {"src_embedding.position": src, "tgt_embedding.position": tgt}
    return "learned", tables, min(src.size(0), tgt.size(0))


def _read_vocabularies(directory: Directory, model: Transformer) -> tuple[Vocab, Vocab]:
    path, config, cfg = directory.path, directory.config, model.cfg
    eos, pad = token_id(config, "eos_token_id"), config.number("pad_token_id")
    separate = (path / "target_vocab.json").is_file()
    separate = directory.tokenizer.flag("separate_vocabs", separate)
    src = read_vocab(path / "vocab.json", cfg.src_vocab_size, eos, pad)
    if separate:
        return src, read_vocab(path / "target_vocab.json", cfg.tgt_vocab_size, eos, pad)
    if cfg.src_vocab_size != cfg.tgt_vocab_size:
        raise CheckpointError(f"{path}: two vocabularies, but no target_vocab.json")
    return src, src


def read_vocab(path: Path, size: int, eos: int, pad: int) -> Vocab:
    """Tokens by id.  Rows of the model's table behind the last token get names of their own."""
    tokens = [f"<unused {i}>" for i in range(size)]
    taken = set()
    for token, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size or i in taken:
            raise CheckpointError(f"{path}: id {shown(i)} of {token[:50]!r} cannot be")
        taken.add(i)
        tokens[i] = token
    if len(taken) <= max(taken, default=0):
        hole = next(i for i in range(size) if i not in taken)
        raise CheckpointError(f"{path}: no token has the id {hole}, but others have larger ones")
    if not {eos, pad} <= taken:
        raise CheckpointError(f"{path}: it lacks the end or the padding token of config.json")
    found = Vocab(checked_tokens(tokens, path), eos_id=eos, pad_id=pad)
    return Vocab(tokens, eos_id=eos, pad_id=pad, unk_id=found.ids.get("<unk>"))
