"""Building blocks of a beam search preset: every choice in which systems differ.

Notation: k is the beam size, t counts steps from 1, and T is the length of a hypothesis in tokens,
EOS included.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


class StopRule:
    """Rule that decides when the search of a sentence stops; see `onmt_lite.search.stopping`.

    Each pool of finished hypotheses (one per sentence, or one per diverse group) is checked at
    every event, and at every step if `checks_every_step`.
    """

    reason: ClassVar[str] = ""  # for -dump_beam, continues "3 hypotheses had finished, "
    checks_every_step: ClassVar[bool] = False  # once `get_min_finished` hypotheses have finished

    def get_min_finished(self, spec: Any) -> int:
        """Return how many hypotheses must have finished before `should_stop` is called."""
        return int(spec.group_size)

    def should_stop(self, beam: Any, pool: Any, candidates: Any, rows: Any) -> bool:
        """Return True if the search of a pool is finished.

        Args:
            beam: Beam of the sentence.
            pool: FinishedPool with at least `get_min_finished` hypotheses.
            candidates: CandidateList of this step, best first.  Its scores are sums of
                log-probabilities; compare `Beam.make_hypothesis(...).score` with pool scores.
            rows: CandidateList, the candidates that became the new rows.
        """
        raise NotImplementedError

    def for_all_hypotheses(self) -> "StopRule":
        """Return the variant of this rule that waits for k hypotheses instead of the best one."""
        return self


# Options that restrict the tokens to sample from
FILTERS = ("random_sampling_topk", "random_sampling_topp")


@dataclass(frozen=True)
class Sampling:
    """The sampling method of a system."""

    # `rows`: k independent samples, one token each per step; `beam`: the candidates of a sentence
    # are sampled together, without replacement
    mode: Literal["rows", "beam"]
    # The temperature divides logits (before the softmax) or log-probabilities
    temperature: Literal["logits", "log_probs"]
    filters: tuple[str, ...] = FILTERS  # in order of application; also in the preset's `options`
    ranked_by: Literal["score", "draw"] = "score"  # `beam`: order of candidates; `draw`: as sampled
    min_tokens_to_keep: int = 1  # `beam`: minimum number of tokens per row after filtering
    # `beam`, first step: sample from one row or from k identical rows
    first_step_rows: Literal["one", "equal"] = "one"
    implied_by_filters: bool = False  # a top-k or top-p option enables sampling
    # Exception: top-k 1 with a beam (the OpenNMT-py defaults of 2018) is beam search
    top_1_means_beam: bool = False
    # `rows`: number of samples; the n_best with the best scores are returned
    n_chains: Literal["beam_size", "n_best"] = "beam_size"
    blocks_ngrams: bool = True  # n-gram blocking also applies when sampling
    applies_coverage: bool = True  # the coverage penalty also applies when sampling

    def is_enabled(self, values: Mapping[str, Any]) -> bool:
        """Return True if these option values enable sampling."""
        active = dict(self.get_active_filters(values))
        is_top_1 = active == {"random_sampling_topk": 1}
        if self.top_1_means_beam and is_top_1 and values["beam_size"] > 1:
            active = {}
        return bool(values["do_sample"] or active)

    def get_active_filters(self, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Return name and value of the filters that are set, in order of application."""
        return tuple((name, values[name]) for name in self.filters if values[name])


