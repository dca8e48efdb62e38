"""The values that travel through the pipeline, each made once and never changed."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Line:
    """One line of input.  `notes` says what was done to it, as in the JSONL output."""

    id: int
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """A line ready for the model: its source ids, and its reference's ids if there is one.

    For a model that copies: `copy_ids`, what each source id is in the target vocabulary, and
    `own_words`, which follow that vocabulary; see `onmt_lite.text.copying`.
    """

    line: Line
    src_ids: list[int]
    n_src_tokens: int  # tokens of the line itself, without an end token the model wants
    n_unknown: int = 0  # of these, those that the model does not know
    tgt_ids: list[int] | None = None
    notes: tuple[str, ...] = ()
    copy_ids: list[int] | None = None
    own_words: tuple[str, ...] = ()
    prefix_ids: tuple[int, ...] = ()  # what its translation begins with
    src_tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch:
    """src (B, S) padded ids, src_lengths (B,), copy_ids (B, S) if the model copies: all on the
    model's device."""

    examples: list[Example]
    src: Tensor
    src_lengths: Tensor
    copy_ids: Tensor | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    score            what hypotheses are ranked by, penalties included
    log_prob         plain sum of the model's log-probabilities, the end token's included
    token_log_probs  one per token, and one more for the end token if `ended`
    ended            False where max_length cut it off
    """

    text: str
    tokens: list[str] = field(repr=False)
    score: float
    log_prob: float
    token_log_probs: list[float] = field(repr=False)
    ended: bool


@dataclass(frozen=True)
class Translation:
    """All that is known about one line, best hypothesis first; a blank line has an empty one.

    notes         see `onmt_lite.notes`
    n_src_tokens  tokens of the line as the model reads it
    n_unknown     those of them that the model does not know
    """

    id: int
    src: str
    hyps: list[Hypothesis] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    gold_log_prob: float | None = None
    has_gold: bool = False
    n_src_tokens: int = 0
    n_unknown: int = 0

    @property
    def text(self) -> str:
        """The best hypothesis' text; empty where there is no hypothesis."""
        return self.hyps[0].text if self.hyps else ""

    def to_dict(self) -> dict[str, Any]:
        """The JSONL record."""
        record: dict[str, Any] = {
            "id": self.id,
            "src": self.src,
            "hyps": [vars(hyp) for hyp in self.hyps],
            "notes": list(self.notes),
        }
        if self.n_unknown:
            record["n_unknown"] = self.n_unknown
        if self.has_gold:
            gold = self.gold_log_prob  # None for a blank line; JSON has no word for infinity
            record["gold_log_prob"] = gold if gold is None or math.isfinite(gold) else None
        return record
