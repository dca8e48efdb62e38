"""Reads search defaults from model files: generation_config.json and Marian's decoder.yml."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.config_reader import format_value, load_yaml
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.search.policy import Preset
from onmt_lite.search.presets import SWITCHES
from onmt_lite.search.spec import TokenRules
from onmt_lite.system.safe_parse import parse_json, parse_yaml

# The families of `onmt_lite.checkpoints.huggingface.reader`; importing it would import torch
FAMILIES = ("marian", "m2m_100", "mbart", "t5", "mt5")
CONFIG, GENERATION = "config.json", "generation_config.json"
VERSIONS = ("transformers-4", "transformers-5")  # they read these files differently
MAX_BYTES = 1 << 20
MAX_LENGTH = 1 << 30  # longer than any output
MAX_FLOAT = 3.4028234663852886e38  # the largest float32

# Conversions to the values of our options
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    # The length in new tokens does not include the start token
    "max_new_tokens": lambda n: n + 1,
    "min_new_tokens": lambda n: n + 1,
    "early_stopping": lambda value: {True: "true", False: "false"}.get(value, value),
    "top_p": lambda p: 0.0 if p == 1 else p,
    "normalize": float,
}


def load_table(table: str) -> dict[str, Any]:
    """Load a table of generation_config.yaml."""
    return load_yaml("generation_config.yaml")[table]


def _is_token_list(value: Any, n: int) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < n for i in value)


def _is_phrase_list(value: Any, n: int) -> bool:
    return isinstance(value, list) and all(word and _is_token_list(word, n) for word in value)


def _is_bias_list(value: Any, n: int) -> bool:
    pairs = isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value)
    return (
        pairs
        and _is_phrase_list([tokens for tokens, _ in value], n)
        and all(type(bias) in (int, float) for _, bias in value)
        and all(abs(bias) <= MAX_FLOAT or bias == -math.inf for _, bias in value)
    )


def _is_decay(value: Any, n: int) -> bool:
    types = [type(x) for x in value] if isinstance(value, list) else []
    is_pair = types in ([int, int], [int, float])
    return is_pair and all(0 <= x <= MAX_FLOAT for x in value)


# By token rule: check of the value for a vocabulary of n tokens, description of valid values
TOKENS = "a list of token IDs of the model"
RULES: dict[str, tuple[Callable[[Any, int], bool], str]] = {
    "bad_words_ids": (_is_phrase_list, "a list of lists of token IDs of the model"),
    "suppress_tokens": (_is_token_list, TOKENS),
    "begin_suppress_tokens": (_is_token_list, TOKENS),
    "eos_token_id": (
        lambda i, n: type(i) is not list or (i != [] and _is_token_list(i, n)),
        TOKENS,
    ),
    "sequence_bias": (
        _is_bias_list,
        "a list of pairs of token IDs of the model and a finite number",
    ),
    "exponential_decay_length_penalty": (
        _is_decay,
        "a list of a length in tokens and a non-negative factor",
    ),
    "encoder_no_repeat_ngram_size": (
        lambda n, _: type(n) is int and n >= 0,
        "an integer of at least 0",
    ),
}


def parse_token_rules(
    settings: Mapping[str, Any], get_file: Callable[[str], Path], eos: int, vocab_size: int
) -> TokenRules:
    """Return the token rules in the settings of a transformers model.

    Args:
        settings: the settings by name.
        get_file: returns the file that contains a setting, for error messages.
        eos: ID of the EOS token.
        vocab_size: size of the target vocabulary.

    Raises:
        CheckpointError: if a value has the wrong type or an ID outside the vocabulary.
    """
    values = {name: settings.get(name) for name in RULES}
    for name, (is_valid, expected) in RULES.items():
        if values[name] is not None and not is_valid(values[name], vocab_size):
            raise CheckpointError(f"{get_file(name)}: {name} must be {expected}; correct it there")
    ends = values["eos_token_id"] if isinstance(values["eos_token_id"], list) else [eos]
    banned = [[token] for token in values["suppress_tokens"] or []]
    forced = settings.get("forced_eos_token_id")
    if isinstance(forced, list) and len(forced) == 1:
        (forced,) = forced
    if forced is not None and forced not in ends:
        raise CheckpointError(
            f"{get_file('forced_eos_token_id')}: forced_eos_token_id must be the EOS token ({eos})"
        )
    forced = forced if forced is None else ends[ends.index(forced)]  # 2 for 2.0
    if forced is not None and [forced] in banned:
        raise CheckpointError(
            f"{get_file('suppress_tokens')}: suppress_tokens must not contain the EOS token "
            f"({eos}) because forced_eos_token_id is set"
        )
    # `generate` ignores a bad word that consists of EOS only; a bias of -inf is a ban
    words = [word for word in values["bad_words_ids"] or [] if word not in [[i] for i in ends]]
    biases = {tuple(tokens): float(bias) for tokens, bias in values["sequence_bias"] or []}
    banned += [[*tokens] for tokens, bias in biases.items() if bias == -math.inf]
    decay = values["exponential_decay_length_penalty"]
    return TokenRules(
        tuple(sorted(set(map(tuple, [*words, *banned])))),
        forced is not None,
        settings.get("renormalize_logits") is True,
        tuple(dict.fromkeys([ends[0] if forced is None else forced, *ends])),
        tuple(values["begin_suppress_tokens"] or ()),
        values["encoder_no_repeat_ngram_size"] or 0,
        tuple((tokens, bias) for tokens, bias in biases.items() if bias > -math.inf),
        decay and (min(decay[0], MAX_LENGTH), float(decay[1])),
    )


def _is_plain(value: Any, depth: int = 3) -> bool:
    """Return True for a number, and for numbers in lists of at most `depth` levels."""
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return isinstance(value, (int, float))


def select_settings(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None, version: str
) -> tuple[dict[str, Any], str]:
    """Return the settings that `generate` uses, and the name of their file.

    If generation_config.json exists, config.json is ignored.  Exception: transformers 4 prefers a
    config.json with search settings to a generation_config.json that was derived from it.

    Args:
        config: content of config.json.
        generation: content of generation_config.json, None if the file does not exist.
        version: one of VERSIONS.
    """
    is_old = version == "transformers-4"
    defaults = (
        load_table("family_defaults").get(str(config.get("model_type")), {}) if is_old else {}
    )
    config = {**defaults, **config}
    if generation is not None and not (is_old and generation.get("_from_model_config")):
        return dict(generation), GENERATION
    has_settings = any(
        config.get(name) not in (None, value)
        for name, value in (load_table("legacy_defaults") | defaults).items()
    )
    if generation is None or has_settings:
        return dict(config), CONFIG
    return dict(generation), GENERATION


def read_defaults(
    models: tuple[str, ...],
    search: str,
    preset: Preset,
    user_options: Mapping[str, Any],
    check: Callable[[str, Any], Any],
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the default options that a transformers model defines.

    Args:
        models: model paths; only the first model is read.
        search: name of the preset.
        preset: the preset.
        user_options: options set by the user, by name.
        check: validates and returns the value of an option; raises ValueError.

    Returns:
        Pairs of options by name and their origin: first the defaults of `generate`, then the
        defaults of the model, including settings without an equivalent option.

    Raises:
        CheckpointError: if a value is invalid or a setting is not supported.
        OptionError: if the model samples by default and do_sample is not set.
    """
    directory, do_sample = Path(models[0] if models else ""), user_options.get("do_sample")
    config = _read_object(directory / CONFIG) or {}
    if not models or config.get("model_type") not in FAMILIES:
        return []
    generation = _read_object(directory / GENERATION)
    settings, name = select_settings(config, generation, preset.model_defaults or "")
    path, in_file = directory / name, (config if name == CONFIG else generation) or {}
    if settings.get("do_sample") and do_sample is None:
        raise OptionError(
            f"do_sample: {path} enables sampling; set do_sample to true to sample, or to false for "
            "beam search"
        )
    names = load_table("generation_config") | (load_table("sampling") if do_sample else {})
    unavailable = [n for n, o in names.items() if o in SWITCHES and o not in preset.options]
    neutral = _list_neutral_values(preset, bool(do_sample), unavailable)
    _refuse_unsupported(path, settings, search, neutral)
    names = {n: option for n, option in names.items() if n not in unavailable}
    options = _convert_options(path, settings, names, check)
    fixed = {n: settings.get(n) for n, o in load_table("tokens").items() if o not in user_options}
    options |= {n: value for n, value in fixed.items() if n in in_file and _is_plain(value)}
    implied = {n: value for n, value in fixed.items() if n not in in_file and value is not None}
    return [({**preset.model_fallbacks, **implied}, f"of {search}"), (options, f"of {path}")]


