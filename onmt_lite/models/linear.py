"""Linear layers fused with norm, activation and residual, and the kernels that compute them.

A layer uses torch unless `assign_kernels` has assigned a kernel to it.  Kernels copy the weights.
Shapes: D inputs, N outputs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.system.processor import ONEDNN_PROCESSORS, read_cpu_flags

C_KERNELS = ("int8", "fp32")  # kernels implemented in C, by `onmt_lite.models.kernels`

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
}


class KernelNorm(nn.Module):
    """Norm that C kernels compute, here or as part of the next layer."""

    kernel_norm: kernels.Norm | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized x (..., D)."""
        if self.kernel_norm is not None and x.is_cpu:
            return kernels.normalize(x, self.kernel_norm)
        return super().forward(x)


class LayerNorm(KernelNorm, nn.LayerNorm):
    """`nn.LayerNorm` with a kernel."""


class RMSNorm(KernelNorm, nn.RMSNorm):
    """`nn.RMSNorm` with a kernel."""


AnyNorm = LayerNorm | RMSNorm


class Kernel:
    """Implementation of `Linear.forward` on the CPU.

    Its weights never change, so copies of a layer share it.
    """

    def __call__(
        self, x: Tensor, norm: AnyNorm | None, activation: str, residual: Tensor | None
    ) -> Tensor:
        """Compute a layer; see `Linear.forward`.

        Args:
            x: inputs (..., D), float32
            norm: applied to x first
            activation: a key of ACTIVATIONS
            residual: added to the result (..., N)

        Returns:
            Outputs (..., N), float32.
        """
        return apply_epilogue(self.multiply(x if norm is None else norm(x)), activation, residual)

    def multiply(self, x: Tensor) -> Tensor:
        """Return x W + b (..., N) of x (..., D), float32."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kernel":
        return self


class Linear(nn.Linear):
    """`nn.Linear` with optional norm, activation, residual and kernel."""

    kernel: Kernel | None = None

    def forward(
        self,
        x: Tensor,
        norm: AnyNorm | None = None,
        activation: str = "none",
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return [residual +] activation([norm](x) W + b).

        Args:
            x: inputs (..., D)
            norm: applied to x first
            activation: a key of ACTIVATIONS
            residual: added to the result (..., N)

        Returns:
            Outputs (..., N).
        """
        if self.kernel is not None and x.is_cpu:
            return self.kernel(x, norm, activation, residual)
        out = super().forward(x if norm is None else norm(x))
        return apply_epilogue(out, activation, residual)


def apply_epilogue(out: Tensor, activation: str, residual: Tensor | None) -> Tensor:
    """Apply the activation and add the residual.

    Args:
        out: output of the product (..., N)
        activation: a key of ACTIVATIONS
        residual: added to the result (..., N)

    Returns:
        Outputs (..., N).
    """
    out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out


class CKernel(Kernel):
    """The C kernel `linear`, in int8 or fp32."""

    def __init__(self, layer: nn.Linear, is_int8: bool):
        self.weights = kernels.Weights(layer.weight, layer.bias, is_int8)

    def __call__(
        self, x: Tensor, norm: AnyNorm | None, activation: str, residual: Tensor | None
    ) -> Tensor:
        """Compute a layer; see `Kernel.__call__`.

        Args:
            x: inputs (..., D), float32
            norm: applied to x first
            activation: a key of ACTIVATIONS
            residual: added to the result (..., N)

        Returns:
            Outputs (..., N), float32.
        """
        fused = activation if activation in kernels.ACTIVATIONS else "none"
        params = None if norm is None else norm.kernel_norm
        out = kernels.linear(x, self.weights, params, fused, residual)
        return out if fused == activation else ACTIVATIONS[activation](out)


class OneDnnKernel(Kernel):
    """oneDNN's float32 product with reordered weights.

    Used without C kernels on processors where MKL, the default of `F.linear`, is slower.
    """

    def __init__(self, layer: nn.Linear):
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())

    @staticmethod
    def is_available() -> bool:
        """Return True if torch has the private operators that this kernel uses."""
        names = ("_reorder_linear_weight", "_linear_pointwise")
        return all(hasattr(torch.ops.mkldnn, name) for name in names)

    def multiply(self, x: Tensor) -> Tensor:
        """Return x W + b (..., N) of x (..., D), float32."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class RoundedKernel(Kernel):
    """Emulation of int8 without its speed, if the C kernels are not available.

    Products of integers are exact in float32 up to 2^24.
    """

    def __init__(self, layer: nn.Linear):
        weight = layer.weight.detach().float()
        self.scale = weight.abs().amax(1).clamp(min=1e-30) / 127  # (N,)
        self.weight = (weight / self.scale[:, None]).round()
        self.bias = None if layer.bias is None else layer.bias.detach().float()

    def multiply(self, x: Tensor) -> Tensor:
        """Return x W + b (..., N) of x (..., D), float32, with quantized x and W."""
        step = x.abs().amax(-1, keepdim=True) / 127  # (..., 1)
        rounded = (x * torch.where(step > 0, 1 / step, 0.0)).round()
        out = F.linear(rounded, self.weight) * self.scale * step
        return out if self.bias is None else out + self.bias


KERNELS: dict[str, Callable[[nn.Linear], Kernel]] = {
    "int8": lambda layer: CKernel(layer, is_int8=True),
    "fp32": lambda layer: CKernel(layer, is_int8=False),
    "packed": OneDnnKernel,
    "rounded": RoundedKernel,
}


def choose_kernel(precision: str, is_wide: bool) -> str:
    """Choose the kernel of a Transformer's linear layers on this CPU.

    The choice does not depend on timing, so results are reproducible.

    Args:
        precision: the value of -precision
        is_wide: True if linear layers take most of the time; otherwise auto does not use int8

    Returns:
        A key of KERNELS, or "" for torch's product.
    """
    if precision not in ("auto", "fp32", "int8"):
        return ""
    has_library = kernels.get_library() is not None
    if precision == "int8" or (precision == "auto" and is_wide and has_library):
        return "int8" if has_library else "rounded"
    if has_library:
        return "fp32"
    is_faster = is_wide and any(read_cpu_flags() >= flags for flags in ONEDNN_PROCESSORS)
    return "packed" if is_faster and OneDnnKernel.is_available() else ""


def assign_kernels(module: nn.Module, name: str, release: bool = False) -> None:
    """Assign a kernel to each linear layer of a module.

    Args:
        module: the module, changed in place
        name: a key of KERNELS, or "" to remove kernels
        release: free weights that C kernels have copied, except embeddings; the module can then be
            neither assigned other kernels nor moved to a device
    """
    layers = list(module.modules())
    embeddings = {id(layer.weight) for layer in layers if isinstance(layer, nn.Embedding)}
    for layer in layers:
        if isinstance(layer, (LayerNorm, RMSNorm)):
            layer.kernel_norm = kernels.Norm(layer) if name in C_KERNELS else None
        elif isinstance(layer, Linear):
            layer.kernel = KERNELS[name](layer) if name else None
            if release and name in C_KERNELS and id(layer.weight) not in embeddings:
                layer.weight = nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
