"""Every option of `translate.py`, once.  `onmt_lite.config.schema` merges their sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from onmt_lite.config.attention_options import AttentionOptions
from onmt_lite.config.information_options import InformationOptions
from onmt_lite.config.opennmt_options import FOREIGN
from onmt_lite.config.peers import remark_on
from onmt_lite.config.phrase_options import PhraseOptions, check_phrases
from onmt_lite.config.schema import (
    DEVICE,
    META,
    Option,
    Program,
    Resolved,
    Resolver,
    as_words,
    check,
    idle,
    load,
    opt,
    options_of,
    refusals,
)
from onmt_lite.config.text_options import TextOptions, check_text, text_notes, transform_notes
from onmt_lite.errors import OptionError
from onmt_lite.search.model_defaults import read_decoder, read_defaults
from onmt_lite.search.presets import PRESETS, SWITCHES

USAGE = """\
[-config FILE ...] [options]

Translates lines of text: standard input to standard output unless -src and -output
name files.  Options are spelt -name VALUE, --name VALUE or --name=VALUE, and are the
keys of YAML files too; the command line wins over YAML, YAML over the default."""

DRAWING = "-do_sample or -random_sampling_topk or -random_sampling_topp"
NO_DRAWING = "no -do_sample and no -random_sampling_topk and no -random_sampling_topp"
# Of a log, by name and the same by number
LEVELS = tuple("NOTSET DEBUG INFO WARNING ERROR CRITICAL 0 10 20 30 40 50".split())
SENTENCES = 128  # up to here, who gives a batch_size probably means sentences


@dataclass(frozen=True)
class ModelOptions:
    """What translates."""

    title: ClassVar[str] = "Model"

    model: tuple[str, ...] = opt(
        (),
        "Translate with this model: a directory (ours, Hugging Face, Marian, CTranslate2, "
        "fairseq), a .pt file of OpenNMT-py, an .npz file of Marian, the .json file of a table "
        "model, or the name of a shipped model; several models are an ensemble. Without -model: "
        "de-en, German to English",
        value="PATH",
        example="opus-mt-de-en",
    )
    src_lang: str = opt(
        "",
        "Translate from this language, by the code that the model has for it; a line that begins "
        "with >>SRC:TGT<< has its own. The default is what the model's files say",
        value="CODE",
        example="deu_Latn -tgt_lang eng_Latn -model nllb-200-distilled-600M",
    )
    tgt_lang: str = opt(
        "",
        "Translate into this language; a line that begins with >>TGT<< has its own. "
        "-print_model lists the codes",
        value="CODE",
        example="eng_Latn -src_lang deu_Latn -model nllb-200-distilled-600M",
    )
    model_weights: tuple[float, ...] = opt(
        (),
        "Weigh the models of an ensemble, one weight each; without weights all count alike",
        above=0,
        max=1e6,
        needs="several -model",
        example="2 1 -model first.pt second.pt",
    )
    avg_raw_probs: bool = opt(
        False,
        "Average probabilities in an ensemble, not log-probabilities",
        needs="several -model",
        example="-model first.pt second.pt",
    )


@dataclass(frozen=True)
class DataOptions:
    """What is read and written."""

    title: ClassVar[str] = "Input and output"

    src: str = opt(
        "-",
        "Translate this file, one sentence per line, plain or gzip; - is standard input",
        value="FILE",
        example="input.de",
    )
    input_format: Literal["auto", "text", "jsonl"] = opt(
        "auto",
        "Read lines of text, or one JSON object per line (`jsonl`), whose other fields are passed "
        "on to -output_format jsonl; `auto` is jsonl for names that end in .jsonl or .jsonl.gz",
        example="jsonl",
    )
    text_field: str = opt(
        "text",
        "Translate this field of the objects of a JSONL input",
        value="NAME",
        example="sentence -src input.jsonl",
    )
    output: str = opt(
        "-",
        "Write the translations to this file, complete or not at all; - is standard output",
        value="FILE",
        example="output.en",
    )
    output_format: Literal["text", "jsonl", "moses", "tsv"] = opt(
        "text",
        "Write n_best lines per source line (`text`), one JSON object per source line (`jsonl`), "
        "lines `id ||| text ||| log_prob= X ||| score` (`moses`), or `id`, `rank`, `score`, "
        "`log_prob` and `text` with tabs between them (`tsv`)",
        example="jsonl",
    )
    with_score: bool = opt(
        False,
        "Append a tab and the score to each translation",
        needs="-output_format text",
    )
    token_scores: bool = opt(
        False,
        "Append a tab and the log-probabilities of all tokens and the end token to each "
        "translation; in moses they are the feature `WordScores=`, in jsonl the field "
        "`word_log_probs` has the sums of words",
    )
    tgt: str | None = opt(
        None,
        "Score the reference translations in this file, line by line, and report their "
        "log-probabilities (GOLD)",
        value="FILE",
        example="reference.en",
    )
    score_only: bool = opt(
        False,
        "Translate nothing: write the log-probability of each line of tgt, its tokens (the end "
        "token counted) and its perplexity, with tabs between them, or objects with "
        "-output_format jsonl",
        requires="-tgt",
        example="-tgt reference.en",
    )
    tgt_file_prefix: bool = opt(
        False,
        "Begin each translation with its line of tgt; without tgt, all with the words of "
        "tgt_prefix",
        requires="-tgt or -tgt_prefix",
        example="-tgt begin.en",
    )

    def is_jsonl(self, path: str) -> bool:
        """Whether the lines of an input, src or tgt, are JSON objects.

        -input_format jsonl speaks of src; a tgt of objects has a name that says so.
        """
        if path == self.src and self.input_format == "jsonl":
            return True
        return self.input_format != "text" and path.lower().endswith((".jsonl", ".jsonl.gz"))


@dataclass(frozen=True)
class SearchOptions:
    """Which translation is looked for.  What an option means, and what it is if it is not given,
    can depend on `search`."""

    title: ClassVar[str] = "Search"

    search: str = opt(
        "opennmt",
        "Search as this system does: `opennmt` is our own search, the others equal their "
        "originals token for token and bring their own defaults",
        choices=tuple(PRESETS),
        example="fairseq",
    )
    beam_size: int = opt(
        5, "Keep N hypotheses per sentence; 1 is greedy search", min=1, max=1000, example="8"
    )
    n_best: int = opt(
        1, "Return the N best hypotheses per sentence, at most beam_size", min=1, example="5"
    )
    n_best_unique: bool = opt(
        False,
        "Return n_best hypotheses with different texts: where a line has fewer, double its beam "
        "until there are enough or no more are found, at most up to 1,000",
        needs="-n_best 2 or more",
        example="-n_best 5",
    )
    min_length: int = opt(0, "Allow the end only after N tokens", min=0, example="3")
    max_length: int = opt(
        250,
        "Stop after N tokens, the end token counted",
        min=1,
        max=100000,
        example="100",
    )
    max_length_ratio: float = opt(
        2.0,
        "Stop after X*S+5 tokens in a line of S source tokens (tensor2tensor, tensorflow: X*S+50, "
        "marian: X*S), unless max_length of these three is given; 0 sets no such limit",
        min=0,
        max=1000,
        example="1.5",
    )
    length_penalty: Literal["none", "wu", "avg"] = opt(
        "avg",
        "Divide the log_prob of T tokens by T^alpha (`avg`), ((5+T)/6)^alpha (`wu`) or 1 (`none`) "
        "to get the score",
        needs="-alpha",
        example="wu -alpha 0.6",
    )
    alpha: float = opt(
        1.0,
        "Set the exponent of the length penalty; above 1 favours long translations",
        min=-10,
        max=10,
        needs="-length_penalty avg or wu",
        example="0.6",
    )
    block_ngram_repeat: int = opt(
        0, "Forbid the second occurrence of any N tokens in a row; 0 is off", min=0, example="3"
    )
    ignore_when_blocking: tuple[str, ...] = opt(
        (),
        "Allow the repetition of n-grams that hold one of these tokens",
        value="TOKEN",
        needs="-block_ngram_repeat",
        example=". , -block_ngram_repeat 3",
    )
    repetition_penalty: float = opt(
        1.0,
        "Multiply the log-probabilities of tokens that the translation already holds by X",
        above=0,
        max=100,
        example="1.2 -search transformers",
    )
    ban_unk_token: bool = opt(False, "Never produce the unknown token")
    coverage_penalty: Literal["none", "wu", "summary"] = opt(
        "none",
        "Lower the score for source tokens attended too little (`wu`: -sum log min(c,1)) or too "
        "much (`summary`: sum max(c,1) - S)",
        needs="-beta",
        example="wu -beta 0.2",
    )
    beta: float = opt(
        0.0,
        "Set the weight of the coverage penalty",
        min=0,
        max=1000,
        needs="-coverage_penalty wu or summary",
        example="0.2 -coverage_penalty wu",
    )
    stepwise_penalty: bool = opt(
        False,
        "Apply the coverage penalty at every step, not only to finished hypotheses",
        needs="-coverage_penalty wu or summary and -beta",
        example="-coverage_penalty summary -beta 5",
    )
    early_stopping: Literal["true", "false", "never"] | None = opt(
        None,
        "Stop when beam_size hypotheses are finished (`true`), when no open one is likely to be "
        "better (`false`), or when none can be (`never`)",
        example="true -search transformers",
    )
    ratio: float = opt(
        0.0,
        "Stop when the best finished hypothesis scores at least as much per token as the first "
        "row does per token of a translation X times as long as the source; 0 is off",
        min=0,
        max=1000,
        needs=NO_DRAWING,
        example="1.2",
    )
    patience: float | None = opt(
        None,
        "Stop when beam_size * X hypotheses are finished",
        above=0,
        max=1000,
        needs="-alpha or -beta",
        example="2 -search ctranslate2",
    )
    beam_groups: int = opt(
        1,
        "Split the beam into N groups, which diversity_rate keeps apart (diverse beam search)",
        min=1,
        max=1000,
        example="3 -beam_size 6 -diversity_rate 0.5 -search transformers",
    )
    diversity_rate: float = opt(
        0.0,
        "Take X off the score of a token each time an earlier group has chosen the token",
        min=0,
        max=1000,
        requires="-beam_groups 2 or more",
        example="0.5 -beam_groups 3 -beam_size 6 -search transformers",
    )


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn at random."""

    title: ClassVar[str] = "Sampling"

    do_sample: bool = opt(
        False,
        "Draw tokens at random: n_best samples per sentence (opennmt-3, fairseq: the n_best of "
        "beam_size samples; transformers: beam sampling)",
        example="-n_best 5",
    )
    random_sampling_topk: int = opt(
        0,
        "Draw from the N best tokens; 0 and -1 set no limit. The opennmt searches draw when this "
        "or random_sampling_topp is given, the others need -do_sample; 1 alone, the default of "
        "2018, leaves a beam of -search opennmt as it is",
        min=-1,
        example="10",
    )
    random_sampling_topp: float = opt(
        0.0,
        "Draw from the best tokens that have this probability together; 0 sets no limit",
        min=0,
        max=1,
        example="0.9",
    )
    random_sampling_temp: float = opt(
        1.0,
        "Draw from probabilities raised to 1/X: above 1 more evenly, below 1 more greedily",
        above=0,
        max=1000,
        requires=DRAWING,
        example="0.7 -do_sample",
    )
    seed: int = opt(
        829,
        "Start the random numbers here; the same seed draws the same tokens for a line",
        min=0,
        max=2**63 - 1,
        needs=DRAWING,
        example="42 -do_sample",
    )


