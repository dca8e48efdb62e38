"""Search options that a model brings as its own defaults: those of Hugging Face and of Marian."""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.errors import CheckpointError, OptionError

# Those that `onmt_lite.checkpoints.huggingface.reader` reads, Marian's aside
FAMILIES = ("m2m_100", "mbart", "t5", "mt5")
FILES = ("config.json", "generation_config.json")  # the last one wins
TABLES = Path(__file__).with_suffix(".yaml")
MAX_BYTES = 1 << 20
# Raised by PyYAML for a value that is not of its tag, as in `!!bool 5`, or beyond all floats
NO_SCALAR = (ValueError, KeyError, IndexError, AttributeError, OverflowError)

# What their values are here, if it is not the same
VALUES: dict[str, Callable[[Any], Any]] = {
    # New tokens are counted without the start token
    "max_new_tokens": lambda n: n + 1,
    "min_new_tokens": lambda n: n + 1,
    "early_stopping": lambda value: {True: "true", False: "false"}.get(value, value),
    "top_p": lambda p: 0.0 if p == 1 else p,
    "normalize": float,
}


@lru_cache
def names_of(table: str) -> dict[str, Any]:
    """A table of model_defaults.yaml: our names by those of a file, for instance."""
    tables: dict[str, dict[str, Any]] = yaml.safe_load(TABLES.read_bytes())
    return tables[table]


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
        if table.get("do_sample") and drawn is None:
            raise OptionError(
                f"do_sample: {path} says true; give -do_sample to draw tokens, or -do_sample false "
                "to search for the best"
            )
        for name, neutral in names_of("unsupported").items():
            if table.get(name) is not None and table[name] not in neutral:
                raise CheckpointError(f"{path}: {name} changes what the model says; not supported")
        names = names_of("generation_config") | (names_of("drawing") if drawn else {})
        options = _options(path, table, names, check)
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
    options = _options(path, table, names_of("decoder"), check)
    return [(options, f"of {path}")] if options else []


def file_names(listed: Any, key: str, path: Path) -> list[str]:
    """The files in a list of decoder.yml, without the folders before them."""
    listed = listed or []
    if not isinstance(listed, list) or not all(type(name) is str and name for name in listed):
        raise CheckpointError(f"{path}: {key} is not a list of files")
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
            raise CheckpointError(f"{path}: {name}: expected one value, got a {kind}")
        try:
            options[option] = check(option, VALUES[name](value) if name in VALUES else value)
        except (ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{path}: {name}: {error}") from None
    return options


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
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("a merge key")
        super().flatten_mapping(node)
