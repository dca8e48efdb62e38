"""Checks of translation options: combinations that are errors."""

import difflib
from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction

from onmt_lite.config.extensions import LIKELY_EXTENSIONS, find_bad_extensions, format_from_path
from onmt_lite.config.option import build_group
from onmt_lite.config.rules import Values
from onmt_lite.config.search_options import PhraseOptions, SamplingOptions, SearchOptions
from onmt_lite.config.text_options import (
    SCORE_FORMATS,
    SUBWORD_TRANSFORMS,
    TEXT_TRANSFORMS,
    TOKEN_TRANSFORMS,
    TRAINING_TRANSFORMS,
    DataOptions,
    TextOptions,
    parse_kwargs,
)
from onmt_lite.errors import Message
from onmt_lite.search.policy import FILTERS, Preset, Sampling
from onmt_lite.search.presets import PRESETS, SWITCHES

FORCED_AND_SAMPLED = "force_words cannot be combined with sampling; remove one of them"
END_TOKEN = "</s>"  # in OpenNMT-py models
APPLY_BEFORE = "apply it to the input file first, and remove it here"
UNSUPPORTED_TRANSFORMS = {  # transforms, and what to do instead
    **dict.fromkeys(("docify", "fuzzymatch", "terminology", "inlinetags"), APPLY_BEFORE),
    "inferfeats": "remove it (models with word features are not supported)",
    "insert_mask_before_placeholder": "remove it (language models are not supported)",
}
SEARCH_FIELDS = {
    f.name: f for g in (SearchOptions, SamplingOptions, PhraseOptions) for f in fields(g)
}


def find_subword_transform(v: Values) -> str:
    """Return the first transform that splits words into subwords; "" if there is none."""
    return next((name for name in v.transforms if name in SUBWORD_TRANSFORMS), "")


def get_preset(v: Values) -> Preset:
    """Return the preset of -search."""
    return PRESETS[v.search]


def get_sampling(v: Values) -> Sampling | None:
    """Return how the search samples tokens; None if it does not sample."""
    sampling = get_preset(v).sampling
    return sampling if sampling and sampling.is_enabled(v) else None


def samples_independently(v: Values) -> bool:
    """Return True if samples of a sentence do not compete in a beam."""
    sampling = get_sampling(v)
    return sampling is not None and (sampling.mode == "rows" or v.beam_size == 1)


def uses_plain_average(v: Values) -> bool:
    """Return True if scores are divided by the length, regardless of alpha."""
    return get_preset(v).policy.average_ignores_alpha and v.length_penalty == "avg"


def get_output_format(v: Values) -> str:
    """Return the resolved output format."""
    return build_group(DataOptions, v).format


def has_misleading_extension(v: Values) -> bool:
    """Return True if the extension of the output means a format other than the one written."""
    likely = format_from_path(v.output, LIKELY_EXTENSIONS)
    is_score_table = v.score_only and likely == "tsv" and get_output_format(v) == "text"
    return likely not in (None, get_output_format(v)) and not is_score_table  # which has tabs


# -- errors, by group of options -----------------------------------------------------------------


def check_files(v: Values) -> Iterator[str]:
    """Yield errors of the group Input and output, and of all other files."""
    yield from find_bad_extensions(
        {n: v[n] for n in ("output", "report", "log_file", "save_config")}
    )
    if not v.text_field:
        yield "text_field is empty; set it to the name of a JSON field"
    if v.src == v.tgt == "-":
        yield "src and tgt cannot both be standard input; use a file for one of them"
    for name in ("force_words", "ban_words", "report"):
        if v[name] == "-":
            yield f"{name}: standard input and output are reserved for translation; use a file"
    if v.score_only and v.tgt_file_prefix:
        yield (
            "score_only and tgt_file_prefix cannot be combined: tgt is either a reference or a "
            "prefix; remove one of them"
        )
    if v.score_only and v.output_format not in ("auto", *SCORE_FORMATS):
        remedy = f"use {' or '.join(SCORE_FORMATS)}"
        yield v.fill("{output_format} is not supported with score_only; {0}", remedy)


def check_text(v: Values) -> Iterator[str]:
    """Yield errors of the groups Model and Text."""
    n_models = max(1, len(v.model))
    if v.model_weights and len(v.model_weights) != n_models:
        n_weights = len(v.model_weights)
        weights = f"{n_weights} weight{'s' * (n_weights > 1)}"
        models = f"{n_models} model{'s' * (n_models > 1)}"
        yield f"model_weights: {weights} for {models}; set one weight per model"
    names = ", ".join(SUBWORD_TRANSFORMS)
    has_duplicate = any(v.transforms.count(name) > 1 for name in TOKEN_TRANSFORMS + TEXT_TRANSFORMS)
    if has_duplicate or len({*v.transforms} & {*SUBWORD_TRANSFORMS}) > 1:
        yield f"transforms would be applied twice; use one of {names}, and each name once"
    if {*v.transforms} & {*TOKEN_TRANSFORMS} and v.tokenizer != "auto":
        yield "transforms and tokenizer cannot be combined; remove one of them"
    if subwords := find_subword_transform(v):
        if v.detokenizer != "auto":
            yield f"transforms {subwords} already sets how to detokenize; remove detokenizer"
    for name in ("src_onmttok_kwargs", "tgt_onmttok_kwargs"):
        try:
            parse_kwargs(v[name])
        except ValueError as error:
            yield f"{name}: {error}"


