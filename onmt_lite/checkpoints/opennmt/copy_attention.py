"""Copy attention of OpenNMT-py, which any family may have.

copying = split(weights)
model = wrap(build_model(weights, opt), copying, opt, src_vocab, tgt_vocab)
"""

from typing import cast

import torch
from torch import Tensor

from onmt_lite.checkpoints.building import build
from onmt_lite.checkpoints.description import Description
from onmt_lite.checkpoints.opennmt.rnn import read_attention, read_normaliser
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.family import Family
from onmt_lite.models.heads import CopyHead, Head
from onmt_lite.models.rnn import Rnn
from onmt_lite.models.rnn_attention import AttentionWeights
from onmt_lite.text.vocab import Vocab

ATTENTION = "decoder.copy_attn"
RULES = (
    (r"generator\.linear_copy\.(\w+)", r"gate.\1"),
    (r"decoder\.copy_attn\.linear_(?:in|query)\.(\w+)", r"attention.query.\1"),
    (r"decoder\.copy_attn\.linear_context\.(\w+)", r"attention.key.\1"),
    (r"decoder\.copy_attn\.v\.(\w+)", r"attention.energy.\1"),
    (r"decoder\.copy_attn\.linear_out\.(\w+)", ""),  # only its weights on the source count
)


def recognises(weights: Weights) -> bool:
    return "generator.linear_copy.weight" in weights


def split(weights: Weights) -> Weights:
    """Take the weights of copying out of `weights`, and rename the rest to those of a plain model.

    Returns the weights of copying.
    """
    copying = {}
    for name in list(weights.tensors):
        tensor = weights.tensors.pop(name)
        if name.startswith(("generator.linear_copy.", ATTENTION)):
            copying[name] = tensor
        else:
            weights.tensors[name.replace("generator.linear.", "generator.")] = tensor
    return Weights(copying, weights.path)


def wrap(
    model: Family, copying: Weights, opt: Description, src_vocab: Vocab, tgt_vocab: Vocab
) -> Family:
    """Give the model a head that copies.  Raises CheckpointError where the weights do not fit.

    A Transformer copies by the attention that its steps return: the first head of the last layer.
    """
    if tgt_vocab.pad_id is None or tgt_vocab.unk_id is None:
        raise CheckpointError(f"{opt.path}: copying needs padding and the unknown word as tokens")
    has_attention = any(name.startswith(ATTENTION) for name in copying.tensors)
    if has_attention == (not isinstance(model, Rnn) or opt.flag("reuse_copy_attn")):
        raise CheckpointError(
            f"{opt.path}: {ATTENTION} is {'there' if has_attention else 'missing'}, which does not "
            "fit the kind of model"
        )
    table = copy_table(src_vocab, tgt_vocab)
    special = tgt_vocab.pad_id, tgt_vocab.unk_id
    kind = None
    if has_attention:
        options = ("copy_attn_type", "global_attention")
        kind = read_attention(copying, ATTENTION, opt, *options)

    def make() -> CopyHead:
        d = vocabulary.in_features
        attention = None if kind is None else AttentionWeights(d, kind, read_normaliser(opt))
        return CopyHead(vocabulary, table, *special, attention)

    vocabulary = cast(Head, model.output)
    model.output = build(make, copying.by_rules(RULES), copying.path)
    return model


def copy_table(src_vocab: Vocab, tgt_vocab: Vocab) -> Tensor:
    """Target id of each source id (Vsrc,); the unknown token where the target lacks the word."""
    return torch.tensor(tgt_vocab.encode(src_vocab.tokens))
