"""Function-preserving widening of a trained Transformer.

Each update of the residual stream is extended by its mean in the new dimensions.  This keeps the
mean of the stream and multiplies its variance by d/D; layer norms then set the new dimensions to 0.
"""

from dataclasses import replace

import torch
from torch import Tensor

from onmt_lite.errors import OptionError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.train.network import init_weights

# Config fields that may differ from the trainer's defaults, in addition to the alignment heads
SIZES = ("d_model", "heads", "d_ff", "enc_layers", "dec_layers", "max_positions")
SHAPE = (*SIZES, "positions", "norm_eps")


def widen(start: Transformer, d_model: int, heads: int, d_ff: int) -> Transformer:
    """Return a wider model that computes the same function.

    New units and heads have random input weights and zero output weights.  Sinusoidal positions
    become learned positions, because sinusoids depend on the width.

    Args:
        start: trained pre-norm model
        d_model: new width; smaller values change nothing
        heads: new number of heads; smaller values change nothing
        d_ff: new feed-forward width; smaller values change nothing

    Raises:
        OptionError: the trainer could not have built the model (for example post-norm), or the
            heads would become narrower
    """
    old_cfg = start.cfg
    wider = {"d_model": d_model, "heads": heads, "d_ff": d_ff}
    try:
        cfg = replace(
            old_cfg, **{name: max(n, getattr(old_cfg, name)) for name, n in wider.items()}
        )
    except ValueError as error:
        raise OptionError(str(error)) from None
    if cfg == old_cfg:
        return start
    shape = {
        n: v for n, v in vars(old_cfg).items() if n in SHAPE or n.startswith(("align", "report"))
    }
    default = TransformerConfig(old_cfg.src_vocab_size, old_cfg.tgt_vocab_size)
    if replace(default, **shape) != old_cfg or old_cfg.positions == "none":
        raise OptionError("model: only pre-norm models trained by onmt_lite can be widened")
    if cfg.head_dim < old_cfg.head_dim:
        raise OptionError(
            f"heads: {cfg.heads} heads would have {cfg.head_dim} dimensions each, fewer than "
            f"before ({old_cfg.head_dim}); set fewer heads"
        )
    if cfg.d_model > old_cfg.d_model:
        eps = old_cfg.norm_eps * old_cfg.d_model / cfg.d_model
        cfg = replace(cfg, positions="learned", norm_eps=eps)
    model = Transformer(cfg)
    init_weights(model)
    old = dict(start.named_buffers()) | start.state_dict()
    widening = Widening(old_cfg, cfg)
    for name, new in model.state_dict().items():
        widening.fill(name, new, old[name].float())
    return model


class Widening:
    """Mapping of the weights of a narrow model (d dimensions) to a wide model (D dimensions)."""

    def __init__(self, old_cfg: TransformerConfig, cfg: TransformerConfig):
        self.old_cfg, self.cfg = old_cfg, cfg
        d, n_new = old_cfg.d_model, cfg.d_model - old_cfg.d_model
        self.spread = torch.cat([torch.eye(d), torch.full((n_new, d), 1 / d)])  # (D, d)
        self.shrink = (d / cfg.d_model) ** 0.5

    def fill(self, name: str, new: Tensor, old: Tensor) -> None:
        """Copy a weight of the narrow model into a new weight of the wide model.

        Args:
            name: name of the weight
            new: weight of the wide model, changed in place
            old: weight of the narrow model
        """
        *_, layer, field = name.split(".")
        if layer == "token" or name == "output.weight":  # embeddings are multiplied by sqrt(D)
            new.copy_(old @ self.spread.T * self.shrink)
        elif field == "position":
            new.copy_(old @ self.spread.T)
        elif layer.endswith("norm"):
            self._fill_norm(layer, field, new, old)
        elif layer in ("out", "down"):
            if field == "weight":
                new[:, self._find_old_units(layer)] = self.spread @ old
            else:
                new.copy_(self.spread @ old)
        elif name == "output.bias":
            new.copy_(old)
        else:
            self._fill_projection(layer, field, new, old)

    def _fill_norm(self, layer: str, field: str, new: Tensor, old: Tensor) -> None:
        """Fill a layer norm; see `fill` for the arguments."""
        d = self.old_cfg.d_model
        # The decoder output is multiplied by the output embeddings, which have been scaled down
        top = self.shrink if layer == "dec_norm" else 1.0
        new[:d] = old * (self.shrink / top if field == "weight" else 1 / top)
        if field == "weight":
            new[d:] = new[:d].mean()

    def _fill_projection(self, layer: str, field: str, new: Tensor, old: Tensor) -> None:
        """Fill a projection of the normalized stream; see `fill`.  New key dimensions are zero."""
        old_cfg, cfg = self.old_cfg, self.cfg
        size = cfg.heads * cfg.head_dim
        keys = {"qkv": slice(size, 2 * size), "kv": slice(size)}.get(layer, slice(0))
        new[keys] = 0
        if layer in ("qkv", "q"):  # attention scores are divided by sqrt(head width)
            old = old.clone()
            old[: old_cfg.heads * old_cfg.head_dim] *= (cfg.head_dim / old_cfg.head_dim) ** 0.5
        indices = self._find_old_units(layer)
        if field == "weight":
            new[indices, : old_cfg.d_model] = old
        else:
            new[indices] = old

    def _find_old_units(self, layer: str) -> Tensor:
        """Return the indices of the old units, or of the old head dimensions, among the new."""
        old_cfg, cfg = self.old_cfg, self.cfg
        if layer in ("up", "down"):
            return torch.arange(old_cfg.d_ff)
        n_parts = {"qkv": 3, "kv": 2}.get(layer, 1)
        indices = torch.arange(n_parts * cfg.heads * cfg.head_dim).view(n_parts, cfg.heads, -1)
        return indices[:, : old_cfg.heads, : old_cfg.head_dim].flatten()
