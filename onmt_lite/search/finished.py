"""Finished hypotheses: which of them are kept, and when they end the search."""

import math

from onmt_lite.search.events import Candidates, Finished
from onmt_lite.search.plan import Plan
from onmt_lite.search.policy import Bound, Full, LengthRatio, TopEnded
from onmt_lite.search.scoring import length_norm


class FinishedPool:
    """The finished hypotheses of a beam, or of one of its groups if they finish apart."""

    def __init__(self, plan: Plan, n_before: int):
        """n_before: tokens that count in lengths beside those of hypotheses, see `Plan`."""
        self.plan, self.n_before = plan, n_before
        self.finished: list[Finished] = []
        self.capacity = plan.width
        self.kind = plan.policy.pool
        self.need = min_finished(plan)
        self.top_ended = False
        self.done = False

    def add(self, hyp: Finished) -> None:
        """Keep a hypothesis if the policy does: all, the first k or the best k."""
        finished = self.finished
        if self.kind == "all" or len(finished) < self.capacity:
            finished.append(hyp)
        elif self.kind == "best":
            scores = [other.score for other in finished]
            worst = min(scores)
            if hyp.score > worst:
                # Of the equally bad, drop the last in the policy's order of ties
                later = self.plan.policy.ties == "later"
                n = len(scores) - 1
                del finished[scores.index(worst) if later else n - scores[::-1].index(worst)]
                finished.append(hyp)

    @property
    def has_enough(self) -> bool:
        """Whether enough hypotheses are finished to check the stop rule."""
        return len(self.finished) >= self.need

    def stopped(self, candidates: Candidates, rows: Candidates, step: int, max_steps: int) -> bool:
        """Whether the stop rule holds after a step with these candidates and new rows."""
        stop = self.plan.stop
        if isinstance(stop, TopEnded):
            ended = candidates.token[0] == self.plan.eos_id and candidates.score[0] > -math.inf
            self.top_ended = ended or (stop.sticky and self.top_ended)
            return self.has_enough and self.top_ended
        if isinstance(stop, Bound):
            racing = candidates if stop.best_of == "candidates" else rows
            return self.has_enough and self._out_of_reach(stop, max(racing.score), step, max_steps)
        return self.has_enough and isinstance(stop, Full)

    def at_ratio(self, ratio: LengthRatio, per_token: float) -> bool:
        """Whether the best finished hypothesis has at least the score `per_token`."""
        if not self.has_enough:
            return False
        best = max(hyp.score / (hyp.step + ratio.offset) for hyp in self.finished)
        return best >= per_token

    def _out_of_reach(self, bound: Bound, best: float, step: int, max_steps: int) -> bool:
        """Whether `best`, a sum of log-probabilities, is not expected to beat the finished ones."""
        plan = self.plan
        far = bound.horizon == "max" or (bound.horizon == "max_if_rewarded" and plan.alpha > 0)
        length = max_steps if far else step
        reach = best / length_norm(plan.length_penalty, plan.alpha, length + self.n_before)
        pick = min if bound.beats == "worst" else max
        rival = pick([hyp.score for hyp in self.finished])
        return rival > reach if bound.strictly else rival >= reach


def min_finished(plan: Plan) -> int:
    """Minimum number of finished hypotheses before the stop rule is checked."""
    if isinstance(plan.stop, TopEnded | LengthRatio):
        return plan.n_best if plan.stop.need == "n_best" else plan.beam_size
    if isinstance(plan.stop, Full):  # half is rounded up, as C++ does
        return math.floor(plan.width * plan.patience + 0.5)
    return 1 if isinstance(plan.stop, Bound) and plan.stop.finished == "one" else plan.width
