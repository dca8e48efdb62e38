"""Cross-entropy with label smoothing, from the hidden states that the output layer reads.

Logits of a whole batch are its largest tensor by far: made once, and several times more for the
loss and its gradient, they take a fifth of a training step on a CPU in moving memory about.
Here a few rows at a time become logits, loss and gradient while they are in the cache.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 512


def smoothed_nll(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> Tensor:
    """Sum over N tokens of the label-smoothed cross-entropy (Szegedy et al. 2016), in nats.

    The target distribution has 1 - smoothing on the right token, the rest spread over all tokens.

    hidden (N, D), weight (V, D), bias (V,), targets (N,).  Equals `F.cross_entropy` of the logits
    with `label_smoothing`, reduction "sum".
    """
    return _SmoothedNll.apply(hidden.float(), weight, bias, targets, smoothing)


class _SmoothedNll(torch.autograd.Function):
    """Computes the gradient together with the loss.

    Only softmax needs the logits of all tokens, a few rows at a time.  The terms of the right token
    and of the even spread are products of vectors, computed for all rows at once.
    """

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, targets, smoothing):
        of_hidden, of_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        kind = hidden.device.type  # products may be bfloat16, sums are float32
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        table = weight.to(low)
        of_bias = weight.new_zeros(len(weight))
        loss = torch.zeros((), device=hidden.device)
        for h, grad in zip(hidden.split(ROWS), of_hidden.split(ROWS)):
            logits = F.linear(h.to(low), table, bias if bias is None else bias.to(low)).float()
            highest = logits.amax(1, keepdim=True)
            powers = logits.sub_(highest).exp_()
            sums = powers.sum(1, keepdim=True)
            loss += (sums.log() + highest).sum()
            rounded = powers.to(low)
            grad.copy_(rounded @ table).div_(sums)
            of_weight += rounded.T @ (h / sums).to(low)
            of_bias.addmv_(powers.T, 1 / sums[:, 0])
        ctx.grads = of_hidden, of_weight, of_bias
        return loss - _take_targets(ctx.grads, hidden, weight, bias, targets, smoothing)

    @staticmethod
    def backward(ctx: Any, *of_loss: Tensor) -> tuple:
        of_hidden, of_weight, of_bias = (grad * of_loss[0] for grad in ctx.grads)
        return of_hidden, of_weight, of_bias if ctx.needs_input_grad[2] else None, None, None


def _take_targets(
    grads: tuple[Tensor, Tensor, Tensor],
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
) -> Tensor:
    """Sum over tokens of the expected logit under the target distribution.

    Its derivatives are subtracted from `grads`, in place.
    """
    of_hidden, of_weight, of_bias = grads
    right, each = 1 - smoothing, smoothing / len(weight)
    total, all_tokens = hidden.sum(0), weight.sum(0)
    wanted = right * (hidden * weight[targets]).sum() + each * (total @ all_tokens)
    if bias is not None:
        wanted = wanted + right * bias[targets].sum() + each * len(targets) * bias.sum()
    of_hidden -= right * weight[targets] + each * all_tokens
    of_weight.index_add_(0, targets, hidden, alpha=-right).sub_(each * total)
    of_bias.index_add_(0, targets, of_bias.new_full((len(targets),), -right))
    of_bias -= each * len(targets)
    return wanted
