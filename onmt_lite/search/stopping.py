"""Stop rules: when is the search of a sentence over?

A new rule is one subclass of `StopRule` here, and its entry in the presets that use it.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from onmt_lite.search.beam import Beam, CandidateList, FinishedPool
from onmt_lite.search.policy import StopRule
from onmt_lite.search.spec import SearchSpec


@dataclass(frozen=True)
class TopEnded(StopRule):
    """Stop when the best candidate is an end token and enough hypotheses are finished."""

    reason: ClassVar[str] = "which is enough, and the best candidate of a step was one that ended"
    sticky: bool  # the best candidate of an earlier step counts, too
    need: Literal["n_best", "beam_size"]  # minimum number of finished hypotheses

    def min_finished(self, spec: SearchSpec) -> int:
        return spec.n_best if self.need == "n_best" else spec.beam_size

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        return pool.top_ended if self.sticky else candidates.has_ended(0)


@dataclass(frozen=True)
class Full(StopRule):
    """Stop when k hypotheses are finished, or k * patience with `-patience`."""

    reason: ClassVar[str] = "which is enough"

    def min_finished(self, spec: SearchSpec) -> int:
        return math.floor(spec.group_size * spec.patience + 0.5)  # half is rounded up, as in C++

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        return True


@dataclass(frozen=True)
class Bound(StopRule):
    """Stop when no open hypothesis can be expected to beat the finished ones any more."""

    reason: ClassVar[str] = "and no open row could be expected to beat them"
    checks_every_step: ClassVar[bool] = True
    best_of: Literal["candidates", "live"]  # of the step, or of the rows that continue
    # Length that the best sum is divided by: the present one, the longest possible, or the longest
    # only if longer hypotheses score better (alpha > 0)
    horizon: Literal["now", "max", "max_if_rewarded"]
    finished: Literal["one", "beam_size"] = "beam_size"  # minimum before the rule is checked
    beats: Literal["worst", "best"] = "worst"  # which of the finished hypotheses must win
    strictly: bool = False  # equal scores do not win

    def min_finished(self, spec: SearchSpec) -> int:
        return 1 if self.finished == "one" else spec.group_size

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        spec, racing = beam.spec, candidates if self.best_of == "candidates" else rows
        far = self.horizon == "max" or (self.horizon == "max_if_rewarded" and spec.alpha > 0)
        length = (beam.limits.max_steps if far else beam.n_steps) + beam.n_before
        reachable = max(racing.score) / spec.length_norm(length)
        pick = min if self.beats == "worst" else max
        rival = pick([hyp.score for hyp in pool.finished])
        return rival > reachable if self.strictly else rival >= reachable

    def for_all_hypotheses(self) -> StopRule:
        return replace(self, finished="beam_size")


@dataclass(frozen=True)
class LengthRatio(StopRule):
    """Stop at a step that ends a hypothesis, when the best finished hypothesis has at least the
    score per token that the first row has per token of the length that `-ratio` expects."""

    reason: ClassVar[str] = "and the best of them had the length and score that -ratio expects"
    need: Literal["n_best", "beam_size"]  # minimum number of finished hypotheses
    offset: int = 0  # added to the number of tokens of a finished hypothesis

    def min_finished(self, spec: SearchSpec) -> int:
        return spec.n_best if self.need == "n_best" else spec.beam_size

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        if not any(map(candidates.has_ended, range(len(candidates.score)))):
            return False
        first = (
            beam.make_hypothesis(candidates, 0, beam.n_steps).score / beam.limits.expected_length
        )
        return max(hyp.score / (hyp.step + self.offset) for hyp in pool.finished) >= first


@dataclass(frozen=True)
class Exhausted(StopRule):
    """Stop when no row is left to expand."""

    reason: ClassVar[str] = "and no row was left"

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        return False
