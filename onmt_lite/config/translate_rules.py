"""Rules of the translator: combinations of options that are errors or have no effect.

The rules are in the order of the groups in the help.  If several rules apply to an option without
effect, the first one is reported; see `onmt_lite.config.rules`.
"""

from typing import get_args

from onmt_lite.config.extensions import LIKELY_EXTENSIONS, format_from_path
from onmt_lite.config.option import build_group, format_value
from onmt_lite.config.rules import (
    Conditions,
    Rule,
    any_set,
    at_least,
    effective_only_with,
    no_effect_if,
    none_set,
    notice_if,
    reject_all,
    requires,
    value_in,
)
from onmt_lite.config.text_options import (
    SUBWORD_TRANSFORMS,
    TRAINING_TRANSFORMS,
    DataOptions,
    TextOptions,
)
from onmt_lite.config.translate_checks import (
    SEARCH_FIELDS,
    check_files,
    check_jobs,
    check_search,
    check_subword_models,
    check_text,
    check_transforms,
    get_output_format,
    get_preset,
    get_sampling,
    has_misleading_extension,
    samples_independently,
    uses_plain_average,
)
from onmt_lite.errors import Message
from onmt_lite.search.policy import FILTERS

FEW_SENTENCES = 128  # a smaller batch_size probably counts sentences
TOP_1_IS_GREEDY = "random_sampling_topk 1 allows only the most probable token, like greedy search"


def has_penalty(penalty: str) -> Conditions:
    """Return the condition that a penalty is not `none`, its first choice."""
    return value_in(penalty, *get_args(SEARCH_FIELDS[penalty].type)[1:])


COVERAGE = has_penalty("coverage_penalty")
SAMPLING = any_set("do_sample", *FILTERS)
SUBWORD_MODEL = {
    "-transforms sentencepiece, bpe or onmt_tokenize, or -tokenizer sentencepiece or bpe": (
        lambda v: {*SUBWORD_TRANSFORMS} & {*v.transforms} or v.tokenizer in ("sentencepiece", "bpe")
    )
}


