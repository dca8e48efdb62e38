"""Every option of `python -m onmt_lite.bench`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onmt_lite.config.cores import threads_wanted, usable_cores
from onmt_lite.config.schema import META, Option, Program, Resolved, load, opt, options_of

USAGE = """\
[-workload NAME ...] [options]

Translates the same lines with the same weights and beam in onmt_lite, CTranslate2, transformers
and OpenNMT-py, as far as they are installed, in alternating runs on the CPU.  Prints sentences per
second, ratios by the clock and by processor time, memory, and where the time of onmt_lite goes."""

WORKLOADS = ("base", "tiny", "shipped")
PEERS = ("ctranslate2", "transformers", "opennmt-py")


@dataclass(frozen=True)
class BenchOptions:
    """What is compared."""

    title: ClassVar[str] = "Comparison"

    workload: tuple[Literal["base", "tiny", "shipped"], ...] = opt(
        WORKLOADS,
        "Compare on these: random weights of Marian's shape, 6+6 layers of 512 with 32,000 tokens "
        "(`base`) or 3+3 layers of 256 with 8,000 (`tiny`), each line 24 tokens and each "
        "translation 24; the shipped model on text (`shipped`)",
        example="base shipped",
    )
    model: str | None = opt(
        None,
        "Compare on this Transformer and the lines of -src instead, of any kind that "
        "onmt_translate -model reads",
        value="PATH",
        example="opus-mt-de-en -src input.de",
    )
    src: str | None = opt(
        None,
        "Translate the lines of this file with the shipped model, or with -model; without it, the "
        "sample sentences again and again",
        value="FILE",
        example="input.de",
    )
    tgt: str | None = opt(
        None,
        "Compute BLEU against this file, which has a translation for each line of -src; needs "
        "sacrebleu",
        value="FILE",
        example="input.en -src input.de",
    )
    against: tuple[Literal["ctranslate2", "transformers", "opennmt-py"], ...] = opt(
        PEERS, "Compare with these, as far as they are installed", example="ctranslate2"
    )
    beam_size: int = opt(5, "Search with this beam in all systems", min=1, max=64, example="1")
    threads: int | None = opt(
        None,
        "Give each system N processors: as workers of one thread, or as threads where it has no "
        "workers; without it, all that this process may use",
        min=1,
        max=256,
        example="1",
    )
    rounds: int = opt(3, "Run each system N times", min=1, max=1000, example="5")
    lines: int | None = opt(
        None,
        "Translate no more than the first N lines of each workload",
        min=1,
        example="64",
    )


@dataclass(frozen=True)
class OutputOptions:
    """Where results go, beside standard output."""

    title: ClassVar[str] = "Output"

    json: str | None = opt(
        None,
        "Write all that was measured to this file as JSON, each run on its own",
        value="FILE",
        example="speed.json",
    )
    svg: str | None = opt(
        None, "Draw the ratios as a bar chart into this file", value="FILE", example="speed.svg"
    )


OPTIONS: dict[str, Option] = options_of((BenchOptions, OutputOptions, *META))
PROGRAM = Program("onmt_bench", USAGE, OPTIONS)


@dataclass(frozen=True)
class Options:
    """Of one run of the program."""

    bench: BenchOptions
    output: OutputOptions

    @property
    def n_threads(self) -> int:
        """Of the peers, as many as ours has workers by default."""
        return self.bench.threads or int(min(usable_cores(), threads_wanted()))


def load_bench_options(argv: Sequence[str]) -> tuple[Options, Resolved]:
    """Raises OptionError with all problems."""
    resolved = load(argv, OPTIONS, cross_check)
    return Options(resolved.build(BenchOptions), resolved.build(OutputOptions)), resolved


def cross_check(v: dict[str, Any]) -> list[str]:
    problems = []
    if v["model"] is not None and v["src"] is None:
        problems.append("model: give the lines to translate as well, with -src")
    if v["model"] is not None and v["workload"] != WORKLOADS:
        problems.append("model and workload contradict each other; give one")
    if v["tgt"] is not None and v["src"] is None:
        problems.append("tgt: give the lines that it translates as well, with -src")
    if v["src"] is not None and v["model"] is None and "shipped" not in v["workload"]:
        problems.append("src: workloads base and tiny have their own lines; add shipped, or -model")
    return problems
