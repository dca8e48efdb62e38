"""What a run optimizes: the Transformer, its loss, and the optimizers Muon and Adam."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.writing import find_obstacles
from onmt_lite.errors import OptionError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.log import LOG
from onmt_lite.train.options import ModelOptions

# -- the Transformer ------------------------------------------------------------------------------


def build_model(m: ModelOptions, n_pieces: int) -> Transformer:
    """Make a model with random weights."""
    sizes = (m.d_model, m.heads, m.d_ff, m.enc_layers, m.dec_layers)
    cfg = TransformerConfig(n_pieces, n_pieces, *sizes, max_positions=m.max_positions)
    if m.norm == "after":  # as a Transformer of Marian
        cfg = replace(cfg, pre_norm=False, final_norm=False, positions="concat", norm_eps=1e-5)
    model = Transformer(cfg, m.dropout)
    init_weights(model)
    return model


def init_weights(model: Transformer) -> None:
    """Draw Xavier matrices; zero the last weights of each sublayer, so that it adds nothing."""
    for name, p in model.named_parameters():
        if name.endswith("token.weight"):
            nn.init.normal_(p, std=model.cfg.d_model**-0.5)
        elif name.endswith(("out.weight", "down.weight", "bias")):
            nn.init.zeros_(p)
        elif p.dim() == 2:
            nn.init.xavier_uniform_(p)


def load_trained_model(path: str | Path, dropout: float) -> Transformer:
    """Load a model of our format.  Raises CheckpointError, or OptionError for other models."""
    checkpoint = load_checkpoint(path)
    if checkpoint.toolkit != "onmt_lite" or not isinstance(checkpoint.model, Transformer):
        raise OptionError(
            f"init_from: {path} is a model of {checkpoint.toolkit}; give a Transformer of ours"
        )
    if checkpoint.confidence is not None:
        LOG.info("NOTE: the calibration of %s is not copied; calibrate the new model", path)
    model = Transformer(checkpoint.model.cfg, dropout)
    model.load_state_dict(checkpoint.model.state_dict())
    return model


def cast_embeddings(model: Transformer) -> Transformer:
    """Make the embeddings of a model follow autocast, and return the model.

    With float32 embeddings the residual sums stay in float32, and each matrix product copies its
    input.
    """

    def rounded(module: nn.Module, ids: object, embedded: Tensor) -> Tensor:
        kind = embedded.device.type
        low = torch.is_autocast_enabled(kind)
        return embedded.to(torch.get_autocast_dtype(kind)) if low else embedded

    for embedding in {model.src_embedding, model.tgt_embedding}:
        embedding.register_forward_hook(rounded)
    return model


NORM_FOR = {"OpenNMT-py": "before", "Marian": "after"}  # the value of -norm for export


def describe_export_limits(checkpoint: Checkpoint, cfg: TransformerConfig) -> list[str]:
    """Return a line for each format to which the model cannot be exported."""
    lines, norm = [], "before" if cfg.pre_norm else "after"
    for target, needed in NORM_FOR.items():
        if obstacles := find_obstacles(checkpoint, cfg, target):
            line = f"export: {target} cannot hold this model ({'; '.join(obstacles)})"
            advice = f"; train with -norm {needed} to export to {target}"
            lines.append(line + advice * (norm != needed))
    return lines


# -- the loss -------------------------------------------------------------------------------------

ROWS = 512  # tokens whose logits are in memory together


def smoothed_nll(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> Tensor:
    """Sum over N tokens of the label-smoothed cross-entropy (Szegedy et al. 2016), in nats.

    hidden (N, D), weight (V, D), bias (V,), targets (N,).  Equals `F.cross_entropy` of the logits
    with `label_smoothing` and reduction "sum".  The logits of a whole batch are by far its largest
    tensor, and moving them takes a fifth of a training step on a CPU.  Here a few rows at a time
    become logits, loss and gradient while they are in the cache.
    """
    return _SmoothedNll.apply(hidden.float(), weight, bias, targets, smoothing)


class _SmoothedNll(torch.autograd.Function):
    """Computes the gradient together with the loss, which is logsumexp(logits) minus the expected
    logit under the target distribution."""

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, targets, smoothing):
        of_hidden, of_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        of_bias = weight.new_zeros(len(weight))
        kind = hidden.device.type  # products may be bfloat16, sums are float32
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        table = weight.to(low)
        loss = torch.zeros((), device=hidden.device)
        for h, grad in zip(hidden.split(ROWS), of_hidden.split(ROWS)):
            logits = F.linear(h.to(low), table, bias if bias is None else bias.to(low)).float()
            highest = logits.amax(1, keepdim=True)  # (ROWS, 1)
            powers = logits.sub_(highest).exp_()  # (ROWS, V)
            sums = powers.sum(1, keepdim=True)
            loss += (sums.log() + highest).sum()
            rounded = powers.to(low)
            grad.copy_(rounded @ table).div_(sums)
            of_weight += rounded.T @ (h / sums).to(low)
            of_bias.addmv_(powers.T, 1 / sums[:, 0])

        # The expected logits of all rows at once: 1 - smoothing of the probability is on the right
        # token, the rest is spread over all tokens
        right, each = 1 - smoothing, smoothing / len(weight)
        total, all_tokens = hidden.sum(0), weight.sum(0)  # (D,)
        wanted = right * (hidden * weight[targets]).sum() + each * (total @ all_tokens)
        if bias is not None:
            wanted = wanted + right * bias[targets].sum() + each * len(targets) * bias.sum()
        of_hidden -= right * weight[targets] + each * all_tokens
        of_weight.index_add_(0, targets, hidden, alpha=-right).sub_(each * total)
        of_bias.index_add_(0, targets, of_bias.new_full((len(targets),), -right))
        of_bias -= each * len(targets)
        ctx.grads = of_hidden, of_weight, of_bias
        return loss - wanted

    @staticmethod
    def backward(ctx: Any, *of_loss: Tensor) -> tuple:
        of_hidden, of_weight, of_bias = (grad * of_loss[0] for grad in ctx.grads)
        return of_hidden, of_weight, of_bias if ctx.needs_input_grad[2] else None, None, None


# -- the optimizers -------------------------------------------------------------------------------

# Coefficients of the quintic iteration that drives all singular values near 1 (Jordan 2024)
A, B, C = 3.4445, -4.7750, 2.0315


def build_optimizers(
    model: Transformer, matrix_lr: float, vector_lr: float, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Make Muon, with products in `dtype`, for hidden matrices, and Adam for all other weights."""
    stacked = {"qkv.weight": 3, "kv.weight": 2}  # matrices in one, orthogonalized one by one
    matrices, others = [], []
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.endswith("token.weight"):
            matrices.append((p, stacked.get(name.rsplit("_attn.", 1)[-1], 1)))
        else:
            others.append(p)
    adam = torch.optim.Adam(others, vector_lr, betas=(0.9, 0.98))
    return [Muon(matrices, matrix_lr, dtype=dtype), adam]


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """Approximate the nearest (semi-)orthogonal matrices to g (N, m, n), by Newton-Schulz."""
    wide = g.size(1) <= g.size(2)
    x = g if wide else g.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=B, alpha=C), x, beta=A)
    return x if wide else x.transpose(1, 2)


