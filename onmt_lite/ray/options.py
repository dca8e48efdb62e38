"""Every option of `python -m onmt_lite.ray`: those of a cluster here, those of a translation from
`translate.py`."""

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
-src FILE|FOLDER|GLOB ... -output FILE [options]

Translates files on the machines of a Ray cluster, or with a Ray of its own on this machine, to what
translate.py makes of the files joined; either of them goes on with a job that the other has begun.
Every machine must have this package, the files of the model, the inputs and the folder of the
output under the same paths."""
PAGE = "src output model config beam_size n_best output_format address actors".split()
PAGE += "cpus_per_actor gpus_per_actor resume quiet".split()


@dataclass(frozen=True)
class ClusterOptions:
    """Where it runs."""

    title: ClassVar[str] = "Cluster"

    address: str | None = opt(None, metavar="ADDRESS")
    actors: int | None = opt(None, within=(1, 100_000))
    cpus_per_actor: int = opt(1, within=(1, 1024))
    gpus_per_actor: float = opt(0.0, within=(0, 1))


@dataclass(frozen=True)
class RayOptions:
    """What is translated, where, and how; `translation` is what an actor's Translator takes."""

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
HELP = ("ray",)  # the section of help.yaml
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
    **{name: "only translate.py has it; leave it out" for name in TRANSLATE if name not in OPTIONS},
    "gpu": "Ray chooses the GPUs; give gpus_per_actor 1",
    "workers": "use actors instead",
}
RULES = (
    require_paths("src", "output"),
    reject_if(lambda v: "-" in v.src, "src -: actors cannot read standard input; give files"),
    reject_if(
        lambda v: v.device not in ("auto", "cuda" if v.gpus_per_actor else "cpu"),
        lambda v: (
            f"device {v.device}: with gpus_per_actor {v.gpus_per_actor:g} actors run on "
            f"{'cuda' if v.gpus_per_actor else 'cpu'}; give another gpus_per_actor"
        ),
    ),
    reject_all(lambda v: find_translation_problems(build_translation_values(v))),
)


def find_translation_problems(values: dict[str, Any]) -> list[str]:
    return [] if TRANSLATION.awaits_model(values) else find_errors(TRANSLATION.rules, values)


def build_translation_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all options of translate.py: defaults for those that Ray lacks or has otherwise."""
    shared = {name: values[name] for name in (*SHARED_NAMES, *FILES, "config")}
    shared["output_format"] = values["output_format"] or "auto"
    return {**{name: option.default for name, option in TRANSLATE.items()}, **shared}


def build_ray_options(resolved: Resolved) -> RayOptions:
    cluster, values = resolved.build(ClusterOptions), build_translation_values(resolved.values)
    origins = {name: resolved.origins.get(name, "default") for name in TRANSLATE} | {
        "src": "default"
    }
    completed = TRANSLATION.complete(Resolved(values, origins, resolved.notices))
    translation = adapt_to_actors(build_options(completed), cluster)
    return RayOptions(resolved.values["src"], cluster, translation)


def adapt_to_actors(options: TranslateOptions, cluster: ClusterOptions) -> TranslateOptions:
    """On the device that an actor has, with paths that do not depend on where it runs."""
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
    """With absolute paths."""
    paths = {name: v for name, v in vars(group).items() if TRANSLATE[name].is_path}
    return replace(group, **{name: to_absolute(v) for name, v in paths.items() if v})


def to_absolute(paths: Any) -> Any:
    """Absolute paths of what exists; other names may be those of shipped models or of the hub."""
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
