"""Events: the plain numbers of a step that a `Beam` receives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Candidates(NamedTuple):
    """Continuations of a sentence's rows, best first, in columns.

    All columns are floats, as the device has sent them: most are never read.

    score     sum of log-probabilities, less a stepwise penalty; -inf: no such candidate
    row       the row of this sentence that the candidate continues
    log_prob  the model's log-probability of this token
    """

    score: list[float]
    row: Sequence[float]
    token: Sequence[float]
    log_prob: list[float]

    def part(self, start: int, end: int) -> "Candidates":
        score, row, token, log_prob = self
        return Candidates(score[start:end], row[start:end], token[start:end], log_prob[start:end])


class Event(NamedTuple):
    """A step of one sentence that its `Beam` must see.

    step        number of the sentence's own step, from 1
    candidates  as ranked; with groups that finish apart, group after group
    rows        the candidates that became the K new rows
    costs       coverage penalty of each old row, this step's attention included
    """

    step: int
    candidates: Candidates
    rows: Candidates
    costs: list[float]


@dataclass(slots=True)
class Finished:
    """A complete hypothesis: its last token, and the row of the step before that it continues."""

    score: float  # by which hypotheses are ranked
    step: int  # number of tokens; 0: none
    row: int
    token: int
    log_prob: float
    ended: bool  # with the end token; False: cut off by max_length


@dataclass(frozen=True)
class Continuation:
    """A row of the step before with a token, as a recorded search keeps it.

    state  what became of it; "ended": the end token, not counted; "none": there is no such row
    why    the reason, if it does not live on
    text   the token in words, see `onmt_lite.inference.postprocess`
    """

    parent: int
    token: int
    score: float
    log_prob: float
    state: Literal["open", "finished", "ended", "lost", "blocked", "none"] = "open"
    why: str = ""
    text: str = ""

    @property
    def exists(self) -> bool:
        return self.score > -math.inf

    @property
    def key(self) -> tuple[int, int]:
        return self.parent, self.token
