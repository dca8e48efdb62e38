"""Search options that a model brings as its own defaults: those of Hugging Face and of Marian."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.config_reader import load_yaml
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.search.policy import Preset
from onmt_lite.search.presets import SWITCHES
from onmt_lite.search.spec import TokenRules
from onmt_lite.system.safe_parse import parse_json, parse_yaml

# Those that `onmt_lite.checkpoints.huggingface.reader` reads
FAMILIES = ("marian", "m2m_100", "mbart", "t5", "mt5")
CONFIG, GENERATION = "config.json", "generation_config.json"
VERSIONS = ("transformers-4", "transformers-5")  # whose `generate` read these files differently
MAX_BYTES = 1 << 20
MAX_LENGTH = 1 << 30  # no output is longer
MAX_FLOAT = 3.4028234663852886e38  # the largest number of 32 bits

# What their values are here, if it is not the same
VALUES: dict[str, Callable[[Any], Any]] = {
    # New tokens are counted without the start token
    "max_new_tokens": lambda n: n + 1,
    "min_new_tokens": lambda n: n + 1,
    "early_stopping": lambda value: {True: "true", False: "false"}.get(value, value),
    "top_p": lambda p: 0.0 if p == 1 else p,
    "normalize": float,
}


def load_table(table: str) -> dict[str, Any]:
    """A table of generation_config.yaml: our names by those of a file, for instance."""
    return load_yaml("generation_config.yaml")[table]


def _is_tokens(value: Any, n: int) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < n for i in value)


def _is_phrases(value: Any, n: int) -> bool:
    return isinstance(value, list) and all(word and _is_tokens(word, n) for word in value)


def _is_biases(value: Any, n: int) -> bool:
    pairs = isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value)
    return (
        pairs
        and _is_phrases([tokens for tokens, _ in value], n)
        and all(type(bias) in (int, float) for _, bias in value)
        and all(abs(bias) <= MAX_FLOAT or bias == -math.inf for _, bias in value)
    )


def _is_decay(value: Any, n: int) -> bool:
    types = [type(x) for x in value] if isinstance(value, list) else []
    is_pair = types in ([int, int], [int, float])
    return is_pair and all(0 <= x <= MAX_FLOAT for x in value)


# Rules about tokens: whether a value can be one, for a vocabulary of n tokens; what it must be
TOKENS = "a list of the model's tokens"
RULES: dict[str, tuple[Callable[[Any, int], bool], str]] = {
    "bad_words_ids": (_is_phrases, "a list of lists of the model's tokens"),
    "suppress_tokens": (_is_tokens, TOKENS),
    "begin_suppress_tokens": (_is_tokens, TOKENS),
    "eos_token_id": (lambda i, n: type(i) is not list or (i != [] and _is_tokens(i, n)), TOKENS),
    "sequence_bias": (_is_biases, "a list of pairs: tokens of the model, a number"),
    "exponential_decay_length_penalty": (_is_decay, "a list of a length in tokens and a factor"),
    "encoder_no_repeat_ngram_size": (lambda n, _: type(n) is int and n >= 0, "0 or more tokens"),
}


def parse_token_rules(
    table: Mapping[str, Any], where: Callable[[str], Path], eos: int, vocab_size: int
) -> TokenRules:
    """Return the rules in settings of Hugging Face.

    Args:
        table: the settings.
        where: returns the file that a setting is from.
        eos: the end token.
        vocab_size: the number of tokens.

    Raises:
        CheckpointError: if an ID is not a token of the model, or a value not of its type.
    """
    values = {name: table.get(name) for name in RULES}
    for name, (is_valid, expected) in RULES.items():
        if values[name] is not None and not is_valid(values[name], vocab_size):
            raise CheckpointError(f"{where(name)}: {name} must be {expected}; correct it there")
    ends = values["eos_token_id"] if isinstance(values["eos_token_id"], list) else [eos]
    never = [[token] for token in values["suppress_tokens"] or []]
    forced = table.get("forced_eos_token_id")
    if isinstance(forced, list) and len(forced) == 1:
        (forced,) = forced
    if forced is not None and forced not in ends:
        raise CheckpointError(
            f"{where('forced_eos_token_id')}: forced_eos_token_id must be the end token ({eos})"
        )
    forced = forced if forced is None else ends[ends.index(forced)]  # an int where it was 2.0
    if forced is not None and [forced] in never:
        raise CheckpointError(
            f"{where('suppress_tokens')}: suppress_tokens must not have the end token ({eos}), "
            "because forced_eos_token_id is set"
        )
    # `generate` takes an end token alone for a mistake, and a bias of -inf is a ban
    words = [word for word in values["bad_words_ids"] or [] if word not in [[i] for i in ends]]
    biases = {tuple(tokens): float(bias) for tokens, bias in values["sequence_bias"] or []}
    never += [[*tokens] for tokens, bias in biases.items() if bias == -math.inf]
    decay = values["exponential_decay_length_penalty"]
    return TokenRules(
        tuple(sorted(set(map(tuple, [*words, *never])))),
        forced is not None,
        table.get("renormalize_logits") is True,
        tuple(dict.fromkeys([ends[0] if forced is None else forced, *ends])),
        tuple(values["begin_suppress_tokens"] or ()),
        values["encoder_no_repeat_ngram_size"] or 0,
        tuple((tokens, bias) for tokens, bias in biases.items() if bias > -math.inf),
        decay and (min(decay[0], MAX_LENGTH), float(decay[1])),
    )


def _is_plain(value: Any, depth: int = 3) -> bool:
    """Whether a setting is a number, or numbers in lists that are not nested deeper."""
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return isinstance(value, (int, float))


def select_settings(
    own: Mapping[str, Any], said: Mapping[str, Any] | None, version: str
) -> tuple[dict[str, Any], str]:
    """The settings that `generate` takes, and the name of their file.

    own: config.json; said: generation_config.json, None if there is none, which alone counts.  But
    transformers 4 prefers a config.json with settings of its own to a file that was made of one.
    """
    old = version == "transformers-4"
    usual = load_table("of_family").get(str(own.get("model_type")), {}) if old else {}
    own = {**usual, **own}
    if said is not None and not (old and said.get("_from_model_config")):
        return dict(said), GENERATION
    changed = (
        own.get(name) not in (None, value)
        for name, value in (load_table("of_old_files") | usual).items()
    )
    return (dict(own), CONFIG) if said is None or any(changed) else (dict(said), GENERATION)


def read_defaults(
    models: tuple[str, ...],
    search: str,
    preset: Preset,
    given: Mapping[str, Any],
    check: Callable[[str, Any], Any],
) -> list[tuple[Mapping[str, Any], str]]:
    """Defaults of a Hugging Face directory, the first model: options by name, those of `generate`
    itself first, and settings that no option sets; each with where they are from.

    check: returns an option's value or raises ValueError.  Raises CheckpointError for an invalid
    value and for a setting that is not supported; OptionError if the model samples and nobody says
    whether to.
    """
    folder, drawn = Path(models[0] if models else ""), given.get("do_sample")
    own = _read(folder / CONFIG) or {}
    if not models or own.get("model_type") not in FAMILIES:
        return []
    said = _read(folder / GENERATION)
    table, name = select_settings(own, said, preset.model_defaults or "")
    path, of_file = folder / name, (own if name == CONFIG else said) or {}
    if table.get("do_sample") and drawn is None:
        raise OptionError(
            f"do_sample: {path} says true; set do_sample to true to draw tokens, or to false to "
            "search for the best"
        )
    neutral = load_table("unsupported") | (load_table("unsupported_drawing") if drawn else {})
    neutral |= {} if preset.has_token_rules else load_table("unsupported_rules")
    names = load_table("generation_config") | (load_table("drawing") if drawn else {})
    lacking = [n for n, o in names.items() if o in SWITCHES and o not in preset.options]
    neutral |= {n: [load_table("of_old_files")[n]] for n in lacking}
    for key, values in neutral.items():
        if table.get(key) is not None and table[key] not in values:
            raise CheckpointError(
                f"{path}: {key} changes what the model says, which -search {search} does not "
                "support; remove it there, or give another -search"
            )
    options = _options(path, table, {n: o for n, o in names.items() if n not in lacking}, check)
    fixed = {n: table.get(n) for n, o in load_table("tokens").items() if o not in given}
    options |= {n: value for n, value in fixed.items() if n in of_file and _is_plain(value)}
    usual = {n: value for n, value in fixed.items() if n not in of_file and value is not None}
    return [({**preset.model_fallbacks, **usual}, f"of {search}"), (options, f"of {path}")]


def read_decoder_yml(
    models: tuple[str, ...], check: Callable[[str, Any], Any]
) -> list[tuple[Mapping[str, Any], str]]:
    """The same for a decoder.yml in the directory of Marian's files, or beside the model it names.

    Raises CheckpointError for an invalid value.
    """
    if not models:
        return []
    model = Path(models[0])
    path = (model if model.is_dir() else model.parent) / "decoder.yml"
    table = _read(path) or {}
    if not model.is_dir() and model.name not in get_file_names(table.get("models"), "models", path):
        return []
    options = _options(path, table, load_table("decoder"), check)
    return [(options, f"of {path}")] if options else []


def get_file_names(listed: Any, key: str, path: Path) -> list[str]:
    """The files in a list of decoder.yml, without the folders before them."""
    listed = listed or []
    if not isinstance(listed, list) or not all(type(name) is str and name for name in listed):
        raise CheckpointError(f"{path}: {key} is not a list of files; correct it there")
    return [re.split(r"[/\\]", name)[-1] for name in listed]


def _options(
    path: Path, table: dict[str, Any], names: dict[str, str], check: Callable[[str, Any], Any]
) -> dict[str, Any]:
    """The options that a file sets, by our names."""
    options = {}
    for name, option in names.items():
        value = table.get(name)
        if value is None:
            continue
        if not isinstance(value, (bool, int, float, str)):
            # Not shown: a few bytes can nest lists without end
            kind = type(value).__name__
            raise CheckpointError(
                f"{path}: {name}: expected one value, got a {kind}; correct it there"
            )
        try:
            options[option] = check(option, VALUES[name](value) if name in VALUES else value)
        except (ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{path}: {name}: {error}; correct it there") from None
    return options


def _read(path: Path) -> dict[str, Any] | None:
    """The table in a file; None if it is none: the model's reader raises the error."""
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES)
        table = parse_yaml(data) if path.suffix == ".yml" else parse_json(data, unique=False)
    except (OSError, ValueError):
        return None
    return table if isinstance(table, dict) else None
