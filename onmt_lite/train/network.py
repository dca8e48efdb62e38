"""The Transformer being trained, its loss, and the optimizers Muon and Adam."""

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

# -- the Transformer -------------------------------------------------------------------------------


def build_model(m: ModelOptions, vocab_size: int) -> Transformer:
    """Build a model with random weights.

    Args:
        m: the model options
        vocab_size: number of subwords
    """
    sizes = (m.d_model, m.heads, m.d_ff, m.enc_layers, m.dec_layers)
    cfg = TransformerConfig(vocab_size, vocab_size, *sizes, max_positions=m.max_positions)
    if m.norm == "after":  # like a Marian Transformer
        cfg = replace(cfg, pre_norm=False, final_norm=False, positions="concat", norm_eps=1e-5)
    model = Transformer(cfg, m.dropout)
    init_weights(model)
    return model


def init_weights(model: Transformer) -> None:
    """Initialize weights (Xavier), with zero output weights so that each sublayer adds 0."""
    for name, p in model.named_parameters():
        if name.endswith("token.weight"):
            nn.init.normal_(p, std=model.cfg.d_model**-0.5)
        elif name.endswith(("out.weight", "down.weight", "bias")):
            nn.init.zeros_(p)
        elif p.dim() == 2:
            nn.init.xavier_uniform_(p)


def load_trained_model(path: str | Path, dropout: float) -> Transformer:
    """Load an onmt_lite model for further training.

    Args:
        path: the model directory
        dropout: the dropout rate of the returned model

    Raises:
        CheckpointError: the model cannot be loaded
        OptionError: the model has another format, or is not a Transformer
    """
    checkpoint = load_checkpoint(path)
    if checkpoint.toolkit != "onmt_lite" or not isinstance(checkpoint.model, Transformer):
        raise OptionError(
            f"init_from: {path} is a {checkpoint.toolkit} model; use a Transformer trained by "
            "onmt_lite"
        )
    if checkpoint.confidence is not None:
        LOG.info(
            "NOTE: init_from: the calibration of %s is not copied; calibrate the new model", path
        )
    model = Transformer(checkpoint.model.cfg, dropout)
    model.load_state_dict(checkpoint.model.state_dict())
    return model


def cast_embeddings(model: Transformer) -> Transformer:
    """Cast the embeddings of a model to the autocast dtype, and return the model.

    Otherwise the residual stream stays in float32, and each matrix product copies its input.
    """

    def cast_output(module: nn.Module, ids: object, embedded: Tensor) -> Tensor:  # (N, T, D)
        device = embedded.device.type
        is_enabled = torch.is_autocast_enabled(device)
        return embedded.to(torch.get_autocast_dtype(device)) if is_enabled else embedded

    for embedding in {model.src_embedding, model.tgt_embedding}:
        embedding.register_forward_hook(cast_output)
    return model


EXPORT_NORMS = {"OpenNMT-py": "before", "Marian": "after"}  # the -norm that export needs


def describe_export_limits(checkpoint: Checkpoint, cfg: TransformerConfig) -> list[str]:
    """Return a log line for each toolkit to which the model cannot be exported."""
    lines, norm = [], "before" if cfg.pre_norm else "after"
    for target, needed in EXPORT_NORMS.items():
        if obstacles := find_obstacles(checkpoint, cfg, target):
            line = f"export: {target} does not support this model ({'; '.join(obstacles)})"
            advice = f"; train with -norm {needed} to export to {target}"
            lines.append(line + advice * (norm != needed))
    return lines


# -- the loss --------------------------------------------------------------------------------------

CHUNK = 512  # tokens per chunk of logits


def compute_smoothed_nll(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> Tensor:
    """Return the summed label-smoothed cross-entropy (Szegedy et al. 2016).

    Equals `F.cross_entropy` of the logits with `label_smoothing` and reduction "sum".  The logits
    of a whole batch are by far its largest tensor, and moving them takes a fifth of a training step
    on a CPU.  Here logits, loss and gradient of a chunk are computed while they are in the cache.

    Args:
        hidden: hidden states of N tokens (N, D), float32 or bfloat16
        weight: weight of the output layer (V, D), float32
        bias: its bias (V,), float32, or None
        targets: target ids (N,), int64
        smoothing: probability spread over all V tokens

    Returns:
        The loss (), float32, in nats.
    """
    return _SmoothedNll.apply(hidden.float(), weight, bias, targets, smoothing)


class _SmoothedNll(torch.autograd.Function):
    """Loss and gradient in one pass.

    The loss is logsumexp(logits) minus the expected logit under the target distribution.
    """

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, targets, smoothing):
        """Compute the loss and store its gradients.

        Args:
            ctx: context of autograd
            hidden: hidden states (N, D), float32
            weight: weight of the output layer (V, D), float32
            bias: its bias (V,), float32, or None
            targets: target ids (N,), int64
            smoothing: probability spread over all V tokens

        Returns:
            The loss (), float32, in nats.
        """
        grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        grad_bias = weight.new_zeros(len(weight))
        device = hidden.device.type
        dtype = torch.float32  # of products; sums are always float32
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        low_weight = weight.to(dtype)
        low_bias = None if bias is None else bias.to(dtype)
        loss = torch.zeros((), device=hidden.device)
        for h, grad in zip(hidden.split(CHUNK), grad_hidden.split(CHUNK)):
            logits = F.linear(h.to(dtype), low_weight, low_bias).float()
            highest = logits.amax(1, keepdim=True)  # (CHUNK, 1)
            powers = logits.sub_(highest).exp_()  # (CHUNK, V)
            sums = powers.sum(1, keepdim=True)
            loss += (sums.log() + highest).sum()
            low_powers = powers.to(dtype)
            grad.copy_(low_powers @ low_weight).div_(sums)
            grad_weight += low_powers.T @ (h / sums).to(dtype)
            grad_bias.addmv_(powers.T, 1 / sums[:, 0])

        # The expected logits of all tokens at once: the target token has 1 - smoothing of the
        # probability, and the rest is spread over all tokens
        right, spread = 1 - smoothing, smoothing / len(weight)
        total, all_tokens = hidden.sum(0), weight.sum(0)  # (D,)
        expected = right * (hidden * weight[targets]).sum() + spread * (total @ all_tokens)
        if bias is not None:
            expected = expected + right * bias[targets].sum() + spread * len(targets) * bias.sum()
        grad_hidden -= right * weight[targets] + spread * all_tokens
        grad_weight.index_add_(0, targets, hidden, alpha=-right).sub_(spread * total)
        grad_bias.index_add_(0, targets, grad_bias.new_full((len(targets),), -right))
        grad_bias -= spread * len(targets)
        ctx.grads = grad_hidden, grad_weight, grad_bias
        return loss - expected

    @staticmethod
    def backward(ctx: Any, *grad_loss: Tensor) -> tuple:
        """Scale the stored gradients by the gradient of the loss ()."""
        grad_hidden, grad_weight, grad_bias = (grad * grad_loss[0] for grad in ctx.grads)
        return grad_hidden, grad_weight, grad_bias if ctx.needs_input_grad[2] else None, None, None


