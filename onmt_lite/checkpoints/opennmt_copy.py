"""OpenNMT-py's copy attention: what it adds to a checkpoint of any family.

plain, own = split(weights)
model = wrap(build(plain, options), own, options, src_vocab, tgt_vocab)
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints.opennmt_rnn import read_attention
from onmt_lite.checkpoints.renaming import Tensors, load_strictly, rename
from onmt_lite.errors import CheckpointError
from onmt_lite.models.copying import CopyModel, Pointing
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


def recognises(weights: Tensors) -> bool:
    return "generator.linear_copy.weight" in weights


def split(weights: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Apart: what a model that does not copy has, under the names it has it; and the rest."""
    plain, own = {}, {}
    for name, tensor in weights.items():
        if name.startswith(("generator.linear_copy.", ATTENTION)):
            own[name] = tensor
        else:
            plain[name.replace("generator.linear.", "generator.")] = tensor
    return plain, own


def wrap(
    inner: Pointing, own: Tensors, options: Mapping[str, Any], src_vocab: Vocab, tgt_vocab: Vocab
) -> CopyModel:
    """The model with its copy attention; CheckpointError for what does not fit it.

    A Transformer copies by the first head of its last layer's attention, which its steps return.
    """
    if tgt_vocab.pad_id is None or tgt_vocab.unk_id is None:
        raise CheckpointError("vocabulary: copying needs padding and the unknown word in it")
    has_attention = any(name.startswith(ATTENTION) for name in own)
    if has_attention == (not isinstance(inner, Rnn) or bool(options.get("reuse_copy_attn"))):
        raise CheckpointError(
            f"weights: {ATTENTION} is {'there' if has_attention else 'missing'}, which does not "
            "fit the kind of model"
        )
    table = copy_table(src_vocab, tgt_vocab)
    special = tgt_vocab.pad_id, tgt_vocab.unk_id

    def make() -> CopyModel:
        attention = _attention(inner, own, options) if has_attention else None
        return CopyModel(inner, table, *special, attention)

    of_inner = {f"inner.{name}": weight for name, weight in inner.state_dict().items()}
    return load_strictly(make, {**of_inner, **rename(own, RULES)})


def _attention(inner: Pointing, own: Tensors, options: Mapping[str, Any]) -> AttentionWeights:
    kind = read_attention(own, ATTENTION)
    said = options.get("copy_attn_type") or options.get("global_attention") or kind
    if said != kind:
        raise CheckpointError(f"options: copy_attn_type {said!r:.50}, but weights of {kind!r}")
    return AttentionWeights(inner.output.in_features, kind)


def copy_table(src_vocab: Vocab, tgt_vocab: Vocab) -> Tensor:
    """The target id of each source id (Vsrc,); unknown where the target lacks the word."""
    return torch.tensor(tgt_vocab.encode(src_vocab.tokens))
