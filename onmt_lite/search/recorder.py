"""Watching a search: what each step kept, ended, blocked and passed over, and why.

A `Watch` is the `on_step` of the one loop.  It looks and changes nothing; a search that nobody
watches knows nothing of it.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onmt_lite.search.beam import Beam
from onmt_lite.search.beam_batch import Frontier
from onmt_lite.search.events import Candidates, Event
from onmt_lite.search.masks import normaliser
from onmt_lite.search.plan import Plan
from onmt_lite.search.scheduler import Slot

PHRASES = "a phrase that is banned, or one that is forced, forbids it"
IDLE = -1e8  # scores below belong to rows that do not exist yet


@dataclass(frozen=True)
class Made:
    """A continuation: the row of the step before, and the token that it got.

    why  "" for a row that lives; otherwise what became of it: "finished", or why it is not there
    """

    parent: int
    token: int
    score: float
    log_prob: float
    why: str = ""

    @property
    def exists(self) -> bool:
        return self.score > -math.inf


@dataclass(frozen=True)
class Step:
    """One step of one sentence.

    rows     the K new rows, then hypotheses that finished beside them
    others   the best of what did not become a row
    attn     (K, S): what each old row attended to
    """

    rows: list[Made]
    others: list[Made]
    attn: Tensor


@dataclass(frozen=True)
class Choice:
    """What a step chooses from, of K rows.

    log_probs (K, V)  the model's own
    totals (K, V)     by which continuations are ranked; -inf where a rule forbids one
    scores (K, 1)     of the rows before
    of_phrases        whether a phrase forbids a token in a row
    """

    log_probs: Tensor
    totals: Tensor
    scores: Tensor
    of_phrases: Callable[[int, int], bool] = lambda parent, token: False


@dataclass
class Watch:
    """Steps of the sentences that are watched, by their numbers among those of the search."""

    numbers: Collection[int]
    steps: dict[int, list[Step]] = field(default_factory=dict)

    def __call__(self, frontier: Frontier, packed: Tensor) -> None:
        for b, slot in enumerate(frontier.slots):
            step = frontier.n_steps - slot.started
            if slot.number in self.numbers and step > 0:  # others read start tokens
                if slot.number not in self.steps:
                    self.steps[slot.number] = look_back(frontier, slot)
                self.steps[slot.number].append(look(frontier, b, slot, step))


def look_back(frontier: Frontier, slot: Slot) -> list[Step]:
    """The steps that the prefix of a sentence stands for."""
    plan, steps = frontier.plan, list[Step]()
    if slot.past is None:
        return steps
    before = plan.first_scores()
    past = zip(slot.past.lines.tolist(), slot.past.logits, slot.past.attn)
    for step, (line, logits, attn) in enumerate(past, start=1):
        rows = continuations(frontier.log.given(line, step).rows)
        scores = torch.tensor(before)[:, None]
        norm = normaliser(logits[None]) if plan.sums_to_one else 0.0
        log_probs = (logits - norm).cpu().expand(len(rows), -1)
        here = {(made.parent, made.token) for made in rows if made.exists}
        nothing = torch.full_like(log_probs, -math.inf)
        others = passed_over(plan, slot.beam, step, rows, here, Choice(log_probs, nothing, scores))
        steps.append(Step(rows, others, attn.cpu().expand(len(rows), -1)))
        before = [made.score for made in rows]
    return steps


def look(frontier: Frontier, b: int, slot: Slot, step: int) -> Step:
    """What the newest step of the frontier has done in slot b."""
    plan, event = frontier.plan, frontier.log.event(b, step)
    finished = {(hyp.row, hyp.token): hyp for hyp in slot.beam.finished if hyp.step == step}
    rows = []
    for made in continuations(event.rows):
        ends = made.token == plan.eos_id and made.exists
        if finished.pop((made.parent, made.token), None) is not None:
            made = because(made, "finished")
        elif ends:
            made = because(made, not_counted(plan, made, event))
        rows.append(made)
    ranked = {(made.parent, made.token): made for made in continuations(event.candidates)}
    for key in finished:  # it made room for a row, or is no row at the limit
        if key in ranked:
            rows.append(because(ranked[key], "finished"))
    here = {(made.parent, made.token) for made in rows if made.exists}
    others = [
        because(made, not_counted(plan, made, event))
        for key, made in ranked.items()
        if key not in here and made.exists and made.token == plan.eos_id
    ]
    here.update((made.parent, made.token) for made in others)
    others += passed_over(plan, slot.beam, step, rows, here, choice(frontier, b))
    others.sort(key=lambda made: -made.score)
    k = plan.beam_size
    return Step(rows, others, frontier.seen.attn[b * k : (b + 1) * k].cpu())


def choice(frontier: Frontier, b: int) -> Choice:
    """What the newest step of slot b chose from."""
    seen, k = frontier.seen, frontier.plan.beam_size
    of_rows = slice(b * k, (b + 1) * k)
    scores = seen.scores[b][:, None]
    log_probs = seen.logits[of_rows] - seen.norm[of_rows, None]
    values = seen.scored.values[of_rows, : log_probs.size(1)]
    constraints = frontier.constraints

    def of_phrases(parent: int, token: int) -> bool:
        return constraints is not None and constraints.forbade(b * k + parent, token)

    totals = values - seen.scored.norm[of_rows, None] + scores
    return Choice(log_probs, totals, scores, of_phrases)


def continuations(columns: Candidates) -> list[Made]:
    score, row, token, log_prob = columns
    return [Made(int(r), int(t), s, x) for s, r, t, x in zip(score, row, token, log_prob)]


def because(made: Made, why: str) -> Made:
    return Made(made.parent, made.token, made.score, made.log_prob, why)


def not_counted(plan: Plan, made: Made, event: Event) -> str:
    """Why a candidate that ends is no finished hypothesis."""
    tokens = zip(event.candidates.row, event.candidates.token)
    ranks = [i for i, key in enumerate(tokens) if key == (made.parent, made.token)]
    per_pool = max(1, len(event.candidates.token) // plan.n_pools)
    first = plan.policy.ends_within * plan.width
    if ranks and ranks[0] % per_pool >= first:
        return f"ends, but an end counts among the best {first} candidates of a step alone"
    if plan.policy.pool == "first":
        return "ends, but enough hypotheses have finished before it"
    return "ends, but the finished hypotheses that are kept have better scores"


def passed_over(
    plan: Plan,
    beam: Beam,
    step: int,
    rows: list[Made],
    here: Collection[tuple[int, int]],
    choice: Choice,
) -> list[Made]:
    """The best K continuations that lost to the rows, and up to K that rules forbade although they
    would have won."""
    k, log_probs, totals, scores = plan.beam_size, choice.log_probs, choice.totals, choice.scores
    alive = [made.score for made in rows[:k] if made.exists and made.score > IDLE]
    lowest = min(alive, default=-math.inf)
    forbidden = (totals == -math.inf) & (log_probs + scores > lowest)
    plain = (log_probs + scores).masked_fill(~forbidden, -math.inf)
    found = []
    lost = f"not among the best {len(alive)}, the last of which has {lowest:.4f}"
    if plan.sampling:
        lost = "others were drawn"
    elif plan.beam_groups > 1:
        lost = "not among the best of its group, where tokens of earlier groups cost more"
    for parent, token, score in best_of(totals, k + len(here)):
        if (parent, token) not in here and score > IDLE:
            found.append(Made(parent, token, score, float(log_probs[parent, token]), lost))
    del found[k:]
    for parent, token, score in best_of(plain, k):
        if (parent, token) not in here and score > IDLE:
            of_phrases = choice.of_phrases(parent, token)
            why = "blocked: " + rule_against(plan, beam, step, token, of_phrases)
            found.append(Made(parent, token, score, float(log_probs[parent, token]), why))
    return found


def best_of(totals: Tensor, n: int) -> list[tuple[int, int, float]]:
    """Row, token and total of the n largest of totals (K, V), without those of -inf."""
    best = torch.topk(totals.flatten(), min(n, totals.numel()))
    pairs = zip(best.indices.tolist(), best.values.tolist())
    v = totals.size(1)
    return [(i // v, i % v, total) for i, total in pairs if total > -math.inf]


def rule_against(plan: Plan, beam: Beam, step: int, token: int, of_phrases: bool) -> str:
    """Which rule kept a token from following; of_phrases: a phrase did."""
    limits = beam.limits
    if step <= len(limits.prefix):
        return "the prefix of the line demands another token"
    if token == plan.eos_id and step < limits.min_end:
        return f"too early to end; min_length allows it from token {limits.min_end} on"
    if step >= limits.max_steps and plan.force_end != "no":
        return "the last step allows the end alone"
    if token in plan.banned_ids or token in plan.never_ids:
        return "this token is banned"
    if of_phrases:
        return PHRASES
    if plan.blocks_ngrams:
        n = plan.block_ngram_repeat
        repeated = "a token" if n == 1 else f"{n} tokens in a row"
        return f"it would repeat {repeated} (block_ngram_repeat)"
    return "a rule of the options or the model forbids it"
