"""Every option of `translate.py`, once.  See `onmt_lite.schema` for how sources are merged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from onmt_lite.errors import OptionError
from onmt_lite.opennmt_options import FOREIGN
from onmt_lite.presets import PRESETS, SWITCHES
from onmt_lite.schema import META, META_NAMES, Option, Resolved, Resolver, load, opt, options_of
from onmt_lite.text_options import TextOptions, check_text, text_notes

USAGE = """\
[-config FILE ...] [options]

Translates lines of text: standard input to standard output unless -src and -output
name files.  Options are spelt -name VALUE, --name VALUE or --name=VALUE, and are the
keys of YAML files too; the command line wins over YAML, YAML over the default."""

SENTENCES = 128  # up to here, who gives a batch_size probably means sentences

# Names that people bring from other tools, and ours
ELSEWHERE = {
    "num_hypotheses": "here it is n_best",
    "num_return_sequences": "here it is n_best",
    "num_beams": "here it is beam_size",
    "no_repeat_ngram_size": "here it is block_ngram_repeat",
    "lenpen": "here it is alpha",
    "normalize": "here it is alpha",
    "num_beam_groups": "here it is beam_groups",
    "diversity_penalty": "here it is diversity_rate",
    "diverse_beam_groups": "here it is beam_groups",
    "diverse_beam_strength": "here it is diversity_rate",
    "temperature": "here it is random_sampling_temp",
    "top_k": "here it is random_sampling_topk",
    "top_p": "here it is random_sampling_topp",
    "sampling_topk": "here it is random_sampling_topk",
    "sampling_topp": "here it is random_sampling_topp",
    "sampling": "here it is do_sample",
    "max_decoding_length": "here it is max_length",
    "min_decoding_length": "here it is min_length",
    "max_sent_length": "here it is max_length",
    "disable_unk": "here it is ban_unk_token",
    "models": "here it is model",
    "train": "it belongs to python -m onmt_lite.train",
    "train_steps": "it belongs to python -m onmt_lite.train",
}


@dataclass(frozen=True)
class ModelOptions:
    """What translates."""

    title: ClassVar[str] = "Model"

    model: tuple[str, ...] = opt(
        (),
        "a model directory (ours, Marian, fairseq), a .pt file of OpenNMT-py or a table model's "
        ".json file, or a shipped model's name; several are an ensemble; without it, de-en as "
        "shipped (German-English)",
    )
    avg_raw_probs: bool = opt(
        False,
        "an ensemble takes the mean of probabilities, not of log-probabilities",
    )
    model_weights: tuple[float, ...] = opt(
        (), "weights of the models in that mean, one each; without it, all alike", above=0, max=1e6
    )


@dataclass(frozen=True)
class DataOptions:
    """What is read and written."""

    title: ClassVar[str] = "Input and output"

    src: str = opt("-", "file to translate, one sentence per line; - is standard input")
    output: str = opt("-", "file to write, complete or not at all; - is standard output")
    output_format: Literal["text", "jsonl", "moses"] = opt(
        "text",
        "`text`: n_best lines per source line; `jsonl`: one object per source line; "
        "`moses`: `id ||| text ||| log_prob= X ||| score`",
    )
    with_score: bool = opt(False, "append a tab and the score to each line of text output")
    tgt: str | None = opt(
        None,
        "reference translations, line by line; their log-probability is reported (GOLD)",
    )
    tgt_file_prefix: bool = opt(
        False, "lines of tgt are not references but what the translations begin with"
    )


@dataclass(frozen=True)
class SearchOptions:
    """Which translation is looked for.  What an option means, and what it is if it is not given,
    can depend on `search`."""

    title: ClassVar[str] = "Search"

    search: str = opt(
        "opennmt",
        "whose beam search: `opennmt` is our own, the others equal their originals",
        choices=tuple(PRESETS),
    )
    beam_size: int = opt(5, "hypotheses kept per sentence; 1 is greedy search", min=1, max=1000)
    n_best: int = opt(1, "hypotheses returned per sentence, at most beam_size", min=1)
    min_length: int = opt(0, "least number of tokens before the end", min=0)
    max_length: int = opt(250, "largest number of tokens, the end token counted", min=1, max=100000)
    max_length_ratio: float = opt(
        2.0, "a line of S tokens gets at most X*S+5; 0 is no such limit", min=0, max=1000
    )
    length_penalty: Literal["none", "wu", "avg"] = opt(
        "avg", "score = log_prob / L, for T tokens: `none` 1, `wu` ((5+T)/6)^alpha, `avg` T^alpha"
    )
    alpha: float = opt(1.0, "exponent of the length penalty", min=-10, max=10)
    block_ngram_repeat: int = opt(
        0, "forbid the second occurrence of any n-gram of N tokens; 0 is off", min=0
    )
    ignore_when_blocking: tuple[str, ...] = opt(
        (), "n-grams that hold one of these tokens may repeat"
    )
    repetition_penalty: float = opt(
        1.0, "log-probabilities of tokens already produced are multiplied by this", above=0, max=100
    )
    ban_unk_token: bool = opt(False, "never produce the unknown token")
    coverage_penalty: Literal["none", "wu", "summary"] = opt(
        "none",
        "taken off the score for source tokens attended too little (`wu`: -sum log min(c,1)) "
        "or too much (`summary`: sum max(c,1) - S)",
    )
    beta: float = opt(0.0, "weight of the coverage penalty", min=0, max=1000)
    stepwise_penalty: bool = opt(
        False, "let the coverage penalty steer every step, not only the ranking"
    )
    early_stopping: Literal["true", "false", "never"] | None = opt(
        None,
        "transformers: be done when beam_size hypotheses are finished (`true`), when no open one "
        "is likely to be better (`false`), or when none can be (`never`)",
    )
    ratio: float = opt(
        0.0,
        "end the search by another rule: the best finished hypothesis has, per token, at least "
        "the score that the first row has per token of a translation X times as long as the "
        "source; 0 is off",
        min=0,
        max=1000,
    )
    patience: float | None = opt(
        None,
        "ctranslate2: be done when beam_size * X hypotheses are finished",
        above=0,
        max=1000,
    )
    beam_groups: int = opt(
        1, "diverse beam search (transformers, fairseq): the beam in N groups", min=1, max=1000
    )
    diversity_rate: float = opt(
        0.0, "what a group pays for each time that an earlier one has a token", min=0, max=1000
    )


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn at random."""

    title: ClassVar[str] = "Sampling"

    do_sample: bool = opt(
        False,
        "draw tokens instead of taking the best: n_best samples per sentence (opennmt-3, fairseq: "
        "the n_best of beam_size samples; transformers: beam sampling)",
    )
    random_sampling_temp: float = opt(
        1.0, "draw from the distribution raised to 1/X", above=0, max=1000
    )
    random_sampling_topk: int = opt(
        0,
        "draw from the N best tokens; 0 and -1 are no such limit.  Under the opennmt searches this "
        "and random_sampling_topp switch drawing on by themselves",
        min=-1,
    )
    random_sampling_topp: float = opt(
        0.0,
        "draw from the best tokens that together have this probability; 0 is no such limit",
        min=0,
        max=1,
    )
    seed: int = opt(829, "of all random numbers", min=0, max=2**63 - 1)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        return self.do_sample or self.random_sampling_topk != 0 or self.random_sampling_topp > 0


