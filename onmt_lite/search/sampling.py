"""Drawing tokens: noise that belongs to a line, and the filters of what may be drawn."""

import hashlib
import math

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF


def line_seed(seed: int, line_id: int) -> int:
    """What is drawn for a line follows from the job's seed and the line's number alone."""
    digest = hashlib.blake2b(f"{seed} {line_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits into an int64


def gumbel(seeds: Tensor, step: int, n: int) -> Tensor:
    """n samples of the Gumbel distribution for each of `seeds` (B,) at a step: (B, n).

    The largest of log-probabilities plus such noise is a draw from the distribution, and the C
    largest are C draws without replacement (Vieira 2014; Kool et al. 2019).  Each number is a
    hash of its seed, step and place, the same on every device and in every batch.
    """
    low, high = (seeds & MASK32)[:, None], (seeds >> 32)[:, None]
    place = torch.arange(n, device=seeds.device)[None]
    bits = _mix(_mix(_mix(place ^ low) ^ high) + step)
    uniform = (bits.double() + 0.5) / 2**32
    return -(-uniform.log()).log()


def _mix(x: Tensor) -> Tensor:
    """32 bits well mixed: the finaliser of MurmurHash3, in int64."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK32
    return x ^ (x >> 16)


def keep_top_k(values: Tensor, k: int, keep: int) -> Tensor:
    """-inf for all but the k best of each row, and at least `keep`; ties with the last stay."""
    k = min(max(k, keep), values.size(1))
    worst = values.topk(k, dim=1).values[:, -1:]
    return values.masked_fill(values < worst, -math.inf)


def keep_top_p(values: Tensor, p: float, keep: int) -> Tensor:
    """-inf for all but the best of each row that together have the probability p, and at
    least `keep` (Holtzman et al. 2020)."""
    ordered, index = values.sort(dim=1, descending=True, stable=True)
    probabilities = ordered.softmax(1)
    before = probabilities.cumsum(1) - probabilities
    beyond = before >= p
    beyond[:, :keep] = False
    return values.masked_fill(beyond.scatter(1, index, beyond), -math.inf)
