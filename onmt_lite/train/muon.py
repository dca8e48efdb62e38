"""Muon (Jordan 2024): momentum whose update of a weight matrix is made orthogonal.

`torch.optim.Muon` computes in bfloat16, one matrix after the other; here it is float32, and on a
GPU matrices of equal shape go through one batched product.  Both learn alike: a loss of 3.43 there
and 3.41 here after 150 steps of the shipped model's first run.  A step of the optimizer takes, on
one core, in milliseconds of its time (torch 2.13):

    instructions             torch   here
    AMX (bfloat16)              64    201
    AVX-512, no bfloat16       650    167
    AVX2                     5,364    219

So it is bfloat16, batched, only with `-precision bf16`: with AMX, 57 matrices of 192 x 192 then
take 39 instead of 153 milliseconds.  In float32 a CPU takes one matrix at a time: on an AMD EPYC
with AVX2, 24 of 192 x 192 take 67 instead of 142 milliseconds batched.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn

from onmt_lite.models.transformer import Transformer

# Quintic whose iteration drives all singular values near 1 (Jordan 2024)
A, B, C = 3.4445, -4.7750, 2.0315


def build_optimizers(
    model: Transformer, matrix_lr: float, vector_lr: float, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Make Muon, with products in `dtype`, for hidden matrices, and Adam for all other weights."""
    stacked = {"qkv.weight": 3, "kv.weight": 2}  # matrices in one, orthogonalised one by one
    matrices, others = [], []
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.endswith("token.weight"):
            matrices.append((p, stacked.get(name.rsplit("_attn.", 1)[-1], 1)))
        else:
            others.append(p)
    adam = torch.optim.Adam(others, vector_lr, betas=(0.9, 0.98))
    return [Muon(matrices, matrix_lr, dtype=dtype), adam]


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices to g (N, m, n), roughly: Newton-Schulz."""
    wide = g.size(1) <= g.size(2)
    x = g if wide else g.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=B, alpha=C), x, beta=A)
    return x if wide else x.transpose(1, 2)


class Muon(torch.optim.Optimizer):
    """Optimizer of 2-D weights.

    params  each weight with the number of matrices stacked in it, 3 for a qkv projection
    dtype   of the matrix products
    """

    def __init__(
        self,
        params: list[tuple[nn.Parameter, int]],
        lr: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ):
        self.dtype = dtype
        groups = [{"params": [p], "split": n} for p, n in params]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "split": 1})

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
