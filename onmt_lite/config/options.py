"""TranslateOptions: all options of the translator."""

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
from onmt_lite.models.kernels.build import (
    describe_kernels,
    load_library,
    needs_compiling,
)
from onmt_lite.search.presets import PRESETS, SWITCHES
from onmt_lite.system.processor import MIN_INT8_WIDTH
from onmt_lite.system.safe_parse import parse_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onmt_lite.config.keywords import AllOptions

USAGE = """\
[options]

Translates text line by line, by default from German to English and from standard input
to standard output.  Options are written as -name VALUE, --name VALUE or --name=VALUE.
The same names are keys in YAML files.  The command line overrides YAML files, and YAML
files override defaults.

  echo "Guten Morgen!" | {command}
  {command} -src input.de -output output.en -config nbest"""
COMMON_OPTIONS = "src output model config beam_size n_best min_length block_ngram_repeat".split()
COMMON_OPTIONS += "output_format search device workers resume quiet".split()


@dataclass(frozen=True)
class TranslateOptions:
    """All options, in groups; create them with `TranslateOptions.of(beam_size=4, ...)`.

    Attributes:
        model: models and languages.
        text: tokenization and detokenization.
        data: files, and the formats of input and output.
        search: beam search, lengths and penalties.
        sampling: random sampling.
        attention: alignments and attention weights.
        phrases: required and forbidden phrases.
        speed: device, precision, threads and batches.
        jobs: workers, resuming, shards.
        information: logging and diagnostics.
        resolved: all values by name, with their origin.
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
        """The values that were given, by name."""
        return self.resolved.given()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notices, such as options without effect and the reason."""
        return self.resolved.notices

    @property
    def configs(self) -> tuple[str, ...]:
        """Paths of the YAML files."""
        return self.resolved.values["config"]

    @property
    def n_workers(self) -> int | None:
        """Number of worker processes: one per GPU if there are several; None means automatic."""
        return len(self.speed.gpu) if len(self.speed.gpu) > 1 else self.jobs.workers

    @property
    def is_exact(self) -> bool:
        """True if results must equal those of another system, which rules out int8."""
        return self.search.search != "opennmt"

    @classmethod
    def of(cls, **given: "Unpack[AllOptions]") -> "TranslateOptions":
        """Create options from keyword arguments.

        Args:
            given: Command-line options by name, such as `beam_size=4`, with values as in YAML;
                docs/options.md lists all options.

        Returns:
            The options; an option that is not given has its default.

        Raises:
            OptionError: An option is not valid; the error lists all problems.
        """
        resolver = Resolver(PROGRAM)
        for name, value in given.items():
            resolver.add_value(name, value, KEYWORD_ORIGIN)
        with use_keyword_style():
            return build_options(resolver.resolve())

    def updated(self, **given: "Unpack[AllOptions]") -> "TranslateOptions":
        """Return a copy with some options changed.

        Args:
            given: As in `of`.

        Returns:
            The changed options; the defaults of other options may change with them.

        Raises:
            OptionError: An option is not valid; the error lists all problems.
        """
        return TranslateOptions.of(**{**self.given, **given})

    def with_models(self) -> "TranslateOptions":
        """Download models from the Hugging Face hub.

        Returns:
            A copy with the paths of the models, and with the defaults that these models set.

        Raises:
            CheckpointError: A model cannot be downloaded.
            OptionError: The defaults of a model conflict with the options.
        """
        paths = tuple(hub.download_model(name, self.jobs.quiet) for name in self.model.model)
        if paths == self.model.model:
            return self
        before = {**self.resolved.values, "model": paths}
        resolved = PROGRAM.complete(replace(self.resolved, values=before))
        changed = {n: v for n, v in resolved.values.items() if v != self.resolved.values[n]}
        groups = {}
        for name in GROUPS:
            group = getattr(self, name)
            groups[name] = replace(group, **{n: changed[n] for n in vars(group) if n in changed})
        return replace(self, **groups, resolved=resolved)


GROUPS: dict[str, Any] = {f.name: f.type for f in fields(TranslateOptions) if f.name != "resolved"}