@dataclass(frozen=True)
class SpeedOptions:
    """Where it runs, in which precision, and how much at once."""

    title: ClassVar[str] = "Speed"

    batch_size: int | None = opt(
        None,
        "Decode N at once, in units of batch_type; without it, as many as suit the model and "
        "the device",
        min=1,
        example="64 -batch_type sents",
        needs="no -deterministic",
    )
    batch_type: Literal["tokens", "sents"] = opt(
        "tokens",
        "Count a batch in source tokens or in sentences",
        example="sents",
        needs="no -deterministic",
    )
    device: str = opt(
        "auto",
        "Run on `cpu`, `cuda`, `cuda:N`, or (`auto`) on a GPU if there is one",
        form=DEVICE,
        value="DEVICE",
        example="cuda:1",
    )
    gpu: tuple[int, ...] = opt(
        (),
        "Run on GPU number N, -1 on the CPU: OpenNMT's spelling of -device; with several numbers, "
        "on all of these GPUs, one worker each",
        min=-1,
        max=99,
        example="0",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = opt(
        "auto",
        "Compute with numbers of this type. `int8`, on a CPU: linear layers multiply bytes. `auto` "
        "is int8 on a processor that is made for it, unless the model is small or -search names "
        "another system, fp32 on other CPUs, and bf16 on a GPU that has it",
        example="fp32",
    )
    threads: int | None = opt(
        None,
        "Use N CPU threads, each worker; without it, one per core, which workers share",
        min=1,
        max=1024,
        example="4",
        needs="no -deterministic",
    )
    deterministic: bool = opt(
        False,
        "Decode each sentence alone, with one CPU thread, in about four times the time: scores are "
        "the same to the last bit whatever the batch size, the order and the other lines",
    )


@dataclass(frozen=True)
class JobOptions:
    """How a job behaves around its work."""

    title: ClassVar[str] = "Jobs"

    quiet: bool = opt(False, "Show no progress and no log on stderr, only errors")
    log_file: str | None = opt(
        None, "Write the log and the progress to this file too", value="FILE", example="job.log"
    )
    log_file_level: str = opt(
        "0",
        "Write to log_file only what has this level or a higher one, by name or number; lines are "
        "INFO, 20, but for a few warnings",
        choices=LEVELS,
        value="LEVEL",
        needs="-log_file",
        example="WARNING -log_file job.log",
    )
    report: str | None = opt(
        None,
        "Write a JSON object to this file for each line that has notes: its `id`, from 0, and its "
        "`notes`",
        value="FILE",
        example="degraded.jsonl",
    )
    resume: bool = opt(
        False,
        "Go on where a job with the same input, models and options was stopped, to the same "
        "output as without a stop",
        example="-src input.de -output output.en",
    )
    bucket_lines: int | None = opt(
        None,
        "Work in buckets of N lines, each sorted by length and written when it is done; without "
        "it, 1,024 on a CPU, less for files of 64 to 4,095 lines, and 8,192 on a GPU",
        min=1,
        max=10_000_000,
        example="256",
    )
    shard: str | None = opt(
        None,
        "Translate the I-th of N parts of the input, cut between buckets; the N outputs, joined "
        "in order, are the output of the whole",
        form=(r"[1-9][0-9]{0,8}/[1-9][0-9]{0,8}", "I/N, where I counts from 1"),
        value="I/N",
        example="1/8 -src input.de",
    )
    workers: int | None = opt(
        None,
        "Translate in N processes, which share the memory of the model; the output is that of one. "
        "Without it, one per core with a thread each where the input is a file of 64 lines or more "
        "and runs on the CPU, unless -threads is given",
        min=1,
        max=256,
        example="4 -threads 1",
    )


@dataclass(frozen=True)
class TranslateOptions:
    """All groups together.  Build it with `TranslateOptions.of(beam_size=4, ...)`."""

    model: ModelOptions
    text: TextOptions
    data: DataOptions
    search: SearchOptions
    sampling: SamplingOptions
    speed: SpeedOptions
    jobs: JobOptions
    information: InformationOptions
    attention: AttentionOptions
    phrases: PhraseOptions
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)  # not by default
    notes: tuple[str, ...] = field(default=(), compare=False)  # what has no effect, for the log
    configs: tuple[str, ...] = field(default=(), compare=False)  # YAML files that were read

    @property
    def n_workers(self) -> int | None:
        """Processes that translate: one per GPU where there are several.  None: as many as pay."""
        return len(self.speed.gpu) if len(self.speed.gpu) > 1 else self.jobs.workers

    @property
    def is_exact(self) -> bool:
        """Whether results are to equal those of another system, which int8 would not do."""
        return self.search.search != "opennmt"

    @classmethod
    def of(cls, **given: Any) -> "TranslateOptions":
        """From keyword arguments; OptionError lists everything that is wrong with them."""
        resolver = Resolver(OPTIONS, remark, FOREIGN)
        resolver.keywords(given)
        resolver.apply(preset_defaults)
        return build(resolver.result())

    def updated(self, **given: Any) -> "TranslateOptions":
        """These options but for the given ones; what nobody gave may get another default."""
        return TranslateOptions.of(**{**self.given, **given})


