"""Average the weights of models: `python -m recipes.de_en.mean -models A B -output C`.

The mean of models trained from the same initialization is often better than each model (model
soups, Wortsman et al. 2022).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.rules import reject_if, require_paths
from onmt_lite.config.sources import Program
from onmt_lite.errors import OptionError
from recipes.de_en.models import check_new, read_model, write_model

USAGE = """\
-models DIR DIR [DIR ...] -output DIR [options]

Writes the weighted mean of several onmt_lite models. Their sizes and subwords must be equal."""


@dataclass(frozen=True)
class MeanOptions:
    """Options of the program."""

    title: ClassVar[str] = "Mean"

    models: tuple[str, ...] = opt((), help="Average these models", metavar="PATH")
    weights: tuple[float, ...] = opt(
        (),
        help="Weight of each model; weights are normalized (default: equal weights)",
        example="0.4 0.4 0.2",
    )
    output: str = opt(
        "",
        help="Write the model to this new directory",
        metavar="PATH",
        example="runs/mean",
    )
    save_bits: int = opt(16, help="Write weights in 16 or 8 bits, as the trainer does", example="8")


RULES = (
    require_paths("output"),
    reject_if(lambda v: len(v.models) < 2, "models: at least two models are needed"),
    reject_if(lambda v: v.save_bits not in (8, 16), "save_bits: must be 8 or 16"),
    reject_if(
        lambda v: v.weights and len(v.weights) != len(v.models),
        lambda v: f"weights: {len(v.weights)} weights for {len(v.models)} models; set one for each",
    ),
    reject_if(
        lambda v: v.weights and (min(v.weights) < 0 or sum(v.weights) <= 0),
        "weights: must be 0 or more, and at least one above 0",
    ),
)
OPTIONS: dict[str, Option] = collect_options((MeanOptions, *META_GROUPS))
PROGRAM = Program(
    "recipes.de_en.mean", USAGE, OPTIONS, RULES, build=lambda resolved: resolved.build(MeanOptions)
)
load_mean_options = PROGRAM.load


def write_mean(options: MeanOptions) -> None:
    """Average the models and write the result.

    Raises:
        OnmtLiteError: a model cannot be read, the models do not match, or the output exists
    """
    output = Path(options.output)
    check_new(output)
    first, *rest = (Path(path) for path in options.models)
    weights = options.weights or [1.0] * len(options.models)
    weights = [weight / sum(weights) for weight in weights]
    model, subwords = read_model(first, "models")
    mean = {name: weights[0] * tensor.float() for name, tensor in model.state_dict().items()}
    for path, weight in zip(rest, weights[1:], strict=True):
        second, second_subwords = read_model(path, "models")
        # The alignment head is chosen after training and may differ
        align = {name: value for name, value in vars(model.cfg).items() if name.startswith("align")}
        if replace(second.cfg, **align) != model.cfg or second_subwords != subwords:
            raise OptionError(f"models: {path} and {first} differ in sizes or subwords")
        for name, tensor in second.state_dict().items():
            mean[name] += weight * tensor.float()
    model.load_state_dict(mean)
    write_model(output, model, subwords, options.save_bits)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, write_mean)


if __name__ == "__main__":
    sys.exit(main())
