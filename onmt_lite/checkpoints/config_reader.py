"""Type-checked access to the configuration files of models, and detection of unsupported models."""

import os.path
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.errors import CheckpointError
from onmt_lite.system.safe_parse import parse_json

MAX_JSON = 64 << 20
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader: 1 ms instead of 10 ms
MAX_SHOWN, MAX_DIGITS = 50, 40  # characters of a string and digits of an integer in a message


class ConfigReader:
    """Typed access to the options of a model.

    Getters return the default for a missing or null option.  They raise CheckpointError for a value
    of the wrong type, for a missing option without a default, and if the file has an option whose
    name differs by one letter: a misspelled option must not silently become the default.
    """

    def __init__(self, values: Any, path: Path):
        """Wrap the options of a model.

        Args:
            values: a dict or an unpickled namespace.
            path: file of the options, for error messages.

        Raises:
            CheckpointError: if `values` has another type.
        """
        if isinstance(values, InertObject):
            values = values.state
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: the options must be an object with names and values")
        self.values, self.path = values, path
        self.paths: dict[str, Path] = {}  # by option, if it is from another file than `path`

    def get_file(self, name: str) -> Path:
        """Return the file that sets an option."""
        return self.paths.get(name, self.path)

    def get(self, name: str) -> Any:
        """Return a value of any type; None if it is missing."""
        if name in self.values:
            return self.values[name]
        for key in self.values:
            if isinstance(key, str) and is_one_letter_apart(name, key):
                raise CheckpointError(
                    f"{self.get_file(key)}: unknown option {key[:50]!r}; did you mean {name}?"
                )
        return None

    def get_int(self, name: str, default: int | None = None) -> int:
        """Return a 32-bit integer."""
        value = self._get_required(name, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not -(1 << 31) < value < 1 << 31:
            raise self._make_type_error(name, "an integer")
        return value

    def get_float(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self._get_required(name, default)
        if type(value) not in (int, float) or not abs(value) < 1e30:
            raise self._make_type_error(name, "a number")
        return float(value)

    def get_bool(self, name: str, default: bool | None = False) -> bool:
        """Return a boolean; 0 and 1 count as booleans."""
        value = self._get_required(name, default)
        if value not in (True, False) or isinstance(value, float):
            raise self._make_type_error(name, "true or false")
        return bool(value)

    def get_str(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get_required(name, default)
        if type(value) is not str:
            raise self._make_type_error(name, "a string")
        return value

    def get_label(self, name: str) -> str:
        """Return a string for display, at most 20 characters; "" for any other type."""
        value = self.get(name)
        return value[:20] if isinstance(value, str) else ""

    def get_choice(self, name: str, choices: dict[str, Any], default: str | None = None) -> Any:
        """Look up a string option in a table of supported values.

        Args:
            name: name of the option.
            choices: return value for each supported value.
            default: value of a missing option.
        """
        value = self.get_str(name, default)
        if value not in choices:
            raise CheckpointError(
                f"{self.get_file(name)}: {name} {value[:50]!r} is not supported "
                f"(supported: {', '.join(choices)})"
            )
        return choices[value]

    def require_equal(self, name: str, n: int) -> None:
        """Raise CheckpointError if an option differs from `n`, the size found in the weights."""
        if self.get_int(name, n) != n:
            raise CheckpointError(
                f"{self.get_file(name)}: {name} is {self.get_int(name)}, but the weights have {n}"
            )

    def _get_required(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None and default is None:
            raise CheckpointError(f"{self.path}: {name} is missing")
        return default if value is None else value

    def _make_type_error(self, name: str, expected: str) -> CheckpointError:
        found = format_value(self.values.get(name))
        return CheckpointError(f"{self.get_file(name)}: {name} must be {expected}, not {found}")


def refuse_unsupported_options(options: ConfigReader, toolkit: str) -> None:
    """Raise CheckpointError if an option has a value that is not listed in unsupported.yaml."""
    for name, supported in load_yaml("unsupported.yaml")["options"][toolkit].items():
        value = options.get(name)
        is_plain = isinstance(value, (str, int, float, list, type(None)))  # no tensor
        if not is_plain or value not in (None, *supported):
            found, values = format_value(value), " or ".join(map(repr, supported))
            raise CheckpointError(
                f"{options.get_file(name)}: {toolkit}: {name} is {found}, but only {values} is "
                "supported"
            )


def is_one_letter_apart(a: str, b: str) -> bool:
    """Return True if two names differ by one inserted, deleted or replaced letter.

    Exception: names that differ only by eos and bos are different options.
    """
    if abs(len(a) - len(b)) > 1 or a.replace("eos", "bos") == b.replace("eos", "bos"):
        return False
    start = len(os.path.commonprefix([a, b]))
    a, b = a[start:], b[start:]
    return a[1:] in (b, b[1:]) or a == b[1:]


def format_value(value: Any) -> str:
    """Format a value from a model file for a message; the result is short for any value.

    Containers are named by type only, because a few bytes can encode an exponentially large list.
    """
    if type(value) is int and abs(value) >= 10**MAX_DIGITS:  # Python limits conversion to decimal
        return f"an integer of more than {MAX_DIGITS} digits"
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN])
    is_plain = isinstance(value, (int, float, bool, type(None)))
    return repr(value) if is_plain else f"a {type(value).__name__}"


def read_limited(path: str | Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes; raise CheckpointError for a larger file."""
    with open(path, "rb") as f:
        data = f.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path}: larger than {limit >> 20} MiB, more than any model needs")
    return data


@lru_cache
def load_yaml(name: str) -> dict[str, Any]:
    """Load a YAML file of this package, given its path relative to this directory."""
    return LOADER((Path(__file__).parent / name).read_bytes()).get_single_data()


def read_config(path: Path) -> ConfigReader:
    """Read the options in a JSON file; no options if the file does not exist."""
    return ConfigReader(read_json(path) if path.is_file() else {}, path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise CheckpointError if the file is missing or not a JSON object."""
    try:
        values = parse_json(read_limited(path, MAX_JSON))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; the model is incomplete") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the file must contain a JSON object")
    return values


def check_tokens(tokens: Any, path: Path) -> list[str]:
    """Check that the tokens of a vocabulary are a non-empty list of strings, and return them.

    Raises:
        CheckpointError: for any other value and for lone surrogates.
    """
    try:
        if not isinstance(tokens, list) or not tokens or not all(type(t) is str for t in tokens):
            raise ValueError
        "".join(tokens).encode("utf-8")
    except ValueError:
        raise CheckpointError(f"{path}: the vocabulary must be a list of strings") from None
    return tokens


# -- Unsupported models, recognized by file names and magic bytes ----------------------------------


def identify_by_name(path: Path) -> str:
    """Describe an unsupported file or directory by its file names; "" if unknown."""
    for pattern, model_format in load_yaml("unsupported.yaml")["names"].items():
        if any(path.glob(pattern)) if path.is_dir() else path.match(pattern):
            has_remedy = ";" in model_format
            return model_format if has_remedy else f"{model_format} (not supported)"
    return ""


def identify_by_magic(data: bytes) -> str:
    """Describe an unsupported file by its first bytes; "" if unknown."""
    formats = load_yaml("unsupported.yaml")["magic_bytes"].items()
    return next((name for start, name in formats if data.startswith(start.encode("latin-1"))), "")
