"""Length and coverage penalties: pure functions."""

import functools

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan

TINY = torch.finfo(torch.float32).tiny


@functools.lru_cache(maxsize=4096)  # the same few lengths, over and over
def length_norm(form: str, alpha: float, length: int) -> float:
    """The divisor of a sum of log-probabilities; `length` counts the end token, too.

    `wu` is equation 14 of Wu et al. 2016, `avg` OpenNMT's average raised to alpha.
    """
    if form == "wu":
        return float(((5 + length) / 6) ** alpha)
    if form == "avg":
        return float(max(1, length) ** alpha)
    return 1.0


def coverage_penalty(plan: Plan, coverage: Tensor, src_length: Tensor) -> Tensor:
    """The penalty of each row (R,) for the attention that source tokens have received.

    coverage (R, S): sum over the steps; src_length (R, 1).  `wu` is the coverage penalty of Wu et
    al. 2016, `summary` that of Gehrmann et al. 2018.  A token that received no attention at all
    costs a large finite amount instead of an infinite one, or nothing under CTranslate2.
    """
    inside = torch.arange(coverage.size(1), device=coverage.device) < src_length  # (R, S)
    if plan.coverage_penalty == "wu":
        per_token = -coverage.clamp(TINY, 1.0).log()  # (R, S)
        if plan.policy.skips_unattended:
            per_token = per_token * (coverage > 0)
    else:
        per_token = coverage.clamp(min=1.0) - 1.0  # (R, S)
    return plan.beta * (per_token * inside.float()).sum(1)


def most_attended(attn: Tensor, src_length: Tensor, margins: tuple[int, int]) -> Tensor:
    """The source token that each row attends to most (R,), margins aside.

    attn (R, S), src_length (R, 1)
    """
    before, after = margins
    place = torch.arange(attn.size(1), device=attn.device)  # (S,)
    outside = (place < before) | (place >= src_length - after)  # (R, S)
    return attn.masked_fill(outside, -1.0).argmax(1)
