"""The finished hypotheses of a group of rows, and when there are enough of them."""

import math

from onmt_lite.policy import Bound, Full, LengthRatio, TopEnded
from onmt_lite.search.records import BeamRules, Candidates, Finished
from onmt_lite.search.scoring import length_norm


class Pool:
    """What a beam has collected; with groups that finish apart, what one of them has."""

    def __init__(self, rules: BeamRules):
        self.rules = rules
        self.finished: list[Finished] = []
        self.capacity = self.width = rules.width  # the width shrinks where ended rows are lost
        self.kind = rules.policy.pool
        self.need = enough(rules)
        self.top_ended = False
        self.done = False

    def add(self, hyp: Finished) -> None:
        """Keep it if the policy does: all, the first k or the best k."""
        finished = self.finished
        if self.kind == "all" or len(finished) < self.capacity:
            finished.append(hyp)
        elif self.kind == "best":
            worst = min(finished, key=lambda other: other.score)
            if hyp.score > worst.score:
                finished.remove(worst)
                finished.append(hyp)

    def stopped(self, found: Candidates, rows: Candidates, step: int, max_steps: int) -> bool:
        """Whether the stop rule holds after a step with these candidates and new rows."""
        stop, complete = self.rules.stop, len(self.finished) >= self.need
        if isinstance(stop, TopEnded):
            ended = found.token[0] == self.rules.eos_id and found.score[0] > -math.inf
            self.top_ended = ended or (stop.sticky and self.top_ended)
            return complete and self.top_ended
        if not complete or not isinstance(stop, Bound):
            return complete and isinstance(stop, Full)
        racing = found if stop.best_of == "candidates" else rows
        return self._out_of_reach(stop, max(racing.score), step, max_steps)

    def at_ratio(self, ratio: LengthRatio, per_token: float) -> bool:
        """Whether the best finished hypothesis is no worse, per token, than that."""
        if len(self.finished) < self.need:
            return False
        best = max(hyp.score / (hyp.step + ratio.offset) for hyp in self.finished)
        return best >= per_token

    def _out_of_reach(self, bound: Bound, best: float, step: int, max_steps: int) -> bool:
        """Whether `best`, a sum of log-probabilities, is not expected to beat the finished."""
        rules = self.rules
        # A longer hypothesis only scores better where length is rewarded
        length = max_steps if bound.horizon == "max" and rules.alpha > 0 else step
        reach = best / length_norm(rules.length_penalty, rules.alpha, length)
        pick = min if bound.beats == "worst" else max
        found = pick(hyp.score for hyp in self.finished)
        return found > reach if bound.strictly else found >= reach


def enough(rules: BeamRules) -> int:
    """How many must be finished before a stop rule can hold."""
    if isinstance(rules.stop, TopEnded | LengthRatio):
        return rules.n_best if rules.stop.need == "n_best" else rules.beam_size
    if isinstance(rules.stop, Full):  # half is rounded up, as C++ does
        return math.floor(rules.width * rules.patience + 0.5)
    return 1 if isinstance(rules.stop, Bound) and rules.stop.finished == "one" else rules.width
