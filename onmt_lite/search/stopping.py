"""Stop rules: when is the search of a sentence finished?

To add a rule, write a subclass of `StopRule` here and use it in `presets`.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from onmt_lite.search.beam import Beam, CandidateList, FinishedPool
from onmt_lite.search.policy import StopRule
from onmt_lite.search.spec import SearchSpec


@dataclass(frozen=True)
class TopEnded(StopRule):
    """Stop when the best candidate took EOS and enough hypotheses have finished (OpenNMT-py)."""

    reason: ClassVar[str] = "which is enough, and the best candidate of a step had taken EOS"
    sticky: bool  # also if the best candidate of an earlier step took EOS
    need: Literal["n_best", "beam_size"]  # minimum number of finished hypotheses

    def get_min_finished(self, spec: SearchSpec) -> int:
        return spec.n_best if self.need == "n_best" else spec.beam_size

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        return pool.top_ended if self.sticky else candidates.has_ended(0)


@dataclass(frozen=True)
class Full(StopRule):
    """Stop when k * patience hypotheses have finished (fairseq; patience: Kasai et al. 2022)."""

    reason: ClassVar[str] = "which is enough"

    def get_min_finished(self, spec: SearchSpec) -> int:
        return math.floor(spec.group_size * spec.patience + 0.5)  # std::round in CTranslate2

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        return True


@dataclass(frozen=True)
class Bound(StopRule):
    """Stop when no open row is expected to beat the finished hypotheses.

    The fields distinguish tensor2tensor, tf-models-official and the versions of transformers.
    """

    reason: ClassVar[str] = "and no open row was expected to beat them"
    checks_every_step: ClassVar[bool] = True
    best_of: Literal["candidates", "live"]  # take the best score of all candidates or of open rows
    # Length for the norm of the best score: current, maximum, or maximum only if alpha > 0 (then a
    # longer hypothesis has a better score for the same sum)
    horizon: Literal["now", "max", "max_if_rewarded"]
    finished: Literal["one", "beam_size"] = "beam_size"  # minimum number of finished hypotheses
    beats: Literal["worst", "best"] = "worst"  # finished hypothesis to compare with the best score
    strictly: bool = False  # True: continue if the two scores are equal

    def get_min_finished(self, spec: SearchSpec) -> int:
        return 1 if self.finished == "one" else spec.group_size

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        spec, contenders = beam.spec, candidates if self.best_of == "candidates" else rows
        uses_max = self.horizon == "max" or (self.horizon == "max_if_rewarded" and spec.alpha > 0)
        length = (beam.limits.max_steps if uses_max else beam.n_steps) + beam.n_before
        bound = max(contenders.score) / spec.compute_length_norm(length)
        finished_scores = [hyp.score for hyp in pool.finished]
        to_beat = min(finished_scores) if self.beats == "worst" else max(finished_scores)
        return to_beat > bound if self.strictly else to_beat >= bound

    def for_all_hypotheses(self) -> StopRule:
        return replace(self, finished="beam_size")


@dataclass(frozen=True)
class LengthRatio(StopRule):
    """Stop rule of OpenNMT-py's `-ratio`, checked at steps that finish a hypothesis.

    Stop if the best finished hypothesis has at least the score per token that the first candidate
    would have at the expected length.
    """

    reason: ClassVar[str] = "and the best of them had the length and score that -ratio expects"
    need: Literal["n_best", "beam_size"]  # minimum number of finished hypotheses
    offset: int = 0  # added to the length of finished hypotheses

    def get_min_finished(self, spec: SearchSpec) -> int:
        return spec.n_best if self.need == "n_best" else spec.beam_size

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        if not any(map(candidates.has_ended, range(len(candidates.score)))):
            return False
        first = beam.make_hypothesis(candidates, 0, beam.n_steps)
        best = max(hyp.score / (hyp.step + self.offset) for hyp in pool.finished)
        return best >= first.score / beam.limits.expected_length


@dataclass(frozen=True)
class Exhausted(StopRule):
    """Stop only when no open row is left (Marian)."""

    reason: ClassVar[str] = "and no open row was left"

    def should_stop(
        self, beam: Beam, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> bool:
        return False
