"""Recorder: what each step of a search kept, finished, forbade and passed over, and why.

A `Recorder` is the `on_step` of the decode loop.  It changes nothing, and a search without one pays
nothing for it.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from onmt_lite.search.beam import Beam, Candidates, Continuation
from onmt_lite.search.decode import BeamBatch
from onmt_lite.search.plan import Plan
from onmt_lite.search.scheduler import Slot

# By the names that `onmt_lite.search.masks` gives them
RULES = {
    "prefix": "the prefix of the line demands another token",
    "forced": "the last step allows the end alone",
    "model": "a rule of the options or the model forbids it",
    "too early": "too early to end; min_length allows it from token {min_end} on",
    "banned": "this token is banned",
    "phrases": "a phrase that is banned, or one that is forced, forbids it",
    "n-grams": "it would repeat {repeated} (block_ngram_repeat)",
}
IDLE = -1e8  # scores below belong to rows that do not exist yet


@dataclass(frozen=True)
class Step:
    """One step of one sentence."""

    rows: list[Continuation]  # the K new rows, then hypotheses that finished beside them
    others: list[Continuation]  # the best continuations that did not become a row
    attn: Tensor  # (K, S): attention of each old row


@dataclass
class Recorder:
    """Steps of some sentences, by their numbers among those of the search."""

    numbers: Collection[int]
    steps: dict[int, list[Step]] = field(default_factory=dict)

    def __call__(self, batch: BeamBatch) -> None:
        for b, slot in enumerate(batch.slots):
            step = batch.n_steps - slot.started
            if slot.number in self.numbers and step > 0:  # others take start tokens
                self.steps.setdefault(slot.number, []).append(record(batch, b, slot, step))


def record(batch: BeamBatch, b: int, slot: Slot, step: int) -> Step:
    """What the newest step of the batch has done in slot b."""
    plan, event = batch.plan, batch.transfer.event(b, step)
    finished = {(hyp.row, hyp.token) for hyp in slot.beam.finished if hyp.step == step}
    rows = continuations(event.rows)
    ranked = [made for made in continuations(event.candidates) if made.exists]
    for k, made in enumerate(rows):
        if made.exists and made.key in finished:
            rows[k] = replace(made, state="finished")
        elif made.exists and made.token == plan.eos_id:
            rows[k] = not_counted(plan, made, event.candidates)
    here = {made.key for made in rows if made.exists}
    # Hypotheses that made room for a row, or are no row at the limit
    rows += [replace(m, state="finished") for m in ranked if m.key in finished - here]
    here |= finished
    others = [
        not_counted(plan, made, event.candidates)
        for made in ranked
        if made.key not in here and made.token == plan.eos_id
    ]
    here.update(made.key for made in others)
    choice, k = Choice.of(batch, b), plan.beam_size
    alive = [made.score for made in rows[:k] if made.score > IDLE]
    others += passed_over(plan, choice, alive, here)
    others += forbidden(slot.beam, step, choice, alive, here)
    others.sort(key=lambda made: -made.score)
    return Step(rows, others, batch.watched.attn[b * k : (b + 1) * k].cpu())


@dataclass(frozen=True)
class Choice:
    """Inputs of a top-k, of K rows."""

    log_probs: Tensor  # (K, V): the model's own
    plain: Tensor  # (K, V): totals without any rule
    totals: Tensor  # (K, V): by which continuations were ranked; -inf if a rule forbids one
    masked: list[tuple[str, Tensor]]  # see `onmt_lite.search.masks.Watched`, of these rows

    @classmethod
    def of(cls, batch: BeamBatch, b: int) -> "Choice":
        """The inputs of the newest step in slot b."""
        watched, k = batch.watched, batch.plan.beam_size
        rows, scores = slice(b * k, (b + 1) * k), watched.scores[b][:, None]  # (K, 1)
        log_probs = watched.logits[rows] - watched.norm[rows, None]
        values = watched.scored.values[rows, : log_probs.size(1)]
        totals = values - watched.scored.norm[rows, None] + scores
        masked = [(rule, mask[rows]) for rule, mask in watched.masked]
        return cls(log_probs, log_probs + scores, totals, masked)

    def best_of(self, totals: Tensor, n: int, why: str) -> list[Continuation]:
        """The n largest of totals (K, V), without those of -inf and of rows that do not exist."""
        best, v = torch.topk(totals.flatten(), min(n, totals.numel())), totals.size(1)
        pairs = zip(best.indices.tolist(), best.values.tolist())
        return [
            Continuation(i // v, i % v, total, float(self.log_probs[i // v, i % v]), "lost", why)
            for i, total in pairs
            if total > IDLE
        ]


def continuations(columns: Candidates) -> list[Continuation]:
    score, row, token, log_prob = columns
    return [Continuation(int(r), int(t), s, x) for s, r, t, x in zip(score, row, token, log_prob)]


def not_counted(plan: Plan, made: Continuation, candidates: Candidates) -> Continuation:
    """A candidate that ends, with the reason why it is no finished hypothesis."""
    keys = zip(candidates.row, candidates.token)
    ranks = [i for i, key in enumerate(keys) if key == made.key]
    per_pool = max(1, len(candidates.token) // plan.n_pools)
    first = plan.policy.ends_within * plan.width
    if ranks and ranks[0] % per_pool >= first:
        why = f"ends, but an end counts among the best {first} candidates of a step alone"
    elif plan.policy.pool == "first":
        why = "ends, but enough hypotheses have finished before it"
    else:
        why = "ends, but the finished hypotheses that are kept have better scores"
    return replace(made, state="ended", why=why)


def passed_over(
    plan: Plan, choice: Choice, alive: list[float], here: Collection[tuple[int, int]]
) -> list[Continuation]:
    """The best K continuations that lost to the rows; alive: the scores of these."""
    if plan.sampling:
        why = "others were drawn"
    elif plan.beam_groups > 1:
        why = "not among the best of its group, where tokens of earlier groups cost more"
    else:
        lowest = min(alive, default=-math.inf)
        why = f"not among the best {len(alive)}, the last of which has {lowest:.4f}"
    k = plan.beam_size
    best = choice.best_of(choice.totals, k + len(here), why)
    return [made for made in best if made.key not in here][:k]


def forbidden(
    beam: Beam, step: int, choice: Choice, alive: list[float], here: Collection[tuple[int, int]]
) -> list[Continuation]:
    """Up to K continuations that rules forbade although they would have won."""
    lowest, limits, n = min(alive, default=-math.inf), beam.limits, beam.plan.block_ngram_repeat
    repeated = "a token" if n == 1 else f"{n} tokens in a row"
    would_win = (choice.totals == -math.inf) & (choice.plain > lowest)  # (K, V)
    totals = choice.plain.masked_fill(~would_win, -math.inf)
    blocked = []
    for made in choice.best_of(totals, beam.plan.beam_size, ""):
        if made.key not in here:
            rule = next(rule for rule, mask in choice.masked if mask[made.key])  # the first one
            if rule == "forced" and step <= len(limits.prefix):
                rule = "prefix"
            why = RULES[rule].format(min_end=limits.min_end, repeated=repeated)
            blocked.append(replace(made, state="blocked", why=f"blocked: {why}"))
    return blocked
