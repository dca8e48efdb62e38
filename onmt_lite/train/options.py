"""Every option of the trainer."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from onmt_lite.checkpoints.shipped import find_model
from onmt_lite.config.option import DEVICE, META, File, Option, opt, options_of
from onmt_lite.config.options import remark_on_translation
from onmt_lite.config.rules import absent, help_of, missing, needs, refuse
from onmt_lite.config.sources import Program, Resolved

USAGE = """\
-train PAIRS.tsv -output DIR -train_minutes N [options]

Trains a Transformer on pairs of lines and writes a model that onmt_lite -model reads, with a
log (train.log), a table of the steps (train.csv), a plot (train.svg, if matplotlib is installed)
and the options (train.yaml).
Stop the run with Ctrl-C at any time; -resume continues it.

  {command} -train my.tsv -output runs/mine -train_minutes 40"""
PAGE = "train valid output train_minutes train_steps init_from vocab_size d_model".split()
PAGE += "enc_layers dec_layers batch_tokens dropout device resume config".split()


@dataclass(frozen=True)
class DataOptions:
    """Files and text."""

    title: ClassVar[str] = "Data"

    train: tuple[File, ...] = opt(
        (),
        "Learn from these files, one pair `source<TAB>target` per line in UTF-8, plain or .gz; "
        "further columns and blank lines are skipped",
        example="my.train.tsv",
    )
    train_weights: tuple[float, ...] = opt(
        (),
        "Use each file so many times per epoch (0.5: a random half of its pairs); by default once",
        example="2 0.5 -train small.tsv large.tsv",
    )
    valid: tuple[File, ...] = opt(
        (),
        "Validate on these held-out pairs and keep the model with the lowest loss, averaged over "
        "the files; by default every fiftieth pair of train is held out, at most 500, with all "
        "pairs that share a side with one of them",
        example="my.dev.tsv",
    )
    output: str = opt(
        "",
        "Write the model to this directory, with log, table, plot and the state for -resume",
        value="PATH",
        example="runs/mine",
    )
    init_from: str | None = opt(
        None,
        "Start from the model in this directory, with its pieces and sizes",
        value="PATH",
        example="data/de-en",
    )
    save_bits: int = opt(
        16,
        "Write weights in 16 or 8 bits; 8 halves the file: integers with a scale per row",
        example="8",
    )
    reverse: bool = opt(False, "Learn the other direction: the second column is the source")
    vocab_size: int | None = opt(
        None,
        "Make N pieces, in one sentencepiece model for both sides; by default the number grows "
        "with the text: about 1,200 for 10,000 short pairs, 4,600 for 150,000",
        within=(16, 500_000),
        example="8000",
    )
    all_characters: bool = opt(
        False,
        "Make pieces for European letters, common symbols and emoji, and for the bytes of all "
        "other characters, so that none is unknown",
    )
    src_sampling: float = opt(
        0.2, "Segment this fraction of sources at random (Kudo 2018)", within=(0, 1), example="0.1"
    )
    tgt_sampling: float = opt(
        0.0, "Segment this fraction of targets at random", within=(0, 1), example="0.1"
    )


@dataclass(frozen=True)
class ModelOptions:
    """The shape of the Transformer: ReLU, one table for all embeddings."""

    title: ClassVar[str] = "Model"

    d_model: int = opt(192, "Set the width of the model", within=(8, 65_536), example="256")
    heads: int = opt(
        4,
        "Set the number of attention heads, which must divide d_model",
        within=(1, 1024),
        example="8",
    )
    d_ff: int = opt(
        768, "Set the width inside feed-forward layers", within=(8, 1_000_000), example="1024"
    )
    enc_layers: int = opt(3, "Set the number of encoder layers", within=(1, 1000), example="6")
    dec_layers: int = opt(1, "Set the number of decoder layers", within=(1, 1000), example="3")
    norm: Literal["before", "after"] = opt(
        "before",
        "Normalize before each sublayer, or after it as in Marian, for export to its format",
        example="after",
    )
    max_positions: int = opt(
        512,
        "Leave out pairs with a line of more than N tokens",
        within=(8, 1_000_000),
        example="256",
    )
    dropout: float = opt(
        0.1, "Zero this fraction of the activations", within=(0, 0.9), example="0.3"
    )


@dataclass(frozen=True)
class LearningOptions:
    """Steps, rates and device of a run."""

    title: ClassVar[str] = "Learning"

    train_steps: int = opt(
        0,
        "Stop after N steps, counting earlier runs with -resume; 0 sets no limit",
        min=0,
        example="20000",
    )
    train_minutes: float = opt(
        0.0,
        "Stop after X minutes by the clock, counting earlier runs with -resume but not "
        "validations; 0 sets no limit",
        min=0,
        example="40",
    )
    batch_tokens: int = opt(
        1500,
        "Use at most N padded tokens per step and side",
        within=(16, 100_000_000),
        example="7200",
    )
    matrix_lr: float = opt(
        0.02, "Set the peak learning rate of weight matrices (Muon)", above=0, example="0.01"
    )
    vector_lr: float = opt(
        0.002,
        "Set the peak learning rate of embeddings, norms and biases (Adam)",
        above=0,
        example="0.001",
    )
    warmup_steps: int = opt(
        40, "Increase the learning rates over the first N steps", min=1, example="400"
    )
    cooldown: float = opt(
        0.8,
        "Decrease the learning rates to zero over this last fraction of the run",
        above=0,
        max=1,
        example="0.5",
    )
    label_smoothing: float = opt(
        0.1,
        "Spread this fraction of the target probability over all tokens",
        within=(0, 0.9),
        example="0",
    )
    clip_norm: float = opt(
        1.0, "Clip the norm of each gradient to this value", above=0, example="5"
    )
    mean_steps: int = opt(
        0,
        "Validate and save the running mean of the weights over about the last N steps; 0 takes "
        "the weights themselves",
        min=0,
        example="500",
    )
    valid_minutes: float | None = opt(
        None,
        "Validate and save every X minutes; by default a tenth of train_minutes, from 1 to 10",
        above=0,
        example="10",
    )
    seed: int = opt(
        1,
        "Seed random weights, the order of pairs, and dropout",
        within=(0, 2**63 - 1),
        example="2",
    )
    device: str = opt(
        "auto",
        "Run on `cpu`, `cuda` or `cuda:N`; `auto` is a GPU if there is one",
        form=DEVICE,
        value="DEVICE",
        example="cuda:1",
    )
    precision: Literal["auto", "fp32", "bf16"] = opt(
        "auto",
        "Compute in this number type; bf16 is faster if the processor supports it; `auto` is "
        "bf16 on a GPU that supports it, else fp32",
        example="bf16",
    )
    threads: int | None = opt(
        None, "Use N CPU threads; by default one per core", within=(1, 256), example="4"
    )
    resume: bool = opt(False, "Continue the run in the output directory")
    log_file: File | None = opt(None, "Also write the log to this file", example="train.log")

    @property
    def minutes_between_validations(self) -> float:
        """valid_minutes, or its default for the length of the run."""
        return self.valid_minutes or max(1.0, min(10.0, self.train_minutes / 10 or 10.0))


@dataclass(frozen=True)
class TrainOptions:
    """All groups together."""

    data: DataOptions
    model: ModelOptions
    learning: LearningOptions
    notes: tuple[str, ...] = field(default=(), compare=False)  # options without effect, for the log


MAX_WEIGHT = 10_000  # an epoch is a list with so many copies of each pair
GROUPS = (DataOptions, ModelOptions, LearningOptions)
RULES = (
    missing("train", "output"),
    needs(
        "vocab_size all_characters d_model heads d_ff enc_layers dec_layers norm max_positions",
        absent("init_from"),
    ),
    refuse(
        lambda v: v.d_model % (2 * v.heads),
        "{d_model} is not an even multiple of {heads}; change one",
    ),
    refuse(
        lambda v: v.train_weights and len(v.train_weights) != len(v.train),
        lambda v: (
            f"train_weights: {len(v.train_weights)} weights for {len(v.train)} files of train; "
            "give one for each"
        ),
    ),
    refuse(
        lambda v: not all(0 < weight <= MAX_WEIGHT for weight in v.train_weights),
        f"train_weights: each must be above 0 and at most {MAX_WEIGHT:,}",
    ),
    refuse(
        lambda v: v.save_bits not in (8, 16),
        "{save_bits} is not 8 or 16; give one of these",
    ),
    refuse(
        lambda v: not v.train_steps and not v.train_minutes,
        "train_minutes is missing; say when to stop, such as -train_minutes 10 (or train_steps)",
    ),
)
OPTIONS: dict[str, Option] = options_of((*GROUPS, *META), partial(help_of, RULES))


def as_table(options: TrainOptions) -> dict[str, Any]:
    """All options but -resume, as a configuration holds them."""
    groups = (options.data, options.model, options.learning)
    values = {name: value for group in groups for name, value in vars(group).items()}
    del values["resume"]
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def build_options(resolved: Resolved) -> TrainOptions:
    data = resolved.build(DataOptions)
    if data.init_from is not None:  # may be the name of a shipped model
        data = replace(data, init_from=str(find_model(data.init_from)))
    model, learning = resolved.build(ModelOptions), resolved.build(LearningOptions)
    return TrainOptions(data, model, learning, resolved.notes)


PROGRAM = Program(
    "onmt_lite_train",
    USAGE,
    OPTIONS,
    RULES,
    page=PAGE,
    remark=remark_on_translation,
    build=build_options,
)
load_train_options = PROGRAM.load