@dataclass(frozen=True)
class SpeedOptions:
    """Where it runs, in which precision, and how much at once."""

    title: ClassVar[str] = "Speed"

    batch_size: int | None = opt(
        None,
        "size of a batch in units of batch_type; without it, chosen from the model and the device",
        min=1,
    )
    batch_type: Literal["tokens", "sents"] = opt(
        "tokens", "count a batch in source tokens or sentences"
    )
    device: str = opt("auto", "`cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one")
    gpu: int | None = opt(
        None, "OpenNMT's spelling: N >= 0 is -device cuda:N, -1 is -device cpu", min=-1, max=99
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = opt(
        "auto",
        "type of the weights in memory; `auto` is fp32 on a CPU and bf16 on a GPU that has it",
    )
    threads: int | None = opt(None, "CPU threads; without it, one per core", min=1, max=1024)


@dataclass(frozen=True)
class JobOptions:
    """How a job behaves around its work."""

    title: ClassVar[str] = "Jobs"

    quiet: bool = opt(False, "no progress bar, no log on stderr but errors")
    log_file: str | None = opt(None, "write the log to this file too")


@dataclass(frozen=True)
class InformationOptions:
    """What is said on the way, on stderr."""

    title: ClassVar[str] = "Information"

    verbose: bool = opt(False, "log each sentence with its hypotheses and scores")
    report_time: bool = opt(False, "log seconds, sentences and tokens per second at the end")
    print_model: bool = opt(
        False, "say what the models are (family, sizes, vocabularies, who wrote them), and exit"
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
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)  # not by default
    notes: tuple[str, ...] = field(default=(), compare=False)  # what has no effect, for the log
    configs: tuple[str, ...] = field(default=(), compare=False)  # YAML files that were read

    @classmethod
    def of(cls, **given: Any) -> "TranslateOptions":
        """From keyword arguments; OptionError lists everything that is wrong with them."""
        resolver = Resolver(OPTIONS, ELSEWHERE, FOREIGN)
        resolver.keywords(given)
        resolver.problems += [
            f"{name} belongs on the command line" for name in given if name in META_NAMES
        ]
        resolver.apply(preset_defaults)
        return build(resolver.result())

    def updated(self, **given: Any) -> "TranslateOptions":
        """These options but for the given ones; what nobody gave may get another default."""
        return TranslateOptions.of(**{**self.given, **given})


KINDS: dict[str, type] = {
    "model": ModelOptions,
    "text": TextOptions,
    "data": DataOptions,
    "search": SearchOptions,
    "sampling": SamplingOptions,
    "speed": SpeedOptions,
    "jobs": JobOptions,
    "information": InformationOptions,
}
OPTIONS: dict[str, Option] = options_of((*KINDS.values(), *META))


def preset_defaults(given: dict[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The defaults of the system whose search is asked for."""
    name = given.get("search", "opennmt")
    preset = PRESETS[name]
    defaults = dict(preset.defaults)
    if given.get("do_sample"):
        defaults |= preset.sampling_defaults
    if preset.one_limit and "max_length" in given:
        defaults["max_length_ratio"] = 0.0
    return defaults, f"of {name}"


def build(resolved: Resolved) -> TranslateOptions:
    """The groups, after the checks that look at more than one option."""
    problems = cross_check(resolved.values)
    if problems:
        raise OptionError(*problems)
    groups = {name: resolved.build(kind) for name, kind in KINDS.items()}
    given = resolved.configuration().given()
    notes = (*resolved.notes, *text_notes(resolved.values), *batch_notes(given))
    return TranslateOptions(**groups, given=given, notes=notes, configs=resolved.values["config"])


def batch_notes(given: dict[str, Any]) -> list[str]:
    """A number that OpenNMT-py takes for sentences is a small one of tokens."""
    size = given.get("batch_size")
    if size is None or not 1 < size <= SENTENCES or "batch_type" in given:
        return []
    return [f"batch_size {size} counts tokens, which is slow; for sentences: -batch_type sents"]


def cross_check(v: dict[str, Any]) -> list[str]:
    """Contradictions between options that are fine one by one."""
    problems = [*check_preset(v), *check_diversity(v), *check_text(v)]
    if v["n_best"] > v["beam_size"]:
        problems.append(
            f"n_best {v['n_best']} is more than beam_size {v['beam_size']}; "
            "raise beam_size or lower n_best"
        )
    if v["model_weights"] and len(v["model_weights"]) != max(1, len(v["model"])):
        problems.append(
            f"model_weights: {len(v['model_weights'])} weights for {max(1, len(v['model']))} models"
        )
    if v["min_length"] > v["max_length"]:
        problems.append(f"min_length {v['min_length']} is more than max_length {v['max_length']}")
    if v["gpu"] is not None and v["device"] != "auto":
        problems.append(f"gpu {v['gpu']} and device {v['device']} both choose the device; give one")
    if v["verbose"] and v["quiet"]:
        problems.append("verbose and quiet contradict each other; give one")
    if v["tgt_file_prefix"] and v["tgt"] is None:
        problems.append("tgt_file_prefix needs tgt, a file with a prefix on each line")
    if v["src"] == v["tgt"] == "-":
        problems.append("src and tgt cannot both be standard input; give one as a file")
    if not is_device(v["device"]):
        problems.append(f"device: expected auto, cpu, cuda or cuda:N, got {v['device']!r}")
    problems += [
        f"{name} is empty; give a path"
        for name in ("src", "tgt", "output", "log_file")
        if v[name] == ""
    ]
    return problems


def check_preset(v: dict[str, Any]) -> list[str]:
    """Options that the chosen search does not have."""
    name, preset = v["search"], PRESETS[v["search"]]
    absent = [n for n in SWITCHES if n not in preset.options and v[n] != OPTIONS[n].default]
    problems = [no_such_option(n, name) for n in absent]
    if v["length_penalty"] not in preset.forms:
        forms = " and ".join(preset.forms)
        problems.append(f"length_penalty {v['length_penalty']}: -search {name} has {forms}")
    if v["coverage_penalty"] not in preset.coverage_forms:
        forms = " and ".join(preset.coverage_forms)
        problems.append(f"coverage_penalty {v['coverage_penalty']}: -search {name} has {forms}")
    if v["early_stopping"] == "never" and "early_stopping=never" not in preset.stops:
        problems.append(f"early_stopping never: -search {name} has true and false")
    return problems


def no_such_option(name: str, search: str) -> str:
    return f"{name}: -search {search} has no such option ({PRESETS[search].system})"


def check_diversity(v: dict[str, Any]) -> list[str]:
    """Groups and drawing."""
    problems = []
    groups, sampling = v["beam_groups"], PRESETS[v["search"]].sampling
    filtered = v["random_sampling_topk"] != 0 or v["random_sampling_topp"] > 0
    drawn = v["do_sample"] or filtered
    if v["beam_size"] % groups:
        problems.append(f"beam_groups {groups} does not divide beam_size {v['beam_size']}")
    if v["diversity_rate"] and groups == 1:
        problems.append("diversity_rate needs beam_groups of 2 or more")
    if drawn and groups > 1:
        problems.append("beam_groups and drawing at random exclude each other")
    if filtered and not v["do_sample"] and sampling and not sampling.implied:
        problems.append("random_sampling_topk and random_sampling_topp need do_sample")
    if not drawn and v["random_sampling_temp"] != 1:
        problems.append("random_sampling_temp needs do_sample")
    return problems


def is_device(name: str) -> bool:
    return re.fullmatch("auto|cpu|cuda|cuda:(0|[1-9][0-9]?)", name) is not None


def load_options(argv: Sequence[str]) -> tuple[TranslateOptions, Resolved]:
    """Options of `translate.py` and where each came from.  OptionError lists all problems."""
    resolved = load(argv, OPTIONS, cross_check, ELSEWHERE, preset_defaults, FOREIGN)
    return build(resolved), resolved