class Muon(torch.optim.Optimizer):
    """Momentum whose update of a weight matrix is made orthogonal (Jordan 2024).

    `params` holds each 2-D weight with the number of matrices stacked in it, 3 for a qkv
    projection; `dtype` is that of the matrix products.

    `torch.optim.Muon` computes in bfloat16, one matrix after the other.  Both learn alike: a loss
    of 3.43 there and 3.41 here after 150 steps of the shipped model's first run.  Milliseconds of
    one core for a step of the optimizer (torch 2.13), there and here in float32: with AMX 64 and
    201, with AVX-512 without bfloat16 650 and 167, with AVX2 5,364 and 219.  So products are
    bfloat16 only with `-precision bf16`: batched, 57 matrices of 192 x 192 then take 39 instead
    of 153 ms with AMX.  In float32 a CPU takes one matrix at a time: 24 of 192 x 192 take 67 ms on
    an AMD EPYC with AVX2, 142 batched.
    """

    def __init__(
        self, params: list[tuple[nn.Parameter, int]], lr: float, dtype: torch.dtype = torch.float32
    ):
        self.dtype = dtype
        groups = [{"params": [p], "split": n} for p, n in params]
        super().__init__(groups, {"lr": lr, "momentum": 0.95, "split": 1})

    @torch.no_grad()
    def step(self, closure=None):
        by_shape: dict[tuple, list[tuple[nn.Parameter, dict, Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                m = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(m, group["momentum"])  # Nesterov's look ahead
                for part, update in zip(p.chunk(group["split"]), g.chunk(group["split"])):
                    by_shape[tuple(part.shape)].append((part, group, update))
        for (rows, cols), items in by_shape.items():
            stacked = torch.stack([u for _, _, u in items]).to(self.dtype)
            alone = stacked.device.type == "cpu" and self.dtype == torch.float32
            updates = map(orthogonalize, stacked.split(1 if alone else len(stacked)))
            for (part, group, _), update in zip(items, torch.cat([*updates]).float()):
                part.add_(update, alpha=-group["lr"] * max(1, rows / cols) ** 0.5)
