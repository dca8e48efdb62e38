"""The finished hypotheses of a group of rows, and when there are enough of them."""

import math

from onmt_lite.search.events import Candidates, Finished
from onmt_lite.search.plan import Plan
from onmt_lite.search.policy import Bound, Full, LengthRatio, TopEnded
from onmt_lite.search.scoring import length_norm


class Pool:
    """What a beam has collected; with groups that finish apart, what one of them has."""

    def __init__(self, plan: Plan, n_before: int):
        """n_before: what lengths count beside the tokens of hypotheses, see `Plan.n_before`."""
        self.plan, self.n_before = plan, n_before
        self.finished: list[Finished] = []
        self.capacity = plan.width
        self.kind = plan.policy.pool
        self.need = enough(plan)
        self.top_ended = False
        self.done = False

    def add(self, hyp: Finished) -> None:
        """Keep it if the policy does: all, the first k or the best k."""
        finished = self.finished
        if self.kind == "all" or len(finished) < self.capacity:
            finished.append(hyp)
        elif self.kind == "best":
            scores = [other.score for other in finished]
            worst = min(scores)
            if hyp.score > worst:
                # Of equally bad ones, the last in the policy's order of ties goes
                later = self.plan.policy.ties == "later"
                n = len(scores) - 1
                del finished[scores.index(worst) if later else n - scores[::-1].index(worst)]
                finished.append(hyp)

    @property
    def complete(self) -> bool:
        """Whether enough hypotheses are finished for a stop rule to hold."""
        return len(self.finished) >= self.need

    def stopped(self, candidates: Candidates, rows: Candidates, step: int, max_steps: int) -> bool:
        """Whether the stop rule holds after a step with these candidates and new rows."""
        stop = self.plan.stop
        if isinstance(stop, TopEnded):
            ended = candidates.token[0] == self.plan.eos_id and candidates.score[0] > -math.inf
            self.top_ended = ended or (stop.sticky and self.top_ended)
            return self.complete and self.top_ended
        if not self.complete or not isinstance(stop, Bound):
            return self.complete and isinstance(stop, Full)
        racing = candidates if stop.best_of == "candidates" else rows
        return self._out_of_reach(stop, max(racing.score), step, max_steps)

    def at_ratio(self, ratio: LengthRatio, per_token: float) -> bool:
        """Whether the best finished hypothesis is no worse, per token, than that."""
        if not self.complete:
            return False
        best = max(hyp.score / (hyp.step + ratio.offset) for hyp in self.finished)
        return best >= per_token

    def _out_of_reach(self, bound: Bound, best: float, step: int, max_steps: int) -> bool:
        """Whether `best`, a sum of log-probabilities, is not expected to beat the finished."""
        plan = self.plan
        far = bound.horizon == "max" or (bound.horizon == "max_if_rewarded" and plan.alpha > 0)
        length = max_steps if far else step
        reach = best / length_norm(plan.length_penalty, plan.alpha, length + self.n_before)
        pick = min if bound.beats == "worst" else max
        rival = pick([hyp.score for hyp in self.finished])
        return rival > reach if bound.strictly else rival >= reach


def enough(plan: Plan) -> int:
    """How many must be finished before a stop rule can hold."""
    if isinstance(plan.stop, TopEnded | LengthRatio):
        return plan.n_best if plan.stop.need == "n_best" else plan.beam_size
    if isinstance(plan.stop, Full):  # half is rounded up, as C++ does
        return math.floor(plan.width * plan.patience + 0.5)
    return 1 if isinstance(plan.stop, Bound) and plan.stop.finished == "one" else plan.width
