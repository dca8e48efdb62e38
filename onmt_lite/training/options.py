"""Every option of the trainer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onmt_lite.options import is_device
from onmt_lite.schema import META, Option, Resolved, load, opt, options_of

USAGE = """\
-train PAIRS.tsv -output DIR -train_minutes N [options]

Trains a Transformer on pairs of lines and writes a model that translate.py -model reads, with a
log (train.log), a table of the steps (train.csv), a plot (train.svg) and the options (train.yaml).
Stop it with Ctrl-C at any time; -resume goes on where it stopped."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DataOptions:
    """What is learned from."""

    title: ClassVar[str] = "Data"

    train: tuple[str, ...] = opt(
        (),
        "training pairs, one `source<TAB>target` a line in UTF-8, plain or .gz; further columns "
        "and blank lines are passed over; several files are one corpus, and a file that is named "
        "twice counts twice",
    )
    train_weights: tuple[float, ...] = opt(
        (),
        "how often an epoch has the pairs of each training file: 2 is twice, 0.5 another half of "
        "them in each epoch; without weights, once",
    )
    train_same: tuple[str, ...] = opt(
        (), "lines of text, plain or .gz, that are to stay as they are: each is its own translation"
    )
    same_lines: int = opt(0, "of the lines of train_same, so many in each epoch", min=0)
    slots: str | None = opt(
        None,
        "pairs with slots that augment_slots fills, such as `{name} kommt um {time}.`; the kinds "
        "are name, number, decimal, time, date, phone, mail, url, code, emoji, sign, script, field",
    )
    valid: tuple[str, ...] = opt(
        (),
        "held-out pairs in the same form; without them every fiftieth pair of train, at most 500, "
        "is held out, and so is every pair that shares a side with one of them; of several files "
        "the mean of their losses counts, so that the model is not chosen for one kind of text",
    )
    output: str = opt(
        "", "directory for the model, its log, table and plot, and for what -resume needs"
    )
    init_from: str | None = opt(
        None,
        "model directory to start from; its pieces and widths are used instead of the options', "
        "and more enc_layers or dec_layers than it has are put on top of its own (norm before)",
    )
    new_pieces: bool = opt(
        False,
        "with init_from: make vocab_size pieces anew; what the model has for the old ones is "
        "kept, and a piece it lacks begins as the sum of its parts",
    )
    keep_start: float = opt(
        0.0,
        "the model that is written is so much the one of init_from and the rest the one that has "
        "learned on: their weights' mean is often better than both (Wortsman et al. 2022)",
        min=0,
        max=1,
    )
    save_bits: int = opt(
        16,
        "bits of a weight in the model's file; 8 is half the size: matrices as integers, with a "
        "scale for each row",
    )
    reverse: bool = opt(False, "learn the other direction: the second column is the source")
    vocab_size: int | None = opt(
        None,
        "pieces of the joint sentencepiece model; without it, as many as suit the text: about "
        "1,200 for 10,000 short pairs, 4,600 for 150,000",
        min=16,
    )
    all_characters: bool = opt(
        False,
        "pieces for the letters of Europe and for common signs and emoji, and 256 for the bytes "
        "of any other character, so that none is unknown; with init_from but not new_pieces they "
        "join its own",
    )
    src_sampling: float = opt(0.2, "share of sources segmented at random (Kudo 2018)", min=0, max=1)
    tgt_sampling: float = opt(0.0, "share of targets segmented at random", min=0, max=1)


@dataclass(frozen=True)
class ModelOptions:
    """The shape of the Transformer: ReLU, one table for all embeddings."""

    title: ClassVar[str] = "Model"

    d_model: int = opt(192, "width", min=8)
    heads: int = opt(4, "attention heads; must divide d_model", min=1)
    d_ff: int = opt(768, "width inside feed-forward layers", min=8)
    enc_layers: int = opt(5, "encoder layers", min=1)
    dec_layers: int = opt(2, "decoder layers", min=1)
    norm: Literal["before", "after"] = opt(
        "before",
        "layer norms before each sublayer, or after it, as Marian has them: such a model can be "
        "exported to a Marian directory",
    )
    max_positions: int = opt(512, "longest line in tokens; longer pairs are left out", min=8)
    dropout: float = opt(0.1, "share of values dropped", min=0, max=0.9)


