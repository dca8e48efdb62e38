"""Widen a trained Transformer so that it says what it said: `with_width`.

All that is added to the residual stream has its own mean in the new dimensions.  The mean of the
stream stays, its variance is multiplied by d/D, and a norm makes the new dimensions zero.
"""

from dataclasses import replace

import torch
from torch import Tensor

from onmt_lite.errors import OptionError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.train.network import init_weights

# What may differ from a default of the trainer, besides the heads that calibration finds
SIZES = ("d_model", "heads", "d_ff", "enc_layers", "dec_layers", "max_positions")
SHAPE = (*SIZES, "positions", "norm_eps")


def with_width(start: Transformer, d_model: int, heads: int, d_ff: int) -> Transformer:
    """Widen `start` to these sizes, and keep those that are larger.

    New units and heads read random mixtures and write nothing yet.  Positions become weights:
    sinusoids of another width are other numbers.  Raises OptionError for a model that the trainer
    would not make, such as one with norms after its sublayers, or for narrower heads.
    """
    was = start.cfg
    wider = {"d_model": d_model, "heads": heads, "d_ff": d_ff}
    try:
        cfg = replace(was, **{name: max(n, getattr(was, name)) for name, n in wider.items()})
    except ValueError as error:
        raise OptionError(str(error)) from None
    if cfg == was:
        return start
    shape = {n: v for n, v in vars(was).items() if n in SHAPE or n.startswith(("align", "report"))}
    usual = TransformerConfig(was.src_vocab_size, was.tgt_vocab_size)
    if replace(usual, **shape) != was or was.positions == "none":
        raise OptionError("only a model with norms before its sublayers can be widened")
    if cfg.head_dim < was.head_dim:
        raise OptionError(
            f"heads: {cfg.heads} of {cfg.head_dim} dimensions are narrower than before"
        )
    if cfg.d_model > was.d_model:
        eps = was.norm_eps * was.d_model / cfg.d_model
        cfg = replace(cfg, positions="learned", norm_eps=eps)
    model = Transformer(cfg)
    init_weights(model)
    old = dict(start.named_buffers()) | start.state_dict()
    widening = Widening(was, cfg)
    for name, new in model.state_dict().items():
        widening.fill(name, new, old[name].float())
    return model


class Widening:
    """Where the weights of a narrow model go in a wide one, d and D dimensions wide."""

    def __init__(self, was: TransformerConfig, cfg: TransformerConfig):
        self.was, self.cfg = was, cfg
        d, more = was.d_model, cfg.d_model - was.d_model
        self.spread = torch.cat([torch.eye(d), torch.full((more, d), 1 / d)])  # (D, d)
        self.shrink = (d / cfg.d_model) ** 0.5

    def fill(self, name: str, new: Tensor, old: Tensor) -> None:
        """Write a weight of the narrow model into that of the wide one, fresh from its init."""
        *_, layer, kind = name.split(".")
        if layer == "token" or name == "output.weight":  # will be multiplied by the root of D
            new.copy_(old @ self.spread.T * self.shrink)
        elif kind == "position":
            new.copy_(old @ self.spread.T)
        elif layer.endswith("norm"):
            self._fill_norm(layer, kind, new, old)
        elif layer in ("out", "down"):
            if kind == "weight":
                new[:, self._inside(layer)] = self.spread @ old
            else:
                new.copy_(self.spread @ old)
        elif name == "output.bias":
            new.copy_(old)
        else:
            self._fill_reader(layer, kind, new, old)

    def _fill_norm(self, layer: str, kind: str, new: Tensor, old: Tensor) -> None:
        d = self.was.d_model
        # The top of the decoder meets the embeddings, which have shrunk
        top = self.shrink if layer == "dec_norm" else 1.0
        new[:d] = old * (self.shrink / top if kind == "weight" else 1 / top)
        if kind == "weight":
            new[d:] = new[:d].mean()

    def _fill_reader(self, layer: str, kind: str, new: Tensor, old: Tensor) -> None:
        """Projections of the normed stream; new dimensions of keys are zero."""
        was, cfg = self.was, self.cfg
        size = cfg.heads * cfg.head_dim
        keys = {"qkv": slice(size, 2 * size), "kv": slice(size)}.get(layer, slice(0))
        new[keys] = 0
        if layer in ("qkv", "q"):  # scores are divided by the root of the heads' width
            old = old.clone()
            old[: was.heads * was.head_dim] *= (cfg.head_dim / was.head_dim) ** 0.5
        inside = self._inside(layer)
        if kind == "weight":
            new[inside, : was.d_model] = old
        else:
            new[inside] = old

    def _inside(self, layer: str) -> Tensor:
        """Places of the old units, or of the old dimensions of heads, among all."""
        was, cfg = self.was, self.cfg
        if layer in ("up", "down"):
            return torch.arange(was.d_ff)
        n_parts = {"qkv": 3, "kv": 2}.get(layer, 1)
        places = torch.arange(n_parts * cfg.heads * cfg.head_dim).view(n_parts, cfg.heads, -1)
        return places[:, : was.heads, : was.head_dim].flatten()
