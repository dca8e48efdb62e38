"""The values that travel through the pipeline, each made once and never changed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onmt_lite.inference.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor


CAPITALS = "capitals"  # the note of a line that was read in small letters
Pairs = list[tuple[int, int]]  # (source, target), from 0, in order: what aligns with what
Progress = Callable[[int, int], object]  # is told how many lines and target tokens were added


@dataclass(frozen=True)
class Line:
    """One line of input.

    notes   what was done to it, as in the JSONL output
    fields  of a line that is a JSON object: the object without the text, as it was written
    traced  its search is to be watched, see `onmt_lite.inference.trace`
    forced  phrases that its translation is to hold
    banned  phrases that no translation of it may hold
    """

    id: int
    text: str
    notes: tuple[str, ...] = ()
    fields: str | None = None
    traced: bool = False
    forced: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """What was taken out of a line.

    stand_in  what the model reads in its place; "" for a mark
    side      "left": it follows the translation of the word before it; "right": it precedes that of
              the word behind it; or it stays at the "start" or the "end" of the line, or before the
              marks with which the line "closes"
    spaced    whether a space stood before it, and behind it
    joins     it stood between two words without a space
    partner   the number of the item that closes the pair which this one opens
    """

    text: str
    stand_in: str
    side: str
    spaced: tuple[bool, bool]
    joins: bool = False
    partner: int | None = None


@dataclass(frozen=True)
class Reading:
    """A line as the model reads it: `parts` of text and, between each two of them, an item.

    plain   the line before anything was taken out
    passes  it is not to be translated but passed through
    """

    plain: str
    parts: tuple[str, ...]
    items: tuple[Item, ...] = ()
    passes: bool = False

    @property
    def text(self) -> str:
        stand_ins = [item.stand_in for item in self.items]
        return "".join(part + name for part, name in zip(self.parts, [*stand_ins, ""]))

    def of_target(self, text: str) -> str:
        """A translation as it would be without the items: a reference, or what it begins with."""
        for item in self.items:
            text = text.replace(item.text, item.stand_in or " " * item.joins, 1)
        return text

    def lower(self) -> "Reading":
        """In small letters, but for the stand-ins."""
        return replace(self, parts=tuple(part.lower() for part in self.parts))


@dataclass(frozen=True)
class Chosen:
    """Tokens behind a prefix that a search before has chosen, and their log-probability."""

    ids: tuple[int, ...] = ()
    log_prob: float = 0.0


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
    start: tuple[int, ...] = ()  # what the decoder is fed before the first token
    prefix_ids: tuple[int, ...] = ()  # what its translation begins with
    chosen: Chosen = Chosen()  # what was chosen to follow that
    src_tokens: tuple[str, ...] = ()
    n_cut: int = 0  # tokens at the line's end that are more than the model takes
    n_tag: int = 0  # the first of them that only say the line's language
    reading: Reading | None = None  # what was taken out of the line, to be put back
    passes: bool = False  # it is not translated but passed through
    # Words that its text has beside those of its tokens, at least and at most
    more_words: tuple[int, int] = (0, 0)

    @property
    def in_capitals(self) -> bool:
        """Whether its translation is written in capitals."""
        return CAPITALS in self.notes


@dataclass(frozen=True)
class Effects:
    """What phrases that are forced or banned say of the tokens that may follow a row.

    forbidden   tokens that may not follow; the end token is one of them unless `may_end`
    completing  tokens after which a banned phrase is complete, unless its last word goes on
    closed      numbers of classes of tokens that may not follow, see `onmt_lite.text.surfaces`
    may_end     no forced phrase is missing, and no banned one is complete
    bank        tokens of forced phrases that the row holds
    wanted      tokens that bring a forced phrase further, each with the bank of the row then
    """

    forbidden: tuple[int, ...] = ()
    completing: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    may_end: bool = True
    bank: int = 0
    wanted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Batch:
    """src (B, S) padded ids, src_lengths (B,), copy_ids (B, S) if the model copies: all on the
    model's device."""

    examples: list[Example]
    src: "Tensor"
    src_lengths: "Tensor"
    copy_ids: "Tensor | None" = None


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    score            what hypotheses are ranked by, penalties included
    log_prob         plain sum of the model's log-probabilities, the end token's included
    token_log_probs  one per token, and one more for the end token if `ended`
    ended            False where max_length cut it off
    word_log_probs   one per word of the text, the end token's not counted; None unless asked for
    align            with -report_align the source token and the target token of each pair
    word_align       the same of words, as lines of text have it
    ids              of the tokens as the model made them
    n_replaced       tokens that stand in the place of unknown ones
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

    def to_dict(self) -> dict[str, Any]:
        """Its part of the JSONL record."""
        inner = ("word_align", "ids", "n_replaced")
        return {n: finite(v) for n, v in vars(self).items() if n not in inner and v is not None}


