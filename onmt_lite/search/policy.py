"""The vocabulary in which a beam search is written down: everything systems disagree about.

Notation: k is the beam size, t counts steps from 1, T is the length of a hypothesis in tokens,
its end token included.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


class StopRule:
    """Decide when the search of one sentence is over; the rules are in `onmt_lite.search.stopping`.

    Each pool of finished hypotheses (one per sentence, or one per diverse group that finishes on
    its own) checks its rule at every event, and at every step if `checks_every_step`.
    """

    reason: ClassVar[str] = ""  # how -dump_beam continues "3 hypotheses had finished, "
    checks_every_step: ClassVar[bool] = False  # once enough hypotheses have finished

    def min_finished(self, spec: Any) -> int:
        """Return how many hypotheses must have finished before `should_stop` is called."""
        return int(spec.group_size)

    def should_stop(self, beam: Any, pool: Any, candidates: Any, rows: Any) -> bool:
        """Return True if the search of a pool is over.

        Args:
            beam: Beam of the sentence.
            pool: FinishedPool; `min_finished` hypotheses are in it.
            candidates: CandidateList of this step, best first.  Its scores are sums: compare
                `Beam.make_hypothesis(...).score` with the scores in the pool.
            rows: CandidateList, the candidates that became the new rows.
        """
        raise NotImplementedError

    def for_all_hypotheses(self) -> "StopRule":
        """Return this rule for a beam whose hypotheses are all wanted, not only the best."""
        return self


# Options that restrict the tokens to draw from
FILTERS = ("random_sampling_topk", "random_sampling_topp")


@dataclass(frozen=True)
class Sampling:
    """How a system draws tokens instead of taking the best."""

    # `rows`: k chains that never cross, one token each per step; `beam`: the candidates of a
    # sentence are drawn together, without replacement
    mode: Literal["rows", "beam"]
    # Divides logits, so that probabilities are normalised again, or log-probabilities
    temperature: Literal["logits", "log_probs"]
    filters: tuple[str, ...] = FILTERS  # in this order; a preset's `options` must have the same
    ranked_by: Literal["score", "draw"] = "score"  # in `beam`; `draw`: the order of drawing
    min_tokens_to_keep: int = 1  # in `beam`: minimum number of tokens of a row that filters leave
    first_step_rows: Literal["one", "equal"] = (
        "one"  # in `beam`: first from one row, or k equal ones
    )
    implied_by_filters: bool = False  # a top-k or top-p option alone switches sampling on
    top_1_means_beam: bool = False  # except for a top-k of 1, the default of 2018
    n_chains: Literal["beam_size", "n_best"] = "beam_size"  # in `rows`; the n_best are returned
    blocks_ngrams: bool = True  # n-grams are blocked while sampling, too
    applies_coverage: bool = True  # a coverage penalty counts while sampling, too

    def is_enabled(self, values: Mapping[str, Any]) -> bool:
        """Whether these options switch sampling on."""
        asked = dict(self.active_filters(values))
        if (
            self.top_1_means_beam
            and asked == {"random_sampling_topk": 1}
            and values["beam_size"] > 1
        ):
            asked = {}
        return bool(values["do_sample"] or asked)

    def active_filters(self, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The filters that these options ask for, in order, and their values."""
        return tuple((name, values[name]) for name in self.filters if values[name])


