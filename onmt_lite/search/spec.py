"""Search settings: one `SearchSpec` per search, one `SentenceLimits` per sentence."""

from dataclasses import dataclass
from typing import Any, Literal

from onmt_lite.search.policy import Policy, Sampling, StopRule

NO_TOKEN = -1  # padding of token tables


@dataclass(frozen=True)
class TokenRules:
    """Rules of a model's generation_config.json that have no command-line option."""

    banned: tuple[tuple[int, ...], ...] = ()  # bad_words_ids: mask the last after all others
    forced_eos: bool = False  # a hypothesis that reaches its limit ends with EOS
    renormalize: bool = False  # log-softmax again after all processors
    eos_ids: tuple[int, ...] = ()  # EOS tokens, the forced one first; (): EOS of the vocabulary
    begin_suppress_tokens: tuple[int, ...] = ()  # banned as the first token of a translation
    encoder_no_repeat_ngram_size: int = 0  # ban n-grams of the source
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()  # tokens, bias of the last one
    exponential_decay_length_penalty: tuple[int, float] | None = None  # start length, factor

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Tokens that are banned in every position."""
        return tuple(phrase[0] for phrase in self.banned if len(phrase) == 1)

    @property
    def banned_phrases(self) -> tuple[tuple[int, ...], ...]:
        """Sequences of two or more tokens; the last one is banned after the others."""
        return tuple(phrase for phrase in self.banned if len(phrase) > 1)


@dataclass(frozen=True)
class SearchSpec:
    """Every decision of a search that all sentences share.

    Forced tokens of a sentence are its start tokens after the first (a language tag), then its
    target prefix.  Start tokens have no cost and are not part of a hypothesis.
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
    # Masked after the softmax: the remaining probabilities sum to less than 1
    banned_after_softmax: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()  # masked before or after the softmax, see `Policy.masks`
    token_rules: TokenRules = TokenRules()
    phrases_see_start: bool = False  # matched sequences may include the first start token
    # For each start token: True if repetition rules see it
    start_in_history: tuple[bool, ...] = (False,)
    n_counted_start: int = 0  # start tokens that count toward the length of a hypothesis
    prefix_in_score: Literal["all", "length", "nothing"] = "all"  # see `Preset`
    block_ngram_repeat: int = 0
    exempt_ids: tuple[int, ...] = ()  # n-grams with one of these tokens may repeat
    repetition_penalty: float = 1.0
    # At the last step: EOS only, at the cost of its log-probability (`paid`) or at no cost
    # (`free`); `no`: any token
    force_eos: Literal["no", "paid", "free"] = "no"
    sampling: Sampling | None = None
    temperature: float = 1.0
    filters: tuple[tuple[str, Any], ...] = ()  # name and value, see `Sampling.get_active_filters`
    needs_log_softmax: bool = True  # False: the model returns log-probabilities
    src_pad_id: int = 0
    track_attention: bool = False  # record the source token that each row attends to most
    src_margins: tuple[int, int] = (0, 0)  # special tokens before and after the source

    @property
    def n_pools(self) -> int:
        """Number of pools of finished hypotheses: one per diverse group, or one in all."""
        return self.beam_groups if self.policy.groups == "apart" else 1

    @property
    def group_size(self) -> int:
        """Rows per pool."""
        return self.beam_size // self.n_pools

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All tokens that end a hypothesis."""
        return self.token_rules.eos_ids or (self.eos_id,)

    @property
    def n_candidates(self) -> int:
        """Maximum number of candidates per sentence and step, N; lower for tiny vocabularies.

        Each extra EOS token adds K, so that K candidates without EOS always remain.
        """
        return (self.policy.candidates + len(self.eos_ids) - 1) * self.beam_size

    @property
    def has_coverage(self) -> bool:
        """True if a coverage penalty is used."""
        return self.coverage_penalty != "none"

    @property
    def n_forced_start(self) -> int:
        """Number of start tokens after the first: decoding steps with a forced token."""
        return len(self.start_in_history) - 1

    @property
    def blocks_ngrams(self) -> bool:
        """True if repeated n-grams are blocked."""
        return self.block_ngram_repeat > (0 if self.policy.blocks_unigrams else 1)

    def get_initial_scores(self) -> list[float]:
        """Return the scores of the K rows before the first step.

        The K rows of a sentence start as copies, so all but the first row of each group get
        `Policy.idle_score`, usually -inf.  It is 0 if rows are independent samples.
        """
        idle, rest = self.policy.idle_score, self.beam_size // self.beam_groups - 1
        if self.policy.groups == "apart":
            return ([0.0] + [idle] * rest) * self.beam_groups
        return [0.0] * self.beam_groups + [idle] * rest * self.beam_groups

    def compute_length_norm(self, length: int) -> float:
        """Return the divisor of a sum of log-probabilities.

        `wu` is equation 14 of Wu et al. 2016; `avg` is OpenNMT-py's average, raised to alpha.

        Args:
            length: tokens of the hypothesis, EOS included.
        """
        if self.length_penalty == "wu":
            return float(((5 + length) / 6) ** self.alpha)
        if self.length_penalty == "avg":
            return float(max(1, length) ** self.alpha)
        return 1.0


@dataclass(frozen=True)
class SentenceLimits:
    """Per-sentence settings of a search."""

    max_steps: int  # maximum number of tokens per hypothesis
    min_eos_step: int = 1  # first step that may take EOS
    expected_length: float = 0.0  # for `-ratio`, in tokens
    prefix: tuple[int, ...] = ()  # first tokens of every hypothesis
    seed: int = 0  # for sampling
    # First decoder inputs, as many as the spec's `start_in_history`; (): bos_id
    start: tuple[int, ...] = ()
