"""Loads checkpoints of OpenNMT-py 1, 2 and 3: a `.pt` file, optionally with safetensors files.

The `.pt` file is a dict with `model` and `generator` (weights), `vocab`, `opt` (the training
options) and `optim` (not needed). Since 3.3, the weights of `X.pt` can be in `X.safetensors` or in
the shards `X.00.safetensors`, `X.01.safetensors` and so on. Version 3 stores vocabularies as lists
of tokens. Older versions store torchtext fields, nested in several ways, with the tokens in the
attribute `itos`.
"""

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints import archive, fairseq, safetensors
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.config_reader import (
    ConfigReader,
    check_tokens,
    refuse_unsupported_options,
)
from onmt_lite.checkpoints.opennmt import models as opennmt
from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.seq2seq import Seq2SeqModel
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

# Unsupported toolkits by a key in their checkpoints
UNSUPPORTED = {"pytorch-lightning_version": "PyTorch Lightning", "model_state": "JoeyNMT"}
PAD, BOS, EOS, UNK = "<blank>", "<s>", "</s>", "<unk>"
# By encoder_type and decoder_type
BUILDERS: dict[tuple[str, str], Callable[[Weights, ConfigReader], Seq2SeqModel]] = {
    ("transformer", "transformer"): opennmt.build_transformer,
    ("rnn", "rnn"): opennmt.build_rnn,
    ("brnn", "rnn"): opennmt.build_rnn,
    ("cnn", "cnn"): opennmt.build_cnn,
}


def can_load(path: Path) -> bool:
    """Return True if a file starts like a `torch.save` file."""
    return archive.is_archive(path)


def load(path: Path) -> Checkpoint:
    """Load an OpenNMT-py or fairseq `.pt` file; raise CheckpointError if that fails."""
    content = archive.load(path)
    if not isinstance(content, dict) or not {"opt", "vocab"} <= set(content):
        if fairseq.is_checkpoint(content, path):
            return fairseq.load_from_state(content, path)
        raise CheckpointError(f"{path}: {_describe(content)}")
    content.pop("optim", None)  # free memory: it is larger than the model
    opt = ConfigReader(content["opt"], path)
    refuse_unsupported_options(opt, "OpenNMT-py")
    types = opt.get_str("encoder_type", "rnn"), opt.get_str("decoder_type", "rnn")
    if types not in BUILDERS:
        reason = "encoder_type {!r:.30} with decoder_type {!r:.30} is not supported".format(*types)
        raise CheckpointError(f"{path}: OpenNMT-py: {reason}")
    weights = Weights(_read_weights(content, path), path)
    src_vocab, tgt_vocab, start_id = read_vocabularies(content["vocab"], path)
    has_copy_attention = "generator.linear_copy.weight" in weights
    copy_weights = opennmt.split_copy_weights(weights) if has_copy_attention else None
    model: Any = BUILDERS[types](weights, opt)
    has_layers = opt.get_int("layers", -1) > 0  # overrides enc_layers and dec_layers
    for name, n in (("enc_layers", model.cfg.enc_layers), ("dec_layers", model.cfg.dec_layers)):
        opt.require_equal("layers" if has_layers else name, n)
    if copy_weights is not None:
        model = opennmt.add_copy_generator(model, copy_weights, opt, src_vocab, tgt_vocab)
    transforms = opt.get("transforms")
    has_suffix = isinstance(transforms, list) and "suffix" in transforms
    src_end = src_vocab.eos_id if has_suffix and opt.get("src_suffix") == EOS else None
    if isinstance(content["vocab"], list):
        version = "0.x"
    else:  # version 3 has lists of tokens, older versions have torchtext fields
        is_list = isinstance(content["vocab"]["src"], list)
        version = "3" if is_list and isinstance(content["vocab"]["src"][0], str) else "1 or 2"
    return Checkpoint(
        model,
        src_vocab=src_vocab,
        tgt_vocab=tgt_vocab,
        tokenizers={"space": SpaceTokenizer(only_spaces=version == "3")},
        start_id=start_id,
        src_end=() if src_end is None else (src_end,),
        toolkit="opennmt",
        version=version,
    )


