"""Prefixes: the tokens that translations must begin with, read by one pass of the decoder.

A sentence that is given n tokens joins a search at its step n + 1, as if it had made n steps that
allowed nothing else.

B sentences, K rows of each, P tokens of the longest prefix, G start tokens, T = G + P - 1 tokens
that the pass reads: the last one of a prefix is left to the next step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.search.masks import ANY, normaliser
from onmt_lite.search.plan import Plan
from onmt_lite.search.scoring import cost_of_coverage, most_attended
from onmt_lite.search.transfer import on_its_way

MOST_LOGITS = 1 << 24  # that are made at a time


@dataclass(frozen=True)
class Past:
    """The n steps that the prefix of one sentence stands for.

    lines (n, M)   what a `Log` says of the rows at a step, parents as rows of the sentence; on the
                   host as soon as any later line is
    attn (n, S)    with which the tokens were made
    logits (n, V)  of what might have been there; this and attn only where the plan is watched
    """

    lines: Tensor
    attn: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Given:
    """What a pass leaves behind.  A sentence without a prefix has read nothing.

    scores (B, K)    of the rows that go on; -inf where nothing can follow
    history (B, T)   the tokens that were read, newest last, ANY before the first; (B, 0) where the
                     plan needs none
    coverage (B, S)  attention so far; (B, 0) where the plan has no costs
    lines (B, P, M), attn (B, P, S), logits (B, P, V)  see `Past`
    """

    scores: Tensor
    history: Tensor
    coverage: Tensor
    lines: Tensor
    attn: Tensor
    logits: Tensor

    def past(self, b: int, n: int) -> Past:
        """Of sentence b, which is given n tokens."""
        return Past(self.lines[b, :n], self.attn[b, :n], self.logits[b, :n])


def read_prefixes(
    model: AnyModel,
    plan: Plan,
    state: Any,
    start: Tensor,
    prefix: Tensor,
    src_length: Tensor,
    first_scores: Tensor,
    n_words: int,
) -> Given:
    """Read start tokens (B, G) and prefixes (B, P), filled up with ANY, into a new state.

    src_length (B, 1); first_scores (B, K): of the rows before anything is read; n_words: V + X.
    """
    n_given, before = (prefix != ANY).sum(1), start.size(1) - 1
    n_read = (n_given + before).where(n_given > 0, 0)
    read = torch.cat([start, prefix[:, :-1]], 1)
    at_once = max(1, MOST_LOGITS // (len(prefix) * n_words))
    attn, parts = model.prefill(read.clamp(min=0), n_read, state, before, at_once)
    counts, log_probs, logits = count_given(plan, parts, prefix, at_once)
    scores = _added_up(plan, counts, first_scores)
    attn = attn.float()
    coverage, told = attn[:, 0, :0], [log_probs]
    if plan.has_costs:
        so_far = attn.cumsum(1)
        costs = cost_of_coverage(plan, so_far, src_length[:, :, None])
        coverage, told = _newest(so_far, n_read), [*told, costs[:, before:]]
    attn = attn[:, before:]
    if plan.aligns:
        told.append(most_attended(attn, src_length[:, :, None], plan.src_margins))
    ends = (prefix == plan.eos_id).any(1, keepdim=True)
    behind = _newest(scores, n_given).where(n_given[:, None] > 0, first_scores)
    return Given(
        behind.masked_fill(ends, -math.inf),
        _read_so_far(plan, read, n_read) if plan.needs_history else read[:, :0],
        coverage,
        on_its_way(_lines(scores, prefix, told)),
        attn if plan.watched else attn[:, :, :0],
        logits,
    )


def count_given(
    plan: Plan, parts: Iterator[Tensor], prefix: Tensor, at_once: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the tokens of prefixes (B, P) count, and their log-probabilities, whatever the rules of
    the plan say of them; both (B, P).  Logits come in parts (B, at_once, V), and are returned where
    the plan is watched."""
    counts, log_probs, kept = [], [], []
    for logits, tokens in zip(parts, torch.split(prefix.clamp(min=0), at_once, 1)):
        logits = logits.float()
        value = logits.gather(2, tokens[:, :, None])[:, :, 0]
        log_prob = count = value - normaliser(logits) if plan.sums_to_one else value
        if plan.prefix_counts != "all":
            count = log_prob.where(~log_prob.isfinite(), 0.0)
        elif plan.sampling and plan.sampling.temperature == "logits":
            count = value / plan.temperature - normaliser(logits / plan.temperature)
        elif plan.sampling:
            count = log_prob / plan.temperature
        counts.append(count)
        log_probs.append(log_prob)
        kept.append(logits if plan.watched else logits[:, :, :0])
    ended = (prefix == plan.eos_id).cumsum(1) - (prefix == plan.eos_id).long() > 0
    count = torch.cat(counts, 1).masked_fill(ended, -math.inf)
    return count.where(prefix != ANY, 0.0), torch.cat(log_probs, 1), torch.cat(kept, 1)


def _added_up(plan: Plan, counts: Tensor, first_scores: Tensor) -> Tensor:
    """Scores of the rows at each given token (B, P, K), from what tokens count (B, P)."""
    total = counts.double().cumsum(1).float()
    scores = first_scores[:, None] + total[:, :, None]
    if plan.beam_groups > 1 and plan.prefix_counts == "all" and not plan.sampling:
        # All groups take the token, and each pays for those before it (fairseq)
        group = torch.arange(plan.beam_size, device=counts.device) % plan.beam_groups
        n = torch.arange(1, counts.size(1) + 1, device=counts.device)
        scores = scores - plan.diversity_rate * (n[:, None] * group)
    return scores


def _newest(x: Tensor, n: Tensor) -> Tensor:
    """The entry n - 1 of each x (B, T, X), 0 where n (B,) is 0: (B, X)."""
    at = (n - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.size(2))
    return x.gather(1, at)[:, 0].where(n[:, None] > 0, 0.0)


def _read_so_far(plan: Plan, read: Tensor, n_read: Tensor) -> Tensor:
    """Tokens read (B, T), the first n_read (B,) of each, moved to the end; ANY before them, and in
    the place of start tokens that penalties for repetition do not see."""
    read = read.clone()
    for i, sees in enumerate(plan.sees_start):
        if not sees:
            read[:, i] = ANY
    place = torch.arange(-read.size(1), 0, device=read.device) + n_read[:, None]
    return read.gather(1, place.clamp(min=0)).masked_fill(place < 0, ANY)


def _lines(scores: Tensor, prefix: Tensor, told: list[Tensor]) -> Tensor:
    """As in a `Log`: scores (B, P, K) of rows that stay where they are, prefix (B, P), and numbers
    (B, P) that hold for all rows alike."""
    rows = torch.arange(scores.size(2), device=scores.device).expand_as(scores)
    columns = [scores, rows, *(x[:, :, None].expand_as(scores) for x in (prefix, *told))]
    return torch.cat([column.float() for column in columns], 2)
