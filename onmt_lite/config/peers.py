"""Names that options have in other tools: refused with ours, by the table in peers.yaml."""

import functools
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import yaml

NOTHING = "nothing here does the same; -help lists all"
FOR_TRAINING = "it is for training (python -m onmt_lite.train); leave it out"


@functools.cache
def table() -> dict[str, Any]:
    """Read peers.yaml, when a name is met that no option has."""
    return yaml.safe_load(Path(__file__).with_name("peers.yaml").read_bytes())


def remark_on(name: str, options: Container[str]) -> str | None:
    """Return what to say about a name of another tool, with underscores for hyphens; None if no
    tool is known to have it."""
    peers = table()
    for names in (*peers["tools"].values(), peers["others"]):
        for theirs, ours in names.items():
            if theirs.replace("-", "_") == name:
                return f"here it is {ours}" if option_of(ours) in options else NOTHING
    if name in peers["nothing"].split():
        return NOTHING
    return FOR_TRAINING if name in peers["training"].split() else None


def option_of(ours: str) -> str:
    """Return the option that an entry of the table names."""
    return re.split(r"\W", ours, maxsplit=1)[0]
