"""The options for people who edit machine output."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onmt_lite.config.schema import opt

# What cannot be together with alternatives, and why
AGAINST = {
    "n_best_unique": "alternatives differ by their first words already",
    "replace_unk": "words that differ may be equal once they are replaced; ban_unk_token has none "
    "to replace",
    "dump_beam": "several searches find the alternatives of a line",
    "split_longer": "the words that may follow are those of the whole line",
}


@dataclass(frozen=True)
class EditingOptions:
    """What is shown to choose from."""

    title: ClassVar[str] = "Editing"

    alternatives: int = opt(
        0,
        "Return, in place of the n_best list, the N best words that may follow the prefix of "
        "tgt_file_prefix, each with the best translation that goes on with it; best first, and "
        "fewer where there are fewer words; 0 is off",
        min=0,
        max=100,
        example="5 -tgt begin.en -tgt_file_prefix",
    )


def check_editing(v: Mapping[str, Any], drawn: bool, has_prefixes: bool, why: str) -> list[str]:
    """Options that contradict alternatives.

    drawn         tokens are drawn at random
    has_prefixes  whether the search takes prefixes; `why` it does not
    """
    n = v["alternatives"]
    if not n:
        return []
    problems = [] if has_prefixes else [why]
    if drawn:
        problems.append("alternatives and drawing at random exclude each other; leave one out")
    if v["n_best"] not in (1, n):
        problems.append(
            f"alternatives {n} and n_best {v['n_best']} both say how many hypotheses a line has; "
            "leave n_best out"
        )
    for name, reason in AGAINST.items():
        if v[name]:
            problems.append(f"alternatives and {name} exclude each other: {reason}; leave one out")
    return problems
