"""All options of the trainer."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from onmt_lite.checkpoints.shipped import find_model
from onmt_lite.config.option import DEVICE_PATTERN, META_GROUPS, File, Option, collect_options, opt
from onmt_lite.config.options import hint_translation_option
from onmt_lite.config.rules import (
    describe_requirements,
    effective_only_with,
    none_set,
    reject_if,
    require_paths,
)
from onmt_lite.config.sources import Program, Resolved

USAGE = """\
-train PAIRS.tsv -output DIR -train_minutes N [options]

Trains a Transformer on sentence pairs and writes a model for onmt_lite -model, with a log
(train.log), a table of metrics (train.csv), a plot (train.svg, if matplotlib is installed) and the
options (train.yaml).
Stop the run with Ctrl-C at any time; -resume continues it.

  {command} -train my.tsv -output runs/mine -train_minutes 40"""
PAGE = "train valid output train_minutes train_steps init_from vocab_size d_model".split()
PAGE += "enc_layers dec_layers batch_tokens dropout device resume config".split()


@dataclass(frozen=True)
class DataOptions:
    """Input and output files, and text processing."""

    title: ClassVar[str] = "Data"

    train: tuple[File, ...] = ()
    train_weights: tuple[float, ...] = ()
    valid: tuple[File, ...] = ()
    output: str = opt("", metavar="PATH")
    init_from: str | None = opt(None, metavar="PATH")
    save_bits: int = 16
    reverse: bool = False
    vocab_size: int | None = opt(None, within=(16, 500_000))
    all_characters: bool = False
    src_sampling: float = opt(0.2, within=(0, 1))
    tgt_sampling: float = opt(0.0, within=(0, 1))


@dataclass(frozen=True)
class ModelOptions:
    """Size of the Transformer (ReLU, shared embeddings)."""

    title: ClassVar[str] = "Model"

    d_model: int = opt(192, within=(8, 65_536))
    heads: int = opt(4, within=(1, 1024))
    d_ff: int = opt(768, within=(8, 1_000_000))
    enc_layers: int = opt(3, within=(1, 1000))
    dec_layers: int = opt(1, within=(1, 1000))
    norm: Literal["before", "after"] = "before"
    max_positions: int = opt(512, within=(8, 1_000_000))
    dropout: float = opt(0.1, within=(0, 0.9))


@dataclass(frozen=True)
class LearningOptions:
    """Limits, learning rates, device and other settings of a run."""

    title: ClassVar[str] = "Learning"

    train_steps: int = opt(0, min=0)
    train_minutes: float = opt(0.0, min=0)
    batch_tokens: int = opt(1500, within=(16, 100_000_000))
    matrix_lr: float = opt(0.02, above=0)
    vector_lr: float = opt(0.002, above=0)
    warmup_steps: int = opt(40, min=1)
    cooldown: float = opt(0.8, above=0, max=1)
    label_smoothing: float = opt(0.1, within=(0, 0.9))
    clip_norm: float = opt(1.0, above=0)
    mean_steps: int = opt(0, min=0)
    valid_minutes: float | None = opt(None, above=0)
    seed: int = opt(1, within=(0, 2**63 - 1))
    device: str = opt("auto", pattern=DEVICE_PATTERN, metavar="DEVICE")
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int | None = opt(None, within=(1, 256))
    resume: bool = False
    log_file: File | None = None

    @property
    def minutes_between_validations(self) -> float:
        """Return valid_minutes, or its default for the length of the run."""
        return self.valid_minutes or max(1.0, min(10.0, self.train_minutes / 10 or 10.0))


@dataclass(frozen=True)
class TrainOptions:
    """All options of a run."""

    data: DataOptions
    model: ModelOptions
    learning: LearningOptions
    # About options without effect, for the log
    notices: tuple[str, ...] = field(default=(), compare=False)


MAX_WEIGHT = 10_000  # limits the length of an epoch, which is a list of all copies
GROUPS = (DataOptions, ModelOptions, LearningOptions)
RULES = (
    require_paths("train", "output"),
    effective_only_with(
        "vocab_size all_characters d_model heads d_ff enc_layers dec_layers norm max_positions",
        none_set("init_from"),
    ),
    reject_if(
        lambda v: v.d_model % (2 * v.heads),
        "{d_model} must be an even multiple of {heads}; change one of them",
    ),
    reject_if(
        lambda v: v.train_weights and len(v.train_weights) != len(v.train),
        lambda v: (
            f"train_weights: there are {len(v.train_weights)} weights for {len(v.train)} train "
            "files; set one for each"
        ),
    ),
    reject_if(
        lambda v: not all(0 < weight <= MAX_WEIGHT for weight in v.train_weights),
        f"train_weights: each weight must be above 0 and at most {MAX_WEIGHT:,}",
    ),
    reject_if(
        lambda v: v.save_bits not in (8, 16),
        "{save_bits} must be 8 or 16",
    ),
    reject_if(
        lambda v: not v.train_steps and not v.train_minutes,
        "train_minutes is missing; set a limit such as -train_minutes 10 (or train_steps)",
    ),
)
OPTIONS: dict[str, Option] = collect_options(
    (*GROUPS, *META_GROUPS), ("train",), partial(describe_requirements, RULES)
)


def to_config(options: TrainOptions) -> dict[str, Any]:
    """Return all options except -resume as values for a YAML config."""
    groups = (options.data, options.model, options.learning)
    values = {name: value for group in groups for name, value in vars(group).items()}
    del values["resume"]
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def build_options(resolved: Resolved) -> TrainOptions:
    """Build the options of a run from resolved values."""
    data = resolved.build(DataOptions)
    if data.init_from is not None:  # possibly the name of a shipped model
        data = replace(data, init_from=str(find_model(data.init_from)))
    model, learning = resolved.build(ModelOptions), resolved.build(LearningOptions)
    return TrainOptions(data, model, learning, resolved.notices)


PROGRAM = Program(
    "onmt_lite.train",
    USAGE,
    OPTIONS,
    RULES,
    common_options=PAGE,
    hint=hint_translation_option,
    build=build_options,
)
load_train_options = PROGRAM.load
