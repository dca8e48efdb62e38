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

FORCED_AND_SAMPLED = "force_words and drawing at random exclude each other; leave one out"
END_TOKEN = "</s>"  # of OpenNMT-py's models
APPLY_BEFORE = "apply it to the file before, and leave it out here"
UNSUPPORTED_TRANSFORMS = {  # transforms, and why
    **dict.fromkeys(("docify", "fuzzymatch", "terminology", "inlinetags"), APPLY_BEFORE),
    "inferfeats": "models with word features are not read; leave it out",
    "insert_mask_before_placeholder": "language models are not read; leave it out",
}
SEARCH_FIELDS = {
    f.name: f for g in (SearchOptions, SamplingOptions, PhraseOptions) for f in fields(g)
}


def find_subword_transform(v: Values) -> str:
    """Return the first transform that cuts lines; "" for none."""
    return next((name for name in v.transforms if name in SUBWORD_TRANSFORMS), "")


def get_preset(v: Values) -> Preset:
    return PRESETS[v.search]


def get_sampling(v: Values) -> Sampling | None:
    """Return how the search draws tokens at random; None if it does not."""
    sampling = get_preset(v).sampling
    return sampling if sampling and sampling.is_enabled(v) else None


def samples_independently(v: Values) -> bool:
    """Return whether samples are drawn that do not compete."""
    sampling = get_sampling(v)
    return sampling is not None and (sampling.mode == "rows" or v.beam_size == 1)


def uses_plain_average(v: Values) -> bool:
    """Return whether the length penalty is the length itself, whatever alpha."""
    return get_preset(v).policy.average_ignores_alpha and v.length_penalty == "avg"


def check_files(v: Values) -> Iterator[str]:
    """Of the group Input and output, and all other files."""
    yield from find_bad_extensions(
        {n: v[n] for n in ("output", "report", "log_file", "save_config")}
    )
    if not v.text_field:
        yield "text_field is empty; give the name of a field"
    if v.src == v.tgt == "-":
        yield "src and tgt cannot both be standard input; give one as a file"
    for name in ("force_words", "ban_words", "report"):
        if v[name] == "-":
            yield f"{name}: standard input and output are for translations; give a file"
    if v.score_only and v.tgt_file_prefix:
        yield "tgt is either scored (score_only) or a beginning (tgt_file_prefix)"
    if v.score_only and v.output_format not in ("auto", *SCORE_FORMATS):
        remedy = f"with score_only give {' or '.join(SCORE_FORMATS)}"
        yield v.fill("{output_format} is for translations; {0}", remedy)


def get_output_format(v: Values) -> str:
    return build_group(DataOptions, v).format


def has_misleading_extension(v: Values) -> bool:
    """Return whether the name of the output means another format than the one that is written."""
    meant = format_from_path(v.output, LIKELY_EXTENSIONS)
    is_table = v.score_only and meant == "tsv" and get_output_format(v) == "text"  # has tabs too
    return meant not in (None, get_output_format(v)) and not is_table


def check_text(v: Values) -> Iterator[str]:
    """Of the groups Model and Text."""
    n_models = max(1, len(v.model))
    if v.model_weights and len(v.model_weights) != n_models:
        weights = f"{len(v.model_weights)} weights for {n_models} models"
        yield f"model_weights: {weights}; give one for each"
    cutters = ", ".join(SUBWORD_TRANSFORMS)
    twice = any(v.transforms.count(name) > 1 for name in TOKEN_TRANSFORMS + TEXT_TRANSFORMS)
    if twice or len({*v.transforms} & {*SUBWORD_TRANSFORMS}) > 1:
        yield f"transforms cut lines twice; give one of {cutters}, and each name once"
    if {*v.transforms} & {*TOKEN_TRANSFORMS} and v.tokenizer != "auto":
        yield "transforms and tokenizer both say how lines are cut; give one"
    if find_subword_transform(v) and v.detokenizer != "auto":
        both = (
            f"transforms {find_subword_transform(v)} and detokenizer both say how output is joined"
        )
        yield f"{both}; leave detokenizer out"
    for name in ("src_onmttok_kwargs", "tgt_onmttok_kwargs"):
        try:
            parse_kwargs(v[name])
        except ValueError as error:
            yield f"{name}: {error}"


def check_transforms(v: Values) -> Iterator[str]:
    known = TOKEN_TRANSFORMS + TEXT_TRANSFORMS + TRAINING_TRANSFORMS
    for name in v.transforms:
        if name in UNSUPPORTED_TRANSFORMS:
            yield f"transforms: {name} is not performed; {UNSUPPORTED_TRANSFORMS[name]}"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            there = f"there are {', '.join(TOKEN_TRANSFORMS + TEXT_TRANSFORMS)}"
            hint = f"did you mean {near[0]}?" if near else there
            yield f"transforms: {name[:50]!r} is unknown; {hint}"
    # End tokens that would be cut like the line around which they stand
    early = (
        v.transforms[: v.transforms.index(find_subword_transform(v))]
        if find_subword_transform(v)
        else ()
    )
    for name in sorted({"prefix", "suffix"}.intersection(early)):
        for side in ("src", "tgt"):
            if END_TOKEN in v[f"{side}_{name}"].split():
                problem = f"{side}_{name}: {END_TOKEN} would be cut like text"
                yield f"{problem}; put {name} after {find_subword_transform(v)} in transforms"