RULES: tuple[Rule, ...] = (
    *map(reject_all, (check_files, check_text, check_transforms, check_subword_models)),
    *map(reject_all, (check_search, check_jobs)),
    # Scoring only
    no_effect_if(
        " ".join([*SEARCH_FIELDS, "with_score"]),
        lambda v: v.score_only,
        "score_only runs no search",
    ),
    # Input and output
    no_effect_if(
        "text_field",
        lambda v: not any(map(build_group(DataOptions, v).is_jsonl, filter(None, (v.src, v.tgt)))),
        "the input is plain text; use -input_format jsonl for JSON objects",
    ),
    effective_only_with("with_score", value_in("output_format", "text", "auto")),
    no_effect_if(
        "with_score",
        lambda v: get_output_format(v) != "text",
        lambda v: v.fill(
            "it requires output_format text, but {output} is {0}", get_output_format(v)
        ),
    ),
    notice_if(
        has_misleading_extension,
        lambda v: v.fill(
            "{output}: the format is {0}, but the extension suggests {1}; set output_format or "
            "rename the file",
            *(get_output_format(v), format_from_path(v.output, LIKELY_EXTENSIONS) or ""),
        ),
    ),
    requires("score_only", any_set("tgt")),
    requires("tgt_file_prefix", any_set("tgt", "tgt_prefix")),
    # Model
    no_effect_if(
        "model_weights avg_raw_probs", lambda v: len(v.model) < 2, "it requires several models"
    ),
    # Text
    effective_only_with("replace_unk", none_set("ban_unk_token")),
    requires("phrase_table", any_set("replace_unk")),
    effective_only_with("split_longer", none_set("score_only", "tgt_file_prefix", "gold_align")),
    notice_if(
        lambda v: {*v.transforms} & {*TRAINING_TRANSFORMS},
        lambda v: (
            f"transforms: {', '.join(n for n in v.transforms if n in TRAINING_TRANSFORMS)}: "
            "has no effect; it is used in training only"
        ),
    ),
    notice_if(
        lambda v: "uppercase" in v.transforms and v.upper_corpus_ratio < 1,
        lambda v: (
            "transforms: uppercase: has no effect; upper_corpus_ratio is "
            f"{format_value(v.upper_corpus_ratio)}, but uppercase requires 1"
        ),
    ),
    no_effect_if(
        "tgt_subword_model",
        lambda v: (
            v.share_vocab
            and len({f.path for f in build_group(TextOptions, v).list_subword_files()}) == 1
        ),
        "share_vocab uses src_subword_model for the target",
    ),
    effective_only_with("src_subword_model tgt_subword_model", SUBWORD_MODEL),
    effective_only_with("src_subword_vocab", any_set("src_vocab_threshold") | SUBWORD_MODEL),
    effective_only_with("tgt_subword_vocab", any_set("tgt_vocab_threshold") | SUBWORD_MODEL),
    effective_only_with("src_vocab_threshold", any_set("src_subword_vocab")),
    effective_only_with("tgt_vocab_threshold", any_set("tgt_subword_vocab")),
    effective_only_with(
        "src_subword_type tgt_subword_type src_onmttok_kwargs tgt_onmttok_kwargs",
        value_in("transforms", "onmt_tokenize"),
    ),
    effective_only_with("src_prefix", value_in("transforms", "prefix")),
    effective_only_with(
        "tgt_prefix",
        {
            "-transforms prefix or -tgt_file_prefix": (
                lambda v: "prefix" in v.transforms or v.tgt_file_prefix
            )
        },
    ),
    effective_only_with("src_suffix tgt_suffix", value_in("transforms", "suffix")),
    effective_only_with(
        "penn norm_quote_commas norm_numbers", value_in("transforms", "normalize"), on=True
    ),
    effective_only_with(
        "pre_replace_unicode_punct post_remove_control_chars", value_in("transforms", "normalize")
    ),
    effective_only_with("upper_corpus_ratio", value_in("transforms", "uppercase")),
    # Search: lengths and hypotheses
    effective_only_with("n_best_unique", at_least("n_best", 2)),
    notice_if(
        lambda v: (
            v.max_length == get_preset(v).model_fallbacks.get("max_length")
            and "max_length" not in v.given
        ),
        "{max_length} truncates longer translations, as generate() does if the model config sets "
        "no limit; set max_length",
    ),
    effective_only_with("length_penalty", {"-alpha": lambda v: v.alpha or uses_plain_average(v)}),
    no_effect_if(
        "alpha",
        uses_plain_average,
        "-{search} ignores alpha with length_penalty avg",
    ),
    effective_only_with("alpha", has_penalty("length_penalty")),
    # Search: n-grams and coverage
    no_effect_if(
        "block_ngram_repeat ignore_when_blocking",
        lambda v: (sampling := get_sampling(v)) and not sampling.blocks_ngrams,
        "-{search} does not support n-gram blocking with sampling",
    ),
    no_effect_if(
        "block_ngram_repeat",
        lambda v: v.block_ngram_repeat >= v.max_length,
        "{max_length} is too short for a repeated n-gram",
    ),
    no_effect_if(
        "block_ngram_repeat",
        lambda v: v.block_ngram_repeat == 1 and not get_preset(v).policy.blocks_unigrams,
        "-{search} blocks n-grams of 2 or more tokens only",
    ),
    effective_only_with("ignore_when_blocking", any_set("block_ngram_repeat")),
    no_effect_if(
        "coverage_penalty beta stepwise_penalty",
        lambda v: (sampling := get_sampling(v)) and not sampling.applies_coverage,
        "-{search} does not support a coverage penalty with sampling",
    ),
    effective_only_with("coverage_penalty", any_set("beta")),
    effective_only_with("beta", COVERAGE),
    effective_only_with("stepwise_penalty", COVERAGE | any_set("beta")),
    # Search: stopping
    no_effect_if(
        "early_stopping",
        samples_independently,
        "each sample ends independently",
    ),
    no_effect_if(
        "early_stopping patience",
        lambda v: get_preset(v).has_separate_greedy and v.beam_size == 1,
        "greedy search (beam_size 1) stops at the first end token",
    ),
    effective_only_with("ratio", none_set("do_sample", *FILTERS)),
    effective_only_with(
        "patience", {"-alpha or -beta": lambda v: v.alpha or v.beta or uses_plain_average(v)}
    ),
    requires("diversity_rate", at_least("beam_groups", 2)),
    # Sampling
    notice_if(
        lambda v: (
            v.given.get("random_sampling_topk") == 1
            and v.beam_size > 1
            and (sampling := get_sampling(v))
            and sampling.implied_by_filters
        ),
        "{random_sampling_topk} always picks the most probable token, like greedy search; for beam "
        "search, remove it or set it to 0",
    ),
    requires("random_sampling_temp", SAMPLING, usual=1.0),
    no_effect_if(
        "beam_size",
        lambda v: (
            (sampling := get_sampling(v))
            and sampling.n_chains == "n_best"
            and v.beam_size not in (1, v.n_best)
        ),
        "with sampling, n_best sets the number of samples",
    ),
    no_effect_if(
        " ".join(["seed", *(name for name in FILTERS if name != "random_sampling_topk")]),
        lambda v: v.random_sampling_topk == 1 and samples_independently(v),
        TOP_1_IS_GREEDY,
    ),
    no_effect_if(
        "seed",
        lambda v: v.random_sampling_topk == 1 and get_preset(v).sampling and not get_sampling(v),
        TOP_1_IS_GREEDY,
    ),
    effective_only_with("seed", SAMPLING),
    # Attention
    effective_only_with("alignment_layer", any_set("report_align", "attn_debug", "replace_unk")),
    effective_only_with(
        "alignment_heads", any_set("report_align", "attn_debug", "alignment_layer")
    ),
    requires(
        "gold_align",
        any_set("report_align") | any_set("tgt") | none_set("replace_unk", "tgt_file_prefix"),
    ),
    # Speed
    notice_if(
        lambda v: (
            1 < v.given.get("batch_size", 0) <= FEW_SENTENCES
            and "batch_type" not in v.given
            and not v.deterministic
        ),
        lambda v: Message.of(
            "{batch_size} counts tokens, and small batches are slow; use -{batch_type} to count "
            "sentences",
            batch_size=v.batch_size,
            batch_type="sents",
        ),
    ),
    effective_only_with("batch_size batch_type threads", none_set("deterministic")),
    # Jobs and information
    effective_only_with("log_file_level", any_set("log_file")),
    effective_only_with("report_bleu", any_set("tgt") | none_set("tgt_file_prefix", "score_only")),
)
