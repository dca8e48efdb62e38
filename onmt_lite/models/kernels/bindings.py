"""Kernels in C for processors with AVX-512 and VNNI, called through ctypes; see `kernels.c`.

`kernels()` is None where they cannot be had, and the layers compute with torch.

R rows, D inputs, N outputs, B sentences, K hypotheses of each, H heads of queries, G heads of keys
and values, d width of a head, S source tokens.  Tensors are contiguous, and float32 or long.
"""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from onmt_lite.models.kernels.build import load_library

PANEL = 32  # outputs whose weights lie side by side
ACTIVATIONS = {"none": 0, "relu": 1, "silu": 2, "gelu_sigmoid": 3, "gelu_tanh": 4}

_P, _N = c_void_p, c_int64
SIGNATURES = {
    "pack": [_P, _N, _N, _P, _P, _P],
    "linear": [_P, _N, _N, _P, _P, c_int, _P, _P, _N, c_int],
    "feed_forward": [_P, _N, _N, _P, _P, _P, c_int, _P, _P, _N, c_int],
    "head": [_P, _N, _N, _P, _N, _P, _P, _P, c_int],
    "log_sums": [_P, _N, _N, _N, _P, c_int],
    "attend_self": [_P, _N, _N, _P, _N, _N, _N, _P, _N, c_int],
    "attend_memory": [_P, *[_N] * 6, _P, _P, _N, _P, _P, _P, _N, c_int],
    "find_past": [_P, _N, _N, _N, _P, _N, _P],
    "look_back": [_P, *[_N] * 6, _P, _P, _N, _N, _P, _N, _P, _P, _N, c_int],
}


@cache
def get_library() -> Any:
    """The library, whose functions are those of `kernels.c`; None if this machine has none."""
    library = load_library()
    if library is None:
        return None
    library.packed_size.argtypes, library.packed_size.restype = [_N, _N, c_int], _N
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


