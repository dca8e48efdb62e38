"""ctypes bindings of the C kernels for CPUs; see `kernels.c`.

If `get_library()` returns None, layers are computed by torch.

Shapes: R rows, D inputs, N outputs, B sentences, K hypotheses per sentence, H query heads, G
key/value heads, d head width, S source tokens.  Tensors are contiguous and on the CPU.  Floating
point is float32, and integers are int64 unless noted.
"""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onmt_lite.models.kernels.build import load_library

PANEL = 32  # outputs whose weights are interleaved
ACTIVATIONS = {"none": 0, "relu": 1, "silu": 2, "gelu_sigmoid": 3, "gelu_tanh": 4}

_P, _N = c_void_p, c_int64
SIGNATURES = {
    "pack": [_P, _N, _N, _P, _P, _P],
    "normalize": [_P, _N, _N, _P, _P, c_int],
    "compute_layer": [_P, c_int],
    "head": [_P, _N, _N, _P, _P, _P, _P, _P, c_int],
    "log_sums": [_P, _N, _N, _P, c_int],
    "attend_self": [_P, c_int],
    "attend_memory": [_P, c_int],
    "advance_past": [_N, _N, _P, _P, _N, _P, _N, _P, _P, _N, _P, _P],
    "attend_cached": [_P, c_int],
}


@cache
def get_library() -> Any:
    """Return the library with the functions of `kernels.c`, or None if there is none."""
    loaded = load_library()
    if loaded is None:
        return None
    library = loaded.functions
    library.packed_size.argtypes, library.packed_size.restype = [_N, _N, c_int], _N
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


