"""The preset `opennmt-2018`: the OpenNMT-py beam of November 2018 with its bugs, bit for bit."""

import math
from collections.abc import Callable
from functools import partial

from onmt_lite.search.beam import NOT_A_NUMBER, Beam, CandidateList, FinishedHypothesis, StepEvent
from onmt_lite.search.spec import SearchSpec, SentenceLimits


def make_beam_factory(spec: SearchSpec) -> Callable[[SentenceLimits], Beam]:
    """Return a function that creates the beams of one batch.

    The beams of 2018 share a set, because each beam depends on which beams are still open.
    """
    if spec.policy.has_2018_bugs:
        return partial(Beam2018, spec, open_beams=set())
    return partial(Beam, spec)


class Beam2018(Beam):
    """Beam with three bugs of OpenNMT-py at commit ead41bbc (`onmt/translate/beam.py`).

    Coupling: a finished sentence continued until its whole batch had finished.
    Aliasing: without a length penalty, the scores of finished hypotheses were views of the tensor
    with the beam's scores, and the coverage penalty was subtracted from it in place: from all rows,
    and again for every hypothesis that was scored.
    Padding: rows without EOS filled up the n-best list, even if they were already in it.

    open_beams  the beams of the batch whose stop rule has not been met yet
    row_scores  scores of the newest rows after the subtractions
    views       finished hypotheses of the newest step, each with the row whose score it shares

    Args:
        spec: settings shared by all sentences.
        limits: limits of this sentence.
        open_beams: set shared by the beams of a batch; the new beam adds itself.
    """

    needs_rows_at_events = True

    def __init__(self, spec: SearchSpec, limits: SentenceLimits, open_beams: "set[Beam2018]"):
        super().__init__(spec, limits)
        open_beams.add(self)
        self.open_beams = open_beams
        # Aliasing has no effect without a coverage penalty
        self.is_aliased = self.checks_every_step = (
            spec.length_penalty == "none" and spec.has_coverage
        )
        self.subtracts_coverage = self.is_aliased and not spec.stepwise_penalty
        self.views: list[tuple[FinishedHypothesis, int]] = []
        self.row_scores = spec.get_initial_scores()
        self.is_exhausted = False

    @property
    def is_finished(self) -> bool:
        """True at the limit, without open rows, or if the whole batch has finished."""
        at_limit = self.n_steps >= self.limits.max_steps
        return self.is_exhausted or at_limit or not self.open_beams

    def advance(self, event: StepEvent) -> None:
        """Collect finished hypotheses, and apply the coverage penalty to shared scores."""
        pool = self.pools[0]
        pool.is_finished = False
        if self.is_aliased and self.spec.stepwise_penalty:
            for hyp, k in self.views:
                hyp.score = sum(self.backtrack(hyp)[1]) - event.penalties[k]
        super().advance(event)
        self.checks_every_step = self.is_aliased
        if pool.is_finished:
            self.open_beams.discard(self)
        self.is_exhausted = max(event.rows.get_open_scores()) == -math.inf
        if self.is_aliased:
            self._share_scores(event.rows)

    def fail(self) -> None:
        """End the search because the model returned NaN."""
        super().fail()
        self.open_beams.discard(self)
        self.is_exhausted = True

    def _share_scores(self, rows: CandidateList) -> None:
        """Link the hypotheses that finished at this step to the scores of their rows."""
        finished = [hyp for hyp in self.finished if hyp.step == self.n_steps]
        row_of_key = {key: k for k, key in enumerate(zip(rows.parent, rows.token))}
        self.views = [(hyp, row_of_key[hyp.row, hyp.token]) for hyp in finished]
        self.row_scores = rows.score
        self._subtract_coverage(len(finished), rows)
        self.scores[self.n_steps - 1] = self.row_scores
        self.corrected_scores = rows._replace(score=self.row_scores).get_open_scores()

    def _subtract_coverage(self, times: int, rows: CandidateList) -> None:
        """Subtract the coverage penalty from all rows `times` times, and from their views."""
        if self.subtracts_coverage:
            self.row_scores = [
                score - self.penalties[int(parent)] * times
                for score, parent in zip(self.row_scores, rows.parent)
            ]
            for hyp, k in self.views:
                hyp.score = self.row_scores[k]

    def finalize(self) -> None:
        """Fill up the n-best list with rows, including rows that are already in it."""
        if self.warning == NOT_A_NUMBER:
            return
        n, n_steps = max(0, self.spec.n_best - len(self.finished)), len(self.prev_ks)
        if n == 0 or n_steps == 0:
            return
        rows = self.get_rows(n_steps)
        if not self.is_aliased:
            self.row_scores = rows.score
        ranks = [k for k in range(len(rows.score)) if rows.exists(k)][:n]
        self._subtract_coverage(len(ranks), rows)
        for k in ranks:
            penalty = 0.0 if self.subtracts_coverage else self.penalties[int(rows.parent[k])]
            hyp = self.make_hypothesis(rows, k, n_steps, self.row_scores[k], penalty)
            self.pools[0].add(hyp)
