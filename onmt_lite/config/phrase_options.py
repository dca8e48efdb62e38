"""The options of phrases that translations are to hold, or must not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onmt_lite.config.schema import opt
from onmt_lite.search.presets import PRESETS

FORCED_AND_DRAWN = "force_words and drawing at random exclude each other; leave one out"
FORM = "TAB between them; a file of one line holds for all lines, else it has a line for each line"


@dataclass(frozen=True)
class PhraseOptions:
    """What translations say, or do not say."""

    title: ClassVar[str] = "Phrases"

    force_words: str | None = opt(
        None,
        f"Say the phrases of this file, as whole words and spelt as they are there, {FORM} of src. "
        "What a translation lacks of them is in `unmet` of its JSONL record and counted at the end",
        value="FILE",
        example="phrases.en",
    )
    ban_words: str | None = opt(
        None,
        f"Never say the phrases of this file, as whole words and spelt as they are there, {FORM} "
        "of src",
        value="FILE",
        example="banned.en",
    )


def check_phrases(v: Mapping[str, Any]) -> list[str]:
    """Contradictions, in words."""
    sampling = PRESETS[v["search"]].sampling
    drawn = v["do_sample"] or (sampling is not None and sampling.is_asked_for(v))
    problems = [FORCED_AND_DRAWN] if drawn and v["force_words"] else []
    for name in ("force_words", "ban_words"):
        if v[name] == "":
            problems.append(f"{name} is empty; give a path")
        elif v[name] == "-":
            problems.append(f"{name} -: standard input is for lines; give a file")
    return problems
