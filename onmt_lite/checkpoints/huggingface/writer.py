"""Writes a Transformer as a Marian directory of Hugging Face transformers.

The inverse of `marian`.  Read by transformers 4 and 5 (`MarianMTModel`, `MarianTokenizer`).
"""

import json
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.huggingface.bart import (
    DECODER_LAYER,
    ENCODER_LAYER,
    HEAD,
    SHARED,
    SOURCE,
    TARGET,
)
from onmt_lite.checkpoints.huggingface.directory import ACTIVATIONS, CONFIG
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.writing import (
    CAPITALS,
    Export,
    named_as,
    refuse,
    taken_apart,
    transformer_of,
)
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import MarianTokenizer, SentencePieceTokenizer

NAME = "Marian"
ACTIVATION_NAMES = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
NORM_EPS = 1e-5
BEAMS = 5  # what transformers searches with where it is not told; ours is the same


def export(checkpoint: Checkpoint) -> Export:
    """The files of the directory.  CheckpointError names what Marian cannot hold."""
    model = transformer_of(checkpoint, NAME)
    refuse(NAME, _obstacles(model.cfg) | _vocabulary_obstacles(checkpoint))
    weights = {name: w.float() for name, w in _weights(model).items()}
    tables = {
        **_vocabularies(checkpoint),
        "tokenizer_config.json": _tokenizer_config(checkpoint, model.cfg),
        "generation_config.json": _generation_config(checkpoint, model.cfg),
        CONFIG: _config(checkpoint, model.cfg),
    }
    # transformers does not open a file that does not say where its tensors come from
    files = {"model.safetensors": safetensors.dump(weights, {"format": "pt"})}
    files |= _pieces(checkpoint)
    for name, table in tables.items():
        files[name] = (json.dumps(table, ensure_ascii=False, indent=1) + "\n").encode()
    notes = [CAPITALS] * checkpoint.lower_capitals
    if "source.spm" not in files:
        notes.append("without pieces: the MarianTokenizer of transformers needs source.spm")
    return Export(files, tuple(notes))


def _obstacles(cfg: TransformerConfig) -> dict[str, bool]:
    return {
        "norms before the sublayers": cfg.pre_norm,
        "a norm on top of encoder and decoder": cfg.final_norm,
        "a norm on the embeddings": cfg.embedding_norm,
        f"{cfg.positions} positions": cfg.positions != "concat",
        "positions that do not start at 0": cfg.position_offset != 0,
        f"{cfg.relative} relative positions": cfg.relative != "none",
        "RMS norms": cfg.norm != "layer",
        f"norms with epsilon {cfg.norm_eps:g}": cfg.norm_eps != NORM_EPS,
        "linear layers without bias": not (cfg.attn_bias and cfg.ffn_bias),
        "gated feed-forward layers": cfg.gated_ffn,
        "sublayers side by side": cfg.parallel_residual,
        "heads of a width of their own": cfg.head_width != 0,
        "fewer heads of keys than of queries": cfg.kv_heads not in (0, cfg.heads),
        "averages in place of self-attention": cfg.dec_self_attn != "dot",
    }


def _vocabulary_obstacles(checkpoint: Checkpoint) -> dict[str, bool]:
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    return {
        "no token for padding or unknown words": None in (tgt.pad_id, tgt.unk_id),
        "special tokens with other ids in source and target": (
            (src.eos_id, src.pad_id) != (tgt.eos_id, tgt.pad_id)
        ),
        "source lines without the end token": checkpoint.src_end != (tgt.eos_id,),
    }


def _weights(model: Transformer) -> dict[str, Tensor]:
    cfg, ours = model.cfg, model.state_dict()
    bias = ours.get("output.bias", torch.zeros(cfg.tgt_vocab_size))
    theirs = {"final_logits_bias": bias[None]}
    if cfg.share_embeddings:
        theirs[SHARED] = ours["tgt_embedding.token.weight"]
    else:
        theirs[SOURCE] = ours["src_embedding.token.weight"]
        theirs[TARGET] = ours["tgt_embedding.token.weight"]
    if not cfg.tie_output:
        theirs[HEAD] = ours["output.weight"]
    for i in range(cfg.enc_layers):
        layer = f"model.encoder.layers.{i}"
        theirs |= taken_apart(ours, f"encoder.{i}", layer, ENCODER_LAYER)
    for i in range(cfg.dec_layers):
        layer = f"model.decoder.layers.{i}"
        theirs |= taken_apart(ours, f"decoder.{i}", layer, DECODER_LAYER)
    return theirs


def _ids(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "decoder_start_token_id": checkpoint.start_id,
        "eos_token_id": checkpoint.eos_id,
        "pad_token_id": checkpoint.tgt_vocab.pad_id,
        "forced_eos_token_id": checkpoint.eos_id if checkpoint.forced_eos else None,
    }


def _config(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, Any]:
    return _ids(checkpoint) | {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": cfg.src_vocab_size,
        "decoder_vocab_size": cfg.tgt_vocab_size,
        "d_model": cfg.d_model,
        "encoder_layers": cfg.enc_layers,
        "decoder_layers": cfg.dec_layers,
        "encoder_attention_heads": cfg.heads,
        "decoder_attention_heads": cfg.of_decoder.heads,
        "encoder_ffn_dim": cfg.d_ff,
        "decoder_ffn_dim": cfg.of_decoder.d_ff,
        "activation_function": ACTIVATION_NAMES[cfg.activation],
        "scale_embedding": cfg.scale_embedding,
        "max_position_embeddings": cfg.max_positions,
        "share_encoder_decoder_embeddings": cfg.share_embeddings,
        "tie_word_embeddings": cfg.tie_output,
    }


def _generation_config(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, Any]:
    never = [[i] for i in checkpoint.never_ids] or None
    limits = {"max_length": cfg.max_positions, "num_beams": BEAMS}
    return _ids(checkpoint) | {"bad_words_ids": never, **limits}


def _separate(checkpoint: Checkpoint) -> bool:
    return checkpoint.src_vocab.tokens != checkpoint.tgt_vocab.tokens


def _tokenizer_config(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": _separate(checkpoint),
        "model_max_length": cfg.max_positions,
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }


def _vocabularies(checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
    tables = {"vocab.json": checkpoint.src_vocab}
    if _separate(checkpoint):
        tables["target_vocab.json"] = checkpoint.tgt_vocab
    found = {}
    for name, vocab in tables.items():
        special = {vocab.unk_id: "<unk>", vocab.pad_id: "<pad>", vocab.eos_id: "</s>"}
        tokens = named_as(vocab, special, NAME)
        found[name] = {token: i for i, token in enumerate(tokens)}
    return found


def _pieces(checkpoint: Checkpoint) -> dict[str, bytes]:
    tokenizer = checkpoint.tokenizers.get("sentencepiece")
    if isinstance(tokenizer, MarianTokenizer):
        source, target = tokenizer.source, tokenizer.target
    elif isinstance(tokenizer, SentencePieceTokenizer):
        source = target = tokenizer.processor
    else:
        return {}
    return {
        "source.spm": source.serialized_model_proto(),
        "target.spm": target.serialized_model_proto(),
    }
