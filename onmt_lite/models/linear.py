"""Linear layers, and the kernels that make them fast on a CPU.

A layer is computed by `F.linear` until `pack` gives it a kernel, which has its own copy of the
weights in the order in which oneDNN reads them.  R rows, D inputs, N outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 512  # outputs computed at a time: 320 rows of them stay in the second-level cache
ROUNDING = 1.5 * 2**23  # a float32 of this size has no bits after the point
LEAST_WIDTH = 128  # a narrower layer takes longer to quantise than to multiply

Kernel = Callable[[Tensor], Tensor]
T = TypeVar("T")


class Linear(nn.Linear):
    """`nn.Linear`, computed by its kernel if it has one."""

    kernel: Kernel | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., N).  Kernels are for a CPU: elsewhere `F.linear` computes."""
        if self.kernel is None or not x.is_cpu:
            return super().forward(x)
        return self.kernel(x)

    def pack(self, kind: str) -> bool:
        """See `pack`."""
        self.kernel = KERNELS[kind](self) if kind else None
        return True


class Shared:
    """A kernel whose copy is itself: its weights never change."""

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        return self


class Packed(Shared):
    """oneDNN's product of float32 or bfloat16, with the weights in its own order: `F.linear` takes
    MKL for float32, slower on some processors, see `onmt_lite.models.processor`."""

    def __init__(self, layer: nn.Linear):
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


@dataclass(frozen=True)
class Bytes:
    """Rows of numbers as bytes: a number is (byte - zero) * step.

    Unsigned, since processors without AMX multiply unsigned by signed bytes.  Adding `ROUNDING`
    leaves the nearest integer in the low bits of the sum: one pass instead of three for
    multiplying, rounding and converting.
    """

    values: Tensor  # (R, D)
    step: Tensor  # (R, 1)
    zero: int

    @classmethod
    def of(cls, rows: Tensor, offset: Tensor, zero: int = 128) -> "Bytes":
        """offset (D,) is ROUNDING + zero, which is 128, or 0 for rows without negative numbers.

        Rows of zeros, or with NaN or infinity, come out as in float32, because of their step.
        """
        largest = (rows.abs() if zero else rows).amax(1, keepdim=True)  # (R, 1)
        n_steps = 255 - zero
        rounded = torch.addcmul(offset, rows, n_steps / largest)  # (R, D)
        return cls(rounded.view(torch.int32).to(torch.uint8), largest / n_steps, zero)


class Int8Weight:
    """Weights (N, D) as signed bytes, with a scale for each output (N,)."""

    def __init__(self, weight: Tensor):
        tiny = torch.finfo(torch.float32).tiny
        self.scale = weight.abs().amax(1).clamp(min=tiny) / 127
        rounded = (weight / self.scale[:, None]).round_().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded.contiguous(), None)
        self.zeros = torch.zeros(len(weight), dtype=torch.long)

    def __call__(self, rows: Bytes) -> Tensor:
        """Products (R, N), to be multiplied by the rows' step."""
        return torch.ops.onednn.qlinear_pointwise(
            rows.values,
            *(1.0, rows.zero, self.packed, self.scale, self.zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )


class Int8(Shared):
    """A product of bytes, with a scale for each output's weights and one for each row of inputs.

    Sums are exact integers, so a row's result depends on that row alone.

    Measured on one core of an Intel Xeon, 320 rows of 512, in microseconds: quantising 85, product
    94 (float32: 1150), scaling 21.  Wide outputs are computed in blocks that are scaled while they
    are in cache: 32,000 outputs of 320 rows at once took 3 times as long.

    Tried and left: one scale per call, which makes a sentence depend on its batch; bfloat16
    outputs, which change more lines than int8 does; one scale for all inputs that come from a norm,
    7 to 40 % less time and 1.5 times the error.
    """

    def __init__(self, layer: nn.Linear):
        weight, bias = detached(layer)
        self.n_outputs = len(weight)
        self.offset = torch.full((weight.size(1),), ROUNDING + 128)
        self.blocks = [
            (part, Int8Weight(weight[part]), bias[part].clone()) for part in blocks_of(len(weight))
        ]  # slices of outputs, with at most BLOCK each

    def __call__(self, x: Tensor) -> Tensor:
        rows = Bytes.of(x.reshape(-1, x.size(-1)), self.offset)
        if len(self.blocks) == 1:
            _, weight, bias = self.blocks[0]
            sums = weight(rows)
            out = torch.addcmul(bias, sums, rows.step, out=sums)
        else:
            out = x.new_empty(len(rows.values), self.n_outputs)  # (R, N)
            for part, weight, bias in self.blocks:
                torch.addcmul(bias, weight(rows), rows.step, out=out[:, part])
        return out.view(*x.shape[:-1], self.n_outputs)


class Int8FeedForward(Shared):
    """Two layers with ReLU between, by blocks of hidden units, each of which stays in cache and has
    its own scale for each row."""

    def __init__(self, up: nn.Linear, down: nn.Linear):
        weight, bias = detached(up)
        self.down, self.bias = detached(down)
        self.offset = torch.full((weight.size(1),), ROUNDING + 128)
        self.hidden_offset = torch.full((BLOCK,), ROUNDING)
        self.blocks = [
            (Int8Weight(weight[part]), bias[part].clone(), Int8Weight(self.down[:, part]))
            for part in blocks_of(len(weight))
        ]

    def __call__(self, x: Tensor) -> Tensor:
        rows = Bytes.of(x.reshape(-1, x.size(-1)), self.offset)
        out = self.bias
        for up, bias, down in self.blocks:
            sums = up(rows)
            hidden = torch.addcmul(bias, sums, rows.step, out=sums).relu_()  # (R, BLOCK)
            hidden_rows = Bytes.of(hidden, self.hidden_offset[: hidden.size(1)], zero=0)
            out = torch.addcmul(out, down(hidden_rows), hidden_rows.step)
        return out.view(x.shape)


def detached(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """A layer's weights (N, D) and bias (N,), zeros if it has none, in float32."""
    weight = layer.weight.detach().float()
    bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
    return weight, bias


def blocks_of(n: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]


KERNELS: dict[str, Callable[[nn.Linear], Kernel]] = {"packed": Packed, "int8": Int8}


def pack(module: nn.Module, kind: str) -> None:
    """Give the linear layers in a module kernels of a kind of KERNELS, or none: "".  A module's own
    method `pack` returns whether its parts are done, too."""
    of_module = getattr(module, "pack", None)
    if of_module is None or not of_module(kind):
        for part in module.children():
            pack(part, kind)


@cache
def is_right(kind: str) -> bool:
    """Whether this torch has the kernel and its products are right, also those of large bytes:
    AVX2 without VNNI adds two products in 16 bits first, which cuts their sums off."""
    n_rows, n_inputs, n_outputs = 32, 128, 128
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        1 - torch.rand(shape, generator=generator) / 2
        for shape in ((n_rows, n_inputs), (n_outputs, n_inputs), (n_outputs,))
    )
    layer = nn.utils.skip_init(nn.Linear, n_inputs, n_outputs)
    layer.weight, layer.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
    try:
        with torch.inference_mode():
            found = KERNELS[kind](layer)(x)
    except (AttributeError, RuntimeError, TypeError):  # a private operator that is not there
        return False
    exact = F.linear(x, weight, bias)
    return bool((found - exact).abs().mean() < 0.02 * exact.abs().mean())
