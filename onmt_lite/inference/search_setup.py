"""Search setup: options and a model to a search configuration and to limits for each line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.translate_checks import FORCED_AND_SAMPLED, explain_missing_option
from onmt_lite.errors import Message, OptionError
from onmt_lite.inference.records import Example, Hypothesis
from onmt_lite.models.base import HeadSelection
from onmt_lite.search.policy import Policy, Preset, Sampling, StopRule
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.sampling import derive_line_seed
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits, TokenRules
from onmt_lite.search.stopping import Exhausted, Full
from onmt_lite.text.lines import Line
from onmt_lite.text.phrases import PhraseAutomaton

UNLIMITED = 1 << 30
MAX_BEAM_SIZE = 1000  # largest value of the option beam_size


@dataclass(frozen=True)
class SearchConfig:
    """The configuration of a search for given options and a given model."""

    options: TranslateOptions
    checkpoint: Checkpoint
    preset: Preset
    spec: SearchSpec  # specification of the decoding loop and its beams
    n_returned: int  # hypotheses read from a beam
    replaces_unk_later: bool = False  # replace unknown tokens after the search, by selected heads
    dedups_text_later: bool = False  # texts must be distinct, but are only known after that
    # Phrase automata, shared by lines with the same phrases
    automata: dict[tuple[Any, ...], PhraseAutomaton] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def can_deduplicate(self) -> bool:
        """True if equal lines have equal translations."""
        return self.spec.sampling is None and not self.spec.policy.depends_on_batch


def make_search_config(options: TranslateOptions, checkpoint: Checkpoint) -> SearchConfig:
    """Return the search configuration for options and a model.

    Raises:
        OptionError: if the model does not support the options.
    """
    check_attention(options, checkpoint)
    preset = PRESETS[options.search.search]
    spec = make_search_spec(options, checkpoint, preset)
    replaces_unk_later = options.text.replace_unk and options.attention.uses_alignment
    dedups_text_later = replaces_unk_later and spec.policy.distinct == "text"
    if dedups_text_later:  # read all hypotheses, because equal texts are not known yet
        spec = replace(spec, policy=replace(spec.policy, distinct="tokens"))
    aligns = (
        options.text.replace_unk
        and not replaces_unk_later
        and checkpoint.tgt_vocab.unk_id is not None
    )
    return SearchConfig(
        options,
        checkpoint,
        preset,
        replace(spec, track_attention=aligns),
        UNLIMITED if dedups_text_later else options.search.n_best,
        replaces_unk_later,
        dedups_text_later,
    )


def widen_beam(config: SearchConfig) -> SearchConfig:
    """Return the same search with twice the beam.

    It runs until the beam is full of complete hypotheses, because some stop rules are met earlier
    independently of the texts.
    """
    spec = config.spec
    beam_size = min(MAX_BEAM_SIZE, 2 * spec.beam_size)
    spec = replace(
        spec,
        beam_size=beam_size,
        n_best=beam_size,
        stop_rule=spec.stop_rule.for_all_hypotheses(),
        patience=max(1.0, spec.patience),
    )
    return replace(config, spec=spec)


# -- the spec -------------------------------------------------------------------------------------


def make_search_spec(
    options: TranslateOptions, checkpoint: Checkpoint, preset: Preset
) -> SearchSpec:
    """Return the spec of a search that deduplicates texts itself and does not align.

    Args:
        options: the options.
        checkpoint: the model.
        preset: the search preset.
    """
    search, sampling_options, vocab = options.search, options.sampling, checkpoint.tgt_vocab
    sampling, option_values = preset.sampling, {**vars(search), **vars(sampling_options)}
    if sampling and not sampling.is_enabled(option_values):
        sampling = None
    if sampling and search.beam_size == 1:  # sample tokens directly
        sampling = replace(sampling, mode="rows", min_tokens_to_keep=1)
    separate_greedy = preset.has_separate_greedy and search.beam_size == 1
    n_forced = checkpoint.count_forced_tokens(options.model.tgt_lang)
    n_counted = n_forced if preset.counts_language_token else 0
    has_coverage = sampling is None or sampling.applies_coverage
    coverage = search.coverage_penalty if has_coverage else "none"
    blocks_ngrams = sampling is None or sampling.blocks_ngrams
    one_chain_per_hypothesis = sampling is not None and sampling.n_chains == "n_best"
    policy, stop = choose_policy(options, preset, sampling, separate_greedy)
    rules = select_token_rules(options, checkpoint, preset)
    eos_ids = rules.eos_ids or (checkpoint.eos_id,)
    if sampling and sampling.mode == "beam":
        n_kept = sampling.min_tokens_to_keep + len(eos_ids) - 1
        sampling = replace(sampling, min_tokens_to_keep=n_kept)
    banned_after, banned = rules.banned_ids, tuple[int, ...]()
    if checkpoint.exclude_banned_from_softmax:
        banned_after, banned = banned, banned_after
    if search.ban_unk_token and vocab.unk_id is not None:
        banned = (*banned, vocab.unk_id)
    exempt = (vocab.ids.get(token) for token in search.ignore_when_blocking)
    return SearchSpec(
        policy,
        stop,
        search.n_best if one_chain_per_hypothesis else search.beam_size,
        bos_id=checkpoint.start_id,
        eos_id=eos_ids[0],
        n_best=search.n_best,
        beam_groups=search.beam_groups,
        diversity_rate=search.diversity_rate,
        length_penalty=search.length_penalty,
        alpha=get_length_exponent(options, preset),
        coverage_penalty=coverage,
        beta=search.beta,
        stepwise_penalty=search.stepwise_penalty and coverage != "none",
        patience=1.0 if separate_greedy else search.patience or 1.0,
        banned_after_softmax=banned_after,
        banned_ids=banned,
        token_rules=rules,
        phrases_see_start=preset.phrases_see_start,
        start_in_history=(preset.penalties_see_start, *[n_counted > 0] * n_forced),
        n_counted_start=n_counted,
        prefix_in_score=preset.prefix_in_score,
        block_ngram_repeat=search.block_ngram_repeat if blocks_ngrams else 0,
        exempt_ids=tuple(i for i in exempt if i is not None),
        repetition_penalty=search.repetition_penalty,
        force_eos=choose_force_eos(policy, preset, rules),
        sampling=sampling,
        temperature=sampling_options.random_sampling_temp,
        filters=sampling.get_active_filters(option_values) if sampling else (),
        needs_log_softmax=needs_log_softmax(options, checkpoint),
        src_pad_id=checkpoint.src_vocab.pad_id or 0,
        src_margins=checkpoint.src_margins,
    )


def choose_force_eos(
    policy: Policy, preset: Preset, rules: TokenRules
) -> Literal["no", "paid", "free"]:
    """Return how the last step forces EOS, see `SearchSpec.force_eos`.

    Args:
        policy: the policy of the search.
        preset: the search preset.
        rules: rules of the model.
    """
    if preset.free_forced_eos and rules.forced_eos:
        return "free"
    return "paid" if policy.open_rows_at_limit == "end" else "no"


def select_token_rules(
    options: TranslateOptions, checkpoint: Checkpoint, preset: Preset
) -> TokenRules:
    """Return the token rules of the model config.

    Args:
        options: the options.
        checkpoint: the model.
        preset: the search preset.

    Raises:
        OptionError: if the search does not support them.
    """
    rules = checkpoint.get_token_rules(preset.model_defaults)
    if not preset.has_token_rules and any(
        len(rule.eos_ids) > 1 for rule in checkpoint.rules.values()
    ):
        supported = " or ".join(
            name for name, other_preset in PRESETS.items() if other_preset.has_token_rules
        )
        raise OptionError(
            f"search {options.search.search}: multiple end tokens (eos_token_id of the model) are "
            f"not supported; use -search {supported} or keep one end token"
        )
    if rules.renormalize and options.search.beam_groups > 1:
        raise OptionError(
            "beam_groups cannot be combined with renormalize_logits of the model; "
            "remove beam_groups"
        )
    return rules


def choose_policy(
    options: TranslateOptions, preset: Preset, sampling: Sampling | None, separate_greedy: bool
) -> tuple[Policy, StopRule]:
    """Return the search policy and the stop rule.

    Args:
        options: the options.
        preset: the search preset.
        sampling: the sampling method, or None.
        separate_greedy: the preset has a separate greedy search, and the beam size is 1.
    """
    policy = preset.policy
    if options.search.n_best_unique:
        policy = replace(policy, distinct="text")
    if separate_greedy:
        policy = replace(policy, repetition="logits")
    if sampling is not None and sampling.mode == "rows":
        chains = replace(
            policy,
            candidates=1,
            idle_score=0.0,
            ended="keep",
            eos_candidates_per_beam=1,
            pool="all",
            open_rows_at_limit="end" if policy.open_rows_at_limit == "end" else "rows",
            distinct="copies",
        )
        return chains, Exhausted()  # each chain runs until it ends
    if sampling is not None and sampling.first_step_rows == "equal":
        policy = replace(policy, idle_score=0.0)
    if separate_greedy:
        return policy, Full()
    option_values = {**vars(options.search), "alpha": get_length_exponent(options, preset)}
    if options.search.coverage_penalty == "none":
        option_values["beta"] = 0.0
    return policy, preset.choose_stop_rule(option_values)


def get_length_exponent(options: TranslateOptions, preset: Preset) -> float:
    """Return the length exponent alpha; 0 without length normalization."""
    if preset.policy.average_ignores_alpha and options.search.length_penalty == "avg":
        return 1.0
    return 0.0 if options.search.length_penalty == "none" else options.search.alpha


def needs_log_softmax(options: TranslateOptions, checkpoint: Checkpoint) -> bool:
    """Return True if model output still needs a log-softmax.

    Logits do. The mean of the log-probabilities of several models does if the preset renormalizes
    it.
    """
    return checkpoint.needs_log_softmax or PRESETS[options.search.search].renormalizes_ensemble


# -- checks ---------------------------------------------------------------------------------------


def check_attention(options: TranslateOptions, checkpoint: Checkpoint) -> None:
    """Check the options that need attention.

    Raises:
        OptionError: if the model has no attention, or not the layer.
    """
    layer = options.attention.alignment_layer
    if not checkpoint.model.has_heads(HeadSelection(layer)):
        problem = (
            "{alignment_layer}: the decoder does not have this layer; use -1 for the last layer"
        )
        raise OptionError(Message.of(problem, alignment_layer=layer))
    needs_attention = {"replace_unk": options.text.replace_unk}
    needs_attention["report_align"] = options.attention.report_align
    needs_attention["attn_debug"] = options.attention.attn_debug
    needs_attention["coverage_penalty"] = options.search.coverage_penalty != "none"
    names = [name for name, is_set in needs_attention.items() if is_set]
    if names and not checkpoint.has_attention:
        raise OptionError(f"{', '.join(names)}: the model has no attention; remove the option")


def check_line_options(config: SearchConfig, lines: Sequence[Line], has_prefixes: bool) -> None:
    """Check that the search supports prefixes and phrases of lines.

    Args:
        config: the search configuration.
        lines: the lines with their phrases.
        has_prefixes: whether lines have target prefixes.

    Raises:
        OptionError: if it does not.
    """
    search, supported = config.options.search.search, config.preset.options
    if has_prefixes and "tgt_file_prefix" not in supported:
        raise OptionError(explain_missing_option("tgt_file_prefix", search, "prefixes"))
    forced, banned = any(line.forced for line in lines), any(line.banned for line in lines)
    for name, is_given in (("force_words", forced), ("ban_words", banned)):
        if is_given and name not in supported:
            raise OptionError(explain_missing_option(name, search))
    if forced and config.spec.sampling is not None:
        raise OptionError(FORCED_AND_SAMPLED)


# -- lines ----------------------------------------------------------------------------------------


def to_sentence(config: SearchConfig, example: Example) -> Sentence:
    """Return the input of the search for an example."""
    limits, phrases = (
        make_sentence_limits(config, example),
        _build_phrase_automaton(config, example),
    )
    return Sentence(example.src_ids, limits, example.copy_ids, phrases)


def make_sentence_limits(config: SearchConfig, example: Example) -> SentenceLimits:
    """Return the limits of the search for an example."""
    search, preset, spec = config.options.search, config.preset, config.spec
    prefix, n_uncounted_prefix = example.prefix_ids, 0
    if prefix and preset.prefix_outside_limits:
        # OpenNMT-py 3.5.1 treats the last prefix token like an end token
        n_uncounted_prefix = len(prefix) - 1
    steps = max(_get_max_target_tokens(config, example) + n_uncounted_prefix, len(prefix) + 1)
    first_step = n_uncounted_prefix + 1 - spec.n_counted_start
    return SentenceLimits(
        min(steps, config.checkpoint.model.max_positions - spec.n_forced_start),
        min_eos_step=search.min_length + spec.policy.min_length_offset + first_step,
        expected_length=search.ratio * _get_src_length(config, example),
        prefix=prefix,
        seed=derive_line_seed(config.options.sampling.seed, example.line.id),
        start=example.start,
    )


def prefix_reaches_limit(config: SearchConfig, example: Example) -> bool:
    """Return True if the prefix of a line reaches its maximum length."""
    n = len(example.prefix_ids)
    return (
        n > 0
        and not config.preset.prefix_outside_limits
        and n >= _get_max_target_tokens(config, example)
    )


def min_length_exceeds_limit(config: SearchConfig, example: Example) -> bool:
    """Return True if a line reaches its maximum length before `min_length` allows it to end."""
    if not config.options.search.min_length:
        return False
    limits = make_sentence_limits(config, example)
    return limits.min_eos_step > limits.max_steps


def has_forced_eos(config: SearchConfig, example: Example, hyp: Hypothesis) -> bool:
    """Return True if the search forced EOS at the maximum length, against the model (fairseq).

    Args:
        config: the search configuration.
        example: the line.
        hyp: a hypothesis.
    """
    log_probs = hyp.token_log_probs
    if config.spec.force_eos != "paid" or not hyp.ended or log_probs[-1] > math.log(0.5):
        return False
    return len(log_probs) >= make_sentence_limits(config, example).max_steps


def _get_max_target_tokens(config: SearchConfig, example: Example) -> int:
    """Return the maximum number of target tokens, by max_length and max_length_ratio."""
    search, preset = config.options.search, config.preset
    limit, ratio = search.max_length, search.max_length_ratio
    if ratio:
        ratio_limit = ratio * _get_src_length(config, example) + preset.limit_extra
        limit = min(limit, math.ceil(ratio_limit) if preset.limit_rounds_up else int(ratio_limit))
    # If the start token counts, a limit of one token allows only that
    return max(1, limit + config.spec.policy.steps_offset - config.spec.n_counted_start)


def _get_src_length(config: SearchConfig, example: Example) -> int:
    """Return the source length as the preset counts it."""
    return len(example.src_ids) if config.preset.limit_counts_src_eos else example.n_src_tokens


def _build_phrase_automaton(config: SearchConfig, example: Example) -> PhraseAutomaton | None:
    """Return the phrase automaton of a line, or None."""
    line = example.line
    if not (line.forced or line.banned):
        return None
    key = line.forced, line.banned, example.oov_words, example.is_uppercase
    if key not in config.automata:
        known = config.checkpoint
        surface_forms = known.uppercase_surfaces if example.is_uppercase else known.surface_forms
        config.automata[key] = PhraseAutomaton(surface_forms, *key[:3])
    return config.automata[key]
