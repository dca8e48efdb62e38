"""Linear layers with what surrounds them in a Transformer, and the kernels that compute them.

A layer is computed by torch until `assign_kernels` gives it a kernel, which has its own copy of
the weights.
R rows, D inputs, N outputs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.system.processor import ONEDNN_PROCESSORS, read_cpu_flags

C_KERNELS = ("int8", "fp32")  # kinds of kernels that `onmt_lite.models.kernels` computes

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
}


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that kernels can read, once it is packed."""

    kernel_norm: kernels.Norm | None = None


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` that kernels can read, once it is packed."""

    kernel_norm: kernels.Norm | None = None


AnyNorm = LayerNorm | RMSNorm


class Kernel:
    """Computes what `Linear.forward` does, of x on the CPU.  Its weights never change, so a copy of
    a layer shares it."""

    def __call__(
        self, x: Tensor, norm: AnyNorm | None, activation: str, residual: Tensor | None
    ) -> Tensor:
        return apply_epilogue(self.product(x if norm is None else norm(x)), activation, residual)

    def product(self, x: Tensor) -> Tensor:
        """x (..., D) -> x W + b (..., N)."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kernel":
        return self


class Linear(nn.Linear):
    """`nn.Linear`, computed by its kernel if it has one."""

    kernel: Kernel | None = None

    def forward(
        self,
        x: Tensor,
        norm: AnyNorm | None = None,
        activation: str = "none",
        residual: Tensor | None = None,
    ) -> Tensor:
        """activation([norm](x) W + b), or residual + ...: x (..., D) -> (..., N)."""
        if self.kernel is not None and x.is_cpu:
            return self.kernel(x, norm, activation, residual)
        out = super().forward(x if norm is None else norm(x))
        return apply_epilogue(out, activation, residual)


def apply_epilogue(out: Tensor, activation: str, residual: Tensor | None) -> Tensor:
    out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out


class CKernel(Kernel):
    """The kernel `linear`, of bytes or floats."""

    def __init__(self, layer: nn.Linear, in_bytes: bool):
        self.weights = kernels.Weights(layer.weight, layer.bias, in_bytes)

    def __call__(
        self, x: Tensor, norm: AnyNorm | None, activation: str, residual: Tensor | None
    ) -> Tensor:
        own = activation if activation in kernels.ACTIVATIONS else "none"
        kernel_norm = None if norm is None else norm.kernel_norm
        out = kernels.linear(x, self.weights, kernel_norm, own, residual)
        return out if own == activation else ACTIVATIONS[activation](out)


class OneDnnKernel(Kernel):
    """oneDNN's product of float32 with the weights in its own order, for processors without the
    kernels in C on which MKL, which `F.linear` takes, is slower."""

    def __init__(self, layer: nn.Linear):
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())

    @staticmethod
    def exists() -> bool:
        """Return True if this torch has the operators, which are private."""
        names = ("_reorder_linear_weight", "_linear_pointwise")
        return all(hasattr(torch.ops.mkldnn, name) for name in names)

    def product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class RoundedKernel(Kernel):
    """The numbers of int8 without its speed, where the kernels in C cannot be had: products of
    whole numbers, which float32 adds up exactly to 2^24."""

    def __init__(self, layer: nn.Linear):
        weight = layer.weight.detach().float()
        self.scale = weight.abs().amax(1).clamp(min=1e-30) / 127  # (N,)
        self.weight = (weight / self.scale[:, None]).round()
        self.bias = None if layer.bias is None else layer.bias.detach().float()

    def product(self, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True) / 127  # (..., 1)
        whole = (x * torch.where(step > 0, 1 / step, 0.0)).round()
        out = F.linear(whole, self.weight) * self.scale * step
        return out if self.bias is None else out + self.bias


KERNELS: dict[str, Callable[[nn.Linear], Kernel]] = {
    "int8": lambda layer: CKernel(layer, in_bytes=True),
    "fp32": lambda layer: CKernel(layer, in_bytes=False),
    "packed": OneDnnKernel,
    "rounded": RoundedKernel,
}


def choose_kernel(precision: str, is_wide: bool) -> str:
    """The kernel of a Transformer's linear layers on this CPU; "" is torch's own product.

    No clock is read, so that two starts of the same command compute the same numbers.

    is_wide  whether linear layers take most of the time; else int8 must be asked for
    """
    if precision not in ("auto", "fp32", "int8"):
        return ""
    have = kernels.get_library() is not None
    if precision == "int8" or (precision == "auto" and is_wide and have):
        return "int8" if have else "rounded"
    if have:
        return "fp32"
    gains = is_wide and any(read_cpu_flags() >= words for words in ONEDNN_PROCESSORS)
    return "packed" if gains and OneDnnKernel.exists() else ""


def assign_kernels(module: nn.Module, kind: str, release: bool = False) -> None:
    """Give the linear layers in a module kernels of a kind of KERNELS, or none: "".

    release  let go of the weights of which kernels have a copy in bytes, but for embeddings: such
             a module cannot be packed again, or moved
    """
    kept = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    for part in module.modules():
        if isinstance(part, (LayerNorm, RMSNorm)):
            part.kernel_norm = kernels.Norm(part) if kind in C_KERNELS else None
        elif isinstance(part, Linear):
            part.kernel = KERNELS[kind](part) if kind else None
            if release and kind == "int8" and id(part.weight) not in kept:
                part.weight = nn.Parameter(part.weight.new_empty(0), requires_grad=False)
