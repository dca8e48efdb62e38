"""Weights of the models that transformers writes like BART: Marian, M2M100, mBART."""

import re
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.building import finished, same_numbers
from onmt_lite.checkpoints.description import Description
from onmt_lite.checkpoints.huggingface.directory import ACTIVATIONS, Directory
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer

# Our names of a layer's parts, and theirs; fairseq has the same ones
ENCODER_LAYER = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out": ("self_attn.out_proj",),
    "self_attn_residual.norm": ("self_attn_layer_norm",),
    "ffn.up": ("fc1",),
    "ffn.down": ("fc2",),
    "ffn_residual.norm": ("final_layer_norm",),
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "cross_attn.q": ("encoder_attn.q_proj",),
    "cross_attn.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attn.out": ("encoder_attn.out_proj",),
    "cross_attn_residual.norm": ("encoder_attn_layer_norm",),
}
SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
BIAS = "final_logits_bias"
# Around the layers, where a family has them
STACK = {
    "encoder": {"enc_norm": ("layer_norm",), "src_embedding.norm": ("layernorm_embedding",)},
    "decoder": {"dec_norm": ("layer_norm",), "tgt_embedding.norm": ("layernorm_embedding",)},
}


def read_transformer(
    directory: Directory, weights: Weights, others: dict[str, Tensor], **variant: Any
) -> Transformer:
    """The model, of all weights that are left and of `others`, which have our names already.

    variant: the fields of the configuration in which the families differ
    """
    config = directory.config
    ours = _embeddings(config, weights) | others
    if BIAS in weights:
        ours["output.bias"] = weights.take(BIAS).flatten()
    ours |= read_stacks(weights, "model.")
    model = finished(
        ours,
        weights,
        config.path,
        heads=config.number("encoder_attention_heads"),
        dec_heads=config.number("decoder_attention_heads"),
        activation=config.choice("activation_function", ACTIVATIONS),
        scale_embedding=config.flag("scale_embedding", None),
        norm_eps=1e-5,
        **variant,
    )
    cfg = model.cfg
    directory.check_sizes(
        d_model=cfg.d_model,
        vocab_size=cfg.src_vocab_size,
        encoder_layers=cfg.enc_layers,
        decoder_layers=cfg.dec_layers,
        encoder_ffn_dim=cfg.d_ff,
        decoder_ffn_dim=cfg.of_decoder.d_ff,
    )
    return model


def read_stacks(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """Take the weights of all layers and of the norms around them, under our names."""
    ours: dict[str, Tensor] = {}
    for side, parts in (("encoder", ENCODER_LAYER), ("decoder", DECODER_LAYER)):
        theirs = f"{prefix}{side}"
        ours |= weights.renamed(theirs, "", STACK[side])
        layer = theirs + ".layers.{}"
        ours |= weights.layers(layer, side, weights.count(f"{layer}."), parts)
    return ours


def _embeddings(config: Description, weights: Weights) -> dict[str, Tensor]:
    """The tables under our names.

    A file may repeat a shared table under each of its names, or keep any one of them.  Where
    nothing is tied, transformers 4 still shares the table of source and target, 5 does not.
    """
    tied = config.flag("tie_word_embeddings", True)
    shared = config.flag("share_encoder_decoder_embeddings", True)
    one_table = shared and tied
    wanted = {
        "src_embedding.token.weight": [SOURCE] + [SHARED, TARGET] * shared + [HEAD] * one_table,
        "tgt_embedding.token.weight": [TARGET] + [SHARED, SOURCE] * shared + [HEAD] * tied,
        "output.weight": [TARGET] + [SHARED, HEAD, SOURCE] * shared + [HEAD] if tied else [HEAD],
    }
    found = {}
    for table, names in wanted.items():
        name = next((name for name in names if name in weights), names[0])
        weights.shape(name)
        found[table] = name
    tables = {name: weights.take(name) for name in set(found.values())}
    weights.drop("|".join(map(re.escape, (SHARED, SOURCE, TARGET, HEAD))))
    ours = {name: tables[theirs] for name, theirs in found.items()}
    src, tgt = ours["src_embedding.token.weight"], ours["tgt_embedding.token.weight"]
    if one_table and not same_numbers(src, tgt):
        raise CheckpointError(f"{config.path}: embeddings that it says are shared differ")
    return ours