def search_remark(name: str) -> str:
    """Which searches have the option, and the defaults that they bring."""
    have = [s for s, preset in PRESETS.items() if name in preset.options or name not in SWITCHES]
    lack = [s for s in PRESETS if s not in have]
    remarks = []
    if lack:
        word, searches = ("Only", have) if len(have) < len(lack) else ("Not", lack)
        remarks.append(f"{word} with -search {', '.join(searches)}")
    brought = {search: PRESETS[search].defaults for search in have}
    drawn = {search: PRESETS[search].sampling_defaults for search in have}
    for where, defaults in (("of searches", brought), ("with -do_sample", drawn)):
        by_value: dict[str, list[str]] = {}
        for search, values in defaults.items():
            if name in values:
                by_value.setdefault(as_words(values[name]), []).append(search)
        if by_value:
            shown = [f"{value} ({', '.join(names)})" for value, names in by_value.items()]
            remarks.append(f"Default {where}: {', '.join(shown)}")
    return ". ".join(remarks)


KINDS: dict[str, type] = {
    "model": ModelOptions,
    "text": TextOptions,
    "data": DataOptions,
    "search": SearchOptions,
    "sampling": SamplingOptions,
    "attention": AttentionOptions,
    "phrases": PhraseOptions,
    "speed": SpeedOptions,
    "jobs": JobOptions,
    "information": InformationOptions,
}
GROUPS = (*KINDS.values(), *META)
OPTIONS: dict[str, Option] = options_of(GROUPS, search_remark)
PROGRAM = Program("onmt_translate", USAGE, OPTIONS, FOREIGN)


