"""What is wrong with the options of a translation together, and which of them have no effect.

Everything stands in the order of help's groups.  Of several rules that make an option idle, the
first one counts; see `onmt_lite.config.rules`.
"""

import difflib
from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from typing import get_args

from onmt_lite.config.extensions import SIMILAR_ENDINGS, format_of, wrong_endings
from onmt_lite.config.option import as_words, build
from onmt_lite.config.rules import (
    Clauses,
    Rule,
    Values,
    absent,
    at_least,
    given,
    idle,
    needs,
    note,
    one_of,
    refuse_all,
    requires,
)
from onmt_lite.config.search_options import PhraseOptions, SamplingOptions, SearchOptions
from onmt_lite.config.text_options import (
    OF_REFERENCES,
    OF_TRAINING,
    PERFORMED,
    REWRITING,
    SUBWORDS,
    DataOptions,
    TextOptions,
    parse_kwargs,
)
from onmt_lite.errors import Message
from onmt_lite.search.policy import FILTERS, Preset, Sampling
from onmt_lite.search.presets import PRESETS, SWITCHES

FEW_SENTENCES = 128  # up to here, a batch_size probably means sentences
FORCED_AND_DRAWN = "force_words and drawing at random exclude each other; leave one out"
ONE_LEFT = "random_sampling_topk 1 leaves one token to draw, as greedy search does"
END = "</s>"  # of OpenNMT-py's models
OUTSIDE = "apply it to the file before, and leave it out here"
NOT_PERFORMED = {  # transforms, and why
    **dict.fromkeys(("docify", "fuzzymatch", "terminology", "inlinetags"), OUTSIDE),
    "inferfeats": "models with word features are not read; leave it out",
    "insert_mask_before_placeholder": "language models are not read; leave it out",
}
SEARCHED = {f.name: f for g in (SearchOptions, SamplingOptions, PhraseOptions) for f in fields(g)}


# -- conditions of several rules ------------------------------------------------------------------


def has_form(penalty: str) -> Clauses:
    """Its option is not `none`, the first choice."""
    return one_of(penalty, *get_args(SEARCHED[penalty].type)[1:])


COVERING = has_form("coverage_penalty")
DRAWING = given("do_sample", *FILTERS)
CUTTING = {
    "-transforms sentencepiece or bpe or onmt_tokenize or -tokenizer sentencepiece or bpe": (
        lambda v: {*SUBWORDS} & {*v.transforms} or v.tokenizer in ("sentencepiece", "bpe")
    )
}


def cutting(v: Values) -> str:
    """Return the first transform that cuts lines; "" for none."""
    return next((name for name in v.transforms if name in SUBWORDS), "")


def preset(v: Values) -> Preset:
    return PRESETS[v.search]


def drawing(v: Values) -> Sampling | None:
    """Return how the search draws tokens at random; None if it does not."""
    sampling = preset(v).sampling
    return sampling if sampling and sampling.is_asked_for(v) else None


def draws_apart(v: Values) -> bool:
    """Return whether samples are drawn that do not compete."""
    sampling = drawing(v)
    return sampling is not None and (sampling.draws == "rows" or v.beam_size == 1)


def plain_average(v: Values) -> bool:
    """Return whether the length penalty is the length itself, whatever alpha."""
    return preset(v).policy.plain_avg and v.length_penalty == "avg"


# -- what is refused ------------------------------------------------------------------------------


def wrong_files(v: Values) -> Iterator[str]:
    """Of the group Input and output, and all other files."""
    yield from wrong_endings({n: v[n] for n in ("output", "report", "log_file", "save_config")})
    if not v.text_field:
        yield "text_field is empty; give the name of a field"
    if v.src == v.tgt == "-":
        yield "src and tgt cannot both be standard input; give one as a file"
    for name in ("force_words", "ban_words", "report"):
        if v[name] == "-":
            yield f"{name}: standard input and output are for translations; give a file"
    if v.score_only and v.tgt_file_prefix:
        yield "tgt is either scored (score_only) or a beginning (tgt_file_prefix)"
    if v.score_only and v.output_format not in ("auto", *OF_REFERENCES):
        remedy = f"with score_only give {' or '.join(OF_REFERENCES)}"
        yield v.say("{output_format} is for translations; {0}", remedy)


def format_written(v: Values) -> str:
    return build(DataOptions, v).format


def ending_contradicts(v: Values) -> bool:
    """Return whether the name of the output means another format than the one that is written."""
    meant = format_of(v.output, SIMILAR_ENDINGS)
    is_table = v.score_only and meant == "tsv" and format_written(v) == "text"  # has tabs too
    return meant not in (None, format_written(v)) and not is_table


