"""Every option of `translate.py`, once.  See `onmt_lite.schema` for how sources are merged."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onmt_lite.errors import OptionError
from onmt_lite.schema import MetaOptions, Option, Resolved, Resolver, load, opt, options_of

USAGE = """\
python translate.py [-config FILE ...] [options]

Translates lines of text: standard input to standard output unless -src and -output
name files.  Options are spelt -name VALUE, --name VALUE or --name=VALUE, and are the
keys of YAML files too; the command line wins over YAML, YAML over the default."""

# Names that people bring from other tools, and ours
ELSEWHERE = {
    "num_hypotheses": "here it is n_best",
    "num_return_sequences": "here it is n_best",
    "num_beams": "here it is beam_size",
    "no_repeat_ngram_size": "here it is block_ngram_repeat",
    "max_decoding_length": "here it is max_length",
    "min_decoding_length": "here it is min_length",
    "max_sent_length": "here it is max_length",
    "disable_unk": "here it is ban_unk_token",
    "fp32": "here it is precision fp32",
    "models": "here it is model",
    "train": "it belongs to python -m onmt_lite.train",
    "train_steps": "it belongs to python -m onmt_lite.train",
}


@dataclass(frozen=True)
class ModelOptions:
    """What translates, and on what."""

    model: tuple[str, ...] = opt(
        (),
        "a model directory or a table model's .json file; without it, German-English as shipped",
    )
    tokenizer: Literal["auto", "space", "sentencepiece"] = opt(
        "auto",
        "how lines become tokens: `auto` is what the model brings; with `space` they are tokens "
        "already, separated by spaces, and so is the output",
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
    seed: int = opt(829, "of all random numbers", min=0, max=2**63 - 1)


@dataclass(frozen=True)
class DataOptions:
    """What is read and written."""

    src: str = opt("-", "file to translate, one sentence per line; - is standard input")
    tgt: str | None = opt(
        None,
        "reference translations, line by line; their log-probability is reported (GOLD)",
    )
    output: str = opt("-", "file to write, complete or not at all; - is standard output")
    output_format: Literal["text", "jsonl", "moses"] = opt(
        "text",
        "`text`: n_best lines per source line; `jsonl`: one object per source line; "
        "`moses`: `id ||| text ||| log_prob= X ||| score`",
    )
    with_score: bool = opt(False, "append a tab and the score to each line of text output")


@dataclass(frozen=True)
class SearchOptions:
    """Which translation is looked for."""

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
    coverage_penalty: Literal["none", "wu", "summary"] = opt(
        "none",
        "taken off the score for source tokens attended too little (`wu`: -sum log min(c,1)) "
        "or too much (`summary`: sum max(c,1) - S)",
    )
    beta: float = opt(0.0, "weight of the coverage penalty", min=0, max=1000)
    stepwise_penalty: bool = opt(
        False, "let the coverage penalty steer every step, not only the ranking"
    )
    block_ngram_repeat: int = opt(
        0, "forbid the second occurrence of any n-gram of N tokens; 0 is off", min=0
    )
    ignore_when_blocking: tuple[str, ...] = opt(
        (), "n-grams that hold one of these tokens may repeat"
    )
    ban_unk_token: bool = opt(False, "never produce the unknown token")


@dataclass(frozen=True)
class BatchOptions:
    """How much is decoded at once."""

    batch_size: int | None = opt(
        None,
        "size of a batch in units of batch_type; without it, chosen from the model and the device",
        min=1,
    )
    batch_type: Literal["tokens", "sents"] = opt(
        "tokens", "count a batch in source tokens or sentences"
    )


@dataclass(frozen=True)
class ReportOptions:
    """What is said on the way, on stderr."""

    verbose: bool = opt(False, "log each sentence with its hypotheses and scores")
    quiet: bool = opt(False, "no progress bar, no log on stderr but errors")
    report_time: bool = opt(False, "log seconds, sentences and tokens per second at the end")
    log_file: str | None = opt(None, "write the log to this file too")


@dataclass(frozen=True)
class TranslateOptions:
    """All groups together.  Build it with `TranslateOptions.of(beam_size=4, ...)`."""

    meta: MetaOptions
    model: ModelOptions
    data: DataOptions
    search: SearchOptions
    batch: BatchOptions
    report: ReportOptions

    @classmethod
    def of(cls, **given: Any) -> "TranslateOptions":
        """From keyword arguments; OptionError lists everything that is wrong with them."""
        return _from_keywords(Resolver(OPTIONS), given)

    def updated(self, **given: Any) -> "TranslateOptions":
        """These options but for the given ones."""
        resolver = Resolver(OPTIONS)
        for group in vars(self).values():
            resolver.values.update(vars(group))
        return _from_keywords(resolver, given)


GROUPS = (ModelOptions, DataOptions, SearchOptions, BatchOptions, ReportOptions, MetaOptions)
OPTIONS: dict[str, Option] = options_of(GROUPS)


def _from_keywords(resolver: Resolver, given: dict[str, Any]) -> TranslateOptions:
    resolver.keywords(given)
    resolver.problems += [
        f"{name} belongs on the command line" for name in given if name in vars(MetaOptions())
    ]
    return build(resolver.result())


def build(resolved: Resolved) -> TranslateOptions:
    """The groups, after the checks that look at more than one option."""
    problems = cross_check(resolved.values)
    if problems:
        raise OptionError(*problems)
    kinds = {
        "meta": MetaOptions,
        "model": ModelOptions,
        "data": DataOptions,
        "search": SearchOptions,
    }
    kinds |= {"batch": BatchOptions, "report": ReportOptions}
    return TranslateOptions(**{name: resolved.build(kind) for name, kind in kinds.items()})


def cross_check(v: dict[str, Any]) -> list[str]:
    """Contradictions between options that are fine one by one."""
    problems = []
    if v["n_best"] > v["beam_size"]:
        problems.append(
            f"n_best {v['n_best']} is more than beam_size {v['beam_size']}; "
            "raise beam_size or lower n_best"
        )
    if len(v["model"]) > 1:
        problems.append(
            f"model: {len(v['model'])} paths given; give one, ensembles are not read yet"
        )
    if v["min_length"] > v["max_length"]:
        problems.append(f"min_length {v['min_length']} is more than max_length {v['max_length']}")
    if v["gpu"] is not None and v["device"] != "auto":
        problems.append(f"gpu {v['gpu']} and device {v['device']} both choose the device; give one")
    if v["verbose"] and v["quiet"]:
        problems.append("verbose and quiet contradict each other; give one")
    if v["src"] == v["tgt"] == "-":
        problems.append("src and tgt cannot both be standard input; give one as a file")
    if not _is_device(v["device"]):
        problems.append(f"device: expected auto, cpu, cuda or cuda:N, got {v['device']!r}")
    problems += [
        f"{name} is empty; give a path"
        for name in ("src", "tgt", "output", "log_file")
        if v[name] == ""
    ]
    return problems


def _is_device(name: str) -> bool:
    return re.fullmatch("auto|cpu|cuda|cuda:(0|[1-9][0-9]?)", name) is not None


def load_options(argv: Sequence[str]) -> tuple[TranslateOptions, Resolved]:
    """Options of `translate.py` and where each came from.  OptionError lists all problems."""
    resolved = load(argv, OPTIONS, cross_check, ELSEWHERE)
    return build(resolved), resolved
