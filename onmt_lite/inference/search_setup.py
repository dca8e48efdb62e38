"""Search setup: options and a model to the configuration of a search, and its limits for a line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.translate_checks import FORCED_AND_SAMPLED, explain_missing_option
from onmt_lite.errors import Message, OptionError
from onmt_lite.inference.records import Example
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
MAX_BEAM_SIZE = 1000  # the largest beam_size that options take


@dataclass(frozen=True)
class SearchConfig:
    """A search with these options and this model."""

    options: TranslateOptions
    checkpoint: Checkpoint
    preset: Preset
    spec: SearchSpec  # what the loop and its beams do
    n_returned: int  # hypotheses that are read from a beam
    replaces_unk_later: bool = (
        False  # unknown tokens are replaced after the search, by chosen heads
    )
    dedups_text_later: bool = False  # texts must differ, and are known only after that
    # Phrases of lines as the search follows them, shared by lines that have the same
    automata: dict[tuple[Any, ...], PhraseAutomaton] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def can_deduplicate(self) -> bool:
        """Whether equal lines have equal translations."""
        return self.spec.sampling is None and not self.spec.policy.depends_on_batch


def make_search_config(options: TranslateOptions, checkpoint: Checkpoint) -> SearchConfig:
    """The search that the options ask for.  OptionError if the model lacks what they need."""
    check_attention(options, checkpoint)
    preset = PRESETS[options.search.search]
    spec = search_spec(options, checkpoint, preset)
    replaces_unk_later = options.text.replace_unk and options.attention.uses_alignment
    dedups_text_later = replaces_unk_later and spec.policy.distinct == "text"
    if dedups_text_later:  # all hypotheses are read, since no one knows yet which texts are equal
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
    """The same search with twice the beam.  It goes on until as many hypotheses are complete as the
    beam has room for: some stop rules hold earlier, whatever the texts are."""
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


def search_spec(options: TranslateOptions, checkpoint: Checkpoint, preset: Preset) -> SearchSpec:
    """The spec of a search that looks for different texts itself and aligns nothing."""
    search, drawing, vocab = options.search, options.sampling, checkpoint.tgt_vocab
    sampling, values = preset.sampling, {**vars(search), **vars(drawing)}
    if sampling and not sampling.is_enabled(values):
        sampling = None
    if sampling and search.beam_size == 1:  # tokens are drawn directly
        sampling = replace(sampling, mode="rows", min_tokens_to_keep=1)
    separate_greedy = preset.has_separate_greedy and search.beam_size == 1
    n_forced = checkpoint.count_forced_tokens(options.model.tgt_lang)
    n_counted = n_forced if preset.counts_language_token else 0
    covers = sampling is None or sampling.applies_coverage
    coverage = search.coverage_penalty if covers else "none"
    blocks = sampling is None or sampling.blocks_ngrams
    of_n_best = sampling is not None and sampling.n_chains == "n_best"
    policy, stop = choose_policy(options, preset, sampling, separate_greedy)
    rules = select_token_rules(options, checkpoint, preset)
    eos_ids = rules.eos_ids or (checkpoint.eos_id,)
    if sampling and sampling.mode == "beam":
        sampling = replace(
            sampling, min_tokens_to_keep=sampling.min_tokens_to_keep + len(eos_ids) - 1
        )
    never, banned = rules.banned_ids, tuple[int, ...]()
    if checkpoint.exclude_banned_from_softmax:
        never, banned = banned, never
    if search.ban_unk_token and vocab.unk_id is not None:
        banned = (*banned, vocab.unk_id)
    force_eos: Literal["no", "paid", "free"] = (
        "paid" if policy.open_rows_at_limit == "end" else "no"
    )
    if preset.free_forced_eos and rules.forced_eos:
        force_eos = "free"
    exempt = (vocab.ids.get(token) for token in search.ignore_when_blocking)
    return SearchSpec(
        policy,
        stop,
        search.n_best if of_n_best else search.beam_size,
        bos_id=checkpoint.start_id,
        eos_id=eos_ids[0],
        n_best=search.n_best,
        beam_groups=search.beam_groups,
        diversity_rate=search.diversity_rate,
        length_penalty=search.length_penalty,
        alpha=length_exponent(options, preset),
        coverage_penalty=coverage,
        beta=search.beta,
        stepwise_penalty=search.stepwise_penalty and coverage != "none",
        patience=1.0 if separate_greedy else search.patience or 1.0,
        banned_after_softmax=never,
        banned_ids=banned,
        token_rules=rules,
        phrases_see_start=preset.phrases_see_start,
        start_in_history=(preset.penalties_see_start, *[n_counted > 0] * n_forced),
        n_counted_start=n_counted,
        prefix_in_score=preset.prefix_in_score,
        block_ngram_repeat=search.block_ngram_repeat if blocks else 0,
        exempt_ids=tuple(i for i in exempt if i is not None),
        repetition_penalty=search.repetition_penalty,
        force_eos=force_eos,
        sampling=sampling,
        temperature=drawing.random_sampling_temp,
        filters=sampling.active_filters(values) if sampling else (),
        needs_log_softmax=needs_log_softmax(options, checkpoint),
        src_pad_id=checkpoint.src_vocab.pad_id or 0,
        src_margins=checkpoint.src_margins,
    )


def select_token_rules(
    options: TranslateOptions, checkpoint: Checkpoint, preset: Preset
) -> TokenRules:
    """The rules of the model's files.  OptionError if the search cannot follow them."""
    rules = checkpoint.get_token_rules(preset.model_defaults)
    if not preset.has_token_rules and any(len(r.eos_ids) > 1 for r in checkpoint.rules.values()):
        known = " or ".join(name for name, other in PRESETS.items() if other.has_token_rules)
        raise OptionError(
            f"search {options.search.search}: several end tokens (eos_token_id of the model) are "
            f"not supported; use -search {known} or leave one"
        )
    if rules.renormalize and options.search.beam_groups > 1:
        raise OptionError(
            "renormalize_logits of the model and beam_groups exclude each other; leave beam_groups "
            "out"
        )
    return rules