def wrong_text(v: Values) -> Iterator[str]:
    """Of the groups Model and Text."""
    n_models = max(1, len(v.model))
    if v.model_weights and len(v.model_weights) != n_models:
        weights = f"{len(v.model_weights)} weights for {n_models} models"
        yield f"model_weights: {weights}; give one for each"
    cutters = ", ".join(SUBWORDS)
    twice = any(v.transforms.count(name) > 1 for name in PERFORMED + REWRITING)
    if twice or len({*v.transforms} & {*SUBWORDS}) > 1:
        yield f"transforms cut lines twice; give one of {cutters}, and each name once"
    if {*v.transforms} & {*PERFORMED} and v.tokenizer != "auto":
        yield "transforms and tokenizer both say how lines are cut; give one"
    if cutting(v) and v.detokenizer != "auto":
        both = f"transforms {cutting(v)} and detokenizer both say how output is joined"
        yield f"{both}; leave detokenizer out"
    for name in ("src_onmttok_kwargs", "tgt_onmttok_kwargs"):
        try:
            parse_kwargs(v[name])
        except ValueError as error:
            yield f"{name}: {error}"


def wrong_transforms(v: Values) -> Iterator[str]:
    known = PERFORMED + REWRITING + OF_TRAINING
    for name in v.transforms:
        if name in NOT_PERFORMED:
            yield f"transforms: {name} is not performed; {NOT_PERFORMED[name]}"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            there = f"there are {', '.join(PERFORMED + REWRITING)}"
            hint = f"did you mean {near[0]}?" if near else there
            yield f"transforms: {name[:50]!r} is unknown; {hint}"
    # End tokens that would be cut like the line around which they stand
    early = v.transforms[: v.transforms.index(cutting(v))] if cutting(v) else ()
    for name in sorted({"prefix", "suffix"}.intersection(early)):
        for side in ("src", "tgt"):
            if END in v[f"{side}_{name}"].split():
                problem = f"{side}_{name}: {END} would be cut like text"
                yield f"{problem}; put {name} after {cutting(v)} in transforms"


def missing_subword_models(v: Values) -> Iterator[str]:
    transform, ours = cutting(v), v.tokenizer in ("bpe", "sentencepiece")
    used = f"transforms {transform}" if transform else f"tokenizer {v.tokenizer}"
    src, tgt = (bool(file.path) for file in build(TextOptions, v).subword_files())
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


def wrong_search(v: Values) -> Iterator[str]:
    """Of the groups Search, Sampling and Phrases."""
    defaults = {name: field.default for name, field in SEARCHED.items()} | vars(DataOptions())
    for name in SWITCHES:
        if name not in preset(v).options and v[name] != defaults[name]:
            yield no_such_option(name, v.search)
    forms = {"length_penalty": preset(v).forms, "coverage_penalty": preset(v).coverage_forms}
    for name, have in forms.items():
        if v[name] not in have:
            there = " and ".join(have)
            yield v.say(f"{{{name}}}: -{{search}} has {{0}}; give one of these", there)
    if v.early_stopping == "never" and "early_stopping=never" not in preset(v).stops:
        yield v.say("{early_stopping}: -{search} has true and false; give one")
    if v.n_best > v.beam_size:
        yield v.say("{n_best} is more than {beam_size}; raise beam_size or lower n_best")
    if v.min_length > v.max_length:
        yield v.say("{min_length} is more than {max_length}; lower min_length or raise max_length")
    if v.beam_size % v.beam_groups:
        remedy = f"give a beam_size that is a multiple of {v.beam_groups}"
        yield v.say("{beam_groups} does not divide {beam_size}; {0}", remedy)
    sampling = drawing(v)
    if any(v[name] for name in ("do_sample", *FILTERS)):
        for name, asked in (("n_best_unique", v.n_best_unique), ("beam_groups", v.beam_groups > 1)):
            if asked:
                yield f"{name} and drawing at random exclude each other; leave one out"
    if v.n_best_unique and v.replace_unk and (v.report_align or v.alignment_layer is not None):
        heads = "replace_unk by alignment heads (report_align, alignment_layer)"
        yield f"n_best_unique cannot be combined with {heads}; leave one out"
    if sampling and not sampling.implied and not v.do_sample:
        yield f"{' and '.join(FILTERS)} need do_sample; give that too"
    if v.force_words and (v.do_sample or sampling):
        yield FORCED_AND_DRAWN