@dataclass(frozen=True)
class Policy:
    """The beam search of a system, one field per design choice."""

    # Candidates of a step
    candidates: int = 2  # number of candidates, in multiples of k
    # Score of rows 2 to k before the first step, when all rows are still identical
    idle_score: float = -math.inf
    drop_last_candidate: bool = False  # the worst of all k*V continuations is never a candidate
    # Masks apply to log-probabilities, or to logits: then the remaining tokens sum to 1
    masks: Literal["log_probs", "logits"] = "log_probs"
    # Input of processors that change scores, such as the repetition penalty
    repetition: Literal["log_probs", "logits"] = "log_probs"
    min_length_offset: int = 0  # EOS is banned at steps t <= min_length + this
    # A repeated n-gram: ban the token that completes it, or drop the row one step later
    ngrams: Literal["token", "row"] = "token"
    blocks_unigrams: bool = True  # -block_ngram_repeat 1 has an effect
    allow_repeat_if_stuck: bool = False  # lift the ban on the best token if all are banned

    # Rows of the next step
    # A candidate that took EOS: keeps its row, without being expanded (`keep`); is skipped, so that
    # the best candidates without EOS become rows (`refill`); is replaced in its position by a
    # candidate from rank k on (`in_place`); or is dropped, so that the beam shrinks (`shrink`)
    ended: Literal["keep", "refill", "in_place", "shrink"] = "refill"
    # EOS right after forced tokens: accepted at any rank, or only as the best candidate
    eos_after_forced: Literal["any", "best"] = "any"
    eos_candidates_per_beam: int = 1  # EOS counts among the first k * this candidates
    # -beam_groups: groups stop separately, or share finished hypotheses and the stop rule, with
    # their rows interleaved
    groups: Literal["apart", "interleaved"] = "apart"

    # Scores of finished hypotheses
    average_ignores_alpha: bool = False  # `avg` divides by the length as if alpha were 1
    length_offset: int = 0  # added to T of a hypothesis that ended with EOS
    open_length_offset: int = 0  # added to T of a hypothesis without EOS
    stepwise_penalty_from: int = 1  # first step at which a stepwise penalty lowers final scores
    skips_unattended: bool = False  # no coverage penalty for source tokens without any attention

    # Finished hypotheses, and the end of the search
    pool: Literal["all", "first", "best"] = "best"  # keep all, the first k or the best k
    # Rows without EOS at the last step: finish in candidate order (`rows`), compete with finished
    # hypotheses, finish only if there are none (`if_none`), are forced to take EOS (`end`) or are
    # dropped (`lost`)
    open_rows_at_limit: Literal["rows", "compete", "if_none", "end", "lost"] = "compete"
    steps_offset: int = 0  # maximum number of steps = max_length + this
    has_2018_bugs: bool = False  # see `onmt_lite.search.beam_2018`
    ties: Literal["earlier", "later"] = "earlier"  # of equal scores, the hypothesis ranked first
    distinct: Literal["text", "tokens", "copies"] = "tokens"  # duplicates to drop from the n-best

    @property
    def depends_on_batch(self) -> bool:
        """True if a sentence's result depends on the other sentences in its batch."""
        return self.has_2018_bugs


@dataclass(frozen=True)
class Preset:
    """The search of a system: policy, stop rule, default values and supported options."""

    system: str  # name and version of the original
    policy: Policy
    # Stop rules by condition on option values, such as "early_stopping=true".  The first condition
    # that is met counts; "" always is
    stop_rules: Mapping[str, StopRule]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # option defaults
    options: frozenset[str] = frozenset()  # supported options out of `SWITCHES`
    length_penalties: tuple[str, ...] = ("none", "avg")  # supported -length_penalty values
    coverage_penalties: tuple[str, ...] = ("none", "wu", "summary")
    sampling: Sampling | None = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # when sampling

    # Limits
    max_source: int | None = None  # source tokens, special tokens included; None: no limit
    max_length_replaces_ratio: bool = False  # setting max_length disables max_length_ratio
    limit_extra: int = 5  # limit = max_length_ratio * S + this, for S source tokens
    limit_counts_src_eos: bool = False  # S includes the source EOS
    limit_rounds_up: bool = False  # round the limit up instead of down

    # Forced tokens
    prefix_outside_limits: bool = False  # length limits do not include the target prefix
    # Part of a prefix in the score: log-probabilities and length, its length, or nothing
    prefix_in_score: Literal["all", "length", "nothing"] = "all"
    free_forced_eos: bool = False  # forced_eos_token_id of a model has no cost
    penalties_see_start: bool = False  # repetition rules see the first start token
    # The second start token (a language tag) counts toward the length, and repetition rules see it
    counts_language_token: bool = False

    # Models
    renormalizes_ensemble: bool = False  # log-softmax of the averaged log-probabilities
    # Model files with option defaults: generation_config.json as read by transformers 4 or 5, or
    # Marian's decoder.yml
    model_defaults: Literal["transformers-4", "transformers-5", "marian"] | None = None
    model_fallbacks: Mapping[str, Any] = field(default_factory=dict)  # for keys not in that file
    # Beam size 1 is a separate greedy loop: it stops at the first EOS regardless of the stop
    # rule, and the repetition penalty applies to logits
    has_separate_greedy: bool = False
    # Supports rules in generation_config.json that have no option: several EOS tokens, and
    # `TokenRules` from `begin_suppress_tokens` on
    has_token_rules: bool = False
    phrases_see_start: bool = False  # banned or biased sequences may include the start token

    def choose_stop_rule(self, values: Mapping[str, Any]) -> StopRule:
        """Return the stop rule for these option values."""
        return next(rule for text, rule in self.stop_rules.items() if is_met(text, values))


def is_met(condition: str, values: Mapping[str, Any]) -> bool:
    """Return True if a condition "name=value name=value" is met; "" always is.

    Numbers are compared by value.
    """
    pairs = (pair.split("=") for pair in condition.split())
    return all(
        value == float(text) if isinstance(value, (int, float)) else str(value) == text
        for value, text in ((values[name], text) for name, text in pairs)
    )