class Weights(ctypes.Structure):
    """Weights (N, D) and bias (N,) packed for the kernels, as float32 or int8 with scales."""

    _fields_ = [
        *(("outputs", c_int64), ("inputs", c_int64), ("integers", c_void_p), ("floats", c_void_p)),
        *(("scale", c_void_p), ("total", c_void_p), ("bias", c_void_p)),
    ]

    def __init__(self, weight: Tensor, bias: Tensor | None, is_int8: bool):
        """Pack the weights of a layer.

        Args:
            weight: the weight (N, D), floating point
            bias: the bias (N,), floating point, or None
            is_int8: quantize to int8
        """
        weight = weight.detach().float().contiguous()
        n, d = weight.shape
        n_padded = -(-n // PANEL) * PANEL
        packed = torch.zeros(get_library().packed_size(n, d, is_int8), dtype=torch.uint8)
        padded_bias = torch.zeros(n_padded)
        if bias is not None:
            padded_bias[:n] = bias.detach()
        scales = torch.zeros(n_padded if is_int8 else 0)
        totals = torch.zeros(n_padded if is_int8 else 0, dtype=torch.int32)
        self.tensors = packed, scales, totals, padded_bias  # keeps their memory alive
        pointer = packed.data_ptr()
        scale, total = (x.data_ptr() if is_int8 else None for x in (scales, totals))
        get_library().pack(weight.data_ptr(), n, d, pointer, scale, total)
        pointers = (pointer, None) if is_int8 else (None, pointer)
        super().__init__(n, d, *pointers, scale, total, padded_bias.data_ptr())
        self.address = ctypes.addressof(self)


class Norm(ctypes.Structure):
    """Parameters of a layer norm or RMS norm for the kernels."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float)]

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm):
        """Store pointers to the parameters; these must not be moved or freed."""
        self.tensors = norm.weight, getattr(norm, "bias", None)
        super().__init__(*map(get_data_pointer, self.tensors), norm.eps)
        self.address = ctypes.addressof(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Norm":
        return self


def normalize(x: Tensor, norm: Norm) -> Tensor:
    """Return norm(x) (.., D) of x (.., D)."""
    x = x.contiguous()
    d, out = x.size(-1), torch.empty_like(x)
    get_library().normalize(
        *(x.data_ptr(), x.numel() // d, d, norm.address, out.data_ptr(), torch.get_num_threads())
    )
    return out


def get_data_pointer(x: Tensor | None) -> int | None:
    """Return the address of the data of x (any shape), or None."""
    return None if x is None else x.data_ptr()


class Layer(ctypes.Structure):
    """Arguments of `linear` and `feed_forward` for the kernel, see `Layer` in `kernels.c`."""

    _fields_ = [
        *(("rows", c_int64), ("block", c_int64)),
        *((name, c_void_p) for name in ("x", "up", "down", "norm")),
        *(("activation", c_int64), ("residual", c_void_p), ("out", c_void_p)),
    ]


def linear(
    x: Tensor,
    weights: Weights,
    norm: Norm | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Return [residual +] activation([norm](x) W + b).

    Args:
        x: inputs (.., D)
        weights: W and b
        norm: applied to x first
        activation: a key of ACTIVATIONS
        residual: added to the result (.., N)

    Returns:
        Outputs (.., N).
    """
    return compute_layer(x, weights, None, norm, activation, residual)


def feed_forward(
    x: Tensor,
    up: Weights,
    down: Weights,
    norm: Norm | None = None,
    activation: str = "relu",
    residual: Tensor | None = None,
) -> Tensor:
    """Return [residual +] activation([norm](x) U + u) W + b.

    Args:
        x: inputs (.., D)
        up: U and u
        down: W and b
        norm: applied to x first
        activation: a key of ACTIVATIONS
        residual: added to the result (.., N)

    Returns:
        Outputs (.., N).
    """
    return compute_layer(x, up, down, norm, activation, residual)


def compute_layer(
    x: Tensor,
    up: Weights,
    down: Weights | None,
    norm: Norm | None,
    activation: str,
    residual: Tensor | None,
) -> Tensor:
    """Compute a linear layer (`down` is None) or a feed-forward layer; see these functions."""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    out = x.new_empty(*x.shape[:-1], (down or up).outputs)
    layer = Layer(
        *(x.numel() // up.inputs, 0, x.data_ptr(), up.address, down and down.address),
        *(norm and norm.address, ACTIVATIONS[activation], get_data_pointer(residual)),
        out.data_ptr(),
    )
    get_library().compute_layer(ctypes.addressof(layer), torch.get_num_threads())
    return out


def compute_output_logits(x: Tensor, weights: Weights, norm: Norm | None, logits: Tensor) -> Tensor:
    """Compute the logits of [norm](x).

    Args:
        x: hidden states (R, D)
        weights: the output layer
        norm: applied to x first
        logits: overwritten (R, N)

    Returns:
        The log-sum-exp of the logits (R,).
    """
    log_z = x.new_empty(len(x))
    get_library().head(
        *(x.data_ptr(), weights.inputs, len(x), weights.address, norm and norm.address),
        *(logits.data_ptr(), log_z.data_ptr(), None, torch.get_num_threads()),
    )
    return log_z


class Beams(ctypes.Structure):
    """Arguments of `rank_continuations` for the kernel, see `Beams` in `kernels.c`."""

    _fields_ = [
        *((name, c_int64) for name in ("sentences", "hypotheses", "n")),
        *((name, c_void_p) for name in ("row", "score")),
        *((name, c_int64) for name in ("n_masked", "n_ends")),
        *((name, c_void_p) for name in ("masked", "mask", "ends")),
        *((name, c_void_p) for name in ("new_score", "log_prob", "parent", "token", "ended")),
    ]


def rank_continuations(
    x: Tensor,
    weights: Weights,
    norm: Norm | None,
    rows: Tensor,
    scores: Tensor,
    n: int,
    masked: tuple[Tensor, Tensor],
    ends: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Find the n best continuations of each sentence's hypotheses, without storing all logits.

    A continuation has the score `(logit - log-sum-exp) + score of the hypothesis`, in float32.
    Ties are ordered by hypothesis, then by token.  If a score is NaN, all of the sentence are.

    Args:
        x: hidden states (R, D)
        weights: the output layer
        norm: applied to x first
        rows: row of each hypothesis in x (B, K), int32
        scores: scores of the hypotheses (B, K)
        n: number of continuations, at most K N
        masked: tokens that some hypotheses must not take (M,), and a mask of these hypotheses
            (B, K, M), bool; their logits count as -inf, but not in the log-sum-exp
        ends: tokens that end a hypothesis (E,)

    Returns:
        Scores, parents (b * K + k), tokens, log-probabilities, and True for tokens that end a
        hypothesis, (B, n) each, best first.
    """
    (b, k), (tokens, mask) = scores.shape, masked
    new_scores, log_probs = x.new_empty(2, b, n).unbind()
    parents, new_tokens = torch.empty(2, b, n, dtype=torch.int64).unbind()
    ended = torch.empty(b, n, dtype=torch.bool)
    beams = Beams(
        *(b, k, n, rows.data_ptr(), scores.data_ptr(), len(tokens), len(ends)),
        *(tokens.data_ptr(), mask.data_ptr(), ends.data_ptr()),
        *(new_scores.data_ptr(), log_probs.data_ptr()),
        *(parents.data_ptr(), new_tokens.data_ptr(), ended.data_ptr()),
    )
    log_z = x.new_empty(len(x))
    get_library().head(
        *(x.data_ptr(), weights.inputs, len(x), weights.address, norm and norm.address),
        *(None, log_z.data_ptr(), ctypes.addressof(beams), torch.get_num_threads()),
    )
    return new_scores, parents, new_tokens, log_probs, ended


def logsumexp(x: Tensor) -> Tensor:
    """Return the log-sum-exp (R,) of the rows of x (R, N), at least the lowest float32."""
    x, out = x.contiguous(), x.new_empty(len(x))
    get_library().log_sums(x.data_ptr(), *x.shape, out.data_ptr(), torch.get_num_threads())
    return out


class Attention(ctypes.Structure):
    """Arguments of the attention kernels, see `Attention` in `kernels.c`."""

    _fields_ = [
        *((name, c_int64) for name in ("sentences", "heads", "groups", "width")),
        *((name, c_void_p) for name in ("starts", "q", "keys", "values")),
        *(("length", c_int64), ("lengths", c_void_p), ("weights", c_void_p)),
        ("hypotheses", c_int64),
        *((name, c_void_p) for name in ("entries", "counts", "new_entries", "out")),
    ]


def attend_self(qkv: Tensor, starts: Tensor, heads: int, groups: int) -> Tensor:
    """Compute self-attention of packed sentences.

    Args:
        qkv: queries, keys and values (R, (H + 2 G) d)
        starts: first row of each sentence, and R (B + 1,)
        heads: number of query heads H
        groups: number of key/value heads G

    Returns:
        Context (R, H d).
    """
    width = qkv.size(1) // (heads + 2 * groups)
    out = qkv.new_empty(len(qkv), heads * width)
    task = Attention(
        *(len(starts) - 1, heads, groups, width, starts.data_ptr(), qkv.data_ptr()),
        out=out.data_ptr(),
    )
    get_library().attend_self(ctypes.addressof(task), torch.get_num_threads())
    return out


def attend_memory(
    q: Tensor,
    starts: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    needs_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention to the memory bank.

    Args:
        q: queries (.., H d), R in all
        starts: first row of each sentence, and R (B + 1,)
        keys: keys (B, G, d, S)
        values: values (B, G, S, d)
        lengths: lengths in tokens (B,)
        needs_weights: also return the attention weights

    Returns:
        Context (.., H d), and weights (R, H, S), 0 on padding, or None.
    """
    size, (b, groups, width, s) = q.size(-1), keys.shape
    out, heads = torch.empty_like(q), size // width
    weights = q.new_empty(q.numel() // size, heads, s) if needs_weights else None
    task = Attention(
        *(b, heads, groups, width, starts.data_ptr(), q.data_ptr(), keys.data_ptr()),
        *(values.data_ptr(), s, lengths.data_ptr(), get_data_pointer(weights)),
        out=out.data_ptr(),
    )
    get_library().attend_memory(ctypes.addressof(task), torch.get_num_threads())
    return out, weights


class Past(NamedTuple):
    """The entries of a cache that each hypothesis attends to, in the order of steps."""

    entries: Tensor  # (B K, T) int32
    counts: Tensor  # (B K,) int32: number of entries
    new_entries: Tensor  # (R,) int32: entries of the newest step, ascending


def advance_past(past: Past, parents: Tensor, starts: Tensor, capacity: int) -> Past:
    """Continue the past of all hypotheses by a step: that of the parent and a new entry.

    Args:
        past: the past of the old hypotheses
        parents: the old hypothesis that each one continues (B K,)
        starts: first row of each sentence, and R (B + 1,); hypotheses of a sentence with a single
            row share its entry
        capacity: all old entries are smaller; new entries may be larger

    Returns:
        The new past.  Entries that are in no past are used again.
    """
    (_, longest), n, b = past.entries.shape, len(parents), len(starts) - 1
    entries = torch.empty(n, longest + 1, dtype=torch.int32)
    counts = torch.empty(n, dtype=torch.int32)
    new_entries = torch.empty(int(starts[-1]), dtype=torch.int32)
    get_library().advance_past(
        *(b, n // b, parents.data_ptr(), starts.data_ptr(), capacity),
        *(past.entries.data_ptr(), longest, past.counts.data_ptr()),
        *(entries.data_ptr(), longest + 1, counts.data_ptr(), new_entries.data_ptr()),
    )
    return Past(entries, counts, new_entries)


def attend_cached(qkv: Tensor, starts: Tensor, cache: Tensor, past: Past, heads: int) -> Tensor:
    """Compute one step of cached self-attention, and store its keys and values.

    Args:
        qkv: queries, keys and values of the step (.., (H + 2 G) d), R rows in all
        starts: first row of each sentence, and R (B + 1,)
        cache: keys and values (capacity, 2, G, d), updated in place
        past: the result of `advance_past`
        heads: number of query heads H

    Returns:
        Context (.., H d).
    """
    _, _, groups, width = cache.shape
    b, (n, longest) = len(starts) - 1, past.entries.shape
    out = qkv.new_empty(*qkv.shape[:-1], heads * width)
    task = Attention(
        *(b, heads, groups, width, starts.data_ptr(), qkv.data_ptr(), cache.data_ptr(), None),
        *(longest, None, None, n // b, past.entries.data_ptr(), past.counts.data_ptr()),
        *(past.new_entries.data_ptr(), out.data_ptr()),
    )
    get_library().attend_cached(ctypes.addressof(task), torch.get_num_threads())
    return out
