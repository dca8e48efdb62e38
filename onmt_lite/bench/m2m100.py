"""Our Transformers in transformers: as a Marian model, or with norms before the sublayers.

transformers has one architecture with norms before the sublayers, sinusoidal positions and ReLU:
M2M100.  It takes the weights, and a bias of the output layer besides.
"""

from pathlib import Path
from typing import Any

import torch

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer

FIRST = 2  # M2M100 counts positions from one more than the id of padding, which is 1

# Ours to theirs
NAMES = {
    "encoder": "model.encoder.layers",
    "decoder": "model.decoder.layers",
    "self_attn.out": "self_attn.out_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_attn.q": "encoder_attn.q_proj",
    "self_attn_residual.norm": "self_attn_layer_norm",
    "cross_attn_residual.norm": "encoder_attn_layer_norm",
    "ffn_residual.norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
    "enc_norm": "model.encoder.layer_norm",
    "dec_norm": "model.decoder.layer_norm",
    "src_embedding.token": "model.encoder.embed_tokens",
    "tgt_embedding.token": "model.decoder.embed_tokens",
    "output": "lm_head",
}
JOINED = {"self_attn.qkv": ("self_attn", "qkv"), "cross_attn.kv": ("encoder_attn", "kv")}


def read_model(marian: Path, model: str) -> Any:
    """The exported Marian directory where there is one, else our weights in an M2M100."""
    if marian.exists():
        from transformers import MarianMTModel

        return MarianMTModel.from_pretrained(marian)
    return to_m2m100(load_checkpoint(model))


def obstacle(checkpoint: Checkpoint) -> str:
    """What keeps a model that cannot be a Marian one from being an M2M100; "" if nothing does."""
    model = checkpoint.model
    if not isinstance(model, Transformer):
        return "not a Transformer"
    cfg = model.cfg
    wrong = {
        "norms after the sublayers": not cfg.pre_norm,
        "no norm on top": not cfg.final_norm,
        "a norm on the embeddings": cfg.embedding_norm,
        "RMS norms": cfg.norm != "layer",
        "no positions": cfg.positions == "none",
        "relative positions": cfg.relative != "none",
        "linear layers without bias": not (cfg.attn_bias and cfg.ffn_bias),
        "gated feed-forward layers": cfg.gated_ffn,
        "sublayers side by side": cfg.parallel_residual,
        "fewer heads of keys than of queries": cfg.kv_heads not in (0, cfg.heads),
        "heads of a width of their own": cfg.head_width != 0,
        "averages in place of self-attention": cfg.dec_self_attn != "dot",
        "tables of source and target": not cfg.share_embeddings,
        "no bias of the output layer": not cfg.output_bias,
        "an activation of another name": cfg.activation not in ("relu", "gelu", "silu", "tanh"),
    }
    return "; ".join(what for what, is_so in wrong.items() if is_so)


def to_m2m100(checkpoint: Checkpoint) -> Any:
    """CheckpointError where the model has a part that M2M100 lacks."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    if why := obstacle(checkpoint):
        raise CheckpointError(f"transformers has no architecture for it: {why}")
    ours: Any = checkpoint.model
    cfg = ours.cfg
    config = M2M100Config(
        vocab_size=cfg.tgt_vocab_size,
        d_model=cfg.d_model,
        encoder_layers=cfg.enc_layers,
        decoder_layers=cfg.dec_layers,
        encoder_attention_heads=cfg.heads,
        decoder_attention_heads=cfg.of_decoder.heads,
        encoder_ffn_dim=cfg.d_ff,
        decoder_ffn_dim=cfg.of_decoder.d_ff,
        activation_function=cfg.activation,
        scale_embedding=cfg.scale_embedding,
        max_position_embeddings=cfg.max_positions,
        pad_token_id=checkpoint.src_vocab.pad_id,
        tie_word_embeddings=False,
    )
    theirs = M2M100ForConditionalGeneration(config)
    theirs.lm_head = torch.nn.Linear(cfg.d_model, cfg.tgt_vocab_size)
    take_weights(theirs, ours)
    return theirs


def take_weights(theirs: Any, ours: Transformer) -> None:
    """Copy the weights of ours into an M2M100 of the same shape."""
    taken = {}
    for name, weight in ours.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        place = ""
        if stem.split(".")[0] in ("encoder", "decoder"):
            side, layer, stem = stem.split(".", 2)
            place = f"{NAMES[side]}.{layer}."
        if stem in JOINED:
            attention, parts = JOINED[stem]
            for part, piece in zip(parts, weight.chunk(len(parts))):
                taken[f"{place}{attention}.{part}_proj.{kind}"] = piece
        else:
            taken[f"{place}{NAMES[stem]}.{kind}"] = weight
    taken["model.shared.weight"] = taken["model.decoder.embed_tokens.weight"]
    theirs.load_state_dict(taken)
    for module in theirs.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = ours.cfg.norm_eps
    table: Any = ours.src_embedding.position
    positions = torch.cat([table.new_zeros(FIRST, table.size(1)), table])
    for half in (theirs.model.encoder, theirs.model.decoder):
        half.embed_positions.register_buffer("weights", positions, persistent=False)