@dataclass(frozen=True)
class Policy:
    """A beam search: a choice for each question that systems answer differently."""

    # Candidates of a step
    candidates: int = 2  # number that is ranked, in beam sizes
    idle_score: float = -math.inf  # of rows that do not exist yet, in the first step
    drop_last_candidate: bool = False  # the worst of all candidates is never taken
    masks: Literal["log_probs", "logits"] = "log_probs"  # `logits`: the rest is normalised again
    # What rules that change scores, such as a penalty for repetition, are applied to
    repetition: Literal["log_probs", "logits"] = "log_probs"
    min_length_offset: int = 0  # no end token at steps t <= min_length + this
    ngrams: Literal["token", "row"] = "token"  # ban the completing token, or drop the row later
    blocks_unigrams: bool = True  # whether blocking 1-grams has an effect
    allow_repeat_if_stuck: bool = False  # if every continuation repeats an n-gram, the best one may

    # Rows of the next step
    ended: Literal["keep", "refill", "in_slot", "shrink"] = "refill"  # rows that took an end token
    eos_after_forced: Literal["any", "best"] = "any"  # which end tokens count after a given token
    eos_candidates_per_beam: int = 1  # an end token counts among the first k candidates times this
    groups: Literal["apart", "interleaved"] = "apart"  # with -beam_groups

    # Scores of finished hypotheses
    average_ignores_alpha: bool = False  # `avg` divides by the length itself, whatever alpha
    length_offset: int = 0  # added to T
    open_length_offset: int = 0  # added to T of one that did not end
    stepwise_penalty_from: int = 1  # first step whose attention a stepwise penalty charges
    skips_unattended: bool = False  # source tokens without any attention cost nothing

    # Hypotheses that are kept, and the end of the search
    pool: Literal["all", "first", "best"] = "best"  # all, the first k, the best k
    # Open rows at the last step: finish as they rank among the candidates, compete with finished
    # hypotheses, count if there are none, must end, or are lost
    open_rows_at_limit: Literal["rows", "compete", "if_none", "end", "lost"] = "compete"
    steps_offset: int = 0  # steps = max_length + this
    has_2018_bugs: bool = False  # with the bugs of that year, see `onmt_lite.search.beam_2018`
    ties: Literal["earlier", "later"] = "earlier"  # which of equal scores comes first
    distinct: Literal["text", "tokens", "copies"] = "tokens"  # which hypotheses count as one

    @property
    def depends_on_batch(self) -> bool:
        """Return True if a sentence's result depends on the other sentences in its batch."""
        return self.has_2018_bugs


@dataclass(frozen=True)
class Preset:
    """A system's search: its policy, its stop rule, its own defaults and the options it has."""

    system: str  # name and version of the original
    policy: Policy
    # The stop rule by condition on options, such as "early_stopping=true"; the first that holds
    # counts, "" always does
    stop_rules: Mapping[str, StopRule]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of options that are not given
    options: frozenset[str] = frozenset()  # those of `SWITCHES` that the original has
    length_penalties: tuple[str, ...] = ("none", "avg")  # length penalties that it has
    coverage_penalties: tuple[str, ...] = ("none", "wu", "summary")
    sampling: Sampling | None = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # while sampling

    # Limits
    max_source: int | None = None  # tokens of a source line, special tokens counted; None: no limit
    max_length_replaces_ratio: bool = (
        False  # an explicit max_length replaces the limit by source length
    )
    limit_extra: int = 5  # a line of S tokens may have max_length_ratio * S + this output tokens
    limit_counts_src_eos: bool = False  # S counts the source's end token
    limit_rounds_up: bool = False  # a fraction of a token is rounded up

    # Given tokens
    prefix_outside_limits: bool = False  # limits of the output's length do not count its prefix
    # What a score counts of a prefix: log-probabilities and length, only its length, or nothing
    prefix_in_score: Literal["all", "length", "nothing"] = "all"
    free_forced_eos: bool = False  # a model may force the end token as the last one, at no cost
    penalties_see_start: bool = False  # penalties for repetition see the first start token
    # A start token after the first (a language's) counts in the output's length, and penalties for
    # repetition see it
    counts_language_token: bool = False

    # Models
    renormalizes_ensemble: bool = (
        False  # the mean of several models' log-probabilities is normalised
    )
    # Whose models bring defaults: generation_config.json, or Marian's decoder.yml
    model_defaults: Literal["transformers-4", "transformers-5", "marian"] | None = None
    model_fallbacks: Mapping[str, Any] = field(
        default_factory=dict
    )  # what such models need not say
    # A beam of one is a loop of its own, which ends with the first end token, whatever the stop
    # rule, and applies the penalty for repetition to logits
    has_separate_greedy: bool = False
    # Rules about tokens in generation_config.json that the original has: end tokens beside the
    # first, and those of `SearchSpec` after it
    has_token_rules: bool = False
    phrases_see_start: bool = False  # banned or biased sequences may begin with the start token

    def choose_stop_rule(self, values: Mapping[str, Any]) -> StopRule:
        """Return the stop rule for these option values."""
        return next(stop for text, stop in self.stop_rules.items() if is_met(text, values))


def is_met(condition: str, values: Mapping[str, Any]) -> bool:
    """Return True if "name=value name=value" is met, numbers by value; "" always is."""
    wanted = (pair.split("=") for pair in condition.split())
    return all(
        value == float(text) if isinstance(value, (int, float)) else str(value) == text
        for value, text in ((values[name], text) for name, text in wanted)
    )
