"""The decode loop: the only place where a model and the beams of its sentences meet."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import AnyModel, Selection, sent
from onmt_lite.search.beam import Beam, Event
from onmt_lite.search.constraints import Constraints
from onmt_lite.search.logits import (
    Forced,
    Masks,
    StepRules,
    Watched,
    coverage_penalty,
    most_attended,
)
from onmt_lite.search.slots import Encoded, Scheduler, Slot, SlotTable, Transfer, fill_holes
from onmt_lite.search.spec import NO_TOKEN, Plan, Sentence
from onmt_lite.search.topk import Ranked, Ranker, Scored, draw, open_places

OnStep = Callable[["BeamBatch"], object]


@torch.inference_mode()
def decode(
    model: AnyModel,
    sentences: Sequence[Sentence],
    plan: Plan,
    n_slots: int | None = None,
    on_step: OnStep | None = None,
    n_batches: int = 1,
) -> Iterator[tuple[int, Beam]]:
    """Translate all sentences; yield the number and `Beam` of each when its search is over.

    n_slots    number of sentences that run at once; the others wait, and join when one has ended.
               None: all run, and the batch shrinks.
    on_step    called after each step with the batch
    n_batches  batches that share the slots and take turns: while the host reads the numbers of one,
               a GPU is at a step of another

    A sentence for which the model returns NaN leaves at that step, and its Beam has no hypothesis.
    """
    n_slots = n_slots or len(sentences)
    n = min(n_batches, n_slots, len(sentences))
    batches = [BeamBatch(model, plan, sentences[i::n], n_slots // n) for i in range(n)]
    runs = [batch.run(on_step) for batch in batches]
    running = list(range(n))
    while running:
        for i in list(running):
            for over in runs[i]:
                if over is None:
                    break
                yield i + n * over[0], over[1]
            else:
                running.remove(i)


class BeamBatch:
    """All running sentences, one slot each: slot b owns the rows b*K ... b*K + K-1.

    `admit` lets sentences leave and join, `step` makes one batched step and chooses the next rows
    without the host, `events` tells the beams what happened, `over` returns those that are done.
    """

    table: SlotTable
    state: Any  # the model's `State`
    watched: Watched  # of the newest step, if the plan is watched

    def __init__(self, model: AnyModel, plan: Plan, sentences: Sequence[Sentence], n_slots: int):
        self.model, self.plan, self.n_slots, self.device = model, plan, n_slots, model.device
        self.scheduler = Scheduler(model, plan, sentences, n_slots)
        n_words = self.scheduler.n_words
        self.masks = Masks(plan, n_words, self.device)
        self.ranker = Ranker(plan, n_words, n_slots, self.device, self.masks.columns)
        self.transfer = Transfer(plan, n_slots, self.device)
        phrases = [sentence.phrases for sentence in sentences]
        self.constraints = None
        if any(phrases):
            self.constraints = Constraints(plan, phrases, n_words, self.device)
        self.slots: list[Slot] = []
        self.visited: list[int] = []  # slots with an event in the newest step
        self.leaving: list[int] = []  # slots whose search is over
        self.n_steps = 0
        self.history = torch.empty(0, 0, dtype=torch.long, device=self.device)  # (R, T)
        self.coverage = torch.empty(0, 0, device=self.device)  # (R, S)
        self.sees = torch.tensor([*plan.sees_start, True]).to(self.device)  # (F + 2,)
        # Last step that takes a given token, and the first that may end, of all sentences
        self.given_until = self.ends_from = 0

    def run(self, on_step: OnStep | None) -> Iterator[tuple[int, Beam] | None]:
        """Yield sentences whose search is over; None when it is another batch's turn."""
        while self.admit():
            self.step()
            yield None
            for beam, event in self.events():
                beam.advance(event)
            if on_step is not None:
                on_step(self)
            yield from self.over()

    # ---- Sentences leave and join ----

    def admit(self) -> bool:
        """Let sentences leave and join, and move rows to where the last step chose them; return
        False if no sentence is left."""
        n_old = len(self.slots)
        n_joining = self.scheduler.ready(self.n_slots - n_old + len(self.leaving))
        self._correct_scores()
        if n_joining and not n_old:
            self._begin()
        elif n_joining or self.leaving:
            self._move(n_joining)
        elif self.plan.beam_size > 1:
            self._select(Selection(self.select_indices()))
        self.leaving = []
        return bool(self.slots)

    def select_indices(self) -> Tensor:
        """The row of the batch that each new row continues (B, K), as the last step chose.

        Three slots, K = 2, the second one swapping its rows: [[0, 1], [3, 2], [4, 5]].
        """
        return self.table.parents

    def _begin(self) -> None:
        """Let all encoded sentences join, each with its row K times.

        Tried and left: one row for each sentence until the first step has been chosen, since the K
        are alike.  It took 2 % off the time of the shipped model in int8.
        """
        fresh, self.scheduler.encoded = self.scheduler.encoded, None
        assert fresh is not None
        n, k = len(fresh.slots), self.plan.beam_size
        self._start(fresh, fresh.slots)
        self.slots, self.table, self.state = fresh.slots, fresh.table, fresh.state
        self.history, self.coverage = self.history.new_empty(n, 0), self.coverage.new_empty(n, 0)
        rows = torch.arange(n, device=self.device)[:, None].expand(n, k)  # (B, K)
        self._select(Selection(rows))

    def _start(self, fresh: Encoded, joining: Sequence[Slot]) -> None:
        """Let sentences begin now; their first steps take start tokens."""
        n_steps = self.n_steps + self.plan.n_forced
        fresh.table.started = torch.full_like(fresh.table.started, n_steps)  # (B, 1)
        for slot in joining:
            limits = slot.beam.limits
            slot.started = slot.read = n_steps
            slot.last = n_steps + limits.max_steps
            self.given_until = max(self.given_until, n_steps + len(limits.prefix))
            self.ends_from = max(self.ends_from, n_steps + limits.min_end)

    def _move(self, n_joining: int) -> None:
        """Fill the slots of sentences that leave, with joining ones or the last running ones."""
        n_old, k = len(self.slots), self.plan.beam_size
        kept = sorted(set(range(n_old)).difference(self.leaving))
        fresh = self.scheduler.encoded if n_joining else None
        joining = range(n_old + fresh.joined, n_old + fresh.joined + n_joining) if fresh else ()
        order = fill_holes(kept, joining)
        for to, b in enumerate(order):
            if to != b < n_old:
                self._read(b)  # the transfer knows sentences by their slots
        everyone = [*self.slots, *(fresh.slots if fresh else ())]
        self.slots = [everyone[b] for b in order]
        if not order:
            return
        selection = Selection.of(self.table.parents, n_old, order)
        rows, fresh_rows = self.select_indices(), None  # (B, K)
        if fresh:
            self._start(fresh, [everyone[b] for b in joining])
            fresh.joined += n_joining
            fresh_rows = torch.arange(len(fresh.slots), device=self.device)[:, None]
            fresh_rows = (fresh_rows + n_old * k).expand(-1, k)  # (B', K)
        self.table = self.table.select(selection, fresh.table if fresh else None)
        selection = replace(selection, rows=selection.of_sentences(rows, fresh_rows))
        self._select(selection, fresh)

    def _select(self, selection: Selection, fresh: Encoded | None = None) -> None:
        """Move the rows and sentences of the model's state and of what masks read."""
        self.state = self.state.select(selection, fresh.state if fresh else None)
        n = len(fresh.slots) if fresh else 0
        if self.masks.needs_history:
            joining = self.history.new_full((n, self.history.size(1)), NO_TOKEN) if n else None
            history = selection.of_rows(self.history, joining)
            # Tokens that the running sentence with the most has read, its first one aside
            longest = self.n_steps - min(slot.started for slot in self.slots) + self.plan.n_forced
            self.history = history[:, max(0, history.size(1) - longest) :]
        if self.plan.has_costs:
            joining = self.coverage.new_zeros(n, self.coverage.size(1)) if n else None
            self.coverage = selection.of_rows(self.coverage, joining)

    def _correct_scores(self) -> None:
        """Take over scores that beams have changed: all that the host tells a running search."""
        if any([self.slots[b].beam.correction for b in self.visited]):
            new = [slot.beam.correction for slot in self.slots]
            none = [math.nan] * self.plan.beam_size
            corrected = sent(torch.tensor([none if s is None else s for s in new]), self.device)
            self.table.scores = torch.where(corrected.isnan(), self.table.scores, corrected)
            for b in self.visited:
                self.slots[b].beam.correction = None

    # ---- A step ----

    def step(self) -> None:
        """Make a step with all rows, and begin to tell the host what it must know of it."""
        self.n_steps += 1
        plan, table = self.plan, self.table
        logits, attn = self.model.step(table.tokens.flatten(), self.state)  # (R, V), (R, S)
        logits = logits.float()
        plain = logits.clone() if plan.watched else logits  # masks write into the others
        if self.masks.needs_history:
            self._remember(table.tokens)
        cost, scores = None, table.scores  # (B, K)
        if plan.has_costs:
            cost = self._cover(attn).view_as(scores)
            scores = scores - cost if plan.stepwise_penalty else scores
        rules = self._rules()
        sums = self.state.sums
        scored, norm = self.masks.score(logits, scores.flatten(), self.history, rules, sums)
        if plan.watched:
            masked = self.masks.masked
            self.watched = Watched(plain, norm, scored, scores, attn.float().clone(), masked)
        ranked = self._candidates(scored, scores, rules)
        if not self.masks.keeps_log_probs or rules.forced is not None:
            # The model's own log-probabilities, whatever masks and options say
            own = logits.take(ranked.row * logits.size(1) + ranked.token)  # (B, N)
            ranked = replace(ranked, log_prob=own - norm.take(ranked.row))
        rows, open_scores, candidates = self._choose(ranked)
        if cost is not None and plan.stepwise_penalty:  # which steers and is not paid
            score = rows.score + cost.take(rows.row)
            rows = replace(rows, score=score)
            table.scores = score.masked_fill(rows.token == plan.eos_id, -math.inf)
        place = None
        if plan.aligns:
            src_length = self._of_rows(table.src_length)[:, None]  # (R, 1)
            place = most_attended(attn, src_length, plan.src_margins)  # (R,)
        self.transfer.begin(rows, cost, place, open_scores, candidates)

    def _remember(self, tokens: Tensor) -> None:
        """Add the newest tokens (B, K) to the history, without start tokens that are not seen."""
        if self.n_steps <= self.given_until + 1:
            place = self._steps() + (self.plan.n_forced - 1)  # (B, 1)
            tokens = tokens.where(self.sees[place.clamp(max=len(self.sees) - 1)], NO_TOKEN)
        self.history = torch.cat([self.history, tokens.flatten()[:, None]], 1)  # (R, T)

    def _cover(self, attn: Tensor) -> Tensor:
        """Add this step's attention (R, S) to each row's coverage; return its penalty (R,)."""
        n = attn.size(1)
        coverage = self.coverage[:, :n]
        self.coverage = F.pad(coverage, (0, n - coverage.size(1))) + attn.float()  # (R, S)
        src_length = self._of_rows(self.table.src_length)[:, None]  # (R, 1)
        return coverage_penalty(self.plan, self.coverage, src_length)

    def _of_rows(self, of_sentences: Tensor) -> Tensor:  # (B, 1) -> (R,)
        return of_sentences.expand(-1, self.plan.beam_size).flatten()

    def _steps(self) -> Tensor:
        """The own step of each sentence (B, 1), from 1; 0 and less take start tokens."""
        return self.n_steps - self.table.started

    def _rules(self) -> StepRules:
        """The rules of this step; the host knows whether they concern any sentence."""
        plan, table, too_early = self.plan, self.table, None
        if self.n_steps < self.ends_from:
            too_early = self._of_rows(self._steps() < table.min_end)  # (R,)
        held = self.constraints.tell(self.slots, self.n_steps) if self.constraints else None
        must_end = plan.force_end != "no" and any(s.last <= self.n_steps for s in self.slots)
        if self.n_steps > self.given_until and not must_end:
            return StepRules(too_early, held=held)
        steps = self._steps()
        is_given = steps <= table.n_prefix  # (B, 1)
        place = (steps + plan.n_forced).clamp(max=table.given.size(1) - 1)  # (B, 1)
        forced = table.given.gather(1, place).masked_fill(~is_given, NO_TOKEN)  # (B, 1)
        costless = is_given if plan.prefix_counts != "all" else steps <= 0  # (B, 1)
        if must_end:
            last = (steps >= table.max_steps) & ~is_given
            forced = forced.masked_fill(last, plan.eos_id)
            costless = costless | last if plan.force_end == "free" else costless
        in_rows = Forced(self._of_rows(forced)[:, None], self._of_rows(costless))
        return StepRules(too_early, in_rows, held)

    def _candidates(self, scored: Scored, scores: Tensor, rules: StepRules) -> Ranked:
        """The candidates of each sentence; scores (B, K) of its rows."""
        plan, (b, k) = self.plan, scores.shape
        if plan.sampling:
            seeds, steps = self.table.seed[:, 0], self._steps()[:, 0]  # (B,)
            n_tokens, n_words = self.model.vocab_size, self.scheduler.n_words
            return draw(scored, scores, seeds, steps, n_tokens, n_words, plan)
        values, norm = scored.values.view(b, k, -1), scored.norm.view(b, k)  # (B, K, W), (B, K)
        slope = None if scored.slope is None else scored.slope.view_as(values)
        first = self._steps()[:, 0] == 1 if plan.policy.spares_one else None  # (B,)
        maxima = None if scored.maxima is None else scored.maxima.view(b, k, -1)
        ranked = self.ranker.rank(values, norm, scores, slope, first, maxima)
        if rules.held is not None:
            rules.held.allocate(ranked, values, norm, scores)
        best_ends = plan.policy.forced_then_end == "best" and self.n_steps <= self.given_until + 1
        return self._ends_as_best(ranked) if best_ends else ranked

    def _ends_as_best(self, ranked: Ranked) -> Ranked:
        """Drop end tokens after a given token, unless they are the best; each leaves no row."""
        rank, n_prefix = torch.arange(ranked.token.size(1), device=self.device), self.table.n_prefix
        follows = (self._steps() == n_prefix + 1) & (n_prefix + self.plan.n_forced > 0)  # (B, 1)
        gone = follows & (rank > 0) & (ranked.token == self.plan.eos_id)  # (B, N)
        token = ranked.token.masked_fill(gone, int(self.plan.eos_id == 0))  # another one
        return replace(ranked, token=token, score=ranked.score.masked_fill(gone, -math.inf))

    def _choose(self, ranked: Ranked) -> tuple[Ranked, Tensor, Ranked | None]:
        """Make K candidates the new rows; return these, the scores of all candidates (B, N), -inf
        if they ended, and the candidates unless they are the rows."""
        plan, table, beyond = self.plan, self.table, None
        if plan.policy.ended == "shrink":  # a beam that has shrunk has no row for some (B, K)
            n_open = (table.scores > -math.inf).sum(1, keepdim=True)  # (B, 1)
            if self.n_steps <= self.given_until + 1:  # so far, all rows are alike
                n_open = n_open.masked_fill(self._steps() <= table.n_prefix + 1, plan.beam_size)
            beyond = torch.arange(plan.beam_size, device=self.device) >= n_open  # (B, K)
            ranked = replace(ranked, score=ranked.score.masked_fill(beyond, -math.inf))
        ended = ranked.token == plan.eos_id  # (B, N)
        open_scores = ranked.score.masked_fill(ended, -math.inf)
        told = open_scores if beyond is None else open_scores.masked_fill(beyond, 0.0)
        rows, candidates = ranked, ranked if plan.stepwise_penalty else None
        if plan.policy.ended not in ("keep", "shrink"):  # some of the first K are passed over
            places = open_places(plan, ranked.score, ended)  # (B, K)
            open_scores = open_scores.gather(1, places)
            rows, candidates = replace(ranked.take(places), score=open_scores), ranked
        table.tokens, table.parents, table.scores = rows.token, rows.row, open_scores
        return rows, told, candidates

    # ---- What happened ----

    def events(self) -> Iterator[tuple[Beam, Event]]:
        """Yield the sentences whose `Beam` must see the newest step: a hypothesis ended, a stop
        rule watches, the limit is reached or nothing can follow.  NaN fails at once."""
        n_steps, all_lowest = self.n_steps, self.transfer.lowest()
        if self.constraints is not None:
            self.constraints.follow(self.slots, n_steps, self.transfer.newest)
        self.visited = [
            b
            for b, (slot, lowest) in enumerate(zip(self.slots, all_lowest))
            if (not lowest > -math.inf or slot.last <= n_steps or slot.beam.watching)
            and n_steps > slot.started  # others take start tokens
        ]
        for b in self.visited:
            slot = self.slots[b]
            event = self.transfer.event(b, n_steps - slot.started)
            if not sum(event.candidates.score) + sum(event.costs) < math.inf:
                slot.beam.fail()
                continue
            none_left = max(event.rows.score) == -math.inf
            if none_left or slot.last <= n_steps or self.plan.policy.as_2018:
                self._read(b)  # a Beam may look back
            yield slot.beam, event

    def over(self) -> Iterator[tuple[int, Beam]]:
        """Yield the numbers and beams of sentences whose search this step has ended."""
        all_at_once = self.plan.policy.as_2018 and not self.scheduler.open_2018
        for b in range(len(self.slots)) if all_at_once else self.visited:
            slot = self.slots[b]
            if slot.beam.done:
                self._read(b)
                slot.beam.end()
                self.leaving.append(b)
                yield slot.number, slot.beam

    def _read(self, b: int) -> None:
        """Let the Beam of a slot read the steps since the last time."""
        slot = self.slots[b]
        if slot.read < self.n_steps:
            slot.beam.read(self.transfer.read(b, slot.read))
            slot.read = self.n_steps
