"""The configuration of a search: every decision of a job, made once."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from onmt_lite.search.policy import Policy, Sampling, Stop
from onmt_lite.text.phrases import PhraseAutomaton

NO_TOKEN = -1  # fills up tables of tokens


class Clock:
    """Adds up the seconds of a job's phases: tokenise, encode, decode, write.

    A phase within another one stops the outer one meanwhile: no second is counted twice.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None):
        """`wait` is called before each reading: a GPU works on after a call returns."""
        self.wait = wait
        self.seconds: dict[str, float] = defaultdict(float)
        self._phase, self._since = "", 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer = self._phase
        self._go_over(name)
        try:
            yield
        finally:
            self._go_over(outer)

    def add(self, seconds: dict[str, float]) -> None:
        """Add the seconds of another clock."""
        for name, more in seconds.items():
            self.seconds[name] += more

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken

    def _go_over(self, phase: str) -> None:
        """Give the time since the last call to the phase that has run; "" is none."""
        self.wait()
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now


@dataclass(frozen=True)
class Plan:
    """Options, model and preset as one record, for the batch of beams and for each `Beam`.

    A sentence may be given tokens, which its rows take whatever the model and the rules say: the
    start tokens after the first (a language's), then its prefix.  Start tokens cost nothing and are
    not part of a hypothesis.
    """

    policy: Policy
    stop: Stop
    beam_size: int
    bos_id: int
    eos_id: int
    n_best: int = 1
    beam_groups: int = 1
    diversity_rate: float = 0.0
    length_penalty: str = "avg"
    alpha: float = 1.0
    coverage_penalty: str = "none"
    beta: float = 0.0
    stepwise_penalty: bool = False
    patience: float = 1.0
    # Control tokens.  Masked after the softmax, so their probability mass is lost
    never_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()  # other tokens that may not be produced
    banned_phrases: tuple[tuple[int, ...], ...] = ()  # whose last token may not follow the others
    renormalizes: bool = False  # probabilities that rules leave are normalised again
    sees_start: tuple[bool, ...] = (False,)  # whether penalties for repetition see each start token
    n_given: int = 0  # start tokens that count in the length of a hypothesis
    prefix_counts: Literal["all", "length", "nothing"] = "all"  # in scores, see `Preset`
    block_ngram_repeat: int = 0
    exempt_ids: tuple[int, ...] = ()  # tokens that may be part of repeated n-grams
    repetition_penalty: float = 1.0
    # The last step allows only the end token, which costs its log-probability (`paid`) or nothing
    # (`free`), or it allows all tokens (`no`)
    force_end: str = "no"
    sampling: Sampling | None = None
    temperature: float = 1.0
    filters: tuple[tuple[str, Any], ...] = ()  # of tokens to draw, see `Sampling.asked_filters`
    sums_to_one: bool = True  # False: the model returns log-probabilities, not normalised again
    src_pad_id: int = 0
    aligns: bool = False  # record which source token each row attends to most
    src_margins: tuple[int, int] = (0, 0)  # tokens at both ends of a source that alignments skip
    watched: bool = False  # keep the inputs of the last top-k for a trace
    clock: Clock = field(default_factory=Clock, compare=False, repr=False)  # changes no decision

    @property
    def n_pools(self) -> int:
        """Number of pools of finished hypotheses: one for each group that finishes apart."""
        return self.beam_groups if self.policy.groups == "apart" else 1

    @property
    def width(self) -> int:
        """Rows of one pool."""
        return self.beam_size // self.n_pools

    @property
    def n_candidates(self) -> int:
        """Candidates that a step ranks per sentence, if the vocabulary has so many."""
        return self.policy.candidates * self.beam_size

    @property
    def chains(self) -> bool:
        """Whether each row is a sample of its own."""
        return self.sampling is not None and self.sampling.draws == "rows"

    @property
    def has_costs(self) -> bool:
        """Whether a coverage penalty counts."""
        return self.coverage_penalty != "none"

    @property
    def n_forced(self) -> int:
        """Number of start tokens after the first: steps that choose nothing."""
        return len(self.sees_start) - 1

    def first_scores(self) -> list[float]:
        """Scores of the K rows before the first step.

        All rows are equal then: only the first of each group takes part, unless rows are chains.
        """
        idle, rest = self.policy.idle_score, self.beam_size // self.beam_groups - 1
        if self.policy.groups == "apart":
            return ([0.0] + [idle] * rest) * self.beam_groups
        return [0.0] * self.beam_groups + [idle] * rest * self.beam_groups


@dataclass(frozen=True)
class Limits:
    """What the plan leaves open for one sentence."""

    max_steps: int  # maximum number of tokens of a hypothesis
    min_end: int = 1  # first step that allows the end token
    expected: float = 0.0  # length that `-ratio` expects, in tokens
    prefix: tuple[int, ...] = ()  # tokens that every hypothesis begins with
    seed: int = 0  # of the sentence's random draws
    # Tokens that the decoder reads first, one for each of the plan's `sees_start`; (): bos_id
    start: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """A sentence that waits for a slot."""

    src: list[int]
    limits: Limits
    # For a model that copies: the target id of each source token, from V on words of its own
    copy_ids: list[int] | None = None
    phrases: PhraseAutomaton | None = None  # that it must say or must not
