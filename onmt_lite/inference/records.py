"""Immutable records that are passed through the pipeline, in order of creation."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from onmt_lite.text.lines import Line
from onmt_lite.text.masked_line import MaskedLine

Pairs = list[tuple[int, int]]  # alignment: sorted (source, target) indices from 0
ProgressTotal = Callable[[int, int], object]  # callback: total lines and target tokens so far
# Callback: lines and target tokens since the last call
ProgressDelta = Callable[[int, int], object]


@dataclass(frozen=True)
class Example:
    """A line ready for the model."""

    line: Line
    src_ids: list[int]
    n_src_tokens: int  # tokens of the line, without special tokens
    n_unknown: int = 0  # unknown tokens of the line
    tgt_ids: list[int] | None = None  # ids of the reference
    notes: tuple[str, ...] = ()  # warnings
    # Copy attention: source ids in the extended target vocabulary (`Vocab.encode_copied`)
    copy_ids: list[int] | None = None
    oov_words: tuple[str, ...] = ()  # words after the target vocabulary
    start: tuple[int, ...] = ()  # decoder input before the first target token
    prefix_ids: tuple[int, ...] = ()  # forced ids at the start of the translation
    src_tokens: tuple[str, ...] = ()
    n_tag: int = 0  # number of language tag tokens at the start of src_tokens
    masked_line: MaskedLine | None = None  # masked spans to restore
    is_uppercase: bool = False  # the translation is uppercased
    # Spans of uppercase words that the model reads in lowercase; see `onmt_lite.text.casing`
    uppercase_spans: tuple[tuple[int, int], ...] = ()

    @property
    def needs_alignment(self) -> bool:
        """True if restoring parts of the text needs the attention of the hypothesis."""
        return bool(self.uppercase_spans or self.masked_line is not None and self.masked_line.spans)


@dataclass(frozen=True)
class Hypothesis:
    """One of the n best translations of a line.

    Attributes:
        text: str, detokenized text.
        tokens: list of str, target tokens without start and end tokens.
        score: float, ranking score in nats, with penalties; higher is better.
        log_prob: float, sum of the model's log-probabilities in nats, including the end token.
        token_log_probs: list of float in nats, one per token, and one for the end token if `ended`.
        ended: bool, False if it was truncated at max_length.
        word_log_probs: list of float in nats, one per word of the text, without the end token; None
            without `token_scores`.
        align: list of (source, target) token indices from 0; None without `report_align`.
        word_align: the same for words.
        ids: tuple of int, ids of the tokens.
        n_replaced: int, number of unknown tokens replaced with `replace_unk`.
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
        """Return the hypothesis as part of the JSONL record."""
        internal = ("word_align", "ids", "n_replaced", "has_empty_markup")
        return {
            name: make_json_safe(value)
            for name, value in vars(self).items()
            if name not in internal and value is not None
        }


EMPTY_HYPOTHESIS = Hypothesis("", [], 0.0, 0.0, [], ended=False)  # translation of an empty line


@dataclass(frozen=True)
class Continuation:
    """A candidate of a recorded search step: a row of the previous step plus a token."""

    parent: int
    token: int
    score: float
    log_prob: float
    # "ended": end token that was not counted as finished; "none": no such row
    state: Literal["open", "finished", "ended", "lost", "blocked", "none"] = "open"
    why: str = ""  # why it was not kept
    text: str = ""  # text of the token, see `onmt_lite.trace.tracer`

    @property
    def exists(self) -> bool:
        """True unless it is an unused row."""
        return self.score > -math.inf

    @property
    def key(self) -> tuple[int, int]:
        """(parent, token), unique within a step."""
        return self.parent, self.token


@dataclass(frozen=True)
class TracedHypothesis:
    """A finished hypothesis of a recorded search.

    It finished at step `step` (from 1) in row `row`. Its log_prob is divided by `norm`, which
    depends on its length.
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
        """Sum of the token log-probabilities in nats."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """Log-probability after length normalization."""
        return self.log_prob / self.norm

    @property
    def penalty(self) -> float:
        """The part of the score that is not the normalized log-probability."""
        return self.score - self.mean

    @property
    def length(self) -> str:
        """Its length in words, such as "3 tokens"."""
        return "1 token" if len(self.tokens) == 1 else f"{len(self.tokens)} tokens"


@dataclass(frozen=True)
class Trace:
    """The recorded search of one line; an empty line has no steps."""

    id: int
    src: str
    src_tokens: tuple[str, ...] = ()
    beam_size: int = 0
    # Rows of each step: the K new rows, then the hypotheses that finished in this step
    steps: list[list[Continuation]] = field(default_factory=list)
    # Best candidates of each step that were not kept
    pruned: list[list[Continuation]] = field(default_factory=list)
    path: list[int] = field(default_factory=list)  # row of the best hypothesis at each of its steps
    # The finished hypotheses, best first
    hypotheses: list[TracedHypothesis] = field(default_factory=list)
    stop: str = ""  # why the search stopped
    # (T, S) attention of the best hypothesis, if the model has attention
    attention: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class SearchResult:
    """The result of the search for one example."""

    # Distinct, best first; empty if the model returned NaN, or with score_only
    hyps: list[Hypothesis] = field(default_factory=list)
    note: str = ""  # warning of the search, if any
    n_complete: int = 0  # number of finished hypotheses before deduplication
    trace: Trace | None = None  # the recorded search of a traced example


@dataclass(frozen=True)
class Translation:
    """The translation of one line; `str()` of it is its text.

    Attributes:
        id: int, line number, from 0.
        src: str, the input line, without its line feed.
        hyps: list of Hypothesis, best first, at most `n_best`; an empty line has an empty
            hypothesis.
        notes: tuple of str, warnings; docs/jobs-reference.md explains them.
        gold_log_prob: float, log-probability of the reference in nats, including the end
            token; None without a reference.
        has_gold: bool, whether there is a reference.
        n_src_tokens: int, number of source tokens.
        n_unknown: int, number of unknown source tokens.
        confidence: float from 0 to 1, probability that the best hypothesis is correct; None if the
            model did not generate it, or is not `calibrated`.
        trace: the recorded search, or None.
        calibrated: bool, whether the model is calibrated to estimate confidence.
        fields: str, the other fields of a JSONL line as JSON, or None.
        n_gold_tokens: int, number of tokens of the reference, including the end token.
        src_tokens: list of str, the tokens to which alignments refer, or None.
        gold_align: list of (source, target) token indices: alignment of the reference.
        attn_table: tuple of str, attention of the best hypothesis, with `attn_debug`.
        n_forced: int, number of phrases that the translation must contain.
        unmet: tuple of str, phrases that the best hypothesis lacks.
        gold_token_log_probs: list of float in nats, log-probabilities of the reference tokens, or
            None.
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
        """Text of the best hypothesis; "" if the line is empty or could not be translated."""
        return self.hyps[0].text if self.hyps else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSONL record, without `fields`."""
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
            record["gold_log_prob"] = make_json_safe(self.gold_log_prob)  # None for an empty line
            record["gold_token_log_probs"] = make_json_safe(self.gold_token_log_probs)
        return record


def make_json_safe(value: Any) -> Any:
    """Replace infinite numbers and NaN by None, because JSON cannot represent them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [make_json_safe(item) for item in value] if isinstance(value, list) else value
