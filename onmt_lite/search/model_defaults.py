"""Search options that a model brings as its own defaults: those of Hugging Face and of Marian."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.errors import CheckpointError, OptionError

FAMILIES = ("m2m_100", "mbart", "t5", "mt5")
FILES = ("config.json", "generation_config.json")  # the last one wins
MAX_BYTES = 1 << 20
MERGE = "tag:yaml.org,2002:merge"  # of the key <<
# Raised by PyYAML for a value that is not of its tag, as in `!!bool 5`, or beyond all floats
NO_SCALAR = (ValueError, KeyError, IndexError, AttributeError, OverflowError)


def _same(value: Any) -> Any:
    return value


def _stopping(value: Any) -> Any:
    return {True: "true", False: "false"}.get(value, value)


# Names of transformers, ours, and the value here
SEARCH: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "num_beams": ("beam_size", _same),
    "max_length": ("max_length", _same),
    "min_length": ("min_length", _same),
    # New tokens are counted without the start token
    "max_new_tokens": ("max_length", lambda n: n + 1),
    "min_new_tokens": ("min_length", lambda n: n + 1),
    "length_penalty": ("alpha", _same),
    "early_stopping": ("early_stopping", _stopping),
    "no_repeat_ngram_size": ("block_ngram_repeat", _same),
    "repetition_penalty": ("repetition_penalty", _same),
    "num_beam_groups": ("beam_groups", _same),
    "diversity_penalty": ("diversity_rate", _same),
}
DRAWING: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "temperature": ("random_sampling_temp", _same),
    "top_k": ("random_sampling_topk", _same),
    "top_p": ("random_sampling_topp", lambda p: 0.0 if p == 1 else p),
}
# Of Marian's decoder.yml
DECODER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "beam-size": ("beam_size", _same),
    "normalize": ("alpha", float),
}
# Settings that change outputs and are not supported, unless they have one of these values
UNKNOWN: dict[str, tuple[Any, ...]] = {
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1, 1.0),
    "forced_decoder_ids": ([],),
    "begin_suppress_tokens": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "encoder_repetition_penalty": (1, 1.0),
    "encoder_no_repeat_ngram_size": (0,),
    "renormalize_logits": (False,),
    "penalty_alpha": (0, 0.0),
    "dola_layers": (),
    "stop_strings": ([],),
    "watermarking_config": (),
}


def read_defaults(
    models: tuple[str, ...], drawn: bool | None, check: Callable[[str, Any], Any]
) -> list[tuple[Mapping[str, Any], str]]:
    """Options by name, and the file that sets them, for each file of the first model.

    drawn: whether tokens are sampled; None: not given; check: returns an option's value or raises
    ValueError.  Raises CheckpointError for an invalid value and for a setting that is not
    supported; OptionError if the file samples and `drawn` is None.
    """
    found: list[tuple[Mapping[str, Any], str]] = []
    tables = {Path(models[0]) / name: _read(Path(models[0]) / name) for name in FILES if models}
    if not tables or next(iter(tables.values())).get("model_type") not in FAMILIES:
        return []
    for path, table in tables.items():
        said = {name: value for name, value in table.items() if value is not None}
        if said.get("do_sample") and drawn is None:
            raise OptionError(
                f"do_sample: {path} says true; give -do_sample to draw tokens, or -do_sample false "
                "to search for the best"
            )
        for name, neutral in UNKNOWN.items():
            if name in said and said[name] not in neutral:
                raise CheckpointError(f"{path}: {name} changes what the model says; not supported")
        options = {}
        for name, (option, convert) in {**SEARCH, **(DRAWING if drawn else {})}.items():
            if name in said:
                options[option] = _checked(path, name, said[name], option, convert, check)
        if options:
            found.append((options, f"of {path}"))
    return found


def read_decoder(
    models: tuple[str, ...], check: Callable[[str, Any], Any]
) -> list[tuple[Mapping[str, Any], str]]:
    """The same for a decoder.yml in the directory of Marian's files, or beside the model it names.

    Raises CheckpointError for an invalid value.
    """
    if not models:
        return []
    model = Path(models[0])
    path = (model if model.is_dir() else model.parent) / "decoder.yml"
    table = _read(path)
    if not model.is_dir() and model.name not in file_names(table.get("models"), "models", path):
        return []
    options = {
        option: _checked(path, name, table[name], option, convert, check)
        for name, (option, convert) in DECODER.items()
        if table.get(name) is not None
    }
    return [(options, f"of {path}")] if options else []


def file_names(listed: Any, key: str, path: Path) -> list[str]:
    """The files in a list of decoder.yml, without the folders before them."""
    listed = listed or []
    if not isinstance(listed, list) or not all(type(name) is str and name for name in listed):
        raise CheckpointError(f"{path}: {key} is not a list of files")
    return [re.split(r"[/\\]", name)[-1] for name in listed]


def _checked(
    path: Path,
    name: str,
    value: Any,
    option: str,
    convert: Callable[[Any], Any],
    check: Callable[[str, Any], Any],
) -> Any:
    if not isinstance(value, (bool, int, float, str)):
        # Not shown: a few bytes can nest lists without end
        raise CheckpointError(f"{path}: {name}: expected one value, got a {type(value).__name__}")
    try:
        return check(option, convert(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path}: {name}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    """The table in a file; empty if it is none: the model's reader raises the error."""
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES)
        table = parse_yaml(data) if path.suffix == ".yml" else json.loads(data)
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def parse_yaml(data: bytes) -> Any:
    """Parse YAML of plain values.  Raises ValueError for anything else."""
    try:
        return _Loader(data).get_single_data()
    except (yaml.YAMLError, RecursionError, *NO_SCALAR):
        raise ValueError("not YAML that is understood") from None


class _Loader(yaml.SafeLoader):
    """Without merge keys: ten of them in a row make a table a thousand times as large."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == MERGE for key, _ in node.value):
            raise yaml.YAMLError("a merge key")
        super().flatten_mapping(node)
