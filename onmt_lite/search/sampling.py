"""Tokens drawn at random: the same draw for the same line on every device and in every batch."""

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
    """Return the seed of a line, which depends only on the job's seed and the line number."""
    digest = hashlib.blake2b(f"{seed} {line_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits into an int64


def sample_gumbel(seeds: Tensor, steps: Tensor, n: int) -> Tensor:
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


def sample_candidates(
    token_scores: TokenScores,
    scores: Tensor,
    seeds: Tensor,
    steps: Tensor,
    n_tokens: int,
    spec: SearchSpec,
) -> Candidates:
    """Draw candidates: one per row, or those of a sentence together.

    Args:
        token_scores: TokenScores of R rows.
        scores: (B, K), of the rows.
        seeds: (B,), of the sentences.
        steps: (B,), their own steps.
        n_tokens: int, the size of the vocabulary without words that are copied from a source.
        spec: SearchSpec.
    """
    sampling, (b, k) = spec.sampling, scores.shape
    assert sampling is not None
    logits, v = token_scores.logits, token_scores.logits.size(1)
    for name, limit in spec.filters:
        logits = FILTER_FUNCTIONS[name](logits, limit, sampling.min_tokens_to_keep)
    log_z = logits.logsumexp(1) if spec.token_rules.renormalize else token_scores.log_z  # (R,)
    # The noise of the vocabulary does not depend on how many words others copy
    noise = sample_gumbel(seeds, steps, k * v)  # (B, K*V)
    of_tokens, of_words = noise[:, : k * n_tokens], noise[:, k * n_tokens :]
    parts = of_tokens.view(b, k, n_tokens), of_words.view(b, v - n_tokens, k).transpose(1, 2)
    noise = torch.cat(parts, 2).flatten(1)
    log_probs = (token_scores.logits - log_z[:, None]).view(b, k, v)  # (B, K, V)
    totals = (log_probs + scores[:, :, None]).flatten(1)  # (B, K*V)
    if sampling.mode == "rows":
        token = (logits.double() + noise.view(-1, v)).argmax(1).view(b, k)  # (B, K)
        row = torch.arange(b * k, device=token.device).view(b, k)  # (B, K)
        index = row * v + token
        drawn = totals.take(index), row, token, log_probs.take(index)
        return Candidates(*drawn, is_eos(spec, token))
    totals = totals.masked_fill(logits.view(b, k * v) == -math.inf, -math.inf)
    n = min(spec.n_candidates, k * v)
    index = (totals.double() + noise).topk(n, dim=1).indices  # (B, N)
    row = index.div(v, rounding_mode="floor")
    token = index - row * v
    log_prob = log_probs.flatten(1).gather(1, index)
    row = row + k * torch.arange(b, device=row.device)[:, None]
    best = Candidates(totals.gather(1, index), row, token, log_prob, is_eos(spec, token))
    if sampling.ranked_by == "draw":
        return best
    return best.take(best.score.argsort(dim=1, descending=True, stable=True))


def _mix(x: Tensor) -> Tensor:
    """Mix 32 bits: the finaliser of MurmurHash3, in int64."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK32
    return x ^ (x >> 16)


def keep_top_k(values: Tensor, k: int, keep: int) -> Tensor:
    """Set all but the k best of each row (R, V), and at least `keep`, to -inf; ties with the last
    stay.  A k of -1 sets no limit."""
    if k < 0:
        return values
    k = min(max(k, keep), values.size(1))
    worst = values.topk(k, dim=1).values[:, -1:]
    return values.masked_fill(values < worst, -math.inf)


def keep_top_p(values: Tensor, p: float, keep: int) -> Tensor:
    """Set all but the best of each row (R, V) that together have the probability p, and at least
    `keep`, to -inf (Holtzman et al. 2020)."""
    if p == 1:  # of which rounding errors may lack some
        return values
    ordered, index = values.sort(dim=1, descending=True, stable=True)
    probabilities = ordered.softmax(1)
    before = probabilities.cumsum(1) - probabilities
    beyond = before >= p
    beyond[:, :keep] = False
    return values.masked_fill(beyond.scatter(1, index, beyond), -math.inf)


# By the options of `onmt_lite.search.policy.FILTERS`
FILTER_FUNCTIONS: dict[str, Callable[[Tensor, Any, int], Tensor]] = {
    "random_sampling_topk": keep_top_k,
    "random_sampling_topp": keep_top_p,
}