NOTHING = Hypothesis("", [], 0.0, 0.0, [], ended=False)  # what a blank line translates to


@dataclass(frozen=True)
class Found:
    """What a search found for a line: distinct hypotheses, best first, none where the model's
    output is NaN; and the note that says what went wrong, "" where nothing did.

    trace       of an example that is traced: the search itself, see `onmt_lite.inference.trace`
    n_complete  hypotheses, before those with the same text or tokens were left out
    unfit       hypotheses whose texts break rules about words were left out, since something became
                of them after the search: how many words more each has than its tokens
    retried     of a second search, since the translation of the first repeated itself"""

    hyps: list[Hypothesis]
    note: str = ""
    trace: Trace | None = None
    n_complete: int = 0
    unfit: tuple[int, ...] = ()
    retried: bool = False


@dataclass(frozen=True)
class Confidence:
    """How probable it is that a translation is right, by its mean log-probability per token: a
    logistic curve, fitted to translations of held-out text by `onmt_lite.calibrate`.

    at_zero   log-odds where the mean is 0
    per_nat   by how much they grow with each nat more, above 0
    """

    at_zero: float
    per_nat: float

    def of(self, hyp: Hypothesis) -> float | None:
        """From 0 to 1; None for a text that the model did not make."""
        return self.at(mean_log_prob(hyp)) if hyp.token_log_probs else None

    def at(self, mean: float) -> float:
        odds = self.at_zero + self.per_nat * mean
        return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0

    @property
    def threshold(self) -> float:
        """The mean log-probability from which on a translation is more probably right than not."""
        return -self.at_zero / self.per_nat


def mean_log_prob(hyp: Hypothesis) -> float:
    """In nats per token, the end token included."""
    return hyp.log_prob / len(hyp.token_log_probs)


@dataclass(frozen=True)
class Translation:
    """All that is known about one line, best hypothesis first; a blank line has an empty one.

    notes         see `onmt_lite.inference.notes`
    n_src_tokens  tokens of the line as the model reads it
    n_unknown     those of them that the model does not know
    n_gold_tokens  tokens of the reference, the end token counted
    trace         of a line that was traced: how it was found
    confidence    that the best hypothesis is right, from 0 to 1; None where the model did not make
                  it, or cannot tell (not `calibrated`)
    fields        the other fields of a line of JSONL: an object, as it was written
    src_tokens    to which alignments refer; None where there are none
    gold_align    of the reference, with -gold_align
    attn_table    weights of its best hypothesis as lines of the log, with -attn_debug
    n_forced      phrases that the best hypothesis was to hold
    unmet         those of them that it does not hold
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

    @property
    def text(self) -> str:
        """The best hypothesis' text; empty where there is no hypothesis."""
        return self.hyps[0].text if self.hyps else ""

    def to_dict(self) -> dict[str, Any]:
        """The JSONL record, but for the `fields`."""
        record: dict[str, Any] = {
            "id": self.id,
            "src": self.src,
            "hyps": [hyp.to_dict() for hyp in self.hyps],
            "notes": list(self.notes),
        }
        if self.src_tokens is not None:
            record["src_tokens"] = self.src_tokens
        if self.gold_align is not None:
            record["gold_align"] = self.gold_align
        if self.n_forced:
            record["unmet"] = list(self.unmet)
        if self.n_unknown:
            record["n_unknown"] = self.n_unknown
        if self.calibrated:
            value = self.confidence
            record["confidence"] = None if value is None else round(value, 4)
        if self.has_gold:
            record["gold_log_prob"] = finite(self.gold_log_prob)  # None for a blank line
            record["gold_token_log_probs"] = finite(self.gold_token_log_probs)
        return record


def finite(value: Any) -> Any:
    """The value, with None for infinite numbers and NaN in it: JSON has no words for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
