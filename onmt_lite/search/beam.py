"""The beam of one sentence: plain numbers, no model, no device, no text."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from onmt_lite.search.scoring import length_norm


class Candidate(NamedTuple):
    """One continuation of one row, as the device ranked it."""

    score: float  # sum of log-probabilities so far, less a stepwise penalty
    row: int  # which row of this sentence it continues
    token: int
    log_prob: float  # of this token alone
    cost: float = 0.0  # coverage penalty of the row it continues, this step's attention included


@dataclass(frozen=True)
class Finished:
    """A hypothesis that is complete: the row `row` of step `step`."""

    score: float
    step: int
    row: int
    ended: bool  # with the end token; False where max_length cut it off


@dataclass(frozen=True)
class BeamRules:
    """What is the same for all sentences of a job."""

    beam_size: int
    bos_id: int
    eos_id: int
    length_penalty: str = "avg"
    alpha: float = 1.0
    stepwise_penalty: bool = False


class Beam:
    """The `Beam` of OpenNMT-py (2018) with its defects mended.

    At each step `beam_size` candidates become the new rows, best first.  A row that took the
    end token is a finished hypothesis and is not expanded any more.  The sentence is done when
    its best row has once been an ended one and `beam_size` hypotheses have finished, when no
    row is left, or at `max_length` steps, where the open rows count as hypotheses too.

    next_ys[t][k]    token of row k after t steps; next_ys[0] is all start tokens
    prev_ks[t][k]    row of step t that row k of step t+1 continues
    """

    def __init__(self, rules: BeamRules, max_length: int):
        self.rules, self.max_length = rules, max_length
        self.next_ys = [[rules.bos_id] * rules.beam_size]
        self.prev_ks: list[list[int]] = []
        self.log_probs: list[list[float]] = []  # of the token that next_ys holds, per step and row
        # All rows start equal, so only the first may be expanded in the first step
        self.scores = [0.0] + [-math.inf] * (rules.beam_size - 1)
        self.finished: list[Finished] = []
        self.eos_top = False
        self.done = False

    @property
    def n_steps(self) -> int:
        return len(self.prev_ks)

    def advance(self, candidates: list[Candidate]) -> None:
        """Take the next rows, best first; a score of -inf marks a row that does not exist."""
        rules, before = self.rules, self.scores
        self.next_ys.append([c.token for c in candidates])
        self.prev_ks.append([c.row for c in candidates])
        self.log_probs.append([c.log_prob for c in candidates])
        step = self.n_steps
        stepwise = rules.stepwise_penalty
        self.scores = [c.score + c.cost if stepwise else c.score for c in candidates]
        at_max = step >= self.max_length
        for k, candidate in enumerate(candidates):
            ended = candidate.token == rules.eos_id
            if candidate.score > -math.inf and (ended or at_max):
                self._finish(self.scores[k], candidate.cost, step, k, ended)
                self.scores[k] = -math.inf  # nothing follows the end token
                self.eos_top |= ended and k == 0
        exhausted = max(self.scores) == -math.inf
        if exhausted and not self.finished:
            # The model allows no continuation at all: the best row ends where it is
            k = before.index(max(before))
            cost = next((c.cost for c in candidates if c.row == k), 0.0)
            self._finish(before[k], cost, step - 1, k, ended=False)
        enough = self.eos_top and len(self.finished) >= rules.beam_size
        self.done = enough or exhausted

    def _finish(self, score: float, cost: float, step: int, k: int, ended: bool) -> None:
        """Row k of `step` is complete: rank it by its log-probability and coverage cost."""
        norm = length_norm(self.rules.length_penalty, self.rules.alpha, step)
        rank = (score - cost) / norm if self.rules.stepwise_penalty else score / norm - cost
        self.finished.append(Finished(rank, step, k, ended))

    def best(self) -> list[Finished]:
        """All complete hypotheses, best first; of equals the one that finished earlier."""
        return sorted(self.finished, key=lambda finished: -finished.score)

    def get_hyp(self, step: int, k: int) -> tuple[list[int], list[float]]:
        """Walk back from row k of `step`: its tokens and their log-probabilities, in order."""
        tokens, log_probs = [], []
        for t in range(step, 0, -1):
            tokens.append(self.next_ys[t][k])
            log_probs.append(self.log_probs[t - 1][k])
            k = self.prev_ks[t - 1][k]
        return tokens[::-1], log_probs[::-1]