def check_transforms(v: Values) -> Iterator[str]:
    """Yield errors of transforms."""
    known = TOKEN_TRANSFORMS + TEXT_TRANSFORMS + TRAINING_TRANSFORMS
    for name in v.transforms:
        if name in UNSUPPORTED_TRANSFORMS:
            yield f"transforms: {name} is not supported; {UNSUPPORTED_TRANSFORMS[name]}"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            available = f"use one of {', '.join(TOKEN_TRANSFORMS + TEXT_TRANSFORMS)}"
            hint = f"did you mean {near[0]}?" if near else available
            yield f"transforms: unknown transform {name[:50]!r}; {hint}"
    # An end token added before the line is tokenized would be split like text
    subwords = find_subword_transform(v)
    early = v.transforms[: v.transforms.index(subwords)] if subwords else ()
    for name in sorted({"prefix", "suffix"}.intersection(early)):
        for side in ("src", "tgt"):
            if END_TOKEN in v[f"{side}_{name}"].split():
                problem = f"{side}_{name}: {END_TOKEN} would be split into subwords"
                yield f"{problem}; put {name} after {subwords} in transforms"


def check_subword_models(v: Values) -> Iterator[str]:
    """Yield an error if a subword model is missing."""
    transform, is_ours = find_subword_transform(v), v.tokenizer in ("bpe", "sentencepiece")
    user = f"transforms {transform}" if transform else f"tokenizer {v.tokenizer}"
    src, tgt = (bool(file.path) for file in build_group(TextOptions, v).list_subword_files())
    if transform == "onmt_tokenize":
        src |= v.src_subword_type == "none"
        tgt |= v.tgt_subword_type == "none"
    # -tokenizer detokenizes by the subword marks, so it needs a target model only to read tgt
    reads_tgt = not transform and is_ours and src and v.tgt is not None
    if (transform or v.tokenizer == "bpe") and not src:
        yield f"{user} requires src_subword_model; set it to the subword model of the source"
    elif (transform or reads_tgt) and not tgt:
        why = " to read tgt" if reads_tgt else ""
        remedy = "set it, or share_vocab to use the same file"
        yield f"{user} requires tgt_subword_model{why}; {remedy}"


def check_search(v: Values) -> Iterator[str]:
    """Yield errors of the groups Search, Sampling and Phrases."""
    defaults = {name: field.default for name, field in SEARCH_FIELDS.items()} | vars(DataOptions())
    for name in SWITCHES:
        if name not in get_preset(v).options and v[name] != defaults[name]:
            yield explain_missing_option(name, v.search)
    penalties = {
        "length_penalty": get_preset(v).length_penalties,
        "coverage_penalty": get_preset(v).coverage_penalties,
    }
    for name, supported in penalties.items():
        if v[name] not in supported:
            values = " or ".join(supported)
            yield v.fill(f"{{{name}}} is not supported by -{{search}}; use {{0}}", values)
    if v.early_stopping == "never" and "early_stopping=never" not in get_preset(v).stop_rules:
        yield v.fill("{early_stopping} is not supported by -{search}; use true or false")
    if v.n_best > v.beam_size:
        yield v.fill("{n_best} is more than {beam_size}; raise beam_size or lower n_best")
    if v.min_length > v.max_length:
        yield v.fill("{min_length} is more than {max_length}; lower min_length or raise max_length")
    if v.beam_size % v.beam_groups:
        remedy = f"set beam_size to a multiple of {v.beam_groups}"
        yield v.fill("{beam_groups} does not divide {beam_size}; {0}", remedy)
    sampling = get_sampling(v)
    if any(v[name] for name in ("do_sample", *FILTERS)):
        for name, is_on in (("n_best_unique", v.n_best_unique), ("beam_groups", v.beam_groups > 1)):
            if is_on:
                yield f"{name} cannot be combined with sampling; remove one of them"
    if v.n_best_unique and v.replace_unk and (v.report_align or v.alignment_layer is not None):
        heads = "replace_unk by alignment heads (report_align, alignment_layer)"
        yield f"n_best_unique cannot be combined with {heads}; remove one of them"
    if sampling and not sampling.implied_by_filters and not v.do_sample:
        yield f"{' and '.join(FILTERS)} require do_sample; set it as well"
    if v.force_words and (v.do_sample or sampling):
        yield FORCED_AND_SAMPLED


def explain_missing_option(name: str, search: str, subject: str = "") -> Message:
    """Return the error for an option that only other searches support.

    Args:
        name: The option.
        search: The value of -search.
        subject: Start of the message (default: the option).

    Returns:
        The message, with the searches that support the option.
    """
    supporting = ", ".join(s for s, preset in PRESETS.items() if name in preset.options)
    problem = Message.of(
        "is not supported by -{search} ({0})", PRESETS[search].system, search=search
    )
    remedy = Message.of("remove it, or use one of -{search}", search=supporting)
    return Message.of("{0}: {1}; {2}", subject or name, problem, remedy)


def check_jobs(v: Values) -> Iterator[str]:
    """Yield errors of the groups Speed, Jobs and Information."""
    if v.gpu and v.device != "auto":
        yield v.fill("{gpu} and {device} cannot be combined; remove one of them")
    if len(v.gpu) > 1 and -1 in v.gpu:
        yield v.fill("{gpu}: -1 is the CPU and cannot be combined with GPUs; remove it")
    if len(v.gpu) > 1 and v.workers not in (None, 1, len(v.gpu)):
        yield v.fill("{gpu} uses one worker per GPU, not {0}; remove workers", str(v.workers))
    if v.shard and Fraction(v.shard) > 1:
        n_parts = v.shard.split("/")[1]
        yield v.fill("{shard}: there are only {0} parts; use a part from 1 to {0}", n_parts)
    if v.shard and "-" in (v.src, v.tgt):
        yield "shard: lines of standard input cannot be counted in advance; use a file"
    if v.verbose and v.quiet:
        yield "verbose and quiet cannot be combined; remove one of them"
