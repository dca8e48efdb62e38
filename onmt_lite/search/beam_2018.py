"""The preset `opennmt-2018`: a beam with the bugs of OpenNMT-py of 2018, bit for bit."""

import math
from collections.abc import Callable
from functools import partial

from onmt_lite.search.beam import NOT_A_NUMBER, Beam, CandidateList, FinishedHypothesis, StepEvent
from onmt_lite.search.spec import SearchSpec, SentenceLimits


def make_beam_factory(spec: SearchSpec) -> Callable[[SentenceLimits], Beam]:
    """Return what makes the beams of one batch; those of 2018 share what couples them."""
    if spec.policy.has_2018_bugs:
        return partial(Beam2018, spec, open_beams=set())
    return partial(Beam, spec)


class Beam2018(Beam):
    """Three bugs of that year.

    Coupling: a sentence that was done continued until its batch was done.  Aliasing: the scores of
    a beam were one tensor per step.  Unless a length penalty divided them, the scores of finished
    hypotheses were views of this tensor, and the coverage penalty was subtracted in place: from all
    rows, again for every hypothesis that was scored.  Padding: open rows filled up the n-best list.

    open    the beams of the batch whose stop rule has not held yet, this one among them
    totals  scores of the newest rows, after the subtractions in place
    views   finished hypotheses of the newest step, each with the row whose score it shares
    """

    needs_rows_at_events = True

    def __init__(self, spec: SearchSpec, limits: SentenceLimits, open_beams: "set[Beam2018]"):
        super().__init__(spec, limits)
        open_beams.add(self)
        self.open = open_beams
        # Nothing is subtracted without a coverage penalty
        self.aliased = self.checks_every_step = spec.length_penalty == "none" and spec.has_coverage
        self.charges = self.aliased and not spec.stepwise_penalty
        self.views: list[tuple[FinishedHypothesis, int]] = []
        self.totals = spec.initial_scores()
        self.exhausted = False

    @property
    def is_finished(self) -> bool:
        at_max = self.n_steps >= self.limits.max_steps
        return self.exhausted or at_max or not self.open

    def advance(self, event: StepEvent) -> None:
        pool = self.pools[0]
        pool.is_finished = False
        if self.aliased and self.spec.stepwise_penalty:
            for hyp, k in self.views:
                hyp.score = sum(self.backtrack(hyp)[1]) - event.penalties[k]
        super().advance(event)
        self.checks_every_step = self.aliased
        if pool.is_finished:
            self.open.discard(self)
        self.exhausted = max(event.rows.open_scores()) == -math.inf
        if self.aliased:
            self._share_scores(event.rows)

    def fail(self) -> None:
        super().fail()
        self.open.discard(self)
        self.exhausted = True

    def _share_scores(self, rows: CandidateList) -> None:
        ended = [hyp for hyp in self.finished if hyp.step == self.n_steps]
        place = {key: k for k, key in enumerate(zip(rows.parent, rows.token))}
        self.views = [(hyp, place[hyp.row, hyp.token]) for hyp in ended]
        self.totals = rows.score
        self._charge(len(ended), rows)
        self.scores[self.n_steps - 1] = self.totals
        self.corrected_scores = rows._replace(score=self.totals).open_scores()

    def _charge(self, times: int, rows: CandidateList) -> None:
        """Subtract the coverage penalty from all rows `times` times, and from their views."""
        if self.charges:
            self.totals = [
                total - self.penalties[int(row)] * times
                for total, row in zip(self.totals, rows.parent)
            ]
            for hyp, k in self.views:
                hyp.score = self.totals[k]

    def finalize(self) -> None:
        """Fill up the n-best list with rows, even those that are in it already."""
        if self.warning == NOT_A_NUMBER:
            return
        n, n_steps = max(0, self.spec.n_best - len(self.finished)), len(self.prev_ks)
        if n == 0 or n_steps == 0:
            return
        rows = self.get_rows(n_steps)
        if not self.aliased:
            self.totals = rows.score
        ranks = [k for k in range(len(rows.score)) if rows.exists(k)][:n]
        self._charge(len(ranks), rows)
        for k in ranks:
            penalty = 0.0 if self.charges else self.penalties[int(rows.parent[k])]
            self.pools[0].add(self.make_hypothesis(rows, k, n_steps, self.totals[k], penalty))
