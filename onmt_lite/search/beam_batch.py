"""The device's side of a search: the rows of all running sentences, and their next step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.models.selection import Selection, sent
from onmt_lite.search.beam import Beam
from onmt_lite.search.constraints import Held, constraints_of
from onmt_lite.search.events import Event
from onmt_lite.search.masks import ANY, Demands, Masks, Scored, Seen
from onmt_lite.search.plan import Plan, Sentence
from onmt_lite.search.ranking import Ranked, Ranker, open_places
from onmt_lite.search.sampling import draw
from onmt_lite.search.scheduler import Encoded, Feed, Slot, Table, fill_holes
from onmt_lite.search.scoring import cost_of_coverage, most_attended
from onmt_lite.search.transfer import Log


class Frontier:
    """All running sentences, one slot each: slot b owns the rows b*K ... b*K + K-1.

    `admit` lets sentences leave and join, `step` makes one batched step and chooses the next rows
    without the host, `events` tells the beams what happened, `over` returns those that are done.
    """

    table: Table
    state: Any  # the model's `State`
    seen: Seen  # by the newest step, where the plan is watched

    def __init__(self, model: AnyModel, plan: Plan, sentences: Sequence[Sentence], n_slots: int):
        self.model, self.plan, self.n_slots, self.device = model, plan, n_slots, model.device
        self.feed = Feed(model, plan, sentences, n_slots)
        self.masks = Masks(plan, self.feed.n_words, self.device)
        self.ranker = Ranker(plan, self.feed.n_words, n_slots, self.device)
        self.rows = torch.arange(n_slots * plan.beam_size, device=self.device).view(n_slots, -1)
        self.log = Log(plan, n_slots, self.device)
        self.constraints = constraints_of(plan, sentences, self.feed.n_words, self.device)
        self.slots: list[Slot] = []
        self.visited: list[int] = []  # slots with an event in the newest step
        self.leaving: list[int] = []  # slots whose search is over
        self.n_steps = 0
        self.history = self.coverage = torch.empty(0)
        self.sees = torch.tensor([*plan.sees_start, True]).to(self.device)
        self.n_before = len(plan.sees_start) - 1  # steps that read start tokens and choose nothing
        # Steps of the frontier, of all sentences
        self.start_until = self.ends_from = 0

    # ---- Sentences leave and join ----

    def admit(self) -> bool:
        """Let sentences leave and join, and move rows to where the last step chose them.

        False where no sentence is left.
        """
        n_old = len(self.slots)
        n_joining = self.feed.ready(self.n_slots - n_old + len(self.leaving))
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
        fresh, self.feed.encoded = self.feed.encoded, None
        assert fresh is not None
        self.slots, self.table, self.state = fresh.slots, fresh.table, fresh.state
        n = len(self.slots)
        for slot in self.slots:
            self._start(slot)
        rows = torch.arange(n, device=self.device)[:, None].expand_as(self.table.tokens)
        self.history, self.coverage = fresh.history, fresh.coverage
        self.table.started = self.n_steps - self.table.lead
        self._select(Selection(rows))

    def _start(self, slot: Slot) -> None:
        limits, n = slot.beam.limits, self.n_steps
        slot.started = n - (len(limits.prefix) or -self.n_before)
        slot.read, slot.last = max(n, slot.started), slot.started + limits.max_steps
        self.start_until = max(self.start_until, slot.read)
        self.ends_from = max(self.ends_from, slot.started + limits.min_end)
        if slot.past is not None:
            slot.beam.read(slot.past.lines)

    def _move(self, n_joining: int) -> None:
        """Fill the slots of sentences that leave, with joining ones or the last running ones."""
        n_old, k = len(self.slots), self.plan.beam_size
        kept = sorted(set(range(n_old)).difference(self.leaving))
        fresh = self.feed.encoded if n_joining else None
        joining = range(n_old + fresh.joined, n_old + fresh.joined + n_joining) if fresh else ()
        order = fill_holes(kept, joining)
        everyone = [*self.slots, *(fresh.slots if fresh else ())]
        for to, b in enumerate(order):
            if b >= n_old:
                self._start(everyone[b])
            elif b != to:
                self._read(b)  # the log knows sentences by their slots
        self.slots = [everyone[b] for b in order]
        if not order:
            return
        selection = Selection.of(self.table.parents, n_old, order)
        rows, fresh_rows = self.select_indices(), None
        if fresh:
            fresh.joined += n_joining
            fresh.table.started = self.n_steps - fresh.table.lead
            fresh_rows = torch.arange(len(fresh.slots), device=self.device)[:, None]
            fresh_rows = (fresh_rows + n_old * k).expand(-1, k)
        self.table = self.table.select(selection, fresh.table if fresh else None)
        selection = replace(selection, rows=selection.of_sentences(rows, fresh_rows))
        self._select(selection, fresh)

    def _select(self, selection: Selection, fresh: Encoded | None = None) -> None:
        """Move what rows and sentences have in the model's state and in the tables of masks."""
        self.state = self.state.select(selection, fresh.state if fresh else None)
        if self.masks.needs_history:
            self._keep_history(selection, fresh)
        if self.plan.has_costs:
            self.coverage = selection.of_rows(self.coverage, fresh.coverage if fresh else None)

    def _keep_history(self, selection: Selection, fresh: Encoded | None) -> None:
        """Move what rows have read, newest last, without what no row has."""
        joining = fresh.history if fresh else None
        if joining is not None:
            n = max(self.history.size(1), joining.size(1))
            both = (F.pad(x, (n - x.size(1), 0), value=ANY) for x in (self.history, joining))
            self.history, joining = both
        history = selection.of_rows(self.history, joining)
        self.history = history[:, max(0, history.size(1) - self._longest()) :]

    def _longest(self) -> int:
        """Tokens that a running sentence may have at most, start tokens among them."""
        return self.n_steps - min(slot.started for slot in self.slots) + self.n_before

    def _correct_scores(self) -> None:
        """Take over scores that beams have changed: all that the host tells a running search."""
        if any([self.slots[b].beam.correction for b in self.visited]):
            new = [slot.beam.correction for slot in self.slots]
            none = [math.nan] * self.plan.beam_size
            given = sent(torch.tensor([none if s is None else s for s in new]), self.device)
            self.table.scores = torch.where(given.isnan(), self.table.scores, given)
            for b in self.visited:
                self.slots[b].beam.correction = None

    # ---- A step ----

    def step(self) -> Tensor:
        """Make a step with all rows; what the host must know of it, see `Log`."""
        self.n_steps += 1
        plan, table = self.plan, self.table
        logits, attn = self.model.step(table.tokens.flatten(), self.state)
        logits = logits.float()
        plain = logits.clone() if plan.watched else logits  # masks write into the others
        if self.masks.needs_history:
            self._remember(table.tokens)
        cost, scores = None, table.scores
        if plan.has_costs:
            cost = self._cover(attn).view_as(scores)
            scores = scores - cost if plan.stepwise_penalty else scores
        demands = self._demands()
        scored, norm = self.masks.score(logits, scores.flatten(), self.history, demands)
        if plan.watched:
            self.seen = Seen(plain, norm, scored, scores, attn.float().clone())
        ranked = self._candidates(scored, scores, demands.held)
        if not self.masks.keeps_log_probs:
            ranked = replace(ranked, log_prob=self._plain(logits, norm, ranked))
        if plan.policy.forced_then_end == "best" and self.n_steps <= self.start_until + 1:
            ranked = self._ends_as_best(ranked)
        before = table.scores
        rows, open_scores, candidates = self._choose(ranked)
        if cost is not None and plan.stepwise_penalty:  # which steers and is not paid
            score = rows.score + cost.take(rows.row)
            rows = replace(rows, score=score)
            table.scores = score.masked_fill(rows.token == plan.eos_id, -math.inf)
        if self.n_steps <= self.start_until:
            self._go_on_reading(before)
        place = self._places(attn) if plan.aligns else None
        packed = self.log.pack(rows, cost, place, open_scores, candidates)
        self.log.append(packed)
        return packed

    def _go_on_reading(self, scores: Tensor) -> None:
        """Leave rows of sentences that still read start tokens as they were, with the next one."""
        steps, table = self._steps(), self.table
        reads = steps <= 0
        at = (steps + self.n_before).clamp(max=self.n_before)
        table.tokens = torch.where(reads, table.start.gather(1, at), table.tokens)
        table.parents = torch.where(reads, self.rows[: len(reads)], table.parents)
        table.scores = torch.where(reads, scores, table.scores)

    def _remember(self, tokens: Tensor) -> None:
        """Add the newest tokens to the history; of start tokens, those that the plan sees."""
        if self.n_steps <= self.start_until + 1:
            place = (self._steps() + self.n_before - 1).clamp(max=self.n_before + 1)
            tokens = tokens.where(self.sees[place], ANY)
        self.history = torch.cat([self.history, tokens.flatten()[:, None]], 1)

    def _cover(self, attn: Tensor) -> Tensor:
        """Add this step's attention to each row's coverage; its penalty (R,)."""
        n = attn.size(1)
        coverage = self.coverage[:, :n]
        self.coverage = F.pad(coverage, (0, n - coverage.size(1))) + attn.float()
        src_length = self._of_rows(self.table.src_length)[:, None]
        return cost_of_coverage(self.plan, self.coverage, src_length)

    def _places(self, attn: Tensor) -> Tensor:
        """The source token that each row attends to most (R,)."""
        src_length = self._of_rows(self.table.src_length)[:, None]
        return most_attended(attn, src_length, self.plan.src_margins)

    def _of_rows(self, of_sentences: Tensor) -> Tensor:
        """(B, 1) -> (R,)"""
        return of_sentences.expand(-1, self.plan.beam_size).flatten()

    def _steps(self) -> Tensor:
        """Which of its own steps each sentence is at, from 1: (B, 1)."""
        return self.n_steps - self.table.started

    def _n_prefix(self) -> Tensor:
        """How many tokens of each sentence are given: (B, 1)."""
        return self.table.lead.clamp(min=0)

    def _demands(self) -> Demands:
        """What this step demands of rows; the host knows whether any sentence is concerned."""
        table, too_early, last = self.table, None, None
        if self.n_steps < self.ends_from:
            too_early = self._of_rows(self._steps() < table.min_end)
        if self.plan.force_end != "no" and any(s.last <= self.n_steps for s in self.slots):
            last = self._of_rows(self._steps() >= table.max_steps)
        held = self.constraints.tell(self.slots, self.n_steps) if self.constraints else None
        return Demands(too_early, last, held)

    def _candidates(self, scored: Scored, scores: Tensor, held: Held | None) -> Ranked:
        plan, (b, k) = self.plan, scores.shape
        if plan.sampling:
            seeds, steps = self.table.seed[:, 0], self._steps()[:, 0]
            n_tokens = self.model.vocab_size
            return draw(scored, scores, seeds, steps, n_tokens, self.feed.n_words, plan)
        values, slope = scored.values.view(b, k, -1), scored.slope
        slope = None if slope is None else slope.view_as(values)
        first = self._steps()[:, 0] == 1 if plan.policy.spares_one else None
        norm = scored.norm.view(b, k)
        ranked = self.ranker.rank(values, norm, scores, slope, first)
        return held.allocate(ranked, values, norm, scores) if held and held.steers else ranked

    def _plain(self, logits: Tensor, norm: Tensor, candidates: Ranked) -> Tensor:
        """The model's own log-probability of each candidate, whatever masks and options say."""
        places = candidates.row * logits.size(1) + candidates.token
        return logits.take(places) - norm.take(candidates.row)

    def _ends_as_best(self, ranked: Ranked) -> Ranked:
        """Without the end tokens that follow a forced token and are not the best candidate; each
        leaves a row that does not exist."""
        rank = torch.arange(ranked.token.size(1), device=self.device)
        forced = self._n_prefix() + self.n_before
        gone = (forced > 0) & (self._steps() == self._n_prefix() + 1)
        gone = gone & (rank > 0) & (ranked.token == self.plan.eos_id)
        return replace(
            ranked,
            token=ranked.token.masked_fill(gone, int(self.plan.eos_id == 0)),  # another one
            score=ranked.score.masked_fill(gone, -math.inf),
        )

    def _choose(self, ranked: Ranked) -> tuple[Ranked, Tensor, Ranked | None]:
        """Make K candidates the new rows.

        Returns the rows; the scores of all candidates (B, N), -inf of those that ended; and the
        candidates where they are not the rows.
        """
        plan, k, table = self.plan, self.plan.beam_size, self.table
        beyond = None
        if plan.policy.ended == "shrink":
            n_open = (table.scores > -math.inf).sum(1, keepdim=True)
            n_open = torch.where(self._steps() <= self._n_prefix() + 1, k, n_open)
            beyond = torch.arange(k, device=self.device) >= n_open
            ranked = replace(ranked, score=ranked.score.masked_fill(beyond, -math.inf))
        ended = ranked.token == plan.eos_id
        open_scores = ranked.score.masked_fill(ended, -math.inf)
        told = open_scores if beyond is None else open_scores.masked_fill(beyond, 0.0)
        rows, candidates = ranked, ranked if plan.stepwise_penalty else None
        if not plan.rows_are_first:
            places = open_places(plan, ranked.score, ended)
            open_scores = open_scores.gather(1, places)
            rows, candidates = replace(ranked.take(places), score=open_scores), ranked
        table.tokens, table.parents, table.scores = rows.token, rows.row, open_scores
        return rows, told, candidates

    # ---- What happened ----

    def events(self, packed: Tensor) -> Iterator[tuple[Beam, Event]]:
        """Sentences in which a hypothesis ended, a stop rule watches, the limit is reached or
        nothing can follow.  One whose scores are NaN or infinite fails at once.  A limit may lie
        behind: what a sentence is given may fill it."""
        n_steps, all_lowest = self.n_steps, self.log.lowest()
        if self.constraints is not None:
            self.constraints.follow(self.slots, n_steps, self.log.newest)
        self.visited = [
            b
            for b, (slot, lowest) in enumerate(zip(self.slots, all_lowest))
            if (not lowest > -math.inf or slot.last <= n_steps or slot.beam.watching)
            and n_steps > slot.started  # others read start tokens
        ]
        for b in self.visited:
            slot = self.slots[b]
            event = self.log.event(b, n_steps - slot.started)
            total = sum(event.candidates.score) + sum(event.costs)
            if not total < math.inf:
                slot.beam.fail()
                continue
            if total == -math.inf or slot.last <= n_steps or self.plan.policy.as_2018:
                self._read(b)  # what a Beam may look back at
            if (
                total == -math.inf
                and slot.past is not None
                and event.step == 1 + len(slot.past.lines)
            ):
                # Perhaps because of its prefix, at one of the steps that this stands for
                for t, line in enumerate(slot.past.lines.tolist(), start=1):
                    if not slot.beam.done:
                        yield slot.beam, self.log.given(line, t)
                if slot.beam.done:
                    continue
            yield slot.beam, event

    def over(self) -> Iterator[tuple[int, Beam]]:
        """Sentences whose search this step has ended: their numbers and beams."""
        all_at_once = self.plan.policy.as_2018 and not self.feed.open_2018
        for b in range(len(self.slots)) if all_at_once else self.visited:
            slot = self.slots[b]
            if slot.beam.done:
                self._read(b)
                slot.beam.end()
                self.leaving.append(b)
                yield slot.number, slot.beam

    def _read(self, b: int) -> None:
        slot = self.slots[b]
        if slot.read < self.n_steps:
            slot.beam.read(self.log.read(b, slot.read))
            slot.read = self.n_steps
