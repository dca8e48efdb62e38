"""The shipped model as a transformers M2M100 model.

Like the shipped model, M2M100 is pre-norm with ReLU (Marian is post-norm).  The output bias and the
learned positions of each side are added.
"""

from typing import Any

import torch

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.writing import rename_weights

FIRST_POSITION = 2  # M2M100 positions start after the padding ID, 1
# Weights outside the layers: onmt_lite name -> M2M100 name
EMBEDDING_NAMES = {
    "src_embedding.token.weight": "model.encoder.embed_tokens.weight",
    "tgt_embedding.token.weight": "model.decoder.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output.bias": "lm_head.bias",
}


def to_m2m100(path: str) -> Any:
    """Load an onmt_lite model as M2M100.

    Raises:
        RuntimeError: the model has weights that M2M100 does not have
    """
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    checkpoint = load_checkpoint(path)
    model: Any = checkpoint.model
    cfg = model.cfg
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
    m2m100 = M2M100ForConditionalGeneration(config)
    m2m100.lm_head = torch.nn.Linear(cfg.d_model, cfg.tgt_vocab_size)
    m2m100.load_state_dict(to_m2m100_weights(model))
    for module in m2m100.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = cfg.norm_eps
    for side, embedding in (
        (m2m100.model.encoder, model.src_embedding),
        (m2m100.model.decoder, model.tgt_embedding),
    ):
        table = embedding.position.detach()  # (max_positions, d_model)
        positions = torch.cat([table.new_zeros(FIRST_POSITION, table.size(1)), table])
        side.embed_positions.register_buffer("weights", positions, persistent=False)
    return m2m100


def to_m2m100_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights under their M2M100 names, with fused projections split."""
    weights = model.state_dict()
    renamed = rename_weights(weights, "bart")
    renamed |= {name: weights[our_name] for our_name, name in EMBEDDING_NAMES.items()}
    renamed["model.shared.weight"] = renamed["model.decoder.embed_tokens.weight"]
    return renamed