def check_subword_models(v: Values) -> Iterator[str]:
    transform, ours = find_subword_transform(v), v.tokenizer in ("bpe", "sentencepiece")
    used = f"transforms {transform}" if transform else f"tokenizer {v.tokenizer}"
    src, tgt = (bool(file.path) for file in build_group(TextOptions, v).subword_files())
    if transform == "onmt_tokenize":
        src |= v.src_subword_type == "none"
        tgt |= v.tgt_subword_type == "none"
    # Our own switch joins output by its marks: it can do without a model of the target
    reads_target = not transform and ours and src and v.tgt is not None
    if (transform or v.tokenizer == "bpe") and not src:
        yield f"{used} needs src_subword_model; name the file that cuts the source with it"
    elif (transform or reads_target) and not tgt:
        why = " to read -tgt" if reads_target else ""
        remedy = "give it, or share_vocab if it is the same file"
        yield f"{used} needs tgt_subword_model{why}; {remedy}"


def check_search(v: Values) -> Iterator[str]:
    """Of the groups Search, Sampling and Phrases."""
    defaults = {name: field.default for name, field in SEARCH_FIELDS.items()} | vars(DataOptions())
    for name in SWITCHES:
        if name not in get_preset(v).options and v[name] != defaults[name]:
            yield explain_missing_option(name, v.search)
    forms = {
        "length_penalty": get_preset(v).length_penalties,
        "coverage_penalty": get_preset(v).coverage_penalties,
    }
    for name, have in forms.items():
        if v[name] not in have:
            there = " and ".join(have)
            yield v.fill(f"{{{name}}}: -{{search}} has {{0}}; give one of these", there)
    if v.early_stopping == "never" and "early_stopping=never" not in get_preset(v).stop_rules:
        yield v.fill("{early_stopping}: -{search} has true and false; give one")
    if v.n_best > v.beam_size:
        yield v.fill("{n_best} is more than {beam_size}; raise beam_size or lower n_best")
    if v.min_length > v.max_length:
        yield v.fill("{min_length} is more than {max_length}; lower min_length or raise max_length")
    if v.beam_size % v.beam_groups:
        remedy = f"give a beam_size that is a multiple of {v.beam_groups}"
        yield v.fill("{beam_groups} does not divide {beam_size}; {0}", remedy)
    sampling = get_sampling(v)
    if any(v[name] for name in ("do_sample", *FILTERS)):
        for name, asked in (("n_best_unique", v.n_best_unique), ("beam_groups", v.beam_groups > 1)):
            if asked:
                yield f"{name} and drawing at random exclude each other; leave one out"
    if v.n_best_unique and v.replace_unk and (v.report_align or v.alignment_layer is not None):
        heads = "replace_unk by alignment heads (report_align, alignment_layer)"
        yield f"n_best_unique cannot be combined with {heads}; leave one out"
    if sampling and not sampling.implied_by_filters and not v.do_sample:
        yield f"{' and '.join(FILTERS)} need do_sample; give that too"
    if v.force_words and (v.do_sample or sampling):
        yield FORCED_AND_SAMPLED


def explain_missing_option(name: str, search: str, shown: str = "") -> Message:
    """Say that a search lacks an option, which other searches have."""
    have = ", ".join(other for other, preset in PRESETS.items() if name in preset.options)
    why = Message.of("-{search} has no such option ({0})", PRESETS[search].system, search=search)
    rest = Message.of("leave it out, or choose from -{search}", search=have)
    return Message.of("{0}: {1}; {2}", shown or name, why, rest)


def check_jobs(v: Values) -> Iterator[str]:
    """Of the groups Speed, Jobs and Information."""
    if v.gpu and v.device != "auto":
        yield v.fill("{gpu} and {device} both choose the device; give one")
    if len(v.gpu) > 1 and -1 in v.gpu:
        yield v.fill("{gpu}: -1 is the CPU, which goes alone; leave it out")
    if len(v.gpu) > 1 and v.workers not in (None, 1, len(v.gpu)):
        yield v.fill("{gpu} has one worker per GPU, not {0}; leave workers out", str(v.workers))
    if v.shard and Fraction(v.shard) > 1:
        yield v.fill("{shard}: there are {0} parts; give one from 1", v.shard.split("/")[1])
    if v.shard and "-" in (v.src, v.tgt):
        yield "shard: lines of standard input cannot be counted first; give a file"
    if v.verbose and v.quiet:
        yield "verbose and quiet contradict each other; give one"