class Weights(ctypes.Structure):
    """Weights (N, D) and bias (N,) in the order of a product: floats, or bytes with a scale for
    each output."""

    _fields_ = [
        *(("outputs", c_int64), ("inputs", c_int64), ("bytes", c_void_p), ("floats", c_void_p)),
        *(("scale", c_void_p), ("total", c_void_p), ("bias", c_void_p)),
    ]

    def __init__(self, weight: Tensor, bias: Tensor | None, in_bytes: bool):
        weight = weight.detach().float().contiguous()
        n, d = weight.shape
        n_padded = -(-n // PANEL) * PANEL
        packed = torch.zeros(get_library().packed_size(n, d, in_bytes), dtype=torch.uint8)
        padded_bias = torch.zeros(n_padded)
        if bias is not None:
            padded_bias[:n] = bias.detach()
        scales = torch.zeros(n_padded if in_bytes else 0)
        totals = torch.zeros(n_padded if in_bytes else 0, dtype=torch.int32)
        self.tensors = packed, scales, totals, padded_bias  # keeps their memory
        where = packed.data_ptr()
        scale, total = (x.data_ptr() if in_bytes else None for x in (scales, totals))
        get_library().pack(weight.data_ptr(), n, d, where, scale, total)
        places = (where, None) if in_bytes else (None, where)
        super().__init__(n, d, *places, scale, total, padded_bias.data_ptr())
        self.address = ctypes.addressof(self)


class Norm(ctypes.Structure):
    """A layer's norm, as kernels read it."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float)]

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm):
        """The norm's tensors must stay where they are."""
        self.tensors = norm.weight, getattr(norm, "bias", None)
        super().__init__(*map(data_pointer, self.tensors), norm.eps)
        self.address = ctypes.addressof(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Norm":
        return self


def data_pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def linear(
    x: Tensor,
    weights: Weights,
    norm: Norm | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """activation([norm](x) W + b), or residual + ...: x (.., D) -> (.., N)."""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    out = x.new_empty(*x.shape[:-1], weights.outputs)
    d, n = weights.inputs, weights.outputs
    get_library().linear(
        *(x.data_ptr(), d, x.numel() // d, weights.address, norm and norm.address),
        *(ACTIVATIONS[activation], data_pointer(residual)),
        *(out.data_ptr(), n, torch.get_num_threads()),
    )
    return out


def feed_forward(
    x: Tensor,
    up: Weights,
    down: Weights,
    norm: Norm | None = None,
    activation: str = "relu",
    residual: Tensor | None = None,
) -> Tensor:
    """[residual +] activation([norm](x) U + u) W + b: x (.., D) -> (.., N)."""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    out = x.new_empty(*x.shape[:-1], down.outputs)
    d, n = up.inputs, down.outputs
    get_library().feed_forward(
        *(x.data_ptr(), d, x.numel() // d, up.address, down.address, norm and norm.address),
        *(ACTIVATIONS[activation], data_pointer(residual)),
        *(out.data_ptr(), n, torch.get_num_threads()),
    )
    return out


def output_logits(x: Tensor, weights: Weights, logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Write the logits (R, N) of x (R, D); return their log-sum-exp (R,), and the maxima (R,
    blocks) of blocks of so many columns, a power of 2 up to 512."""
    log_sums = x.new_empty(len(x))
    maxima = x.new_empty(len(x), -(-weights.outputs // block))
    get_library().head(
        *(x.data_ptr(), weights.inputs, len(x), weights.address, block),
        *(logits.data_ptr(), log_sums.data_ptr(), maxima.data_ptr(), torch.get_num_threads()),
    )
    return log_sums, maxima


def logsumexp(x: Tensor) -> Tensor:
    """Log-sum-exp of the rows of x (R, N), at least the lowest float32: (R,)."""
    x, out = x.contiguous(), x.new_empty(len(x))
    size = x.size(1), len(x), x.size(1)
    get_library().log_sums(x.data_ptr(), *size, out.data_ptr(), torch.get_num_threads())
    return out


def attend_self(qkv: Tensor, starts: Tensor, heads: int, groups: int) -> Tensor:
    """Self-attention of packed sentences: qkv (R, (H + 2 G) d), starts (B + 1,) -> (R, H d)."""
    width = qkv.size(1) // (heads + 2 * groups)
    out = qkv.new_empty(len(qkv), heads * width)
    get_library().attend_self(
        *(qkv.data_ptr(), qkv.size(1), len(starts) - 1, starts.data_ptr(), heads, groups, width),
        *(out.data_ptr(), heads * width, torch.get_num_threads()),
    )
    return out


def attend_memory(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, needs_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Attention to the memory: q (B, K, H d), keys (B, G, d, S), values (B, G, S, d), lengths (B,)
    -> context (B, K, H d) and, if wanted, weights (B, H, K, S), 0 on padding."""
    (b, k, of_heads), (groups, width, s) = q.shape, keys.shape[1:]
    out, heads = torch.empty_like(q), of_heads // width
    weights = q.new_empty(b, heads, k, s) if needs_weights else None
    get_library().attend_memory(
        *(q.data_ptr(), of_heads, b, k, heads, groups, width),
        *(keys.data_ptr(), values.data_ptr(), s, lengths.data_ptr(), data_pointer(weights)),
        *(out.data_ptr(), of_heads, torch.get_num_threads()),
    )
    return out, weights


def find_past(mask: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The entries where mask (R, capacity) is 0 among the first n columns: entries (R, n), in their
    order, and how many there are of each row (R,)."""
    entries = torch.empty(len(mask), n, dtype=torch.int32)
    counts = torch.empty(len(mask), dtype=torch.int32)
    get_library().find_past(
        *(mask.data_ptr(), mask.size(1), len(mask), n, entries.data_ptr(), n, counts.data_ptr())
    )
    return entries, counts


def attend_cached(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    newest: int,
    past: tuple[Tensor, Tensor],
    heads: int,
) -> Tensor:
    """One step of cached self-attention: qkv (B, K, (H + 2 G) d) -> (B, K, H d).

    Writes the step's keys and values to the entries from `newest` on of keys and values (B, G,
    capacity, d).  Each row attends to its own past, which `find_past` has found.
    """
    (b, k, of_all), (groups, capacity, width) = qkv.shape, keys.shape[1:]
    entries, counts = past
    out = qkv.new_empty(b, k, heads * width)
    get_library().look_back(
        *(qkv.data_ptr(), of_all, b, k, heads, groups, width, keys.data_ptr(), values.data_ptr()),
        *(capacity, newest, entries.data_ptr(), entries.size(1), counts.data_ptr()),
        *(out.data_ptr(), heads * width, torch.get_num_threads()),
    )
    return out
