"""Options in a model file: values by name, checked for their type; files that are not read."""

import os.path
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.errors import CheckpointError
from onmt_lite.system.safe_parse import parse_json

MAX_JSON = 64 << 20
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one takes a tenth of 10 ms
MAX_SHOWN, MAX_DIGITS = 50, 40  # of a text and of a whole number in a message


class ConfigReader:
    """Options of a model.

    A value that is absent or None becomes the default.  The methods raise CheckpointError for a
    value of another type, for a missing one without default, and where a name that is one letter
    away stands in the place of a missing one: a default would change what the model says.
    """

    def __init__(self, values: Any, path: Path):
        if isinstance(values, InertObject):
            values = values.state
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: its options are not a table of names and values")
        self.values, self.path = values, path
        self.paths: dict[str, Path] = {}  # of values from other files

    def get_file(self, name: str) -> Path:
        """Return the file that a value is from."""
        return self.paths.get(name, self.path)

    def get(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        for other in self.values:
            if isinstance(other, str) and is_one_letter_apart(name, other):
                raise CheckpointError(
                    f"{self.get_file(other)}: {other[:50]!r} is not known; is it {name}?"
                )
        return None

    def get_int(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not -(1 << 31) < value < 1 << 31:
            raise self._wrong(name, "a whole number")
        return value

    def get_float(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float) or not abs(value) < 1e30:
            raise self._wrong(name, "a number")
        return float(value)

    def get_bool(self, name: str, default: bool | None = False) -> bool:
        value = self._value(name, default)
        if value not in (True, False) or isinstance(value, float):
            raise self._wrong(name, "true or false")
        return bool(value)

    def get_str(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if type(value) is not str:
            raise self._wrong(name, "a text")
        return value

    def get_label(self, name: str) -> str:
        """A text that is only shown to people, cut short; "" for anything else."""
        value = self.get(name)
        return value[:20] if isinstance(value, str) else ""

    def get_choice(self, name: str, choices: dict[str, Any], default: str | None = None) -> Any:
        """The value in `choices` under the option's text."""
        value = self.get_str(name, default)
        if value not in choices:
            raise CheckpointError(
                f"{self.get_file(name)}: {name} {value[:50]!r} is not one that is read: "
                f"{', '.join(choices)}"
            )
        return choices[value]

    def require_equal(self, name: str, n: int) -> None:
        """Raise CheckpointError where the option, if it is there, is not what the weights have."""
        if self.get_int(name, n) != n:
            raise CheckpointError(
                f"{self.get_file(name)}: {name} is {self.get_int(name)}, but the weights have {n}"
            )

    def _value(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None and default is None:
            raise CheckpointError(f"{self.path}: its options do not say {name}")
        return default if value is None else value

    def _wrong(self, name: str, expected: str) -> CheckpointError:
        value = self.values.get(name)
        return CheckpointError(
            f"{self.get_file(name)}: {name} is {format_value(value)}, not {expected}"
        )


def refuse_unsupported_options(options: ConfigReader, toolkit: str) -> None:
    """Raise CheckpointError for an option value that unsupported.yaml does not list."""
    for name, known in load_yaml("unsupported.yaml")["options"][toolkit].items():
        value = options.get(name)
        is_plain = isinstance(value, (str, int, float, list, type(None)))  # no tensor
        if not is_plain or value not in (None, *known):
            values = " or ".join(map(repr, known))
            file, found = options.get_file(name), format_value(value)
            raise CheckpointError(
                f"{file}: {toolkit}: {name} is {found}, not {values}, which is not supported"
            )


def is_one_letter_apart(one: str, other: str) -> bool:
    """Whether a letter changed, added or left out makes one of the other, eos of bos aside."""
    if abs(len(one) - len(other)) > 1 or one.replace("eos", "bos") == other.replace("eos", "bos"):
        return False
    start = len(os.path.commonprefix([one, other]))
    one, other = one[start:], other[start:]
    return one[1:] in (other, other[1:]) or one == other[1:]


def format_value(value: Any) -> str:
    """A value of a model file in a message: short, whatever it is.

    Lists are named by their kind: a few bytes of a file can nest them without end.
    """
    if type(value) is int and abs(value) >= 10**MAX_DIGITS:  # Python refuses to print the longest
        return f"a whole number of more than {MAX_DIGITS} digits"
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN])
    plain = isinstance(value, (int, float, bool, type(None)))
    return repr(value) if plain else f"a {type(value).__name__}"


def read_limited(path: str | Path, limit: int) -> bytes:
    """Read a file.  Raises CheckpointError where it has more bytes than any of its kind."""
    with open(path, "rb") as f:
        data = f.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path}: larger than {limit >> 20} MiB, more than any model needs")
    return data


@lru_cache
def load_yaml(name: str) -> dict[str, Any]:
    """Read a YAML file of this room."""
    return LOADER((Path(__file__).parent / name).read_bytes()).get_single_data()


def read_config(path: Path) -> ConfigReader:
    """The table in a JSON file, or an empty one where there is no such file."""
    return ConfigReader(read_json(path) if path.is_file() else {}, path)


def read_json(path: Path) -> dict[str, Any]:
    """Read the table in a JSON file.  Raises CheckpointError for anything else."""
    try:
        table = parse_json(read_limited(path, MAX_JSON))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; the model is incomplete") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not isinstance(table, dict):
        raise CheckpointError(f"{path}: not a table of names and values")
    return table


def check_tokens(tokens: Any, path: Path) -> list[str]:
    """Check a vocabulary: a list of at least one text, without lone surrogates."""
    try:
        if not isinstance(tokens, list) or not tokens or not all(type(t) is str for t in tokens):
            raise ValueError
        "".join(tokens).encode("utf-8")
    except ValueError:
        raise CheckpointError(f"{path}: its vocabulary is not a list of texts") from None
    return tokens


# -- Models that are not supported, by file names and first bytes ----------------------------------


def identify_by_name(path: Path) -> str:
    """Describe a file, or the content of a directory, by file names; "" if none is known."""
    for pattern, kind in load_yaml("unsupported.yaml")["names"].items():
        if any(path.glob(pattern)) if path.is_dir() else path.match(pattern):
            return kind if ";" in kind else f"{kind}, which is not supported"
    return ""


def identify_by_magic(data: bytes) -> str:
    """Describe a file by its first bytes; "" if they are not known."""
    starts = load_yaml("unsupported.yaml")["starts"].items()
    return next((kind for start, kind in starts if data.startswith(start.encode("latin-1"))), "")
