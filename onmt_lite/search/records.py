"""What the parts of a search hand to each other: plain numbers."""

from dataclasses import dataclass
from typing import NamedTuple

from onmt_lite.policy import Policy, Stop

ANY, NO_END = -1, -2  # in the place of a token that must come next: any may, or all but the end


class Candidates(NamedTuple):
    """Continuations of a sentence's rows, best first, in columns.

    score     sum of what a hypothesis's tokens count, less a stepwise penalty; -inf: there is none
    row       which row of this sentence it continues
    log_prob  the model's, of this token alone
    """

    score: list[float]
    row: list[int]
    token: list[int]
    log_prob: list[float]

    def part(self, start: int, end: int) -> "Candidates":
        score, row, token, log_prob = self
        return Candidates(score[start:end], row[start:end], token[start:end], log_prob[start:end])

    def take(self, ranks: list[int]) -> "Candidates":
        score, row, token, log_prob = self
        return Candidates(
            [score[i] for i in ranks],
            [row[i] for i in ranks],
            [token[i] for i in ranks],
            [log_prob[i] for i in ranks],
        )

    def without(self, ranks: list[int]) -> "Candidates":
        columns = self.score[:], self.row[:], self.token[:], self.log_prob[:]
        for rank in reversed(ranks):
            for column in columns:
                del column[rank]
        return Candidates(*columns)

    def then(self, other: "Candidates") -> "Candidates":
        return Candidates(
            self.score + other.score,
            self.row + other.row,
            self.token + other.token,
            self.log_prob + other.log_prob,
        )


@dataclass(slots=True)
class Finished:
    """A complete hypothesis: its last token, and the row of the step before that it continues."""

    score: float  # what it is ranked by
    step: int  # number of its tokens; 0: it has none
    row: int
    token: int
    log_prob: float
    ended: bool  # with the end token; False where max_length cut it off


@dataclass(frozen=True)
class Limits:
    """What is a sentence's own.

    max_steps  how many tokens it may have at most
    min_end    the first step that may bring an end token, where that differs between sentences
    expected   the length that `-ratio` expects of it, in tokens
    prefix     the tokens that it begins with, whatever the model thinks of them
    seed       of what is drawn for it
    """

    max_steps: int
    min_end: int = 1
    expected: float = 0.0
    prefix: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class BeamRules:
    """What is the same for the beams of a job."""

    policy: Policy
    stop: Stop
    beam_size: int
    bos_id: int
    eos_id: int
    n_best: int = 1
    beam_groups: int = 1
    length_penalty: str = "avg"
    alpha: float = 1.0
    stepwise_penalty: bool = False
    patience: float = 1.0
    unordered: bool = False  # candidates come in the order they were drawn in

    @property
    def n_pools(self) -> int:
        """Groups that finish apart have a pool each."""
        return self.beam_groups if self.policy.groups == "apart" else 1

    @property
    def width(self) -> int:
        """Rows of one pool."""
        return self.beam_size // self.n_pools