def choose_policy(
    options: TranslateOptions, preset: Preset, sampling: Sampling | None, separate_greedy: bool
) -> tuple[Policy, StopRule]:
    """The policy and the stop rule."""
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
        return chains, Exhausted()  # each goes on until it ends
    if sampling is not None and sampling.first_step_rows == "equal":
        policy = replace(policy, idle_score=0.0)
    if separate_greedy:
        return policy, Full()
    values = {**vars(options.search), "alpha": length_exponent(options, preset)}
    if options.search.coverage_penalty == "none":
        values["beta"] = 0.0
    return policy, preset.choose_stop_rule(values)


def length_exponent(options: TranslateOptions, preset: Preset) -> float:
    """Alpha; 0 without a length penalty, whichever option says so."""
    if preset.policy.average_ignores_alpha and options.search.length_penalty == "avg":
        return 1.0
    return 0.0 if options.search.length_penalty == "none" else options.search.alpha


def needs_log_softmax(options: TranslateOptions, checkpoint: Checkpoint) -> bool:
    """Whether what the model returns is normalised: logits are, and the mean of several models'
    log-probabilities if the search does so."""
    return checkpoint.needs_log_softmax or PRESETS[options.search.search].renormalizes_ensemble


# -- what the model or the search cannot do -------------------------------------------------------


def check_attention(options: TranslateOptions, checkpoint: Checkpoint) -> None:
    """OptionError for options that need attention, or a layer of it, that the model lacks."""
    layer = options.attention.alignment_layer
    if not checkpoint.model.has_heads(HeadSelection(layer)):
        problem = "{alignment_layer}: the model's decoder has no such layer; -1 is its last"
        raise OptionError(Message.of(problem, alignment_layer=layer))
    wanted = {"replace_unk": options.text.replace_unk}
    wanted["report_align"] = options.attention.report_align
    wanted["attn_debug"] = options.attention.attn_debug
    wanted["coverage_penalty"] = options.search.coverage_penalty != "none"
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    if names and not checkpoint.has_attention:
        raise OptionError(f"{', '.join(names)}: the model has no attention; leave it out")


