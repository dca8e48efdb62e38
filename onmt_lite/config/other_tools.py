"""Options of other programs, from peers.yaml.

Names from other tools are rejected with the equivalent option.  Options of OpenNMT-py's
`translate.py` (2018 to 3.5.1) and Eole that are not needed are accepted, so that existing YAML
files load.  A neutral value is ignored.  Any other value causes a notice, or an error if the output
would differ from that of the other program.
"""

import functools
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.config.option import format_value

NO_EQUIVALENT = "there is no equivalent; python -m onmt_lite -help all lists all options"
TRAINING_ONLY = "it is a training option (python -m onmt_lite.train); remove it"


@dataclass(frozen=True)
class ForeignOption:
    """An option of another program that is accepted but not needed.

    If onmt_lite has an option of the same name, `neutral_values` are treated as not given, and
    `message` is added to the error about an invalid value.
    """

    neutral_values: tuple[str, ...] | None  # values without effect, as words; None: all values
    message: str = "has no effect in onmt_lite"  # notice for any other value
    is_rejected: bool = False  # any other value is an error with `message`
    transform: str = ""  # if `transforms` contains it, the error is only a notice
    renamed_to: str = ""  # onmt_lite option with the same values
    sets: tuple[str, Any] | None = None  # onmt_lite option and value, if this boolean is true

    def has_effect(self, words: str) -> bool:
        """Return True if the value would have an effect in the other program."""
        return self.neutral_values is not None and _plain(words) not in map(
            _plain, self.neutral_values
        )


def _plain(words: str) -> str:
    """Normalize numbers: .02 and 0.020 are equal."""
    try:
        return f"{float(words) + 0.0:g}"
    except ValueError:
        return words


# Options that onmt_lite has as well: neutral values in OpenNMT-py, and other meanings
SHARED_OPTIONS = {
    **dict.fromkeys(("src_lang", "tgt_lang", "precision"), ForeignOption(("",))),
    "seed": ForeignOption(("-1",)),
    "length_penalty": ForeignOption((), "the exponent is alpha", is_rejected=True),
    "coverage_penalty": ForeignOption((), "its weight is beta", is_rejected=True),
    "tgt_prefix": ForeignOption(
        ("false", ""), "use tgt_file_prefix instead", sets=("tgt_file_prefix", True)
    ),
}


@functools.cache
def load_peers() -> dict[str, Any]:
    """Read peers.yaml; called only for unknown option names."""
    return yaml.safe_load(Path(__file__).with_name("peers.yaml").read_bytes())


@functools.cache
def load_opennmt_options() -> Mapping[str, ForeignOption]:
    """Return the accepted options of OpenNMT-py and Eole by name."""
    accepted: dict[str, ForeignOption] = {}
    for entry in load_peers()["foreign"]:
        fields = {key: value for key, value in entry.items() if key != "options"}
        if "transform" in fields:
            fields |= {"message": "is used in training only; remove it", "is_rejected": True}
        for name, neutral in entry["options"].items():
            values = neutral if isinstance(neutral, list) else [neutral]
            words = None if neutral is None else tuple(map(format_value, values))
            accepted[name] = ForeignOption(words, **fields)
    return {**accepted, **SHARED_OPTIONS}


def find_hint(name: str, options: Container[str]) -> str | None:
    """Return a hint for an option name of another tool.

    Args:
        name: The name, with underscores instead of hyphens.
        options: Options of the program.

    Returns:
        The hint; None if no tool is known to have this option.
    """
    peers = load_peers()
    for names in (*peers["tools"].values(), peers["other_names"]):
        for foreign_name, entry in names.items():
            if foreign_name.replace("-", "_") == name:
                if parse_option_name(entry) not in options:
                    return NO_EQUIVALENT
                equivalent, _, remark = entry.partition(", ")
                return f"use {equivalent} instead" + f" ({remark})" * bool(remark)
    for hint, names in (*peers["hints"].items(), (NO_EQUIVALENT, peers["no_equivalent"])):
        if name in names.split():
            return hint
    return TRAINING_ONLY if name in peers["training"].split() else None


def parse_option_name(entry: str) -> str:
    """Return the name of the option in an entry such as "batch_size, with batch_type sents"."""
    return re.split(r"\W", entry, maxsplit=1)[0]