def _describe(content: Any) -> str:
    """Describe a PyTorch file that is neither an OpenNMT-py nor a fairseq checkpoint."""
    if isinstance(content, dict):
        for key, name in UNSUPPORTED.items():
            if key in content:
                return f"{name} checkpoints are not supported"
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return "tensors without a model configuration; use the directory of the whole model"
    return "not an OpenNMT-py checkpoint: 'opt' and 'vocab' are missing"


def _read_weights(content: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """Remove and return all weights; the output layer gets the prefix `generator.`."""
    if "model" not in content:
        return _read_external_weights(path)
    tensors = archive.check_state_dict(content.pop("model"), path)
    generator = content.pop("generator", None)
    generator = {} if generator is None else archive.check_state_dict(generator, path)
    for name, tensor in generator.items():  # before 3.0 a Sequential: 0.weight
        tensors["generator." + name.removeprefix("0.")] = tensor
    return tensors


def _read_external_weights(path: Path) -> dict[str, Tensor]:
    """Read the safetensors file or the disjoint shards next to a checkpoint."""
    whole = path.with_suffix(".safetensors")
    shards = sorted(path.parent.glob(f"{glob.escape(path.stem)}.*.safetensors"))
    files = [whole] if whole.is_file() else shards
    if not files:
        raise CheckpointError(
            f"{path}: the weights are missing; copy {whole.name}, or the shards "
            f"{path.stem}.00.safetensors and so on, into the same directory"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        shard = safetensors.read(file)
        if duplicates := sorted(shard.keys() & tensors.keys()):
            raise CheckpointError(f"{file}: {duplicates[0][:100]!r} is also in an earlier shard")
        tensors |= shard
    return tensors


# -- Vocabularies ----------------------------------------------------------------------------------


def read_vocabularies(vocabs: Any, path: Path) -> tuple[Vocab, Vocab, int]:
    """Read the vocabularies.

    Args:
        vocabs: the entry `vocab` of a checkpoint.
        path: the checkpoint, for error messages.

    Returns:
        Source vocabulary, target vocabulary, and ID of the decoder start token.

    Raises:
        CheckpointError: if a vocabulary is malformed, lacks a special token or has word features.
    """
    if isinstance(vocabs, list):  # 0.x: pairs of name and vocabulary
        vocabs = {p[0]: p[1] for p in vocabs if _is_pair(p) and isinstance(p[0], str)}
    if not isinstance(vocabs, dict) or not {"src", "tgt"} <= set(vocabs):
        raise CheckpointError(f"{path}: the vocabularies 'src' and 'tgt' are missing")
    if vocabs.get("src_feats"):
        raise CheckpointError(f"{path}: word features are not supported")
    src, tgt = (
        Vocab.from_tokens(tokens, pad=PAD, bos=BOS, eos=EOS, unk=UNK)
        for tokens in (_find_tokens(vocabs[side], path) for side in ("src", "tgt"))
    )
    start = vocabs.get("decoder_start_token", BOS)
    if not isinstance(start, str) or start not in tgt.ids:
        raise CheckpointError(f"{path}: the target vocabulary lacks the start token")
    if tgt.eos_id is None:
        raise CheckpointError(f"{path}: the target vocabulary lacks the EOS token {EOS}")
    return src, tgt, tgt.ids[start]


def _find_tokens(value: Any, path: Path) -> list[str]:
    """Find the list of tokens in a list, a Vocab, a Field, a TextMultiField or a list of pairs."""
    for _ in range(8):  # no version nests deeper
        if isinstance(value, list) and value and isinstance(value[0], str):
            return check_tokens(value, path)
        if isinstance(value, list):  # more than one pair: word features
            value = value[0][1] if len(value) == 1 and _is_pair(value[0]) else None
        elif isinstance(value, InertObject):
            names = ("itos", "vocab", "fields")
            value = next((value.get(n) for n in names if value.get(n) is not None), None)
    raise CheckpointError(
        f"{path}: vocabularies with word features or in this format are not supported"
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2
