"""Which tokens may follow, and what they count, before anything is ranked: on all rows at once."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.search.constraints import Held
from onmt_lite.search.ngrams import completing_tokens, ends_in_repetition
from onmt_lite.search.plan import Plan

ANY = -1  # where there is no token
NEGLIGIBLE = -80.0  # in nats
LOG2_E = math.log2(math.e)
MANY = 1024  # tokens
CACHED = 1 << 17  # numbers of which a core's cache holds two times as many


@dataclass(frozen=True)
class Scored:
    """What the tokens of each row count: values (R, W) less norm (R,); -inf: may not follow.

    W is V, and a spare column of -inf where tokens are scattered.  `slope` (R, W) is the share of
    a diversity penalty that tokens pay, where that is not all of it.
    """

    values: Tensor
    norm: Tensor
    slope: Tensor | None = None


@dataclass(frozen=True)
class Seen:
    """What a step chose from: kept for who watches the search, see `onmt_lite.search.recorder`.

    logits (R, V), norm (R,)  the model's own, before any mask
    scored                    what was ranked
    scores (B, K)             of the rows that were continued
    attn (R, S)               of these rows
    """

    logits: Tensor
    norm: Tensor
    scored: Scored
    scores: Tensor
    attn: Tensor


@dataclass(frozen=True)
class Demands:
    """What the step demands of each row; None where it demands nothing of any.

    too_early (R,)  the end token may not come yet
    last (R,)       this is the row's last step
    held            what phrases demand, see `onmt_lite.search.constraints`
    """

    too_early: Tensor | None = None
    last: Tensor | None = None
    held: Held | None = None


class Masks:
    """The rules of a plan about single tokens."""

    def __init__(self, plan: Plan, vocab_size: int, device: torch.device):
        self.plan = plan
        # Where masks act on logits, banned tokens leave their probability to the others
        on_logits = plan.policy.masks == "logits"
        banned = plan.banned_ids if on_logits else plan.banned_ids + plan.never_ids

        def ids(numbers: tuple[int, ...]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.long, device=device)

        self.banned = ids(banned) if banned else None
        self.never = ids(plan.never_ids) if on_logits and plan.never_ids else None
        self.needs_history = plan.needs_history
        if plan.blocks_ngrams:
            exempt = torch.zeros(vocab_size, dtype=torch.bool)
            exempt[list(plan.exempt_ids)] = True
            self.exempt = exempt.to(device)
        # Scattered writes without effect go to a spare column
        self.spare = 1 if self.needs_history else 0
        # Whether a value that is not -inf is the model's own logit, and counts as log_prob does
        self.keeps_values = plan.repetition_penalty == 1.0 and plan.force_end != "free"
        if plan.sampling:
            self.keeps_values &= plan.sampling.temperature != "logits"
        self.keeps_log_probs = (
            self.keeps_values and not on_logits and not plan.sampling and plan.beam_groups == 1
        )

    def score(
        self, logits: Tensor, scores: Tensor, history: Tensor | None, demands: Demands
    ) -> tuple[Scored, Tensor]:
        """What tokens count after logits (R, V) and tokens so far, history (R, T) with -1 before
        the first; and the model's own normaliser (R,).

        scores (R,) are those of the rows; -inf: no such row.  Writes into `logits`.
        """
        plan, policy = self.plan, self.plan.policy
        plain_norm = normaliser(logits) if plan.sums_to_one else torch.zeros_like(logits[:, 0])
        values, norm, slope = self._own(logits), plain_norm, None
        if plan.sampling and plan.sampling.temperature == "logits":
            values /= plan.temperature
            norm = normaliser(values)
        if plan.repetition_penalty != 1.0 and history is not None:
            values, norm, slope = self._repel(values, norm, history)
        end_value = values[:, plan.eos_id].clone() if demands.last is not None else None
        if self.banned is not None:
            values.index_fill_(1, self.banned, -math.inf)
        if demands.too_early is not None:
            values[:, plan.eos_id].masked_fill_(demands.too_early, -math.inf)
        if demands.held is not None:
            demands.held.forbid(values, plain_norm)
        if plan.blocks_ngrams and history is not None:  # last: see whether anything else is left
            self._block_ngrams(values, scores, history)
        if end_value is not None and demands.last is not None:
            end_value = norm if plan.force_end == "free" else end_value
            values.masked_fill_(demands.last[:, None], -math.inf)
            end = values[:, plan.eos_id]
            end.copy_(torch.where(demands.last, end_value, end))
        if policy.masks == "logits":
            norm = normaliser(values)
        if self.never is not None:
            values.index_fill_(1, self.never, -math.inf)
        if plan.sampling and plan.sampling.temperature == "log_probs":
            values, norm = values / plan.temperature, norm / plan.temperature
        return Scored(values, norm, slope), plain_norm

    def _own(self, logits: Tensor) -> Tensor:
        """Logits to write into, with spare columns; a copy where the model's own are read later."""
        if self.spare:
            return F.pad(logits, (0, self.spare), value=-math.inf)
        return logits if self.keeps_values else logits.clone()

    def _repel(
        self, values: Tensor, norm: Tensor, history: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Make tokens that a row holds less likely (Keskar et al. 2019)."""
        held = history.where(history >= 0, values.size(1) - 1)  # a spare column
        on_logits, penalty = self.plan.policy.repetition == "logits", self.plan.repetition_penalty
        base = torch.zeros_like(norm) if on_logits else norm
        counts = values.gather(1, held) - base[:, None]
        counts = torch.where(counts < 0, counts * penalty, counts / penalty) + base[:, None]
        values.scatter_(1, held, counts)
        if on_logits:
            return values, normaliser(values), None
        # transformers multiplies what diverse groups pay, too
        return values, norm, torch.ones_like(values).scatter_(1, held, penalty)

    def _block_ngrams(self, values: Tensor, scores: Tensor, history: Tensor) -> None:
        """Forbid tokens that would repeat an n-gram, or rows that have repeated one.

        With `least_bad`, a sentence (or chain) that has no other continuation may repeat.
        """
        plan, n = self.plan, self.plan.block_ngram_repeat
        if plan.policy.ngrams == "row":
            if history.size(1) > n:
                ended = ends_in_repetition(history, n, self.exempt)
                values.masked_fill_(ended[:, None], -math.inf)
            return
        if history.size(1) < n:
            return
        tokens, repeats = completing_tokens(history, n, self.exempt)
        before = values.gather(1, tokens)
        spare = values.size(1) - 1
        values.scatter_(1, tokens.where(repeats, spare), -math.inf)
        if plan.policy.least_bad:
            alive = values.amax(1) + scores > -math.inf
            if not plan.chains:
                alive = alive.view(-1, plan.beam_size).any(1).repeat_interleave(plan.beam_size)
            back = repeats & ~alive[:, None]
            values.scatter_(1, tokens.where(back, spare), before.where(back, -math.inf))


def normaliser(logits: Tensor) -> Tensor:
    """Logits (.., V) -> (..) logsumexp; finite for a row that allows nothing, which then stays at
    -inf.

    On a CPU the same sums a few rows at a time, so that exponentials stay in a core's cache, and as
    powers of 2, which torch computes itself where it leaves exp to MKL: 320 rows of 32,000 took 7.7
    ms of one core of an AMD EPYC (by exp 13).  Exponentials too small to change a sum of 1 are none
    the less normal numbers: with others, as of logits with a standard deviation of 22, processors
    took 25 times as long.  Tried and left: log_softmax a few rows at a time took 6.5 ms, but its
    sums were 8 times less exact.  Few exponentials are made by exp, so that sums are those of
    torch's logsumexp to the last bit: scores of a small table tie.
    """
    lowest = torch.finfo(torch.float32).min
    if logits.device.type != "cpu":
        return logits.float().logsumexp(-1).clamp(min=lowest)
    rows = logits.flatten(0, -2)
    if len(rows) == 1:  # a sum alone would be split among threads
        rows = rows.expand(2, -1)
    (n_rows, v), n = rows.shape, min(len(rows), max(2, CACHED // rows.size(1)))
    largest, sums = torch.empty(n_rows, 1), torch.empty(n_rows)
    exponentials = torch.empty(n, v)
    for end in range(n, n_rows + n, n):
        these = slice(min(end, n_rows) - n, min(end, n_rows))
        top = largest[these].copy_(rows[these].amax(1, keepdim=True)).clamp_(min=lowest)
        torch.sub(rows[these], top, out=exponentials)
        exponentials.clamp_(min=NEGLIGIBLE)
        powers = exponentials.mul_(LOG2_E).exp2_() if v >= MANY else exponentials.exp_()
        torch.sum(powers, 1, out=sums[these])
    sums = sums.log_().add_(largest[:, 0]).clamp_(min=lowest)
    return sums[: logits[..., 0].numel()].view(logits.shape[:-1])
