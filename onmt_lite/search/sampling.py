"""Sampling: noise that belongs to a line, and top-k and top-p filters."""

import hashlib
import math

import torch
from torch import Tensor

from onmt_lite.search.masks import Scored
from onmt_lite.search.plan import Plan
from onmt_lite.search.ranking import Ranked

MASK32 = 0xFFFFFFFF


def line_seed(seed: int, line_id: int) -> int:
    """The seed of a line's draws: depends on the job's seed and the line's number alone."""
    digest = hashlib.blake2b(f"{seed} {line_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits into an int64


def gumbel(seeds: Tensor, steps: Tensor, n: int) -> Tensor:
    """n samples of the Gumbel distribution for each of `seeds` (B,) at its step (B,): (B, n).

    The largest of log-probabilities plus such noise is a draw from the distribution, and the C
    largest are C draws without replacement (Vieira 2014; Kool et al. 2019).  Each number is a
    hash of its seed, step and place, the same on every device and in every batch.
    """
    low, high = (seeds & MASK32)[:, None], (seeds >> 32)[:, None]  # (B, 1)
    place = torch.arange(n, device=seeds.device)[None]  # (1, n)
    bits = _mix(_mix(_mix(place ^ low) ^ high) + steps[:, None])  # (B, n)
    uniform = (bits.double() + 0.5) / 2**32
    return -(-uniform.log()).log()


def draw(
    scored: Scored,
    scores: Tensor,
    seeds: Tensor,
    steps: Tensor,
    n_tokens: int,
    n_words: int,
    plan: Plan,
) -> Ranked:
    """Draw candidates: one per row, or those of a sentence together.

    scored: of R rows; scores (B, K); seeds, steps (B,); n_tokens: V; n_words: V + X.
    """
    sampling, (b, k) = plan.sampling, scores.shape
    assert sampling is not None
    values, v = scored.values, scored.values.size(1)
    for name in sampling.filters:
        if name == "topk" and plan.topk > 0:
            values = keep_top_k(values, plan.topk, sampling.keep)
        elif name == "topp" and 0 < plan.topp < 1:
            values = keep_top_p(values, plan.topp, sampling.keep)
    noise = _noise(seeds, steps, k, n_tokens, v)  # (B, K*W)
    log_probs = (scored.values - scored.norm[:, None]).view(b, k, v)  # (B, K, W)
    totals = (log_probs + scores[:, :, None]).flatten(1)  # (B, K*W)
    if sampling.draws == "rows":
        token = (values.double() + noise.view(-1, v)).argmax(1).view(b, k)  # (B, K)
        row = torch.arange(b * k, device=token.device).view(b, k)  # (B, K)
        index = row * v + token
        return Ranked(totals.take(index), row, token, log_probs.take(index))
    totals = totals.masked_fill(values.view(b, k * v) == -math.inf, -math.inf)
    n = min(plan.n_candidates, k * v)
    index = (totals.double() + noise).topk(n, dim=1).indices  # (B, N)
    row = index.div(v, rounding_mode="floor")
    log_prob = log_probs.flatten(1).gather(1, index)
    token = (index - row * v).clamp(max=n_words - 1)  # a spare column is no candidate
    row = row + k * torch.arange(b, device=row.device)[:, None]
    drawn = Ranked(totals.gather(1, index), row, token, log_prob)
    if sampling.ranked_by == "draw":
        return drawn
    return drawn.take(drawn.score.argsort(dim=1, descending=True, stable=True))


def _noise(seeds: Tensor, steps: Tensor, k: int, n: int, v: int) -> Tensor:
    """Noise for each continuation (B, K*v): that of the n tokens does not depend on how many words
    others copy."""
    noise = gumbel(seeds, steps, k * v)
    of_tokens, of_words = noise[:, : k * n].view(-1, k, n), noise[:, k * n :]
    words = of_words.view(len(seeds), v - n, k).transpose(1, 2)
    return torch.cat([of_tokens, words], 2).flatten(1)


def _mix(x: Tensor) -> Tensor:
    """Mix 32 bits: the finaliser of MurmurHash3, in int64."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK32
    return x ^ (x >> 16)


def keep_top_k(values: Tensor, k: int, keep: int) -> Tensor:
    """Set all but the k best of each row (R, W), and at least `keep`, to -inf; ties with the last
    stay."""
    k = min(max(k, keep), values.size(1))
    worst = values.topk(k, dim=1).values[:, -1:]
    return values.masked_fill(values < worst, -math.inf)


def keep_top_p(values: Tensor, p: float, keep: int) -> Tensor:
    """Set all but the best of each row (R, W) that together have the probability p, and at least
    `keep`, to -inf (Holtzman et al. 2020)."""
    ordered, index = values.sort(dim=1, descending=True, stable=True)
    probabilities = ordered.softmax(1)
    before = probabilities.cumsum(1) - probabilities
    beyond = before >= p
    beyond[:, :keep] = False
    return values.masked_fill(beyond.scatter(1, index, beyond), -math.inf)
