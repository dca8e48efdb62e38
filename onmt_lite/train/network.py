"""The Transformer that a run begins with: a new one, or a trained one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import OptionError
from onmt_lite.jobs.reports import LOG
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.train.options import ModelOptions

# Fields in which a Transformer of Marian differs from the default
LIKE_MARIAN: dict[str, Any] = {
    "pre_norm": False,
    "final_norm": False,
    "positions": "concat",
    "norm_eps": 1e-5,
}


def new_model(m: ModelOptions, n_pieces: int) -> Transformer:
    """Make a model with random weights."""
    sizes = (m.d_model, m.heads, m.d_ff, m.enc_layers, m.dec_layers)
    cfg = TransformerConfig(n_pieces, n_pieces, *sizes, max_positions=m.max_positions)
    if m.norm == "after":
        cfg = replace(cfg, **LIKE_MARIAN)
    model = Transformer(cfg, m.dropout)
    init_weights(model)
    return model


def init_weights(model: Transformer) -> None:
    """Draw Xavier matrices; the last weights of each sublayer are zero, so that it adds nothing."""
    for name, p in model.named_parameters():
        if name.endswith("token.weight"):
            nn.init.normal_(p, std=model.cfg.d_model**-0.5)
        elif name.endswith(("out.weight", "down.weight", "bias")):
            nn.init.zeros_(p)
        elif p.dim() == 2:
            nn.init.xavier_uniform_(p)


def trained_model(path: str | Path, dropout: float = 0.0) -> Transformer:
    """Load a model of our format to go on with.  Raises CheckpointError or OptionError."""
    checkpoint = load_checkpoint(path)
    if checkpoint.toolkit != "onmt_lite":
        raise OptionError(f"init_from: {path} is a model of {checkpoint.toolkit}, not of ours")
    if not isinstance(checkpoint.model, Transformer):
        raise OptionError(f"init_from: {path} is no Transformer")
    if checkpoint.confidence is not None:
        LOG.info("NOTE: calibration is not taken over from %s; calibrate the new model", path)
    model = Transformer(checkpoint.model.cfg, dropout)
    model.load_state_dict(checkpoint.model.state_dict())
    return model


def rounding(model: Transformer) -> Transformer:
    """Make the embeddings of a model follow autocast, and return the model.

    Float32 embeddings would keep the sums of all sublayers in float32, and each matrix product
    would copy its input.
    """

    def rounded(module: nn.Module, ids: object, embedded: Tensor) -> Tensor:
        kind = embedded.device.type
        low = torch.is_autocast_enabled(kind)
        return embedded.to(torch.get_autocast_dtype(kind)) if low else embedded

    for embedding in {model.src_embedding, model.tgt_embedding}:
        embedding.register_forward_hook(rounded)
    return model
