"""Records: the values that travel through the pipeline, in order, each made once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from onmt_lite.text.lines import Line
from onmt_lite.text.masked_line import MaskedLine

Pairs = list[tuple[int, int]]  # (source, target), from 0, in order: what aligns with what
ProgressTotal = Callable[[int, int], object]  # is told how many lines and target tokens are done
ProgressDelta = Callable[[int, int], object]  # is told how many lines and target tokens were added


@dataclass(frozen=True)
class Example:
    """A line ready for the model."""

    line: Line
    src_ids: list[int]
    n_src_tokens: int  # tokens of the line itself, without an end token the model wants
    n_unknown: int = 0  # tokens of the line that the model does not know
    tgt_ids: list[int] | None = None  # of its reference
    notes: tuple[str, ...] = ()
    # For a model that copies (`Vocab.encode_copied`): source ids as those of the target vocabulary
    copy_ids: list[int] | None = None
    oov_words: tuple[str, ...] = ()  # which follow that vocabulary
    start: tuple[int, ...] = ()  # tokens that the decoder reads before the first one
    prefix_ids: tuple[int, ...] = ()  # tokens that its translation begins with
    src_tokens: tuple[str, ...] = ()
    n_tag: int = 0  # the first of them that only say the line's language
    masked_line: MaskedLine | None = None  # words and marks taken out of the line, to be put back
    is_uppercase: bool = False  # its translation is written in uppercase
    # Places of words in uppercase that the model reads in lowercase, see `onmt_lite.text.casing`
    uppercase_spans: tuple[tuple[int, int], ...] = ()

    @property
    def needs_alignment(self) -> bool:
        """Return True if attention places parts of the text of its translation."""
        return bool(self.uppercase_spans or self.masked_line is not None and self.masked_line.spans)


@dataclass(frozen=True)
class Hypothesis:
    """One of the n best translations of a line.

    Attributes:
        text: str, as it is to be read.
        tokens: list of str, as the model made them, without start and end tokens.
        score: float, by which hypotheses are ranked: nats, with penalties; higher is better.
        log_prob: float, the plain sum of the model's log-probabilities in nats, the end token's
            included.
        token_log_probs: list of float in nats, one per token, and the end token's if `ended`.
        ended: bool, False if max_length cut it off.
        word_log_probs: list of float in nats, one per word of the text, the end token's not
            counted; None unless asked for with `token_scores`.
        align: list of (source, target) numbers of tokens from 0; None without `report_align`.
        word_align: the same of words.
        ids: tuple of int, the tokens' numbers in the vocabulary.
        n_replaced: int, tokens that stand in place of unknown ones, with `replace_unk`.
        has_empty_markup: bool, whether a pair of tags has lost its text.
    """

    text: str
    tokens: list[str] = field(repr=False)
    score: float
    log_prob: float
    token_log_probs: list[float] = field(repr=False)
    ended: bool
    word_log_probs: list[float] | None = field(default=None, repr=False)
    align: Pairs | None = field(default=None, repr=False)
    word_align: Pairs | None = field(default=None, repr=False, compare=False)
    ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    n_replaced: int = field(default=0, repr=False, compare=False)
    has_empty_markup: bool = field(default=False, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return its part of the JSONL record."""
        inner = ("word_align", "ids", "n_replaced", "has_empty_markup")
        return {n: json_safe(v) for n, v in vars(self).items() if n not in inner and v is not None}


EMPTY_HYPOTHESIS = Hypothesis("", [], 0.0, 0.0, [], ended=False)  # the translation of a blank line


@dataclass(frozen=True)
class Continuation:
    """A row of the step before with a token, as a recorded search keeps it."""

    parent: int
    token: int
    score: float
    log_prob: float
    # What became of it; "ended": the end token, not counted; "none": there is no such row
    state: Literal["open", "finished", "ended", "lost", "blocked", "none"] = "open"
    why: str = ""  # the reason, if it does not live on
    text: str = ""  # the token in words, see `onmt_lite.trace.tracer`

    @property
    def exists(self) -> bool:
        return self.score > -math.inf

    @property
    def key(self) -> tuple[int, int]:
        return self.parent, self.token


@dataclass(frozen=True)
class TracedHypothesis:
    """A hypothesis that finished in a search that was traced: at `step`, from 1, in the row `row`.
    Its log_prob is divided by `norm`, a number for its length."""

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

    @property
    def mean(self) -> float:
        return self.log_prob / self.norm

    @property
    def penalty(self) -> float:
        """The part of the score that the length does not explain."""
        return self.score - self.mean

    @property
    def length(self) -> str:
        return "1 token" if len(self.tokens) == 1 else f"{len(self.tokens)} tokens"


