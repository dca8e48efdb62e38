"""Reads checkpoints of OpenNMT-py 1, 2 and 3: one `.pt` file, the weights in it or beside it.

The file is a dict: `model` and `generator` (weights), `vocab`, `opt` (the training options) and
`optim` (not needed).  From 3.3 on the weights of `X.pt` may be beside it: in `X.safetensors`, or in
parts, `X.00.safetensors` and so on.  Version 3 keeps vocabularies as lists of tokens; older ones
keep torchtext fields, nested in several ways, with the tokens in the attribute `itos` of an object.
"""

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints import archive, safetensors
from onmt_lite.checkpoints.description import Description, checked_tokens, refuse_kinds
from onmt_lite.checkpoints.opennmt import models as opennmt
from onmt_lite.checkpoints.opennmt.models import SRC, TGT
from onmt_lite.checkpoints.pickled import Record
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.family import Family
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

Build = Callable[[Weights, Description], Family]

# By encoder_type and decoder_type
FAMILIES: dict[tuple[str, str], Build] = {
    ("transformer", "transformer"): opennmt.build_transformer,
    ("rnn", "rnn"): opennmt.build_rnn,
    ("brnn", "rnn"): opennmt.build_rnn,
    ("cnn", "cnn"): opennmt.build_cnn,
}


def recognises(path: Path) -> bool:
    return archive.is_archive(path)


def load(path: Path) -> Checkpoint:
    """Load a checkpoint, one of another toolkit or of a kind that is not read refused by name."""
    root = _check_root(archive.load(path), path)
    opt = Description(root["opt"], path)
    family = _choose_family(opt)
    weights = Weights(_read_weights(root, path), path)
    src_vocab, tgt_vocab, start_id = read_vocabularies(root["vocab"], path)
    for name, table, vocab in (("encoder", SRC, src_vocab), ("decoder", TGT, tgt_vocab)):
        rows, _ = weights.shape(table)
        if rows != len(vocab):
            raise CheckpointError(f"{path}: {len(vocab)} tokens, but the {name} knows {rows}")
    version = _version(root["vocab"])
    return Checkpoint(
        _build(family, weights, opt, src_vocab, tgt_vocab),
        src_vocab=src_vocab,
        tgt_vocab=tgt_vocab,
        tokenizers={"space": SpaceTokenizer(only_spaces=version == "3")},
        start_id=start_id,
        src_end=_source_end(opt, src_vocab),
        toolkit="opennmt",
        version=version,
    )


def _version(vocab: Any) -> str:
    """Tell the version by the vocabularies: lists of tokens, before 3.0 fields of torchtext."""
    if isinstance(vocab, list):
        return "0.x"
    src = vocab["src"]
    of_tokens = isinstance(src, list) and all(isinstance(token, str) for token in src[:1])
    return "3" if of_tokens else "1 or 2"


def _build(
    family: Build, weights: Weights, opt: Description, src_vocab: Vocab, tgt_vocab: Vocab
) -> Family:
    """Build the model, with a head that copies if the checkpoint has copy attention."""
    copying = opennmt.split_copying(weights) if opennmt.copies(weights) else None
    model = family(weights, opt)
    _check_layers(model.cfg, opt)
    if copying is None:
        return model
    return opennmt.with_copying(model, copying, opt, src_vocab, tgt_vocab)


def _check_layers(cfg: Any, opt: Description) -> None:
    """Raise CheckpointError where layers are missing.  Option `layers` overrides both sides'."""
    both = opt.number("layers", -1) > 0
    for name, n in (("enc_layers", cfg.enc_layers), ("dec_layers", cfg.dec_layers)):
        opt.agree("layers" if both else name, n)


def _source_end(opt: Description, src_vocab: Vocab) -> tuple[int, ...]:
    """The end token, for a model trained with that token as suffix of its sources."""
    used = opt.get("transforms")
    suffixed = isinstance(used, list) and "suffix" in used and opt.get("src_suffix") == EOS
    return (src_vocab.eos_id,) if suffixed and src_vocab.eos_id is not None else ()


def _check_root(root: Any, path: Path) -> dict[str, Any]:
    if not isinstance(root, dict) or not {"opt", "vocab"} <= set(root):
        raise CheckpointError(
            f"{path}: a PyTorch file without 'opt' and 'vocab', so not a checkpoint of OpenNMT-py; "
            "of fairseq, give the directory that holds it with its dict.*.txt"
        )
    parts = ("opt", "vocab", "model", "generator")  # without the state of the optimiser
    return {name: root[name] for name in parts if name in root}


