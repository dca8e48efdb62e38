"""The plan of a search: every decision of a job, made once and given to both sides of the loop."""

from dataclasses import dataclass, field
from typing import Literal

from onmt_lite.search.clock import Clock
from onmt_lite.search.policy import Policy, Sampling, Stop
from onmt_lite.text.phrase_automaton import PhraseAutomaton


@dataclass(frozen=True)
class Plan:
    """Options, model and preset as one record for the device (`Frontier`) and for each `Beam`.

    never_ids      tokens that are no text: the probability they have is lost
    banned_ids     other tokens that may not be produced
    sees_start     for each start token, whether penalties for repetition look at it; all but the
                   first belong to the output, at no cost, and are no part of a hypothesis
    n_given        how many of those count in its length
    prefix_counts  what scores count of a prefix, see `onmt_lite.search.policy.Preset`
    exempt_ids     tokens that may be part of repeated n-grams
    force_end      the last step allows the end token alone: for its probability (`paid`), for
                   nothing (`free`), or not (`no`)
    sums_to_one    the model returns logits; False: log-probabilities that count as they are
    aligns         record which source token each row attends to most
    src_margins    tokens before and after a source line that alignments pass over
    watched        keep what each step chose from, for `onmt_lite.search.recorder`
    clock          decides nothing: counts the seconds of encoding
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
    never_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    sees_start: tuple[bool, ...] = (False,)
    n_given: int = 0
    prefix_counts: Literal["all", "length", "nothing"] = "all"
    block_ngram_repeat: int = 0
    exempt_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    force_end: str = "no"
    sampling: Sampling | None = None
    temperature: float = 1.0
    topk: int = 0
    topp: float = 0.0
    sums_to_one: bool = True
    src_pad_id: int = 0
    aligns: bool = False
    src_margins: tuple[int, int] = (0, 0)
    watched: bool = False
    clock: Clock = field(default_factory=Clock, compare=False, repr=False)

    @property
    def n_pools(self) -> int:
        """Groups that finish one by one have a pool each."""
        return self.beam_groups if self.policy.groups == "apart" else 1

    @property
    def width(self) -> int:
        """Rows of one pool."""
        return self.beam_size // self.n_pools

    @property
    def n_candidates(self) -> int:
        """Candidates that a step ranks per sentence, where the vocabulary has so many."""
        return self.policy.candidates * self.beam_size

    @property
    def chains(self) -> bool:
        """Each row is a sample of its own."""
        return self.sampling is not None and self.sampling.draws == "rows"

    @property
    def unordered(self) -> bool:
        """Candidates come in the order in which they were drawn."""
        return self.sampling is not None and self.sampling.ranked_by == "draw"

    @property
    def has_costs(self) -> bool:
        """Whether a coverage penalty counts."""
        return self.coverage_penalty != "none"

    @property
    def blocks_ngrams(self) -> bool:
        """Whether a rule forbids the repetition of n-grams."""
        return self.block_ngram_repeat > (0 if self.policy.ngrams_of_one else 1)

    @property
    def needs_history(self) -> bool:
        """Whether a rule looks at the tokens so far."""
        return self.blocks_ngrams or self.repetition_penalty != 1.0

    @property
    def rows_are_first(self) -> bool:
        """The first candidates are the new rows; otherwise some of them are passed over."""
        return self.policy.ended in ("keep", "shrink")

    def n_before(self, limits: "Limits") -> int:
        """Tokens that the length of a sentence's hypotheses has beside their own: start tokens,
        or less those of a prefix that does not count, which takes the start tokens with it."""
        if self.prefix_counts == "nothing" and limits.prefix:
            return -len(limits.prefix)
        return self.n_given

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
    """The plan's values for one sentence.

    max_steps  tokens that a hypothesis may have at most
    min_end    the first step that allows the end token
    expected   the length that `-ratio` expects, in tokens
    prefix     tokens that every hypothesis begins with
    seed       of the sentence's random draws
    start      tokens that the decoder reads before, as many as the plan says; (): its bos_id
    """

    max_steps: int
    min_end: int = 1
    expected: float = 0.0
    prefix: tuple[int, ...] = ()
    seed: int = 0
    start: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """A sentence that waits for a slot.

    src       source ids
    limits    see `Limits`
    copy_ids  for a model that copies: the target id of each source token, from V on words of the
              sentence's own
    phrases   those that it must say or must not, see `onmt_lite.search.constraints`
    """

    src: list[int]
    limits: Limits
    copy_ids: list[int] | None = None
    phrases: PhraseAutomaton | None = None
