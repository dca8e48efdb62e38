"""Reads checkpoints of OpenNMT-py 1, 2 and 3: one `.pt` file, the weights in it or beside it.

The file is a dict: `model` and `generator` (weights), `vocab`, `opt` (the training options) and
`optim` (not needed).  From 3.3 on the weights of `X.pt` may be beside it: in `X.safetensors`, or in
parts, `X.00.safetensors` and so on.
"""

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints import archive, safetensors
from onmt_lite.checkpoints.description import Description, refuse_kinds
from onmt_lite.checkpoints.opennmt import cnn as opennmt_cnn
from onmt_lite.checkpoints.opennmt import copy_attention as opennmt_copy
from onmt_lite.checkpoints.opennmt import rnn as opennmt_rnn
from onmt_lite.checkpoints.opennmt import transformer as opennmt_transformer
from onmt_lite.checkpoints.opennmt.vocab import EOS, SRC, TGT, read_vocabularies
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.family import Family
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

Build = Callable[[Weights, Description], Family]

# By encoder_type and decoder_type
FAMILIES: dict[tuple[str, str], Build] = {
    ("transformer", "transformer"): opennmt_transformer.build_model,
    ("rnn", "rnn"): opennmt_rnn.build_model,
    ("brnn", "rnn"): opennmt_rnn.build_model,
    ("cnn", "cnn"): opennmt_cnn.build_model,
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
    copying = opennmt_copy.split(weights) if opennmt_copy.recognises(weights) else None
    model = family(weights, opt)
    _check_layers(model.cfg, opt)
    if copying is None:
        return model
    return opennmt_copy.wrap(model, copying, opt, src_vocab, tgt_vocab)


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
