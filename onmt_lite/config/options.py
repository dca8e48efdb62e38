"""All options of a translation, `TranslateOptions`, and how they are loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onmt_lite.checkpoints import hub
from onmt_lite.checkpoints.generation_config import read_decoder_yml, read_defaults
from onmt_lite.checkpoints.shipped import find_model, get_model_paths
from onmt_lite.config.job_options import InformationOptions, JobOptions, SpeedOptions
from onmt_lite.config.option import (
    META_GROUPS,
    Option,
    build_group,
    check_value,
    collect_options,
    format_value,
)
from onmt_lite.config.other_tools import SHARED_OPTIONS, find_hint, load_opennmt_options
from onmt_lite.config.rules import describe_requirements
from onmt_lite.config.search_options import (
    AttentionOptions,
    PhraseOptions,
    SamplingOptions,
    SearchOptions,
)
from onmt_lite.config.sources import KEYWORD_ORIGIN, Program, Resolved, Resolver
from onmt_lite.config.text_options import DataOptions, ModelOptions, TextOptions
from onmt_lite.config.translate_rules import RULES
from onmt_lite.errors import use_keyword_style
from onmt_lite.models.kernels.build import find_library, load_library
from onmt_lite.search.presets import PRESETS, SWITCHES
from onmt_lite.system.processor import MIN_INT8_WIDTH
from onmt_lite.system.safe_parse import parse_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onmt_lite.config.keywords import AllOptions

USAGE = """\
[options]

Translates lines of text, by default from German to English: standard input to standard
output unless -src and -output name files.  Options are spelt -name VALUE, --name VALUE
or --name=VALUE, and are the keys of YAML files too; the command line wins over YAML,
YAML over the default.

  echo "Guten Morgen!" | {command}
  {command} -src input.de -output output.en -config nbest"""
COMMON_OPTIONS = "src output model config beam_size n_best min_length block_ngram_repeat".split()
COMMON_OPTIONS += "output_format search device workers resume quiet".split()


@dataclass(frozen=True)
class TranslateOptions:
    """All options, in groups.  Build them with `TranslateOptions.of(beam_size=4, ...)`.

    Attributes:
        model: which model, its precision and its languages.
        text: how text is cut into tokens and joined again.
        data: files, and the formats of input and output.
        search: beam search, lengths and penalties.
        sampling: drawing of tokens.
        attention: alignments and reports of attention.
        phrases: words that translations must, or must not, hold.
        speed: device, precision, threads and batches.
        jobs: workers, resuming, shards.
        information: what is printed and logged.
        resolved: the values by name, with where each came from.
    """

    data: DataOptions
    model: ModelOptions
    text: TextOptions
    search: SearchOptions
    sampling: SamplingOptions
    attention: AttentionOptions
    phrases: PhraseOptions
    speed: SpeedOptions
    jobs: JobOptions
    information: InformationOptions
    resolved: Resolved = field(compare=False)

    @property
    def given(self) -> dict[str, Any]:
        """The values by name that are not defaults."""
        return self.resolved.given()

    @property
    def notes(self) -> tuple[str, ...]:
        """Options without effect, each with the reason."""
        return self.resolved.notices

    @property
    def configs(self) -> tuple[str, ...]:
        """The YAML files that were read."""
        return self.resolved.values["config"]

    @property
    def n_workers(self) -> int | None:
        """Processes that translate: one per GPU if there are several.  None: as many as pay."""
        return len(self.speed.gpu) if len(self.speed.gpu) > 1 else self.jobs.workers

    @property
    def is_exact(self) -> bool:
        """Whether results must equal those of another system, which int8 would not do."""
        return self.search.search != "opennmt"

    @classmethod
    def of(cls, **given: "Unpack[AllOptions]") -> "TranslateOptions":
        """Build options from keyword arguments.

        Args:
            given: the command line's options by name, such as `beam_size=4`, with values as in
                YAML; all others have their defaults.  docs/options.md lists all.

        Returns:
            The options, checked.

        Raises:
            OptionError: with every problem.
        """
        resolver = Resolver(PROGRAM)
        for name, value in given.items():
            resolver.add_value(name, value, KEYWORD_ORIGIN)
        with use_keyword_style():
            return build_options(resolver.resolve())

    def updated(self, **given: "Unpack[AllOptions]") -> "TranslateOptions":
        """Change some options.

        Args:
            given: as of `of`.

        Returns:
            These options but for the given ones; what nobody gave may get another default.

        Raises:
            OptionError: with every problem.
        """
        return TranslateOptions.of(**{**self.given, **given})

    def with_models(self) -> "TranslateOptions":
        """Fetch the models of the hub.

        Returns:
            These options with paths in the place of their names, and with the defaults that these
            models bring.

        Raises:
            CheckpointError: if a model cannot be fetched.
            OptionError: with every problem that these defaults make.
        """
        paths = tuple(hub.download_model(name, self.jobs.quiet) for name in self.model.model)
        if paths == self.model.model:
            return self
        before = {**self.resolved.values, "model": paths}
        resolved = PROGRAM.complete(replace(self.resolved, values=before))
        brought = {n: v for n, v in resolved.values.items() if v != self.resolved.values[n]}
        groups = {}
        for name in GROUPS:
            group = getattr(self, name)
            groups[name] = replace(group, **{n: brought[n] for n in vars(group) if n in brought})
        return replace(self, **groups, resolved=resolved)


GROUPS: dict[str, Any] = {f.name: f.type for f in fields(TranslateOptions) if f.name != "resolved"}


def describe_dependencies(name: str) -> str:
    """Return what help says about an option besides its own text: what it needs, which searches
    have it, and the defaults that they bring."""
    have = [s for s, preset in PRESETS.items() if name in preset.options or name not in SWITCHES]
    lack = [s for s in PRESETS if s not in have]
    sentences = [describe_requirements(RULES, name)]
    if lack:
        word, searches = ("Only", have) if len(have) < len(lack) else ("Not", lack)
        sentences.append(f"{word} with -search {', '.join(searches)}")
    brought = {search: PRESETS[search].defaults for search in have}
    drawn = {search: PRESETS[search].sampling_defaults for search in have}
    for of_what, defaults in (("of searches", brought), ("with -do_sample", drawn)):
        by_value: dict[str, list[str]] = {}
        for search, values in defaults.items():
            if name in values:
                by_value.setdefault(format_value(values[name]), []).append(search)
        if by_value:
            shown = [f"{value} ({', '.join(names)})" for value, names in by_value.items()]
            sentences.append(f"Default {of_what}: {', '.join(shown)}")
    return ". ".join(filter(None, sentences))


def awaits_model(values: Mapping[str, Any]) -> bool:
    """Return True if a search takes defaults from a model that may be one of the hub."""
    is_here = [find_model(path).exists() for path in values["model"]]
    return PRESETS[values["search"]].model_defaults is not None and not all(is_here)


def find_defaults(given: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    """The defaults of the system whose search is asked for, then those that the model brings."""
    name = given.get("search", "opennmt")
    preset = PRESETS[name]
    defaults = dict(preset.defaults)
    if given.get("do_sample"):
        defaults |= preset.sampling_defaults
    if preset.max_length_replaces_ratio and "max_length" in given:
        defaults["max_length_ratio"] = 0.0
    own: list[tuple[Mapping[str, Any], str]] = []
    models = given.get("model", ())
    if preset.model_defaults == "marian":
        own = read_decoder_yml(models, lambda n, value: check_value(OPTIONS[n], value))
    elif preset.model_defaults is not None:
        own = read_defaults(models, name, preset, given, lambda n, v: check_value(OPTIONS[n], v))
    return [(defaults, f"of {name}"), *own]


def describe_auto_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what `auto` resolves to, by option."""
    found, data = describe_precision(values), build_group(DataOptions, values)
    if data.output_format == "auto":
        found["output_format"] = f"here {data.format}"
    if awaits_model(values):
        found["model"] = "its defaults are read once it is fetched"
    return found


