"""Bugs of OpenNMT-py of 2018 that `-search opennmt-2018` reproduces bit for bit.

Coupling: a sentence that was done went on until its batch was done.  Aliasing: the scores of a
beam were one tensor per step.  Unless a length penalty divided them, the scores of finished
hypotheses were views of this tensor, and the coverage penalty was subtracted in place: from all
rows, again for every hypothesis that was scored.  Padding: open rows filled up the n-best list.
"""

import math

from onmt_lite.search.beam import NOT_A_NUMBER, Beam, Candidates, Event, Finished
from onmt_lite.search.plan import Limits, Plan


class Beam2018(Beam):
    """A `Beam` that ends with its batch, and whose scores each step may change.

    open    the beams of the batch whose stop rule has not held yet, this one among them
    totals  scores of the newest rows, after the subtractions in place
    views   finished hypotheses of the newest step, each with the row whose score it shares
    """

    def __init__(self, plan: Plan, limits: Limits, open_beams: "set[Beam2018]"):
        super().__init__(plan, limits)
        open_beams.add(self)
        self.open = open_beams
        # Nothing is subtracted without a coverage penalty
        self.aliased = self.watching = plan.length_penalty == "none" and plan.has_costs
        self.charges = self.aliased and not plan.stepwise_penalty
        self.views: list[tuple[Finished, int]] = []
        self.totals = plan.first_scores()
        self.exhausted = False

    @property
    def done(self) -> bool:
        at_max = self.n_steps >= self.limits.max_steps
        return self.exhausted or at_max or not self.open

    def advance(self, event: Event) -> None:
        pool = self.pools[0]
        pool.done = False
        if self.aliased and self.plan.stepwise_penalty:
            for hyp, k in self.views:
                hyp.score = sum(self.hypothesis(hyp)[1]) - event.costs[k]
        super().advance(event)
        self.watching = self.aliased
        if pool.done:
            self.open.discard(self)
        eos, rows = self.plan.eos_id, zip(event.rows.score, event.rows.token)
        self.exhausted = not any([score > -math.inf and token != eos for score, token in rows])
        if self.aliased:
            self._share_scores(event.rows)

    def fail(self) -> None:
        super().fail()
        self.open.discard(self)
        self.exhausted = True

    def _share_scores(self, rows: Candidates) -> None:
        ended = [hyp for hyp in self.finished if hyp.step == self.n_steps]
        place = {key: k for k, key in enumerate(zip(rows.row, rows.token))}
        self.views = [(hyp, place[hyp.row, hyp.token]) for hyp in ended]
        self.totals = rows.score
        self._charge(len(ended), rows)
        self.scores[self.n_steps - 1] = self.totals
        self.correction = self._open_scores(rows._replace(score=self.totals))

    def _charge(self, times: int, rows: Candidates) -> None:
        """Subtract the coverage penalty from all rows `times` times, and from their views."""
        if self.charges:
            self.totals = [
                total - self.costs[int(row)] * times for total, row in zip(self.totals, rows.row)
            ]
            for hyp, k in self.views:
                hyp.score = self.totals[k]

    def end(self) -> None:
        """Fill up the n-best list with rows, even those that are in it already."""
        if self.note == NOT_A_NUMBER:
            return
        n, n_steps = max(0, self.plan.n_best - len(self.finished)), len(self.prev_ks)
        if n == 0 or n_steps == 0:
            return
        rows = self.rows(n_steps)
        if not self.aliased:
            self.totals = rows.score
        ranks = [k for k, score in enumerate(rows.score) if score > -math.inf][:n]
        self._charge(len(ranks), rows)
        for k in ranks:
            cost = 0.0 if self.charges else self.costs[int(rows.row[k])]
            self.pools[0].add(self.complete(rows, k, n_steps, self.totals[k], cost))
