"""Writes a Transformer as OpenNMT-py 3 stores it: the inverse of `opennmt` and its parts.

The `.pt` file holds weights, vocabularies, and options of OpenNMT-py's model builder that have no
default (3.5.1: `onmt/model_builder.py`, `onmt/utils/parse.py`).
"""

import argparse
import io
from typing import Any

import torch
from torch import Tensor

from onmt_lite.checkpoints.opennmt.models import (
    DEC,
    DECODER_LAYER,
    EMBEDDINGS,
    ENC,
    ENCODER_LAYER,
    MAX_POSITIONS,
    RELATIONS,
    SRC,
    TGT,
)
from onmt_lite.checkpoints.opennmt.reader import BOS, EOS, PAD, UNK
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
from onmt_lite.models.positions import sinusoids
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import SentencePieceTokenizer

NAME = "OpenNMT-py"
# By activation and whether it is gated
ACTIVATIONS = {
    ("relu", False): "relu",
    ("gelu", False): "gelu",
    ("silu", True): "silu",
    ("gelu", True): "gated-gelu",
}
LAYOUTS = {"interleaved": "SinusoidalInterleaved", "fairseq": "SinusoidalConcat"}
SELF_ATTENTION = {"dot": "scaled-dot", "average": "average", "average_ffn": "average"}


def export(checkpoint: Checkpoint, stem: str) -> Export:
    """Make STEM.pt, and STEM.model for a model with sentencepiece pieces.

    Raises CheckpointError with all features that OpenNMT-py 3.5.1 lacks.
    """
    model = transformer_of(checkpoint, NAME)
    refuse(NAME, _obstacles(model.cfg) | _vocabulary_obstacles(checkpoint))
    weights = _weights(model)
    root = {
        "model": {name: w for name, w in weights.items() if not name.startswith("generator.")},
        "generator": {
            name.removeprefix("generator."): w
            for name, w in weights.items()
            if name.startswith("generator.")
        },
        "vocab": _vocabularies(checkpoint),
        "opt": argparse.Namespace(**_options(model.cfg, bool(checkpoint.src_end))),
        "optim": None,
    }
    data = io.BytesIO()
    torch.save(root, data)
    files = {}
    tokenizer = checkpoint.tokenizers.get("sentencepiece")
    if isinstance(tokenizer, SentencePieceTokenizer):
        files[f"{stem}.model"] = tokenizer.processor.serialized_model_proto()
    files[f"{stem}.pt"] = data.getvalue()
    return Export(files, _notes(checkpoint, model.cfg, list(files)))


def _obstacles(cfg: TransformerConfig) -> dict[str, bool]:
    vectors = cfg.positions != "none"
    return {
        "norms after the sublayers": not cfg.pre_norm,
        "no norm on top of encoder and decoder": not cfg.final_norm,
        "a norm on the embeddings": cfg.embedding_norm,
        "heads of a width of their own": cfg.head_width != 0,
        "learned positions": cfg.positions == "learned",
        f"positions computed as {cfg.positions}": cfg.positions == "concat",
        f"lines of more than {MAX_POSITIONS} tokens": cfg.max_positions > MAX_POSITIONS,
        "position vectors beside relative positions": vectors and cfg.relative != "none",
        "embeddings scaled without position vectors": cfg.scale_embedding and not vectors,
        "position vectors on embeddings that are not scaled": vectors and not cfg.scale_embedding,
        f"the {'gated ' * cfg.gated_ffn}activation {cfg.activation}": (
            (cfg.activation, cfg.gated_ffn) not in ACTIVATIONS
        ),
        "relative positions of values that are not those of keys": cfg.relative_values,
        "heads of the decoder other than the encoder's": cfg.of_decoder.heads != cfg.heads,
        "d_ff of the decoder other than the encoder's": cfg.of_decoder.d_ff != cfg.d_ff,
    }


def _vocabulary_obstacles(checkpoint: Checkpoint) -> dict[str, bool]:
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    return {
        "no token for padding or unknown words": None
        in (src.pad_id, src.unk_id, tgt.pad_id, tgt.unk_id),
        "no start token": tgt.bos_id is None,
        "source lines that end in another token": checkpoint.src_end not in ((), (src.eos_id,)),
    }


def _vocabularies(checkpoint: Checkpoint) -> dict[str, Any]:
    src, tgt = (
        named_as(v, {v.pad_id: PAD, v.unk_id: UNK, v.bos_id: BOS, v.eos_id: EOS}, NAME)
        for v in (checkpoint.src_vocab, checkpoint.tgt_vocab)
    )
    start = tgt[checkpoint.start_id]
    return {"src": src, "tgt": tgt, "data_task": "seq2seq", "decoder_start_token": start}