def describe_dependencies(name: str) -> str:
    """Return text for the help of an option: requirements, searches and their defaults."""
    supporting = [s for s, p in PRESETS.items() if name in p.options or name not in SWITCHES]
    unsupporting = [s for s in PRESETS if s not in supporting]
    sentences = [describe_requirements(RULES, name)]
    if unsupporting:
        is_rare = len(supporting) < len(unsupporting)
        words, searches = ("Only", supporting) if is_rare else ("Not", unsupporting)
        sentences.append(f"{words} supported by -search {', '.join(searches)}")
    defaults = {search: PRESETS[search].defaults for search in supporting}
    sampling_defaults = {search: PRESETS[search].sampling_defaults for search in supporting}
    for case, by_search in (("by search", defaults), ("with -do_sample", sampling_defaults)):
        by_value: dict[str, list[str]] = {}
        for search, values in by_search.items():
            if name in values:
                by_value.setdefault(format_value(values[name]), []).append(search)
        if by_value:
            shown = [f"{value} ({', '.join(names)})" for value, names in by_value.items()]
            sentences.append(f"Default {case}: {', '.join(shown)}")
    return ". ".join(filter(None, sentences))


def awaits_model(values: Mapping[str, Any]) -> bool:
    """Return True if a model that sets defaults of the search is not downloaded yet."""
    are_local = [find_model(path).exists() for path in values["model"]]
    return PRESETS[values["search"]].model_defaults is not None and not all(are_local)


def find_defaults(given: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the defaults of the preset, then the defaults of the model, with their origin."""
    name = given.get("search", "opennmt")
    preset = PRESETS[name]
    defaults = dict(preset.defaults)
    if given.get("do_sample"):
        defaults |= preset.sampling_defaults
    if preset.max_length_replaces_ratio and "max_length" in given:
        defaults["max_length_ratio"] = 0.0
    model_defaults: list[tuple[Mapping[str, Any], str]] = []
    models = given.get("model", ())
    if preset.model_defaults == "marian":
        model_defaults = read_decoder_yml(models, lambda n, value: check_value(OPTIONS[n], value))
    elif preset.model_defaults is not None:
        model_defaults = read_defaults(
            models, name, preset, given, lambda n, v: check_value(OPTIONS[n], v)
        )
    return [(defaults, f"of {name}"), *model_defaults]


def describe_auto_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what `auto` resolves to on this machine, by option."""
    described, data = describe_precision(values), build_group(DataOptions, values)
    if data.output_format == "auto":
        described["output_format"] = f"here {data.format}"
    if awaits_model(values):
        described["model"] = "its defaults are read when it is downloaded"
    return described


def describe_precision(values: Mapping[str, Any]) -> dict[str, str]:
    """Describe precision `auto` and the kernels on this machine, without importing torch."""
    is_auto = values["precision"] == "auto"
    if build_group(SpeedOptions, values).expects_gpu:
        return {"precision": "here bf16, or fp32 if the GPU does not support it"} if is_auto else {}
    precision = f"here {choose_precision(values)}; " if is_auto else ""
    return {"precision": f"{precision}kernels: {describe_kernels()}"}


def choose_precision(values: Mapping[str, Any]) -> str:
    """Return the precision that `auto` selects on a CPU, as far as it is known."""
    if values["search"] != "opennmt":
        return "fp32"
    if needs_compiling():
        return "fp32, or int8 with kernels"
    if load_library() is None:
        return "fp32"
    widths = [*map(read_width, map(find_model, get_model_paths(values["model"])))]
    if not all(widths):
        return "int8, or fp32 if the model is small"
    return "int8" if min(widths, default=0) >= MIN_INT8_WIDTH else "fp32"


def read_width(path: Path) -> int:
    """Return d_model from the JSON config in a model directory; 0 if there is none."""
    for name in ("model.json", "config.json"):
        try:
            config = parse_json((path / name).read_bytes())
            return int(config.get("config", config)["d_model"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return 0


def hint_translation_option(name: str) -> str | None:
    """Return a hint if a name given to another program is a translator option."""
    is_known = name in OPTIONS
    return "it is a translation option (python -m onmt_lite); remove it" if is_known else None


def build_options(resolved: Resolved) -> TranslateOptions:
    """Build TranslateOptions from resolved values."""
    groups = {name: resolved.build(group) for name, group in GROUPS.items()}
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
