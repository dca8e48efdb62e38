"""Sampling with Gumbel noise: the same sample for a line on every device and in every batch."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onmt_lite.search.spec import SearchSpec
from onmt_lite.search.topk import Candidates, TokenScores, is_eos

MASK32 = 0xFFFFFFFF


def derive_line_seed(seed: int, line_id: int) -> int:
    """Return the seed of a line, derived from the job's seed and the line number only."""
    digest = hashlib.blake2b(f"{seed} {line_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits into an int64


def sample_gumbel(seeds: Tensor, steps: Tensor, n: int) -> Tensor:
    """Return Gumbel noise (B, n).

    The argmax of log-probabilities plus Gumbel noise is a sample from the distribution, and the top
    C are C samples without replacement (Vieira 2014; Kool et al. 2019).  Each number is a hash of
    seed, step and column, so it does not depend on device or batch.

    Args:
        seeds: (B,) int64, one per sentence.
        steps: (B,) step number of each sentence.
        n: number of columns.
    """
    low, high = (seeds & MASK32)[:, None], (seeds >> 32)[:, None]  # (B, 1)
    column = torch.arange(n, device=seeds.device)[None]  # (1, n)
    bits = _mix(_mix(_mix(column ^ low) ^ high) + steps[:, None])  # (B, n)
    uniform = (bits.double() + 0.5) / 2**32  # (B, n) in (0, 1)
    return -(-uniform.log()).log()


def sample_candidates(
    token_scores: TokenScores,
    scores: Tensor,
    seeds: Tensor,
    steps: Tensor,
    n_tokens: int,
    spec: SearchSpec,
) -> Candidates:
    """Sample candidates: one per row, or N per sentence without replacement (Kool et al. 2019).

    Args:
        token_scores: scores (R, V) of the next tokens.
        scores: (B, K) scores of the rows.
        seeds: (B,) one per sentence.
        steps: (B,) step number of each sentence.
        n_tokens: vocabulary size without source words (copy models).
        spec: the search spec.

    Returns:
        Candidates (B, K) in mode `rows`, else (B, N).
    """
    sampling, (b, k) = spec.sampling, scores.shape
    assert sampling is not None
    logits, v = token_scores.logits, token_scores.logits.size(1)
    for name, limit in spec.filters:
        logits = FILTER_FUNCTIONS[name](logits, limit, sampling.min_tokens_to_keep)
    log_z = logits.logsumexp(1) if spec.token_rules.renormalize else token_scores.log_z  # (R,)
    # Noise for the vocabulary comes first, so that it does not depend on copied source words
    noise = sample_gumbel(seeds, steps, k * v)  # (B, K*V)
    token_noise, word_noise = noise[:, : k * n_tokens], noise[:, k * n_tokens :]
    parts = token_noise.view(b, k, n_tokens), word_noise.view(b, v - n_tokens, k).transpose(1, 2)
    noise = torch.cat(parts, 2).flatten(1)  # (B, K*V)
    log_probs = (token_scores.logits - log_z[:, None]).view(b, k, v)  # (B, K, V)
    path_scores = (log_probs + scores[:, :, None]).flatten(1)  # (B, K*V)
    if sampling.mode == "rows":
        token = (logits.double() + noise.view(-1, v)).argmax(1).view(b, k)  # (B, K)
        row = torch.arange(b * k, device=token.device).view(b, k)  # (B, K)
        index = row * v + token  # (B, K)
        score, log_prob = path_scores.take(index), log_probs.take(index)  # (B, K)
        return Candidates(score, row, token, log_prob, is_eos(spec, token))
    path_scores = path_scores.masked_fill(logits.view(b, k * v) == -math.inf, -math.inf)  # (B, K*V)
    n = min(spec.n_candidates, k * v)
    index = (path_scores.double() + noise).topk(n, dim=1).indices  # (B, N)
    row = index.div(v, rounding_mode="floor")
    token = index - row * v  # (B, N)
    log_prob = log_probs.flatten(1).gather(1, index)  # (B, N)
    row = row + k * torch.arange(b, device=row.device)[:, None]  # (B, N) rows of the batch
    score = path_scores.gather(1, index)  # (B, N)
    candidates = Candidates(score, row, token, log_prob, is_eos(spec, token))
    if sampling.ranked_by == "draw":
        return candidates
    return candidates.take(score.argsort(dim=1, descending=True, stable=True))


def _mix(x: Tensor) -> Tensor:
    """Mix 32 bits with the finalizer of MurmurHash3, in int64."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK32
    return x ^ (x >> 16)


def keep_top_k(logits: Tensor, k: int, min_tokens: int) -> Tensor:
    """Set all logits of a row except the k best to -inf; ties with the k-th stay.

    Args:
        logits: (R, V).
        k: -1: no limit.
        min_tokens: minimum number of tokens to keep.
    """
    if k < 0:
        return logits
    k = min(max(k, min_tokens), logits.size(1))
    worst = logits.topk(k, dim=1).values[:, -1:]  # (R, 1)
    return logits.masked_fill(logits < worst, -math.inf)


def keep_top_p(logits: Tensor, p: float, min_tokens: int) -> Tensor:
    """Set logits outside the smallest set with probability p to -inf (Holtzman et al. 2020).

    Args:
        logits: (R, V).
        p: 1: no limit.
        min_tokens: minimum number of tokens to keep.
    """
    if p == 1:  # the rounded sum may be below 1
        return logits
    ordered, index = logits.sort(dim=1, descending=True, stable=True)  # (R, V)
    probabilities = ordered.softmax(1)  # (R, V)
    mass_before = probabilities.cumsum(1) - probabilities  # (R, V)
    beyond = mass_before >= p  # (R, V)
    beyond[:, :min_tokens] = False
    return logits.masked_fill(beyond.scatter(1, index, beyond), -math.inf)


# By option name, see `onmt_lite.search.policy.FILTERS`
FILTER_FUNCTIONS: dict[str, Callable[[Tensor, Any, int], Tensor]] = {
    "random_sampling_topk": keep_top_k,
    "random_sampling_topp": keep_top_p,
}
