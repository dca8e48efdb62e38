"""What one search does: options, model and preset as one record, and the limits of a sentence."""

from dataclasses import dataclass
from typing import Any, Literal

from onmt_lite.search.policy import Policy, Sampling, StopRule

NO_TOKEN = -1  # fills up tables of tokens


@dataclass(frozen=True)
class TokenRules:
    """Rules of a model's generation_config.json that no option sets."""

    banned: tuple[tuple[int, ...], ...] = ()  # tokens, the last of which may not follow the others
    forced_eos: bool = False  # the last token of an output that reaches its limit is the end
    renormalize: bool = False  # what rules leave of the probabilities sums to 1 again
    eos_ids: tuple[int, ...] = ()  # end tokens, the forced one first; (): that of the vocabulary
    begin_suppress_tokens: tuple[int, ...] = ()  # never the first token of a translation
    encoder_no_repeat_ngram_size: int = 0  # no n-gram of the source
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()  # tokens, bias of the last one
    exponential_decay_length_penalty: tuple[int, float] | None = None  # length, factor

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Tokens that are banned anywhere."""
        return tuple(word[0] for word in self.banned if len(word) == 1)

    @property
    def phrases(self) -> tuple[tuple[int, ...], ...]:
        """Sequences whose last token may not follow the others."""
        return tuple(word for word in self.banned if len(word) > 1)


@dataclass(frozen=True)
class SearchSpec:
    """Every decision of a search, the same for all sentences.

    A sentence may have forced tokens, which its rows take whatever the model and the rules predict:
    the start tokens after the first (a language tag), then its prefix.  Start tokens cost nothing
    and are not part of a hypothesis.
    """

    policy: Policy
    stop_rule: StopRule
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
    # Banned after the softmax, so that the probability of these tokens is lost
    banned_after_softmax: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()  # banned where the policy applies its masks
    token_rules: TokenRules = TokenRules()  # except tokens that are banned anywhere
    phrases_see_start: bool = False  # sequences that match may begin with the first start token
    # Whether penalties for repetition see each start token
    start_in_history: tuple[bool, ...] = (False,)
    n_counted_start: int = 0  # start tokens that count in the length of a hypothesis
    prefix_in_score: Literal["all", "length", "nothing"] = "all"  # in scores, see `Preset`
    block_ngram_repeat: int = 0
    exempt_ids: tuple[int, ...] = ()  # tokens that may be part of repeated n-grams
    repetition_penalty: float = 1.0
    # The last step allows only the end token, which costs its log-probability (`paid`) or nothing
    # (`free`), or it allows all tokens (`no`)
    force_eos: Literal["no", "paid", "free"] = "no"
    sampling: Sampling | None = None
    temperature: float = 1.0
    filters: tuple[tuple[str, Any], ...] = ()  # of tokens to draw, see `Sampling.active_filters`
    needs_log_softmax: bool = True  # False: the model returns log-probabilities
    src_pad_id: int = 0
    track_attention: bool = False  # record which source token each row attends to most
    src_margins: tuple[int, int] = (0, 0)  # special tokens at both ends of a source

    @property
    def n_pools(self) -> int:
        """Number of pools of finished hypotheses: one for each group that finishes apart."""
        return self.beam_groups if self.policy.groups == "apart" else 1

    @property
    def group_size(self) -> int:
        """Rows of one pool."""
        return self.beam_size // self.n_pools

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All tokens that end a hypothesis."""
        return self.token_rules.eos_ids or (self.eos_id,)

    @property
    def n_candidates(self) -> int:
        """Candidates that a step ranks per sentence, if the vocabulary has that many.

        K of them must remain if each row has each end token among its best.
        """
        return (self.policy.candidates + len(self.eos_ids) - 1) * self.beam_size

    @property
    def has_coverage(self) -> bool:
        """Return True if a coverage penalty counts."""
        return self.coverage_penalty != "none"

    @property
    def n_forced_start(self) -> int:
        """Number of start tokens after the first: steps that choose nothing."""
        return len(self.start_in_history) - 1

    @property
    def blocks_ngrams(self) -> bool:
        return self.block_ngram_repeat > (0 if self.policy.blocks_unigrams else 1)

    def initial_scores(self) -> list[float]:
        """Return the scores of the K rows before the first step.

        All rows are equal then: only the first of each group takes part, unless each row is a
        sample of its own.
        """
        idle, rest = self.policy.idle_score, self.beam_size // self.beam_groups - 1
        if self.policy.groups == "apart":
            return ([0.0] + [idle] * rest) * self.beam_groups
        return [0.0] * self.beam_groups + [idle] * rest * self.beam_groups

    def length_norm(self, length: int) -> float:
        """Return the divisor of a sum of log-probabilities; `length` counts the end token, too.

        `wu` is equation 14 of Wu et al. 2016, `avg` OpenNMT's average raised to alpha.
        """
        if self.length_penalty == "wu":
            return float(((5 + length) / 6) ** self.alpha)
        if self.length_penalty == "avg":
            return float(max(1, length) ** self.alpha)
        return 1.0


@dataclass(frozen=True)
class SentenceLimits:
    """What differs from sentence to sentence in a search."""

    max_steps: int  # maximum number of tokens of a hypothesis
    min_eos_step: int = 1  # first step that allows the end token
    expected_length: float = 0.0  # that `-ratio` expects, in tokens
    prefix: tuple[int, ...] = ()  # tokens that every hypothesis begins with
    seed: int = 0  # of the sentence's random draws
    # Tokens that the decoder reads first, one for each of the spec's `start_in_history`;
    # (): bos_id
    start: tuple[int, ...] = ()