@dataclass(frozen=True)
class LearningOptions:
    """How it is learned."""

    title: ClassVar[str] = "Learning"

    train_steps: int = opt(0, "steps of the whole run; 0 is no such limit", min=0)
    train_minutes: float = opt(0.0, "minutes of the whole run; 0 is no such limit", min=0)
    batch_tokens: int = opt(3600, "padded tokens per step and side", min=16)
    matrix_lr: float = opt(0.02, "peak learning rate of weight matrices (Muon)", above=0)
    vector_lr: float = opt(
        0.002, "peak learning rate of embeddings, norms and biases (Adam)", above=0
    )
    warmup_steps: int = opt(100, "steps of linear warm-up", min=1)
    cooldown: float = opt(
        0.8, "last share of the run, in which the rates fall to zero", above=0, max=1
    )
    label_smoothing: float = opt(0.1, "probability kept from the right token", min=0, max=0.9)
    clip_norm: float = opt(1.0, "largest norm of a step's gradient", above=0)
    valid_minutes: float | None = opt(
        None,
        "minutes between validations; each saves the model and the state; without it, a tenth of "
        "train_minutes, but 1 to 10",
        above=0,
    )
    seed: int = opt(1, "of weights, order, augmentation and dropout", min=0)
    device: str = opt("auto", "`cpu`, `cuda`, `cuda:N` or `auto`")
    precision: Literal["auto", "fp32", "bf16"] = opt(
        "auto",
        "bf16 is faster where the processor has it; `auto` is fp32 on a CPU and bf16 on a GPU that "
        "has it",
    )
    threads: int | None = opt(None, "CPU threads; without it, one per core", min=1)
    prepare: bool = opt(
        False,
        "prepare the next epoch in a process of its own while this one is learned, so that a GPU "
        "never waits for its text",
    )
    resume: bool = opt(False, "go on with the run in the output directory")
    log_file: str | None = opt(None, "write the log to this file too")

    @property
    def minutes_between_validations(self) -> float:
        """valid_minutes, or what suits the length of the run."""
        return self.valid_minutes or max(1.0, min(10.0, self.train_minutes / 10 or 10.0))


@dataclass(frozen=True)
class AugmentOptions:
    """Shares of lines that are changed as `onmt_lite.training.augment` says."""

    title: ClassVar[str] = "Augmentation"

    augment_join: float = opt(
        0.07, "joined with their neighbours to lines of 2 to 8 sentences", min=0, max=1
    )
    augment_conjunction: float = opt(0.35, "of these joins: made with a conjunction", min=0, max=1)
    conjunctions: tuple[str, ...] = opt((), "pairs `source|target`, such as `, und |, and `")
    augment_quote: float = opt(0.01, "put into quotation marks", min=0, max=1)
    quotes: tuple[str, ...] = opt((), 'pairs such as `„…“|"…"`')
    augment_no_final: float = opt(0.06, "without their final mark", min=0, max=1)
    augment_upper: float = opt(0.015, "in capitals", min=0, max=1)
    augment_lower_src: float = opt(0.02, "with a source in small letters", min=0, max=1)
    augment_rare: int = opt(
        0,
        "pairs whose source has a word that only so many pairs have, or fewer, count twice",
        min=0,
    )
    augment_words: int = opt(
        0, "copies of each pair of words that are sure to translate each other, as lines", min=0
    )
    augment_names: float = opt(
        0.0,
        "with another name, known or made up, in the place of one that both sides share",
        min=0,
        max=1,
    )
    augment_numbers: int = opt(
        2, "copies with other numbers of each pair that shares numbers", min=0
    )
    augment_slots: int = opt(0, "lines in each epoch made by filling the pairs of slots", min=0)
    augment_marks: float = opt(
        0.0,
        "with bullets, emoji, markup, signs or placeholders, the same on both sides",
        min=0,
        max=1,
    )