def _choose_family(opt: Description) -> Build:
    """Choose the builder of a model.  Raises CheckpointError for kinds that are not supported."""
    kinds = opt.text("encoder_type", "rnn"), opt.text("decoder_type", "rnn")
    encoder, decoder = (kind[:30] for kind in kinds)
    reasons = {
        "a language model": opt.text("model_task", "seq2seq") != "seq2seq",
        "a model of images or sound": opt.text("model_type", "text") != "text",
        "a mixture of experts": opt.number("num_experts", 0) > 0,
        "a quantised model": bool(opt.get("quant_type")) and bool(opt.get("quant_layers")),
        "a model with a sliding window": opt.number("sliding_window", 0) > 0,
        "a model with sparsemax output": opt.text("generator_function", "softmax") != "softmax",
        "a model with SRU cells": "rnn" in kinds[0] and opt.get("rnn_type") == "SRU",
        f"a model with {encoder!r} encoder and {decoder!r} decoder": kinds not in FAMILIES,
    }
    refuse_kinds(f"{opt.path}: OpenNMT-py:", reasons)
    return FAMILIES[kinds]


def _read_weights(root: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """Take all weights from the root; names of the output layer's begin with `generator.`"""
    if "model" not in root:
        return _read_beside(path)
    tensors = archive.tensors(root.pop("model"), path)
    generator = root.pop("generator", None)
    generator = {} if generator is None else archive.tensors(generator, path)
    for name, tensor in generator.items():  # before 3.0 it was a Sequential: 0.weight
        tensors["generator." + name.removeprefix("0.")] = tensor
    return tensors


def _read_beside(path: Path) -> dict[str, Tensor]:
    """Read what lies beside the file, whole or in parts that share no tensor."""
    whole = path.with_suffix(".safetensors")
    parts = sorted(path.parent.glob(f"{glob.escape(path.stem)}.*.safetensors"))
    files = [whole] if whole.is_file() else parts
    if not files:
        raise CheckpointError(
            f"{path}: its weights should be beside it, in {whole.name} or in parts, "
            f"{path.stem}.00.safetensors and so on"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        found = safetensors.read(file)
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{file}: {twice[0][:100]!r} is in a part before it too")
        tensors |= found
    return tensors


# -- Vocabularies ----------------------------------------------------------------------------------

PAD, BOS, EOS, UNK = "<blank>", "<s>", "</s>", "<unk>"
SPECIAL = dict(pad=PAD, bos=BOS, eos=EOS, unk=UNK)


def read_vocabularies(stored: Any, path: Path) -> tuple[Vocab, Vocab, int]:
    """Read the source and target vocabulary, and the id that starts the decoder."""
    if isinstance(stored, list):  # 0.x: pairs of name and vocabulary
        stored = {p[0]: p[1] for p in stored if _is_pair(p) and isinstance(p[0], str)}
    if not isinstance(stored, dict) or not {"src", "tgt"} <= set(stored):
        raise CheckpointError(f"{path}: it holds no vocabularies 'src' and 'tgt'")
    if stored.get("src_feats"):
        raise CheckpointError(f"{path}: OpenNMT-py: a model with word features, which is not read")
    src, tgt = (
        Vocab.named(checked_tokens(_find_tokens(stored[side], path), path), **SPECIAL)
        for side in ("src", "tgt")
    )
    start = stored.get("decoder_start_token", BOS)
    if not isinstance(start, str) or start not in tgt.ids:
        raise CheckpointError(f"{path}: its target vocabulary lacks the start token")
    if tgt.eos_id is None:
        raise CheckpointError(f"{path}: its target vocabulary lacks the end token {EOS}")
    return src, tgt, tgt.ids[start]


def _find_tokens(stored: Any, path: Path) -> list[str]:
    """Find the list of tokens in a list, a Vocab, a Field, a TextMultiField or a list of pairs."""
    for _ in range(8):  # deeper than any version holds it
        if isinstance(stored, list) and stored and isinstance(stored[0], str):
            return stored
        if isinstance(stored, list):
            if len(stored) != 1 and all(map(_is_pair, stored)):
                raise CheckpointError(
                    f"{path}: OpenNMT-py: a model with word features, which is not read"
                )
            stored = stored[0][1] if stored and _is_pair(stored[0]) else None
        elif isinstance(stored, Record):
            names = ("itos", "vocab", "fields")
            stored = next((stored.get(n) for n in names if stored.get(n) is not None), None)
    raise CheckpointError(f"{path}: a vocabulary is stored in a way that is not known")


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2
