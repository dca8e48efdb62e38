"""What a search did, in words: the traces of `-dump_beam`, and their JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

# OpenNMT-py's keys, and what a row has there
KEYS = {
    "predicted_ids": "token",
    "beam_parent_ids": "parent",
    "scores": "score",
    "log_probs": "log_prob",
}


@dataclass(frozen=True)
class Cell:
    """A continuation: the row of the step before and a token.

    score  what rows are ranked by; None: there is no such row
    state  "open", "finished", "ended" (without being counted), "lost", "blocked" or "none"
    why    what became of one that does not live
    """

    parent: int
    token: str
    score: float | None
    log_prob: float | None
    state: str
    why: str = ""


@dataclass(frozen=True)
class Ending:
    """A hypothesis that finished.

    norm  what log_prob is divided by, for its length
    step  of its last token, from 1; row: where it stands among the rows of that step
    """

    text: str
    tokens: list[str]
    log_probs: list[float]
    score: float
    norm: float
    ended: bool
    step: int
    row: int

    @property
    def log_prob(self) -> float:
        return sum(self.log_probs)


@dataclass(frozen=True)
class Trace:
    """The search of one line; of a blank line nothing but the line.

    steps      rows of each step: the K new rows, and behind them what finished beside them
    others     of each step, the best that did not become rows
    path       the row of the best hypothesis at each of its steps
    endings    the finished hypotheses, best first
    stop       why the search was over
    attention  from each token of the best hypothesis to each of src_tokens; [] where the model
               has none
    """

    id: int
    src: str
    src_tokens: tuple[str, ...] = ()
    beam_size: int = 0
    steps: list[list[Cell]] = field(default_factory=list)
    others: list[list[Cell]] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    stop: str = ""
    attention: list[list[float]] = field(default_factory=list)


def to_json(traces: Sequence[Trace]) -> str:
    """By key, for each line a list of steps, each a list of rows.

    The first beam_size rows of a step are those that the next step continues.  Hypotheses that
    ended and made room for a row follow them.  A row that does not exist has "" and null.
    """
    columns = {
        key: [[[getattr(row, name) for row in rows] for rows in t.steps] for t in traces]
        for key, name in KEYS.items()
    }
    return json.dumps(columns, ensure_ascii=False, allow_nan=False) + "\n"