# -- the optimizers --------------------------------------------------------------------------------

# Coefficients of the quintic iteration that drives all singular values near 1 (Jordan 2024)
A, B, C = 3.4445, -4.7750, 2.0315


def build_optimizers(
    model: Transformer, matrix_lr: float, vector_lr: float, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Build Muon for hidden matrices, and Adam for all other weights.

    Args:
        model: the model to train
        matrix_lr: peak learning rate of Muon
        vector_lr: peak learning rate of Adam
        dtype: dtype of Muon's matrix products
    """
    stacked = {"qkv.weight": 3, "kv.weight": 2}  # stacked matrices, orthogonalized separately
    matrices, adam_params = [], []
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.endswith("token.weight"):
            matrices.append((p, stacked.get(name.rsplit("_attn.", 1)[-1], 1)))
        else:
            adam_params.append(p)
    adam = torch.optim.Adam(adam_params, vector_lr, betas=(0.9, 0.98))
    return [Muon(matrices, matrix_lr, dtype=dtype), adam]


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """Approximate the nearest (semi-)orthogonal matrices by Newton-Schulz iteration.

    Args:
        g: N matrices (N, m, n), float32 or bfloat16
        steps: number of iterations

    Returns:
        The matrices (N, m, n).
    """
    is_wide = g.size(1) <= g.size(2)
    x = g if is_wide else g.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=B, alpha=C), x, beta=A)
    return x if is_wide else x.transpose(1, 2)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates of weight matrices (Jordan 2024).

    `torch.optim.Muon` computes in bfloat16, one matrix after the other.  Both learn equally well:
    the loss is 3.43 with torch's Muon and 3.41 with this class after 150 steps of the shipped
    model's first run.  Milliseconds per optimizer step on one core (torch 2.13), for torch's Muon
    and this class in float32: 64 and 201 with AMX, 650 and 167 with AVX-512 without bfloat16, 5,364
    and 219 with AVX2.  Products are therefore bfloat16 only with `-precision bf16`: 57 batched
    matrices of 192 x 192 then take 39 ms instead of 153 ms with AMX.  In float32, a CPU computes
    one matrix at a time: 24 matrices of 192 x 192 take 67 ms on an AMD EPYC with AVX2, and 142 ms
    batched.
    """

    def __init__(
        self, params: list[tuple[nn.Parameter, int]], lr: float, dtype: torch.dtype = torch.float32
    ):
        """Initialize the optimizer.

        Args:
            params: each 2-D weight and the number of matrices stacked in it, 3 for qkv projections
            lr: the learning rate
            dtype: dtype of the matrix products
        """
        self.dtype = dtype
        groups = [{"params": [p], "split": n} for p, n in params]
        super().__init__(groups, {"lr": lr, "momentum": 0.95, "split": 1})

    @torch.no_grad()
    def step(self, closure=None):
        """Update all weights."""
        by_shape: dict[tuple, list[tuple[nn.Parameter, dict, Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                m = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(m, group["momentum"])  # Nesterov momentum
                for part, update in zip(p.chunk(group["split"]), g.chunk(group["split"])):
                    by_shape[tuple(part.shape)].append((part, group, update))
        for (rows, cols), items in by_shape.items():
            stacked = torch.stack([u for _, _, u in items]).to(self.dtype)
            one_by_one = stacked.device.type == "cpu" and self.dtype == torch.float32
            updates = map(orthogonalize, stacked.split(1 if one_by_one else len(stacked)))
            for (part, group, _), update in zip(items, torch.cat([*updates]).float()):
                part.add_(update, alpha=-group["lr"] * max(1, rows / cols) ** 0.5)