@dataclass(frozen=True)
class TrainOptions:
    """All groups together."""

    data: DataOptions
    model: ModelOptions
    learning: LearningOptions
    augment: AugmentOptions


PASTE = "join the two files: paste FILE.src FILE.tgt > pairs.tsv, and give"
ELSEWHERE = {  # OpenNMT-py's names of files that match line by line
    **dict.fromkeys(
        ("train_src", "train_tgt", "path_src", "path_tgt"), f"{PASTE} -train pairs.tsv"
    ),
    **dict.fromkeys(("valid_src", "valid_tgt"), f"{PASTE} -valid pairs.tsv"),
    "data": "name the pairs with train (`source<TAB>target` lines), held-out ones with valid",
    "save_model": "name the directory with output",
}
GROUPS = (DataOptions, ModelOptions, LearningOptions, AugmentOptions)
OPTIONS: dict[str, Option] = options_of((*GROUPS, *META))


def as_table(options: TrainOptions) -> dict[str, Any]:
    """Options as a configuration has them, but for -resume."""
    groups = (options.data, options.model, options.learning, options.augment)
    values = {name: value for group in groups for name, value in vars(group).items()}
    del values["resume"]
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def load_train_options(argv: Sequence[str]) -> tuple[TrainOptions, Resolved]:
    """Raises OptionError with all problems."""
    resolved = load(argv, OPTIONS, cross_check, ELSEWHERE)
    return TrainOptions(*map(resolved.build, GROUPS)), resolved


def cross_check(v: dict[str, Any]) -> list[str]:
    problems = [f"{name} is missing; give a path" for name in ("train", "output") if not v[name]]
    if v["log_file"] == "":
        problems.append("log_file is empty; give a path")
    if not is_device(v["device"]):
        problems.append(f"device: expected auto, cpu, cuda or cuda:N, got {v['device']!r}")
    if v["d_model"] % (2 * v["heads"]):
        problems.append(f"d_model {v['d_model']} is not an even multiple of heads {v['heads']}")
    problems += [
        f"{name} needs init_from"
        for name in ("new_pieces", "keep_start")
        if v[name] and not v["init_from"]
    ]
    if v["train_weights"] and len(v["train_weights"]) != len(v["train"]):
        problems.append(
            f"train_weights: {len(v['train_weights'])} weights for {len(v['train'])} files of train"
        )
    if any(weight <= 0 for weight in v["train_weights"]):
        problems.append("train_weights: each must be above 0; leave the file out instead")
    if v["save_bits"] not in (8, 16):
        problems.append(f"save_bits {v['save_bits']} is not 8 or 16")
    for needed, name in (("train_same", "same_lines"), ("slots", "augment_slots")):
        if bool(v[needed]) != bool(v[name]):
            problems.append(f"{needed} and {name} need each other")
    if not v["train_steps"] and not v["train_minutes"]:
        problems.append(
            "train_minutes is missing; say when to stop, such as -train_minutes 10 (or train_steps)"
        )
    for name, marks in (("conjunctions", 0), ("quotes", 1)):
        for pair in v[name]:
            sides = pair.split("|")
            if len(sides) != 2 or any(side.count("…") != marks for side in sides):
                problems.append(f"{name}: {pair!r} is not of the form in -help")
    return problems


def split_pairs(pairs: tuple[str, ...]) -> Pairs:
    """("a|b", ...) -> (("a", "b"), ...)"""
    return tuple((src, tgt) for src, tgt in (pair.split("|") for pair in pairs))
