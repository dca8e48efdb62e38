"""The shipped model in transformers, as M2M100.

Marian has norms after the sublayers.  M2M100 has them before, and ReLU; it takes the weights, a
bias of the output layer besides, and each side's table of positions in place of its sinusoids.
"""

from typing import Any

import torch

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.writing import rename_weights

FIRST = 2  # M2M100 counts positions from one more than the id of padding, which is 1
# Our names of what Marian has too, and theirs
OUTSIDE = {
    "src_embedding.token.weight": "model.encoder.embed_tokens.weight",
    "tgt_embedding.token.weight": "model.decoder.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output.bias": "lm_head.bias",
}


def to_m2m100(path: str) -> Any:
    """Load our model as one of transformers.  Raises RuntimeError if M2M100 lacks a part of it."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    checkpoint = load_checkpoint(path)
    ours: Any = checkpoint.model
    cfg = ours.cfg
    config = M2M100Config(
        vocab_size=cfg.tgt_vocab_size,
        d_model=cfg.d_model,
        encoder_layers=cfg.enc_layers,
        decoder_layers=cfg.dec_layers,
        encoder_attention_heads=cfg.heads,
        decoder_attention_heads=cfg.decoder_config.heads,
        encoder_ffn_dim=cfg.d_ff,
        decoder_ffn_dim=cfg.decoder_config.d_ff,
        activation_function=cfg.activation,
        scale_embedding=cfg.scale_embedding,
        max_position_embeddings=cfg.max_positions,
        pad_token_id=checkpoint.src_vocab.pad_id,
        tie_word_embeddings=False,
    )
    theirs = M2M100ForConditionalGeneration(config)
    theirs.lm_head = torch.nn.Linear(cfg.d_model, cfg.tgt_vocab_size)
    theirs.load_state_dict(renamed(ours))
    for module in theirs.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = cfg.norm_eps
    halves = (theirs.model.encoder, ours.src_embedding), (theirs.model.decoder, ours.tgt_embedding)
    for half, embedding in halves:
        table = embedding.position.detach()
        positions = torch.cat([table.new_zeros(FIRST, table.size(1)), table])
        half.embed_positions.register_buffer("weights", positions, persistent=False)
    return theirs


def renamed(ours: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights by M2M100's names, with joined projections taken apart."""
    weights = ours.state_dict()
    theirs = rename_weights(weights, "bart")
    theirs |= {name: weights[our_name] for our_name, name in OUTSIDE.items()}
    theirs["model.shared.weight"] = theirs["model.decoder.embed_tokens.weight"]
    return theirs