def check_line_options(config: SearchConfig, lines: Sequence[Line], has_prefixes: bool) -> None:
    """OptionError for prefixes or phrases of lines if the search cannot follow them."""
    search, known = config.options.search.search, config.preset.options
    if has_prefixes and "tgt_file_prefix" not in known:
        raise OptionError(explain_missing_option("tgt_file_prefix", search, "prefixes"))
    forced, banned = any(line.forced for line in lines), any(line.banned for line in lines)
    for name, is_given in (("force_words", forced), ("ban_words", banned)):
        if is_given and name not in known:
            raise OptionError(explain_missing_option(name, search))
    if forced and config.spec.sampling is not None:
        raise OptionError(FORCED_AND_SAMPLED)


# -- one line -------------------------------------------------------------------------------------


def to_sentence(config: SearchConfig, example: Example) -> Sentence:
    """An example as the search takes it."""
    limits, phrases = sentence_limits(config, example), _phrases(config, example)
    return Sentence(example.src_ids, limits, example.copy_ids, phrases)


def sentence_limits(config: SearchConfig, example: Example) -> SentenceLimits:
    """The limits that the options set for a line."""
    search, preset, spec = config.options.search, config.preset, config.spec
    prefix, n_apart = example.prefix_ids, 0
    if prefix and preset.prefix_outside_limits:
        n_apart = len(prefix) - 1  # 3.5.1 takes the last one for an end token
    steps = max(_most_tokens(config, example) + n_apart, len(prefix) + 1)
    first = n_apart + 1 - spec.n_counted_start
    return SentenceLimits(
        min(steps, config.checkpoint.model.max_positions - spec.n_forced_start),
        min_eos_step=search.min_length + spec.policy.min_length_offset + first,
        expected_length=search.ratio * _src_length(config, example),
        prefix=prefix,
        seed=derive_line_seed(config.options.sampling.seed, example.line.id),
        start=example.start,
    )


def prefix_reaches_limit(config: SearchConfig, example: Example) -> bool:
    """Whether the line's prefix leaves no room for more."""
    n = len(example.prefix_ids)
    return n > 0 and not config.preset.prefix_outside_limits and n >= _most_tokens(config, example)


def min_length_exceeds_limit(config: SearchConfig, example: Example) -> bool:
    """Whether the line's limit comes before `min_length` lets a translation end."""
    limits = sentence_limits(config, example)
    return config.options.search.min_length > 0 and limits.min_eos_step > limits.max_steps


def _most_tokens(config: SearchConfig, example: Example) -> int:
    """The options' limit or the line's own, whichever is lower."""
    search, preset = config.options.search, config.preset
    limit, ratio = search.max_length, search.max_length_ratio
    if ratio:
        of_line = ratio * _src_length(config, example) + preset.limit_extra
        limit = min(limit, math.ceil(of_line) if preset.limit_rounds_up else int(of_line))
    # A limit of one token leaves room for the start token alone if that is counted
    return max(1, limit + config.spec.policy.steps_offset - config.spec.n_counted_start)


def _src_length(config: SearchConfig, example: Example) -> int:
    return len(example.src_ids) if config.preset.limit_counts_src_eos else example.n_src_tokens


def _phrases(config: SearchConfig, example: Example) -> PhraseAutomaton | None:
    """The phrases of a line, if it has any."""
    line = example.line
    if not (line.forced or line.banned):
        return None
    key = line.forced, line.banned, example.oov_words, example.is_uppercase
    if key not in config.automata:
        known = config.checkpoint
        surface_forms = known.uppercase_surfaces if example.is_uppercase else known.surface_forms
        config.automata[key] = PhraseAutomaton(surface_forms, *key[:3])
    return config.automata[key]
