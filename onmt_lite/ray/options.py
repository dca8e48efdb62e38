"""Options of `python -m onmt_lite.ray`: its cluster options, and options of translate.py."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from onmt_lite.config.job_options import JobOptions, SpeedOptions
from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.options import OPTIONS as TRANSLATE
from onmt_lite.config.options import PROGRAM as TRANSLATION
from onmt_lite.config.options import (
    TranslateOptions,
    build_options,
    find_defaults,
)
from onmt_lite.config.other_tools import SHARED_OPTIONS, find_hint, load_opennmt_options
from onmt_lite.config.rules import find_errors, reject_all, reject_if, require_paths
from onmt_lite.config.search_options import SamplingOptions, SearchOptions
from onmt_lite.config.sources import Program, Resolved
from onmt_lite.config.text_options import ModelOptions, TextOptions

T = TypeVar("T", ModelOptions, TextOptions)

USAGE = """\
-src FILE|DIR|GLOB ... -output FILE [options]

Translates files on a Ray cluster, or with a private Ray on this machine.  The output is the same
as that of translate.py for the concatenated files, and each program can resume jobs of the other.
The package, the model, the inputs and the output directory must have the same paths on every
machine."""
PAGE = "src output model config beam_size n_best output_format address actors".split()
PAGE += "cpus_per_actor gpus_per_actor resume quiet".split()


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the cluster."""

    title: ClassVar[str] = "Cluster"

    address: str | None = opt(None, metavar="ADDRESS")
    actors: int | None = opt(None, within=(1, 100_000))
    cpus_per_actor: int = opt(1, within=(1, 1024))
    gpus_per_actor: float = opt(0.0, within=(0, 1))


@dataclass(frozen=True)
class RayOptions:
    """Options of a Ray job.

    Attributes:
        src: files, directories and patterns.
        cluster: options of the cluster.
        translation: options of the Translator of each actor.
    """

    src: tuple[str, ...]
    cluster: ClusterOptions
    translation: TranslateOptions


SHARED_GROUPS = (
    ModelOptions,
    TextOptions,
    SearchOptions,
    SamplingOptions,
    SpeedOptions,
    JobOptions,
)
UNSUPPORTED = ("gpu", "workers", "shard")
SHARED_NAMES = [f.name for g in SHARED_GROUPS for f in fields(g) if f.name not in UNSUPPORTED]
FILES = ("output", "input_format", "output_format", "text_field")
HELP = ("ray",)  # section of help.yaml
OPTIONS: dict[str, Option] = {
    "src": replace(TRANSLATE["src"], sections=HELP, is_list=True, default=()),
    **{name: TRANSLATE[name] for name in FILES},
    **collect_options((ClusterOptions,), HELP),
    **{name: TRANSLATE[name] for name in SHARED_NAMES},
    **collect_options(META_GROUPS),
    "output": replace(TRANSLATE["output"], sections=HELP, default=""),
    "output_format": replace(
        TRANSLATE["output_format"], sections=HELP, choices=("text", "jsonl"), default=None
    ),
    "device": replace(
        TRANSLATE["device"], sections=HELP, pattern=("auto|cpu|cuda", "auto, cpu or cuda")
    ),
}
UNSUPPORTED_HINTS = {
    **{
        name: "only supported by translate.py; remove it"
        for name in TRANSLATE
        if name not in OPTIONS
    },
    "gpu": "Ray assigns the GPUs; set gpus_per_actor 1",
    "workers": "use actors instead",
}
RULES = (
    require_paths("src", "output"),
    reject_if(lambda v: "-" in v.src, "src -: actors cannot read standard input; use files"),
    reject_if(
        lambda v: v.device not in ("auto", "cuda" if v.gpus_per_actor else "cpu"),
        lambda v: (
            f"device {v.device}: with gpus_per_actor {v.gpus_per_actor:g} actors run on "
            f"{'cuda' if v.gpus_per_actor else 'cpu'}; change gpus_per_actor or device"
        ),
    ),
    reject_all(lambda v: find_translation_problems(build_translation_values(v))),
)


def find_translation_problems(values: dict[str, Any]) -> list[str]:
    """Return the problems of the translation options."""
    return [] if TRANSLATION.awaits_model(values) else find_errors(TRANSLATION.rules, values)


def build_translation_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for all options of translate.py; defaults where Ray has none."""
    shared = {name: values[name] for name in (*SHARED_NAMES, *FILES, "config")}
    shared["output_format"] = values["output_format"] or "auto"
    return {**{name: option.default for name, option in TRANSLATE.items()}, **shared}


def build_ray_options(resolved: Resolved) -> RayOptions:
    """Build RayOptions from resolved values."""
    cluster, values = resolved.build(ClusterOptions), build_translation_values(resolved.values)
    origins = {name: resolved.origins.get(name, "default") for name in TRANSLATE} | {
        "src": "default"
    }
    completed = TRANSLATION.complete(Resolved(values, origins, resolved.notices))
    translation = adapt_to_actors(build_options(completed), cluster)
    return RayOptions(resolved.values["src"], cluster, translation)


def adapt_to_actors(options: TranslateOptions, cluster: ClusterOptions) -> TranslateOptions:
    """Set the device of an actor, and make paths independent of its working directory."""
    speed = replace(
        options.speed,
        device="cuda" if cluster.gpus_per_actor else "cpu",
        threads=options.speed.threads or cluster.cpus_per_actor,
    )
    return replace(
        options,
        model=make_paths_absolute(options.model),
        text=make_paths_absolute(options.text),
        speed=speed,
    )


def make_paths_absolute(group: T) -> T:
    """Make the paths of an options group absolute."""
    paths = {name: v for name, v in vars(group).items() if TRANSLATE[name].is_path}
    return replace(group, **{name: to_absolute(v) for name, v in paths.items() if v})


def to_absolute(paths: Any) -> Any:
    """Return absolute paths if they exist; other names may be shipped or hub models."""
    if isinstance(paths, tuple):
        return tuple(map(to_absolute, paths))
    return os.path.abspath(paths) if os.path.lexists(paths) else paths


PROGRAM = Program(
    name="onmt_lite.ray",
    usage=USAGE,
    options=OPTIONS,
    common_options=PAGE,
    rules=RULES,
    build=build_ray_options,
    shared_options=SHARED_OPTIONS,
    foreign_options=load_opennmt_options,
    hint=lambda name: UNSUPPORTED_HINTS.get(name) or find_hint(name, OPTIONS),
    defaults=find_defaults,
    ignores_quotes=True,
)
load_ray_options = PROGRAM.load
