"""Length and coverage penalties: pure functions."""

import functools

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan

TINY = torch.finfo(torch.float32).tiny


@functools.lru_cache(maxsize=4096)  # the same few lengths, over and over
def length_norm(form: str, alpha: float, length: int) -> float:
    """What a log-probability is divided by; `length` counts tokens, the end token included.

    `wu` is equation 14 of Wu et al. 2016, `avg` OpenNMT's average raised to alpha.
    """
    if form == "wu":
        return float(((5 + length) / 6) ** alpha)
    if form == "avg":
        return float(max(1, length) ** alpha)
    return 1.0


def cost_of_coverage(plan: Plan, coverage: Tensor, src_length: Tensor) -> Tensor:
    """The plan's penalty (..) for attention added up (.., S), of sources of src_length (.., 1)."""
    inside = torch.arange(coverage.size(-1), device=coverage.device) < src_length
    skips = plan.policy.skips_unattended
    return coverage_penalty(plan.coverage_penalty, plan.beta, coverage, inside.float(), skips)


def most_attended(attn: Tensor, src_length: Tensor, margins: tuple[int, int]) -> Tensor:
    """The source token that attention (.., S) is at most (..), among those inside of the margins;
    src_length (.., 1)."""
    before, after = margins
    place = torch.arange(attn.size(-1), device=attn.device)
    outside = (place < before) | (place >= src_length - after)
    return attn.masked_fill(outside, -1.0).argmax(-1)


def coverage_penalty(
    form: str, beta: float, coverage: Tensor, inside: Tensor, skips_unattended: bool = False
) -> Tensor:
    """Sum of attention each source token has received (.., S) -> what to take off a score (..).

    `inside` (.., S) is 1 on tokens and 0 on padding.  `wu` is the coverage penalty of
    Wu et al. 2016, `summary` that of Gehrmann et al. 2018.  A token that received no
    attention at all costs a large finite amount instead of an infinite one, or nothing if
    `skips_unattended` (CTranslate2).
    """
    if form == "wu":
        per_token = -coverage.clamp(TINY, 1.0).log()
        if skips_unattended:
            per_token = per_token * (coverage > 0)
    else:
        per_token = coverage.clamp(min=1.0) - 1.0
    return beta * (per_token * inside).sum(-1)