def _list_neutral_values(
    preset: Preset, do_sample: bool, unavailable: Iterable[str]
) -> dict[str, list[Any]]:
    """List the values without effect of each setting that a preset does not support.

    Args:
        preset: the preset.
        do_sample: whether tokens are sampled.
        unavailable: further settings that the preset does not support.
    """
    neutral = load_table("unsupported") | (load_table("unsupported_sampling") if do_sample else {})
    neutral |= {} if preset.has_token_rules else load_table("unsupported_rules")
    return neutral | {name: [load_table("legacy_defaults")[name]] for name in unavailable}


def _refuse_unsupported(
    path: Path, settings: Mapping[str, Any], search: str, neutral: Mapping[str, list[Any]]
) -> None:
    """Raise CheckpointError for an unsupported setting that has an effect.

    Args:
        path: the file, for the error message.
        settings: settings by name.
        search: name of the preset, for the error message.
        neutral: values without effect, by unsupported setting.
    """
    for name, values in neutral.items():
        if settings.get(name) is not None and settings[name] not in values:
            raise CheckpointError(
                f"{path}: -search {search} does not support {name}, but it changes the output; "
                "remove it there, or use another -search"
            )


def read_decoder_yml(
    models: tuple[str, ...], check: Callable[[str, Any], Any]
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the default options in the decoder.yml of a Marian model.

    The file must be in the directory of the model; for a model file, it must list that file.

    Args:
        models: model paths; only the first model is read.
        check: validates and returns the value of an option; raises ValueError.

    Returns:
        One pair of options by name and their origin, or nothing.

    Raises:
        CheckpointError: if a value is invalid.
    """
    if not models:
        return []
    model = Path(models[0])
    path = (model if model.is_dir() else model.parent) / "decoder.yml"
    settings = _read_object(path) or {}
    if not model.is_dir() and model.name not in get_file_names(
        settings.get("models"), "models", path
    ):
        return []
    options = _convert_options(path, settings, load_table("decoder"), check)
    return [(options, f"of {path}")] if options else []


def get_file_names(listed: Any, key: str, path: Path) -> list[str]:
    """Return the names of the files in a list in decoder.yml, without their directories.

    Args:
        listed: value of the key.
        key: key in decoder.yml, for error messages.
        path: path of decoder.yml.

    Raises:
        CheckpointError: if the value is not a list of strings.
    """
    listed = listed or []
    if not isinstance(listed, list) or not all(type(name) is str and name for name in listed):
        raise CheckpointError(f"{path}: {key} must be a list of files; correct it there")
    return [re.split(r"[/\\]", name)[-1] for name in listed]


def _convert_options(
    path: Path, settings: dict[str, Any], names: dict[str, str], check: Callable[[str, Any], Any]
) -> dict[str, Any]:
    """Convert the settings in a model file to our options.

    Args:
        path: the file, for error messages.
        settings: settings by name.
        names: our option for each setting.
        check: validates and returns the value of an option; raises ValueError.

    Raises:
        CheckpointError: if a value is invalid.
    """
    options = {}
    for name, option in names.items():
        value = settings.get(name)
        if value is None:
            continue
        if not isinstance(value, (bool, int, float, str)):
            raise CheckpointError(
                f"{path}: {name} must be a single value, not {format_value(value)}; correct it "
                "there"
            )
        try:
            options[option] = check(
                option, CONVERSIONS[name](value) if name in CONVERSIONS else value
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{path}: {name}: {error}; correct it there") from None
    return options


def _read_object(path: Path) -> dict[str, Any] | None:
    """Read the object in a file; None if it is missing or invalid (the reader reports it)."""
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES)
        value = parse_yaml(data) if path.suffix == ".yml" else parse_json(data, unique=False)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
