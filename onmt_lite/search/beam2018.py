"""What OpenNMT-py of 2018 did by accident, kept where it is to be reproduced bit for bit.

Coupling: a sentence that was done went on until its batch was done.  Aliasing: the scores of a
beam were one tensor per step.  Where no length penalty divided them, the scores of finished
hypotheses were views of this tensor, and the coverage penalty was subtracted in place: from all
rows, again for every hypothesis that was scored.  Padding: open rows filled up the n-best list.
"""

import math

from onmt_lite.search.beam import Beam
from onmt_lite.search.plan import Limits, Plan
from onmt_lite.search.records import Candidates, Event, Finished


class Beam2018(Beam):
    """A `Beam` that is visited at every step, because each step may change its scores.

    batch   the beams that are searched together, this one among them
    totals  scores of the newest rows, after all that was subtracted in place
    views   finished hypotheses of the newest step, each with the row whose score it shares
    """

    def __init__(self, plan: Plan, limits: Limits, batch: "list[Beam2018]"):
        super().__init__(plan, limits)
        batch.append(self)
        self.batch, self.watching = batch, True
        self.aliased = plan.length_penalty == "none"
        self.charges = self.aliased and not plan.stepwise_penalty
        self.views: list[tuple[Finished, int]] = []
        self.rows, self.totals = Candidates([], [], [], []), plan.first_scores()
        self.stopped = self.exhausted = False

    @property
    def done(self) -> bool:
        at_max = self.n_steps >= self.limits.max_steps
        return self.exhausted or at_max or all([beam.stopped for beam in self.batch])

    def advance(self, event: Event) -> None:
        pool = self.pools[0]
        pool.done = False
        if self.aliased and self.plan.stepwise_penalty:
            for hyp, k in self.views:
                hyp.score = sum(self.hypothesis(hyp)[1]) - event.costs[k]
        super().advance(event)
        self.watching = True
        self.stopped = self.stopped or pool.done
        self.rows = event.rows
        self.exhausted = max(self._open_scores(self.rows)) == -math.inf
        self.totals = self.scores[event.step - 1]
        if self.aliased:
            self._share_scores()
            self.scores[event.step - 1] = self.totals
            self.correction = self._open_scores(self.rows._replace(score=self.totals))

    def _share_scores(self) -> None:
        ended = [hyp for hyp in self.finished if hyp.step == self.n_steps]
        place = {key: k for k, key in enumerate(zip(self.rows.row, self.rows.token))}
        self.views = [(hyp, place[hyp.row, hyp.token]) for hyp in ended]
        self._charge(len(ended))

    def _charge(self, times: int) -> None:
        """Take the coverage penalty off all rows so many times, and off their views."""
        if self.charges:
            pairs = zip(self.totals, self.rows.row)
            self.totals = [total - self.costs[row] * times for total, row in pairs]
            for hyp, k in self.views:
                hyp.score = self.totals[k]

    def end(self) -> None:
        """Fill the n-best list up with rows, those that are finished for a second time."""
        n = max(0, self.plan.n_best - len(self.finished))
        ranks = [k for k, score in enumerate(self.rows.score) if score > -math.inf][:n]
        if not ranks:
            return
        self._charge(len(ranks))
        for k in ranks:
            cost = 0.0 if self.charges else self.costs[self.rows.row[k]]
            hyp = self.complete(self.rows, k, self.n_steps, self.totals[k], cost)
            self.pools[0].add(hyp)
