"""Write the mean of models: `python -m recipes.de_en.mean -models A B -output C`.

Models that were trained from one start have a mean that is often better than each of them (model
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

Writes the weighted mean of models of the project's own format, which must have the same sizes and
the same pieces, as models trained from one start have."""


@dataclass(frozen=True)
class MeanOptions:
    """What is averaged, and where the mean goes."""

    title: ClassVar[str] = "Mean"

    models: tuple[str, ...] = opt((), help="Average these models", metavar="PATH")
    weights: tuple[float, ...] = opt(
        (),
        help="Weigh the models so; the sum does not matter; without weights, each counts the same",
        example="0.4 0.4 0.2",
    )
    output: str = opt(
        "",
        help="Write to this directory, which must not exist yet",
        metavar="PATH",
        example="runs/mean",
    )
    save_bits: int = opt(16, help="Write weights in 16 or 8 bits, as the trainer does", example="8")


RULES = (
    require_paths("output"),
    reject_if(lambda v: len(v.models) < 2, "models: give two models or more"),
    reject_if(lambda v: v.save_bits not in (8, 16), "save_bits is not 8 or 16; give one of these"),
    reject_if(
        lambda v: v.weights and len(v.weights) != len(v.models),
        lambda v: f"weights: {len(v.weights)} weights for {len(v.models)} models",
    ),
    reject_if(
        lambda v: v.weights and (min(v.weights) < 0 or sum(v.weights) <= 0),
        "weights: none may be below 0, and one must be above",
    ),
)
OPTIONS: dict[str, Option] = collect_options((MeanOptions, *META_GROUPS))
PROGRAM = Program(
    "recipes.de_en.mean", USAGE, OPTIONS, RULES, build=lambda resolved: resolved.build(MeanOptions)
)
load_mean_options = PROGRAM.load


def write_mean(options: MeanOptions) -> None:
    """The whole program.  An OnmtLiteError says what is wrong; then there is no mean."""
    output = Path(options.output)
    check_new(output)
    first, *others = (Path(path) for path in options.models)
    shares = options.weights or [1.0] * len(options.models)
    shares = [share / sum(shares) for share in shares]
    model, pieces = read_model(first, "models")
    mean = {name: shares[0] * tensor.float() for name, tensor in model.state_dict().items()}
    for path, share in zip(others, shares[1:], strict=True):
        other, others_pieces = read_model(path, "models")
        # Which head aligns is found after training, so that it may differ
        align = {name: value for name, value in vars(model.cfg).items() if name.startswith("align")}
        same = replace(other.cfg, **align)
        if same != model.cfg or others_pieces != pieces:
            raise OptionError(f"models: {path} has other sizes or pieces than {first}")
        for name, tensor in other.state_dict().items():
            mean[name] += share * tensor.float()
    model.load_state_dict(mean)
    write_model(output, model, pieces, options.save_bits)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, write_mean)


if __name__ == "__main__":
    sys.exit(main())