def no_such_option(name: str, search: str, shown: str = "") -> Message:
    """Say that a search lacks an option, which other searches have."""
    have = ", ".join(other for other, preset in PRESETS.items() if name in preset.options)
    why = Message.of("-{search} has no such option ({0})", PRESETS[search].system, search=search)
    rest = Message.of("leave it out, or choose from -{search}", search=have)
    return Message.of("{0}: {1}; {2}", shown or name, why, rest)


def wrong_job(v: Values) -> Iterator[str]:
    """Of the groups Speed, Jobs and Information."""
    if v.gpu and v.device != "auto":
        yield v.say("{gpu} and {device} both choose the device; give one")
    if len(v.gpu) > 1 and -1 in v.gpu:
        yield v.say("{gpu}: -1 is the CPU, which goes alone; leave it out")
    if len(v.gpu) > 1 and v.workers not in (None, 1, len(v.gpu)):
        yield v.say("{gpu} has one worker per GPU, not {0}; leave workers out", str(v.workers))
    if v.shard and Fraction(v.shard) > 1:
        yield v.say("{shard}: there are {0} parts; give one from 1", v.shard.split("/")[1])
    if v.shard and "-" in (v.src, v.tgt):
        yield "shard: lines of standard input cannot be counted first; give a file"
    if v.verbose and v.quiet:
        yield "verbose and quiet contradict each other; give one"


# -- the table ------------------------------------------------------------------------------------


