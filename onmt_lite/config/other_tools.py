"""Options of other programs: those of OpenNMT-py's `translate.py`, 2018 to 3.5.1, and Eole that do
nothing here, and names from other tools, which are refused with ours.  peers.yaml holds both.

Values that ask for nothing are taken without a word, so that configurations work as they stand.
Other values get a note, or are refused if the output would not be what was asked for.
"""

import functools
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.config.option import format_value

NO_EQUIVALENT = "nothing here does the same; python -m onmt_lite -help all lists all"
TRAINING_ONLY = "it is for training (python -m onmt_lite.train); leave it out"
# Keys of `foreign` in peers.yaml, and the fields of ForeignOption
FIELDS = {
    "says": "message",
    "refused": "is_rejected",
    "transform": "transform",
    "renamed": "renamed_to",
    "switch": "sets",
}


@dataclass(frozen=True)
class ForeignOption:
    """An option of another program that has nothing to do here, taken so that its files load.

    An entry for an option that we have too says which values are as if it were not given, and what
    to add to the message about a wrong value.
    """

    neutral_values: tuple[str, ...] | None  # values that ask for nothing, as words; None: all do
    message: str = "without effect here"  # what a note says of any other value
    is_rejected: bool = False  # other values are refused; `says` is the reason and the remedy
    transform: str = ""  # if `transforms` name it, they are noted instead
    renamed_to: str = ""  # our option that has the same values
    sets: tuple[str, Any] | None = None  # our option and its value if the switch is on

    def has_effect(self, words: str) -> bool:
        """Return whether the value would have an effect in the other program."""
        return self.neutral_values is not None and _plain(words) not in map(
            _plain, self.neutral_values
        )


def _plain(words: str) -> str:
    """.02 and 0.020 are the same number."""
    try:
        return f"{float(words) + 0.0:g}"
    except ValueError:
        return words


# Ours too: what "not given" is in OpenNMT-py, and what else a value may mean
SHARED_OPTIONS = {
    **dict.fromkeys(("src_lang", "tgt_lang", "precision"), ForeignOption(("",))),
    "seed": ForeignOption(("-1",)),
    "length_penalty": ForeignOption((), "the exponent is alpha", is_rejected=True),  # as elsewhere
    "coverage_penalty": ForeignOption((), "its weight is beta", is_rejected=True),
    "tgt_prefix": ForeignOption(
        ("false", ""), "here it is tgt_file_prefix", sets=("tgt_file_prefix", True)
    ),
}


@functools.cache
def load_peers() -> dict[str, Any]:
    """Read peers.yaml, when a name is met that no option has."""
    return yaml.safe_load(Path(__file__).with_name("peers.yaml").read_bytes())


@functools.cache
def load_opennmt_options() -> Mapping[str, ForeignOption]:
    """Return the options of OpenNMT-py that do nothing here, and those that are ours too."""
    found: dict[str, ForeignOption] = {}
    for entry in load_peers()["foreign"]:
        fields = {FIELDS[key]: entry[key] for key in entry.keys() - {"options"}}
        if "transform" in fields:
            fields |= {"message": "for training only; leave it out", "is_rejected": True}
        for name, off in entry["options"].items():
            values = off if isinstance(off, list) else [off]
            words = None if off is None else tuple(map(format_value, values))
            found[name] = ForeignOption(words, **fields)
    return {**found, **SHARED_OPTIONS}


def find_hint(name: str, options: Container[str]) -> str | None:
    """Return what to say about a name of another tool, with underscores for hyphens; None if no
    tool is known to have it."""
    peers = load_peers()
    for names in (*peers["tools"].values(), peers["others"]):
        for theirs, ours in names.items():
            if theirs.replace("-", "_") == name:
                return f"here it is {ours}" if parse_option_name(ours) in options else NO_EQUIVALENT
    for answer, others in (*peers["says"].items(), (NO_EQUIVALENT, peers["nothing"])):
        if name in others.split():
            return answer
    return TRAINING_ONLY if name in peers["training"].split() else None


def parse_option_name(ours: str) -> str:
    """Return the option that an entry of the table names."""
    return re.split(r"\W", ours, maxsplit=1)[0]
