"""Presets: the beam search of each system that `-search NAME` reproduces, as data.

See `onmt_lite.search.policy` for the fields.  To add a system, add a `Preset`; no other code refers
to preset names.
"""

from dataclasses import replace
from typing import Any

from onmt_lite.search.policy import FILTERS, Policy, Preset, Sampling
from onmt_lite.search.stopping import Bound, Exhausted, Full, LengthRatio, TopEnded

# Options that not all systems support.  Presets reject those missing from their `options`
SWITCHES = (
    "min_length",
    "coverage_penalty",
    "beta",
    "stepwise_penalty",
    "block_ngram_repeat",
    "ignore_when_blocking",
    "repetition_penalty",
    "ban_unk_token",
    "early_stopping",
    "patience",
    "ratio",
    "tgt_file_prefix",
    "force_words",
    "ban_words",
    "beam_groups",
    "diversity_rate",
    "do_sample",
    "random_sampling_temp",
    *FILTERS,
)
LENGTH_AND_NGRAMS = {"min_length", "block_ngram_repeat"}
BANS = frozenset({"ban_words"})  # not in the originals; added to every search that can apply it
COVERAGE = {"coverage_penalty", "beta"}
SAMPLES = {"do_sample", "random_sampling_temp", "random_sampling_topk", "random_sampling_topp"}
GROUPS = {"beam_groups", "diversity_rate"}
OPENNMT = LENGTH_AND_NGRAMS | COVERAGE | {"stepwise_penalty", "ignore_when_blocking"}
OPENNMT_3 = {"ban_unk_token", "ratio", "tgt_file_prefix"}
TRANSFORMERS = LENGTH_AND_NGRAMS | SAMPLES | BANS | {"early_stopping", "repetition_penalty"}
TRANSFORMERS_4 = TRANSFORMERS | {"tgt_file_prefix"}

TOP_P_FIRST = ("random_sampling_topp", "random_sampling_topk")
OPENNMT_SAMPLING = Sampling("rows", "log_probs", filters=TOP_P_FIRST, implied_by_filters=True)
# All versions of transformers
TRANSFORMERS_COMMON: dict[str, Any] = dict(
    defaults=dict(early_stopping="false", max_length_ratio=0.0),
    sampling_defaults=dict(random_sampling_topk=50),
    free_forced_eos=True,
    penalties_see_start=True,
    has_separate_greedy=True,
    counts_language_token=True,
)
TRANSFORMERS_4_COMMON = TRANSFORMERS_COMMON | dict(
    model_defaults="transformers-4", model_fallbacks=dict(beam_size=1, max_length=20)
)

# tensor2tensor and tf-models-official: the length penalty of Wu et al. 2016, and at most 50 tokens
# more than the source
GNMT_COMMON: dict[str, Any] = dict(
    defaults=dict(
        beam_size=4, length_penalty="wu", alpha=0.6, max_length=100_000, max_length_ratio=1.0
    ),
    length_penalties=("none", "wu"),
    max_length_replaces_ratio=True,
    limit_extra=50,
    limit_counts_src_eos=True,
)