def describe_precision(values: Mapping[str, Any]) -> dict[str, str]:
    """Say what precision `auto` is on this machine, as far as that is known without torch."""
    if values["precision"] != "auto":
        return {}
    if build_group(SpeedOptions, values).expects_gpu:
        return {"precision": "here bf16, or fp32 if the GPU lacks it"}
    is_exact = values["search"] != "opennmt"
    if not is_exact and find_library(compiles=False) is None:
        return {"precision": "here fp32, or int8 with kernels; kernels: not compiled yet"}
    if is_exact or load_library() is None:
        return {"precision": "here fp32"}
    widths = [*map(read_width, map(find_model, get_model_paths(values["model"])))]
    known = "int8" if min(widths, default=0) >= MIN_INT8_WIDTH else "fp32"
    return {"precision": f"here {known if all(widths) else 'int8, or fp32 if the model is small'}"}


def read_width(path: Path) -> int:
    """The width of a Transformer that a JSON file describes; 0 if none does."""
    for name in ("model.json", "config.json"):
        try:
            described = parse_json((path / name).read_bytes())
            return int(described.get("config", described)["d_model"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return 0


def hint_translation_option(name: str) -> str | None:
    """Return the hint on a translator option given to another program."""
    is_known = name in OPTIONS
    return "it is for translation (python -m onmt_lite); leave it out" if is_known else None


def build_options(resolved: Resolved) -> TranslateOptions:
    groups = {name: resolved.build(kind) for name, kind in GROUPS.items()}
    return TranslateOptions(**groups, resolved=resolved)


OPTIONS: dict[str, Option] = collect_options(
    (*GROUPS.values(), *META_GROUPS), ("translate",), describe_dependencies
)
PROGRAM = Program(
    name="onmt_lite",
    usage=USAGE,
    options=OPTIONS,
    common_options=COMMON_OPTIONS,
    accepts_text=True,
    rules=RULES,
    build=build_options,
    shared_options=SHARED_OPTIONS,
    foreign_options=load_opennmt_options,
    hint=lambda name: find_hint(name, OPTIONS),
    awaits_model=awaits_model,
    defaults=find_defaults,
    describe_auto=describe_auto_values,
    ignores_quotes=True,
)
load_options = PROGRAM.load