RULES: tuple[Rule, ...] = (
    *map(refuse_all, (wrong_files, wrong_text, wrong_transforms, missing_subword_models)),
    *map(refuse_all, (wrong_search, wrong_job)),
    # Nothing is searched
    idle(
        " ".join([*SEARCHED, "with_score"]),
        lambda v: v.score_only,
        "score_only is true: nothing is searched",
    ),
    # Input and output
    idle(
        "text_field",
        lambda v: not any(map(build(DataOptions, v).is_jsonl, filter(None, (v.src, v.tgt)))),
        "the input is text; for objects give -input_format jsonl",
    ),
    needs("with_score", one_of("output_format", "text", "auto")),
    idle(
        "with_score",
        lambda v: format_written(v) != "text",
        lambda v: v.say("{output} is {0}, with_score needs output_format text", format_written(v)),
    ),
    note(
        ending_contradicts,
        lambda v: v.say(
            "{output}: {0} is written, though the name means {1}; give that output_format or "
            "another name",
            *(format_written(v), format_of(v.output, SIMILAR_ENDINGS) or ""),
        ),
    ),
    requires("score_only", given("tgt")),
    requires("tgt_file_prefix", given("tgt", "tgt_prefix")),
    # Model
    needs("model_weights avg_raw_probs", {"several -model": lambda v: len(v.model) > 1}),
    # Text
    needs("replace_unk", absent("ban_unk_token")),
    requires("phrase_table", given("replace_unk")),
    needs("split_longer", absent("score_only", "tgt_file_prefix", "gold_align")),
    note(
        lambda v: {*v.transforms} & {*OF_TRAINING},
        lambda v: (
            f"transforms: {', '.join(name for name in v.transforms if name in OF_TRAINING)}: "
            "for training only"
        ),
    ),
    note(
        lambda v: "uppercase" in v.transforms and v.upper_corpus_ratio < 1,
        lambda v: (
            "transforms: uppercase: without effect; upper_corpus_ratio is "
            f"{as_words(v.upper_corpus_ratio)}, uppercase needs 1"
        ),
    ),
    idle(
        "tgt_subword_model",
        lambda v: (
            v.share_vocab and len({f.path for f in build(TextOptions, v).subword_files()}) == 1
        ),
        "share_vocab uses src_subword_model for the target",
    ),
    needs("src_subword_model tgt_subword_model", CUTTING),
    needs("src_subword_vocab", given("src_vocab_threshold") | CUTTING),
    needs("tgt_subword_vocab", given("tgt_vocab_threshold") | CUTTING),
    needs("src_vocab_threshold", given("src_subword_vocab")),
    needs("tgt_vocab_threshold", given("tgt_subword_vocab")),
    needs(
        "src_subword_type tgt_subword_type src_onmttok_kwargs tgt_onmttok_kwargs",
        one_of("transforms", "onmt_tokenize"),
    ),
    needs("src_prefix", one_of("transforms", "prefix")),
    needs(
        "tgt_prefix",
        {
            "-transforms prefix or -tgt_file_prefix": (
                lambda v: "prefix" in v.transforms or v.tgt_file_prefix
            )
        },
    ),
    needs("src_suffix tgt_suffix", one_of("transforms", "suffix")),
    needs("penn norm_quote_commas norm_numbers", one_of("transforms", "normalize"), on=True),
    needs("pre_replace_unicode_punct post_remove_control_chars", one_of("transforms", "normalize")),
    needs("upper_corpus_ratio", one_of("transforms", "uppercase")),
    # Search: lengths and hypotheses
    needs("n_best_unique", at_least("n_best", 2)),
    note(
        lambda v: (
            v.max_length == preset(v).of_models.get("max_length") and "max_length" not in v.given
        ),
        "{max_length} cuts longer outputs off, as generate() does if the model's files set no "
        "limit; give max_length",
    ),
    needs("length_penalty", {"-alpha": lambda v: v.alpha or plain_average(v)}),
    idle(
        "alpha",
        plain_average,
        "-{search} divides by the length itself with length_penalty avg",
    ),
    needs("alpha", has_form("length_penalty")),
    # Search: n-grams and coverage
    idle(
        "block_ngram_repeat ignore_when_blocking",
        lambda v: (sampling := drawing(v)) and not sampling.blocks_ngrams,
        "-{search} blocks no n-grams if it draws them",
    ),
    idle(
        "block_ngram_repeat",
        lambda v: v.block_ngram_repeat >= v.max_length,
        "{max_length} leaves no room to repeat",
    ),
    idle(
        "block_ngram_repeat",
        lambda v: v.block_ngram_repeat == 1 and not preset(v).policy.ngrams_of_one,
        "-{search} blocks 2 tokens in a row or more",
    ),
    needs("ignore_when_blocking", given("block_ngram_repeat")),
    idle(
        "coverage_penalty beta stepwise_penalty",
        lambda v: (sampling := drawing(v)) and not sampling.covers,
        "-{search} has no coverage penalty if it draws tokens",
    ),
    needs("coverage_penalty", given("beta")),
    needs("beta", COVERING),
    needs("stepwise_penalty", COVERING | given("beta")),
    # Search: when it stops
    idle("early_stopping", draws_apart, "tokens are drawn, and each sample ends by itself"),
    idle(
        "early_stopping patience",
        lambda v: preset(v).greedy_apart and v.beam_size == 1,
        "beam_size is 1, and greedy search ends with the first end token",
    ),
    needs("ratio", absent("do_sample", *FILTERS)),
    needs("patience", {"-alpha or -beta": lambda v: v.alpha or v.beta or plain_average(v)}),
    requires("diversity_rate", at_least("beam_groups", 2)),
    # Sampling
    note(
        lambda v: (
            v.given.get("random_sampling_topk") == 1
            and v.beam_size > 1
            and (sampling := drawing(v))
            and sampling.implied
        ),
        "{random_sampling_topk} takes the best token each time, as greedy search does; for a beam "
        "leave it out, or give 0",
    ),
    requires("random_sampling_temp", DRAWING, usual=1.0),
    idle(
        "beam_size",
        lambda v: (
            (sampling := drawing(v))
            and sampling.chains == "n_best"
            and v.beam_size not in (1, v.n_best)
        ),
        "tokens are drawn, and n_best says how many samples there are",
    ),
    idle(
        " ".join(["seed", *(name for name in FILTERS if name != "random_sampling_topk")]),
        lambda v: v.random_sampling_topk == 1 and draws_apart(v),
        ONE_LEFT,
    ),
    idle(
        "seed",
        lambda v: v.random_sampling_topk == 1 and preset(v).sampling and not drawing(v),
        ONE_LEFT,
    ),
    needs("seed", DRAWING),
    # Attention
    needs("alignment_layer", given("report_align", "attn_debug", "replace_unk")),
    needs("alignment_heads", given("report_align", "attn_debug", "alignment_layer")),
    requires(
        "gold_align",
        given("report_align") | given("tgt") | absent("replace_unk", "tgt_file_prefix"),
    ),
    # Speed
    note(
        lambda v: (
            1 < v.given.get("batch_size", 0) <= FEW_SENTENCES
            and "batch_type" not in v.given
            and not v.deterministic
        ),
        lambda v: Message.of(
            "{batch_size} counts tokens, which is slow; for sentences: -{batch_type}",
            batch_size=v.batch_size,
            batch_type="sents",
        ),
    ),
    needs("batch_size batch_type threads", absent("deterministic")),
    # Jobs and information
    needs("log_file_level", given("log_file")),
    needs("report_bleu", given("tgt") | absent("tgt_file_prefix", "score_only")),
)