PRESETS = {
    # The OpenNMT-py beam of 2018 without its bugs
    "opennmt": Preset(
        "onmt_lite",
        Policy(
            candidates=1,
            ended="keep",
            pool="all",
            open_rows_at_limit="rows",
            allow_repeat_if_stuck=True,
            distinct="text",
        ),
        {
            "ratio=0.0": TopEnded(sticky=True, need="beam_size"),
            "": LengthRatio(need="beam_size"),
        },
        options=frozenset(OPENNMT | SAMPLES | OPENNMT_3 | BANS | {"force_words"}),
        length_penalties=("none", "wu", "avg"),
        sampling=replace(OPENNMT_SAMPLING, n_chains="n_best", top_1_means_beam=True),
    ),
    # Results depend on the batch, as in the original
    "opennmt-2018": Preset(
        "OpenNMT-py, commit ead41bbc (November 2018)",
        Policy(
            candidates=1,
            ended="keep",
            min_length_offset=-1,
            ngrams="row",
            average_ignores_alpha=True,
            length_offset=1,
            open_length_offset=1,
            stepwise_penalty_from=2,
            pool="all",
            open_rows_at_limit="lost",
            has_2018_bugs=True,
            distinct="copies",
        ),
        {"": TopEnded(sticky=True, need="n_best")},
        defaults=dict(length_penalty="none", alpha=0.0, max_length=100, max_length_ratio=0.0),
        options=frozenset(OPENNMT),
        length_penalties=("none", "wu", "avg"),
    ),
    "opennmt-3": Preset(
        "OpenNMT-py 3.5.1",
        Policy(
            candidates=1,
            ended="keep",
            blocks_unigrams=False,
            length_offset=1,
            open_length_offset=1,
            stepwise_penalty_from=2,
            pool="all",
            open_rows_at_limit="rows",
        ),
        {
            "ratio=0.0": TopEnded(sticky=False, need="n_best"),
            "": LengthRatio(need="n_best", offset=2),
        },
        defaults=dict(max_length_ratio=1.25),
        options=frozenset(OPENNMT | SAMPLES | OPENNMT_3 | BANS),
        limit_counts_src_eos=True,
        prefix_outside_limits=True,
        penalties_see_start=True,
        renormalizes_ensemble=True,
        length_penalties=("none", "wu", "avg"),
        sampling=replace(OPENNMT_SAMPLING, blocks_ngrams=False, applies_coverage=False),
    ),
    "tensor2tensor": Preset(
        "tensor2tensor, commit bafdc1b",
        Policy(idle_score=-1e7, eos_candidates_per_beam=2, open_rows_at_limit="if_none"),
        {
            "n_best=1": Bound("live", "max", finished="one", beats="best", strictly=True),
            "": Bound("live", "max", strictly=True),
        },
        options=BANS,
        **GNMT_COMMON,
    ),
    "tensorflow": Preset(
        "tf-models-official 2.20.0",
        Policy(eos_candidates_per_beam=2, open_rows_at_limit="if_none"),
        {"": Bound("live", "max", finished="one", strictly=True)},
        options=BANS,
        **GNMT_COMMON,
    ),
    "transformers-2": Preset(
        "transformers 2.11.0",
        Policy(
            idle_score=-1e9,
            repetition="logits",
            min_length_offset=-1,
            open_length_offset=1,
            steps_offset=-1,
            ties="later",
        ),
        {"early_stopping=true": Full(), "": Bound("candidates", "now")},
        options=frozenset(TRANSFORMERS),
        sampling=Sampling("beam", "logits", min_tokens_to_keep=2, first_step_rows="equal"),
        **TRANSFORMERS_4_COMMON,
    ),
    "transformers": Preset(
        "transformers 4.46.3",
        Policy(idle_score=-1e9, min_length_offset=-1, steps_offset=-1, ties="later"),
        {
            "early_stopping=true": Full(),
            "early_stopping=never": Bound("candidates", "max_if_rewarded"),
            "": Bound("candidates", "now"),
        },
        options=frozenset(TRANSFORMERS_4 | GROUPS),
        prefix_in_score="nothing",
        sampling=Sampling("beam", "log_probs", min_tokens_to_keep=2),
        has_token_rules=True,
        **TRANSFORMERS_4_COMMON,
    ),
    "transformers-5": Preset(
        "transformers 5.23.0",
        Policy(idle_score=-1e9, min_length_offset=-1, steps_offset=-1, open_rows_at_limit="rows"),
        {
            "early_stopping=true": Full(),
            "early_stopping=never": Bound("live", "max_if_rewarded"),
            "": Bound("live", "now"),
        },
        options=frozenset(TRANSFORMERS_4),
        prefix_in_score="nothing",
        sampling=Sampling("beam", "log_probs", ranked_by="draw", min_tokens_to_keep=2),
        model_defaults="transformers-5",
        model_fallbacks=dict(beam_size=1, max_length=21),
        has_token_rules=True,
        phrases_see_start=True,
        **TRANSFORMERS_COMMON,
    ),
    # The first k finished hypotheses win
    "fairseq": Preset(
        "fairseq 0.12.2, n-gram blocking by the rule of 0.10.2",
        Policy(
            drop_last_candidate=True,
            blocks_unigrams=False,
            groups="interleaved",
            pool="first",
            open_rows_at_limit="end",
            steps_offset=1,
        ),
        {"": Full()},
        defaults=dict(min_length=1, max_length=200, max_length_ratio=0.0, avg_raw_probs=True),
        options=frozenset(
            LENGTH_AND_NGRAMS | SAMPLES | GROUPS | BANS | {"ban_unk_token", "tgt_file_prefix"}
        ),
        sampling=Sampling("rows", "logits"),
    ),
    "ctranslate2": Preset(
        "CTranslate2 4.8.5",
        Policy(
            masks="logits",
            repetition="logits",
            ended="in_place",
            eos_after_forced="best",
            skips_unattended=True,
            pool="all",
            open_rows_at_limit="rows",
        ),
        {"alpha=0.0 beta=0.0": TopEnded(sticky=True, need="n_best"), "": Full()},
        defaults=dict(
            beam_size=2, min_length=1, max_length=256, patience=1.0, max_length_ratio=0.0
        ),
        options=frozenset(
            LENGTH_AND_NGRAMS
            | COVERAGE
            | BANS
            | {"patience", "repetition_penalty", "ban_unk_token", "tgt_file_prefix"}
        ),
        max_source=1024,
        prefix_in_score="length",
        coverage_penalties=("none", "wu"),
        counts_language_token=True,
        has_separate_greedy=True,
    ),
    # The beam shrinks with each finished hypothesis
    "marian": Preset(
        "Marian, commit c9f287d",
        Policy(candidates=1, ended="shrink", pool="all", open_rows_at_limit="rows"),
        {"": Exhausted()},
        defaults=dict(
            beam_size=12, alpha=0.0, max_length=100_000, max_length_ratio=3.0, ban_unk_token=True
        ),
        options=BANS | {"ban_unk_token", "tgt_file_prefix"},
        model_defaults="marian",
        max_length_replaces_ratio=True,
        limit_extra=0,
        limit_counts_src_eos=True,
        limit_rounds_up=True,
    ),
}