@dataclass(frozen=True)
class Trace:
    """The search of one line, in words; of a blank line nothing but the line."""

    id: int
    src: str
    src_tokens: tuple[str, ...] = ()
    beam_size: int = 0
    # Rows of each step: the K new rows, then hypotheses that finished beside them
    steps: list[list[Continuation]] = field(default_factory=list)
    # Of each step, the best continuations that did not become rows
    pruned: list[list[Continuation]] = field(default_factory=list)
    path: list[int] = field(default_factory=list)  # the best hypothesis' row at each of its steps
    hypotheses: list[TracedHypothesis] = field(
        default_factory=list
    )  # the finished hypotheses, best first
    stop: str = ""  # why the search was over
    # From each token of the best hypothesis to each of src_tokens, if the model has attention
    attention: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class SearchResult:
    """The result of the search for one example."""

    # Distinct, best first; none if the model's output is NaN, or of a job that only scores
    hyps: list[Hypothesis] = field(default_factory=list)
    note: str = ""  # what went wrong in the search, if anything
    n_complete: int = 0  # number of hypotheses before equal ones were left out
    trace: Trace | None = None  # of an example that is traced: the search itself


@dataclass(frozen=True)
class Translation:
    """The translation of one line; `str()` of it is its text.

    Attributes:
        id: int, the number of the line, from 0.
        src: str, the line as it was given, without its line feed.
        hyps: list of Hypothesis, best first, at most `n_best`; of a blank line an empty one.
        notes: tuple of str, what a reader should check; docs/jobs-reference.md lists all.
        gold_log_prob: float, nats of the reference, the end token's included; None without one.
        has_gold: bool, whether there is a reference.
        n_src_tokens: int, tokens of the line as the model reads it.
        n_unknown: int, those of them that the model does not know.
        confidence: float from 0 to 1, the probability that the best hypothesis is right; None if
            the model did not make it, or is not `calibrated`.
        trace: the search, if it was watched; None if not.
        calibrated: bool, whether the model can tell how sure it is.
        fields: str, JSON: the other fields of a line of JSONL; None if there are none.
        n_gold_tokens: int, tokens of the reference, the end token counted.
        src_tokens: list of str, to which alignments refer; None if there are none.
        gold_align: list of (source, target) numbers of tokens: alignment of the reference.
        attn_table: tuple of str, attention of the best hypothesis, with `attn_debug`.
        n_forced: int, phrases that the best hypothesis was to hold.
        unmet: tuple of str, those that it does not hold.
        gold_token_log_probs: list of float in nats, of the reference's tokens; None without one.
    """

    id: int
    src: str
    hyps: list[Hypothesis] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    gold_log_prob: float | None = None
    has_gold: bool = False
    n_src_tokens: int = 0
    n_unknown: int = 0
    confidence: float | None = None
    trace: Trace | None = field(default=None, repr=False, compare=False)
    calibrated: bool = False
    fields: str | None = None
    n_gold_tokens: int = 0
    src_tokens: list[str] | None = None
    gold_align: Pairs | None = None
    attn_table: tuple[str, ...] = ()
    n_forced: int = 0
    unmet: tuple[str, ...] = ()
    gold_token_log_probs: list[float] | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The best hypothesis' text; "" of a line that is blank or could not be translated."""
        return self.hyps[0].text if self.hyps else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSONL record, but for the `fields`."""
        record: dict[str, Any] = {
            "id": self.id,
            "src": self.src,
            "hyps": [hyp.to_dict() for hyp in self.hyps],
            "notes": list(self.notes),
        }
        optional = {
            "src_tokens": self.src_tokens,
            "gold_align": self.gold_align,
            "unmet": list(self.unmet) if self.n_forced else None,
            "n_unknown": self.n_unknown or None,
        }
        record |= {name: value for name, value in optional.items() if value is not None}
        if self.calibrated:
            value = self.confidence
            record["confidence"] = None if value is None else round(value, 4)
        if self.has_gold:
            record["gold_log_prob"] = json_safe(self.gold_log_prob)  # None for a blank line
            record["gold_token_log_probs"] = json_safe(self.gold_token_log_probs)
        return record


def json_safe(value: Any) -> Any:
    """The value, with None for infinite numbers and NaN in it: JSON has no words for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [json_safe(item) for item in value] if isinstance(value, list) else value