def _options(cfg: TransformerConfig, ends_sources: bool) -> dict[str, Any]:
    """Options of OpenNMT-py's model builder."""
    limit = {"rotary": -1, "alibi": -2, "none": 0}.get(cfg.relative, cfg.relative_limit)
    options: dict[str, Any] = dict(
        model_task="seq2seq",
        model_type="text",
        encoder_type="transformer",
        decoder_type="transformer",
        enc_layers=cfg.enc_layers,
        dec_layers=cfg.dec_layers,
        hidden_size=cfg.d_model,
        word_vec_size=cfg.d_model,
        heads=cfg.heads,
        num_kv=cfg.kv_heads,
        transformer_ff=cfg.d_ff,
        pos_ffn_activation_fn=ACTIVATIONS[cfg.activation, cfg.gated_ffn],
        self_attn_type=SELF_ATTENTION[cfg.dec_self_attn],
        aan_useffn=cfg.dec_self_attn == "average_ffn",
        add_qkvbias=cfg.attn_bias,
        add_ffnbias=cfg.ffn_bias,
        parallel_residual=cfg.parallel_residual,
        shared_layer_norm=cfg.parallel_residual,
        layer_norm={"layer": "standard", "rms": "rms"}[cfg.norm],
        norm_eps=cfg.norm_eps,
        position_encoding=cfg.positions != "none",
        position_encoding_type=LAYOUTS.get(cfg.positions, "SinusoidalInterleaved"),
        max_relative_positions=limit,
        relative_positions_buckets=cfg.relative_buckets if cfg.relative == "buckets" else 0,
        rotary_theta=cfg.rotary_theta,
        rotary_dim=cfg.rotary_dim,
        rotary_interleave=cfg.rotary_interleave,
        share_vocab=cfg.share_embeddings,
        share_embeddings=cfg.share_embeddings,
        share_decoder_embeddings=cfg.tie_output,
        # Options of training, which the builder reads too
        freeze_word_vecs_enc=False,
        freeze_word_vecs_dec=False,
        dropout=[0.0],
        attention_dropout=[0.0],
        optim="adam",
        world_size=1,
        parallel_mode="data_parallel",
    )
    if ends_sources:
        options |= dict(transforms=["suffix"], src_suffix=EOS, tgt_suffix="")
    if cfg.report_layer:
        options |= {"alignment_layer": cfg.report_layer - 1, "alignment_heads": cfg.report_heads}
    return options


def _weights(model: Transformer) -> dict[str, Tensor]:
    cfg, ours = model.cfg, model.state_dict()
    relation = RELATIONS.get(cfg.relative, {})
    theirs = {
        SRC: ours["src_embedding.token.weight"],
        TGT: ours["tgt_embedding.token.weight"],
        "generator.weight": ours["output.weight"],
        # OpenNMT-py's output layer always has a bias
        "generator.bias": ours.get("output.bias", torch.zeros(cfg.tgt_vocab_size)),
    }
    theirs |= taken_apart(ours, "enc_norm", "encoder", {"": ("layer_norm",)})
    theirs |= taken_apart(ours, "dec_norm", "decoder", {"": ("layer_norm",)})
    for i in range(cfg.enc_layers):
        theirs |= taken_apart(ours, f"encoder.{i}", f"{ENC}.{i}", ENCODER_LAYER | relation)
    for i in range(cfg.dec_layers):
        theirs |= taken_apart(ours, f"decoder.{i}", f"{DEC}.{i}", DECODER_LAYER | relation)
        if cfg.parallel_residual:  # a norm that is not used
            theirs[f"{DEC}.{i}.layer_norm_2.weight"] = torch.ones(cfg.d_model)
            if cfg.norm == "layer":
                theirs[f"{DEC}.{i}.layer_norm_2.bias"] = torch.zeros(cfg.d_model)
    if cfg.positions != "none":
        rows = MAX_POSITIONS + cfg.position_offset
        table = sinusoids(rows, cfg.d_model, cfg.positions)[cfg.position_offset :, None]
        theirs |= {f"{name}.pe.pe": table for name in EMBEDDINGS.values()}
    return theirs


def _notes(checkpoint: Checkpoint, cfg: TransformerConfig, files: list[str]) -> tuple[str, ...]:
    """Lines for the YAML of `onmt_translate`, and differences between the two programs."""
    pieces = files[0] if len(files) > 1 else None
    transforms = ["sentencepiece"] * (pieces is not None) + ["suffix"] * bool(checkpoint.src_end)
    lines = [f"transforms: [{', '.join(transforms)}]"] if transforms else []
    if pieces is not None:
        lines += [f'src_subword_model: "{pieces}"', f'tgt_subword_model: "{pieces}"']
    if checkpoint.src_end:
        lines.append(f'src_suffix: "{EOS}"')
    lines.append(f"self_attn_type: {SELF_ATTENTION[cfg.dec_self_attn]}")
    notes = ["in the YAML of onmt_translate:", *(f"  {line}" for line in lines)]
    if checkpoint.never_ids:
        never = " and ".join(checkpoint.tgt_vocab.tokens[i] for i in checkpoint.never_ids)
        notes.append(f"OpenNMT-py does not forbid {never} in outputs, as is done here")
    return tuple(notes + [CAPITALS] * checkpoint.lower_capitals)