def remark(name: str) -> str | None:
    """What to say of a name that no option has."""
    return remark_on(name, OPTIONS)


def preset_defaults(given: dict[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    """The defaults of the system whose search is asked for, then those that the model brings."""
    name = given.get("search", "opennmt")
    preset = PRESETS[name]
    defaults = dict(preset.defaults)
    if given.get("do_sample"):
        defaults |= preset.sampling_defaults
    if preset.one_limit and "max_length" in given:
        defaults["max_length_ratio"] = 0.0
    own: list[tuple[Mapping[str, Any], str]] = []
    models, drawn = given.get("model", ()), given.get("do_sample")
    if preset.asks_model == "transformers":
        own = read_defaults(models, drawn, lambda n, value: check(OPTIONS[n], value))
    elif preset.asks_model == "marian":
        own = read_decoder(models, lambda n, value: check(OPTIONS[n], value))
    return [(defaults, f"of {name}"), *own]


def build(resolved: Resolved) -> TranslateOptions:
    """The groups, after the checks that look at more than one option."""
    problems = cross_check(resolved.values)
    if problems:
        raise OptionError(*problems)
    groups = {name: resolved.build(kind) for name, kind in KINDS.items()}
    given = resolved.configuration().given()
    notes = (*resolved.notes, *transform_notes(resolved.values), *idle_notes(resolved, given))
    return TranslateOptions(**groups, given=given, notes=notes, configs=resolved.values["config"])


def idle_notes(resolved: Resolved, given: Mapping[str, Any]) -> list[str]:
    """A note for each given option that asks for something which does not happen.

    An option that is given what holds anyway, as in a printed configuration, asks for nothing.
    """
    usual = {name: option.default for name, option in OPTIONS.items()}
    for values, _ in preset_defaults(dict(given)):
        usual |= values
    v = resolved.values
    reasons = idle(OPTIONS, {**v, "alpha": 1.0} if plain_average(v) else v, usual)
    others = {
        **search_notes(v),
        **unsearched_notes(v),
        **text_notes(v),
        **input_notes(resolved.build(DataOptions)),
    }
    reasons |= {name: why for name, why in others.items() if v[name] != usual[name]}
    return [*resolved.notes_on(reasons), *misread_notes(v, given)]


def unsearched_notes(v: Mapping[str, Any]) -> dict[str, str]:
    """Why options of a search have no effect where there is none."""
    groups = SearchOptions, SamplingOptions, PhraseOptions
    of_search = [f.name for group in groups for f in fields(group)]
    named = [*of_search, "with_score"] if v["score_only"] else []
    return dict.fromkeys(named, "score_only is true: nothing is searched")


def input_notes(data: DataOptions) -> dict[str, str]:
    """Why options have no effect on what is read, by their names."""
    if any(map(data.is_jsonl, filter(None, (data.src, data.tgt)))):
        return {}
    return {"text_field": "the input is text; for objects give -input_format jsonl"}


def misread_notes(v: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What means something else to OpenNMT-py, or did in an earlier version."""
    notes = []
    size = given.get("batch_size")
    counts = "batch_type" in given or v["deterministic"]
    if size is not None and 1 < size <= SENTENCES and not counts:
        notes.append(
            f"batch_size {size} counts tokens, which is slow; for sentences: -batch_type sents"
        )
    sampling = PRESETS[v["search"]].sampling
    implied = sampling is not None and sampling.implied and sampling.is_asked_for(v)
    if given.get("random_sampling_topk") == 1 and v["beam_size"] > 1 and implied:
        notes.append(
            "random_sampling_topk 1 takes the best token each time, as greedy search does; for a "
            f"beam of {v['beam_size']} leave it out, or give 0"
        )
    return notes


def plain_average(v: Mapping[str, Any]) -> bool:
    """Whether the length penalty is the length itself, whatever alpha."""
    return PRESETS[v["search"]].policy.plain_avg and v["length_penalty"] == "avg"


def search_notes(v: Mapping[str, Any]) -> dict[str, str]:
    """Why options have no effect under a search, by their names."""
    name, preset, block = v["search"], PRESETS[v["search"]], v["block_ngram_repeat"]
    topk, sampling = v["random_sampling_topk"], preset.sampling
    reasons = {}
    if plain_average(v):
        reasons["alpha"] = f"-search {name} divides by the length itself with length_penalty avg"
    if block == 1 and not preset.policy.ngrams_of_one:
        reasons["block_ngram_repeat"] = f"-search {name} blocks 2 tokens in a row or more"
    if block >= v["max_length"]:
        reasons["block_ngram_repeat"] = f"max_length {v['max_length']} leaves no room to repeat"
    if preset.greedy_apart and v["beam_size"] == 1:
        why = "beam_size is 1, and greedy search ends with the first end token"
        reasons |= dict.fromkeys(("early_stopping", "patience"), why)
    one_left = "random_sampling_topk 1 leaves one token to draw, as greedy search does"
    if sampling and topk == 1 and not sampling.is_asked_for(v):
        reasons["seed"] = one_left
    elif sampling and sampling.is_asked_for(v):
        if not sampling.blocks_ngrams:
            why = f"-search {name} blocks no n-grams where it draws them"
            reasons |= dict.fromkeys(("block_ngram_repeat", "ignore_when_blocking"), why)
        if not sampling.covers:
            why = f"-search {name} has no coverage penalty where it draws tokens"
            reasons |= dict.fromkeys(("coverage_penalty", "beta", "stepwise_penalty"), why)
        if sampling.chains == "n_best" and v["beam_size"] not in (1, v["n_best"]):
            reasons["beam_size"] = "tokens are drawn, and n_best says how many samples there are"
        if sampling.draws == "rows" or v["beam_size"] == 1:  # samples that do not compete
            if v["early_stopping"] is not None:
                reasons["early_stopping"] = "tokens are drawn, and each sample ends by itself"
            if topk == 1:
                reasons |= dict.fromkeys(("seed", "random_sampling_topp"), one_left)
    return reasons


def cross_check(v: dict[str, Any]) -> list[str]:
    """Contradictions between options that are fine one by one."""
    problems = [*refusals(OPTIONS, v), *check_preset(v), *check_diversity(v), *check_text(v)]
    problems += check_phrases(v)
    if v["n_best"] > v["beam_size"]:
        problems.append(
            f"n_best {v['n_best']} is more than beam_size {v['beam_size']}; "
            "raise beam_size or lower n_best"
        )
    if v["model_weights"] and len(v["model_weights"]) != max(1, len(v["model"])):
        problems.append(
            f"model_weights: {len(v['model_weights'])} weights for {max(1, len(v['model']))} "
            "models; give one for each"
        )
    if v["min_length"] > v["max_length"]:
        problems.append(
            f"min_length {v['min_length']} is more than max_length {v['max_length']}; "
            "lower min_length or raise max_length"
        )
    problems += check_gpus(v["gpu"], v["device"], v["workers"])
    if v["verbose"] and v["quiet"]:
        problems.append("verbose and quiet contradict each other; give one")
    if v["src"] == v["tgt"] == "-":
        problems.append("src and tgt cannot both be standard input; give one as a file")
    if v["score_only"] and v["tgt_file_prefix"]:
        problems.append("tgt is either scored (score_only) or a beginning (tgt_file_prefix)")
    if v["score_only"] and v["output_format"] in ("moses", "tsv"):
        problems.append(
            f"output_format {v['output_format']} is for translations; with score_only give text "
            "or jsonl"
        )
    if v["report"] == "-":
        problems.append("report: standard output is for translations; give a file")
    problems += check_shard(v)
    problems += [
        f"{name} is empty; give a path"
        for name in ("src", "tgt", "output", "log_file", "report")
        if v[name] == ""
    ]
    if not v["text_field"]:
        problems.append("text_field is empty; give the name of a field")
    return problems


def check_shard(v: Mapping[str, Any]) -> list[str]:
    """Parts that do not exist, of inputs that have none."""
    if v["shard"] is None:
        return []
    problems = []
    part, n_parts = map(int, v["shard"].split("/"))
    if part > n_parts:
        problems.append(f"shard {v['shard']}: there are {n_parts} parts; give one from 1")
    if "-" in (v["src"], v["tgt"]):
        problems.append("shard: lines of standard input cannot be counted first; give a file")
    return problems


def check_gpus(gpus: tuple[int, ...], device: str, workers: int | None) -> list[str]:
    """What does not go together with -gpu."""
    given = f"gpu {as_words(gpus)}"
    if gpus and device != "auto":
        return [f"{given} and device {device} both choose the device; give one"]
    if len(gpus) > 1 and -1 in gpus:
        return [f"{given}: -1 is the CPU, which goes alone; leave it out"]
    if len(gpus) > 1 and workers not in (None, 1, len(gpus)):
        return [f"{given} has one worker per GPU, not {workers}; leave workers out"]
    return []


def check_preset(v: dict[str, Any]) -> list[str]:
    """Options that the chosen search does not have."""
    name, preset = v["search"], PRESETS[v["search"]]
    absent = [n for n in SWITCHES if n not in preset.options and v[n] != OPTIONS[n].default]
    problems = [no_such_option(n, name) for n in absent]
    if v["length_penalty"] not in preset.forms:
        forms = " and ".join(preset.forms)
        problems.append(
            f"length_penalty {v['length_penalty']}: -search {name} has {forms}; give one of these"
        )
    if v["coverage_penalty"] not in preset.coverage_forms:
        forms = " and ".join(preset.coverage_forms)
        problems.append(
            f"coverage_penalty {v['coverage_penalty']}: -search {name} has {forms}; "
            "give one of these"
        )
    if v["early_stopping"] == "never" and "early_stopping=never" not in preset.stops:
        problems.append(f"early_stopping never: -search {name} has true and false; give one")
    return problems


def no_such_option(name: str, search: str, shown: str = "") -> str:
    have = ", ".join(other for other, preset in PRESETS.items() if name in preset.options)
    why = f"-search {search} has no such option ({PRESETS[search].system})"
    return f"{shown or name}: {why}; leave it out, or choose from -search {have}"


def check_diversity(v: dict[str, Any]) -> list[str]:
    """Groups and drawing."""
    problems = []
    groups, sampling = v["beam_groups"], PRESETS[v["search"]].sampling
    filtered = v["random_sampling_topk"] != 0 or v["random_sampling_topp"] > 0
    drawn = v["do_sample"] or filtered
    if v["beam_size"] % groups:
        problems.append(
            f"beam_groups {groups} does not divide beam_size {v['beam_size']}; "
            f"give a beam_size that is a multiple of {groups}"
        )
    if drawn and v["n_best_unique"]:
        problems.append("n_best_unique and drawing at random exclude each other; leave one out")
    if drawn and groups > 1:
        problems.append("beam_groups and drawing at random exclude each other; leave one out")
    if filtered and not v["do_sample"] and sampling and not sampling.implied:
        problems.append(
            "random_sampling_topk and random_sampling_topp need do_sample; give that too"
        )
    return problems


def load_options(argv: Sequence[str]) -> tuple[TranslateOptions, Resolved]:
    """Options of `translate.py` and where each came from.  OptionError lists all problems."""
    resolved = load(argv, OPTIONS, cross_check, remark, preset_defaults, FOREIGN, quoted=True)
    return build(resolved), resolved
