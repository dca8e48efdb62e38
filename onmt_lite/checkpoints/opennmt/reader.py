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

# Toolkits by a key of their checkpoints
OTHERS = {"pytorch-lightning_version": "PyTorch Lightning", "model_state": "JoeyNMT"}
PAD, BOS, EOS, UNK = "<blank>", "<s>", "</s>", "<unk>"
# By encoder_type and decoder_type
FAMILIES: dict[tuple[str, str], Callable[[Weights, ConfigReader], Seq2SeqModel]] = {
    ("transformer", "transformer"): opennmt.build_transformer,
    ("rnn", "rnn"): opennmt.build_rnn,
    ("brnn", "rnn"): opennmt.build_rnn,
    ("cnn", "cnn"): opennmt.build_cnn,
}


def can_load(path: Path) -> bool:
    return archive.is_archive(path)


def load(path: Path) -> Checkpoint:
    """Load a checkpoint; a `.pt` file of fairseq goes to its reader.  Raises CheckpointError."""
    root = archive.load(path)
    if not isinstance(root, dict) or not {"opt", "vocab"} <= set(root):
        if fairseq.is_checkpoint(root, path):
            return fairseq.load_from_state(root, path)
        raise CheckpointError(f"{path}: {_describe(root)}")
    root.pop("optim", None)  # which is larger than the model
    opt = ConfigReader(root["opt"], path)
    refuse_unsupported_options(opt, "OpenNMT-py")
    kinds = opt.get_str("encoder_type", "rnn"), opt.get_str("decoder_type", "rnn")
    if kinds not in FAMILIES:
        reason = "encoder_type {!r:.30} with decoder_type {!r:.30} is not supported".format(*kinds)
        raise CheckpointError(f"{path}: OpenNMT-py: {reason}")
    weights = Weights(_read_weights(root, path), path)
    src_vocab, tgt_vocab, start_id = read_vocabularies(root["vocab"], path)
    copies = "generator.linear_copy.weight" in weights
    copying = opennmt.split_copy_weights(weights) if copies else None
    model: Any = FAMILIES[kinds](weights, opt)
    both = opt.get_int("layers", -1) > 0  # overrides both sides'
    for name, n in (("enc_layers", model.cfg.enc_layers), ("dec_layers", model.cfg.dec_layers)):
        opt.require_equal("layers" if both else name, n)
    if copying is not None:
        model = opennmt.add_copy_head(model, copying, opt, src_vocab, tgt_vocab)
    used = opt.get("transforms")
    ends = isinstance(used, list) and "suffix" in used and opt.get("src_suffix") == EOS
    if isinstance(root["vocab"], list):
        version = "0.x"
    else:  # fields of torchtext before 3, then lists of tokens
        listed = isinstance(root["vocab"]["src"], list)
        version = "3" if listed and isinstance(root["vocab"]["src"][0], str) else "1 or 2"
    return Checkpoint(
        model,
        src_vocab=src_vocab,
        tgt_vocab=tgt_vocab,
        tokenizers={"space": SpaceTokenizer(only_spaces=version == "3")},
        start_id=start_id,
        src_end=(src_vocab.eos_id,) if ends and src_vocab.eos_id is not None else (),
        toolkit="opennmt",
        version=version,
    )


def _describe(root: Any) -> str:
    """Describe the content of a PyTorch file that neither OpenNMT-py nor fairseq writes."""
    if isinstance(root, dict):
        for key, name in OTHERS.items():
            if key in root:
                return f"a {name} checkpoint, which is not supported"
        if root and all(isinstance(value, Tensor) for value in root.values()):
            return "tensors without a model configuration; give the directory of the whole model"
    return "a PyTorch file without 'opt' and 'vocab', so not an OpenNMT-py checkpoint"


def _read_weights(root: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """Take all weights from the root; names of the output layer's begin with `generator.`"""
    if "model" not in root:
        return _read_beside(path)
    tensors = archive.check_state_dict(root.pop("model"), path)
    generator = root.pop("generator", None)
    generator = {} if generator is None else archive.check_state_dict(generator, path)
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


def read_vocabularies(stored: Any, path: Path) -> tuple[Vocab, Vocab, int]:
    """Read the source and target vocabulary, and the id that starts the decoder."""
    if isinstance(stored, list):  # 0.x: pairs of name and vocabulary
        stored = {p[0]: p[1] for p in stored if _is_pair(p) and isinstance(p[0], str)}
    if not isinstance(stored, dict) or not {"src", "tgt"} <= set(stored):
        raise CheckpointError(f"{path}: it holds no vocabularies 'src' and 'tgt'")
    if stored.get("src_feats"):
        raise CheckpointError(f"{path}: a model with word features, which is not supported")
    src, tgt = (
        Vocab.from_tokens(tokens, pad=PAD, bos=BOS, eos=EOS, unk=UNK)
        for tokens in (_find_tokens(stored[side], path) for side in ("src", "tgt"))
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
            return check_tokens(stored, path)
        if isinstance(stored, list):  # several pairs are of word features
            stored = stored[0][1] if len(stored) == 1 and _is_pair(stored[0]) else None
        elif isinstance(stored, InertObject):
            names = ("itos", "vocab", "fields")
            stored = next((stored.get(n) for n in names if stored.get(n) is not None), None)
    raise CheckpointError(
        f"{path}: a vocabulary with word features, or stored in a way that is not known"
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2
