"""The options that count in words of the text, as people do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onmt_lite.config.schema import opt


@dataclass(frozen=True)
class LengthOptions:
    """Words of the output text: what stands between white space, however tokens spell it."""

    title: ClassVar[str] = "Words"

    min_words: int = opt(
        0, "Return translations of N words or more", min=0, max=100_000, example="3"
    )
    max_words: int | None = opt(
        None,
        "Return translations of N words or less, none of them cut in the middle of a word",
        min=1,
        max=100_000,
        example="12",
    )
    block_ngram_unit: Literal["tokens", "words"] = opt(
        "tokens",
        "Count the n-grams of block_ngram_repeat in tokens, or in words, so that none comes again "
        "whatever pieces spell it; ignore_when_blocking then names words",
        needs="-block_ngram_repeat",
        example="words -block_ngram_repeat 3",
    )
    word_penalty: float = opt(
        0.0,
        "Add X for each word to the log_prob, before the length penalty; below 0 shortens. "
        "Marian's is for each token and has the other sign",
        min=-1000,
        max=1000,
        example="-0.3",
    )

    @property
    def bounds(self) -> bool:
        """Whether there are limits."""
        return self.min_words > 0 or self.max_words is not None


def check_lengths(v: Mapping[str, Any]) -> list[str]:
    """Limits that contradict each other."""
    least, most = v["min_words"], v["max_words"]
    problems = []
    if most is not None and least > most:
        problems.append(
            f"min_words {least} is more than max_words {most}; lower min_words or raise max_words"
        )
    if least >= max(2, v["max_length"]):
        problems.append(
            f"min_words {least} leaves max_length {v['max_length']}, which counts tokens, no room "
            "to end; lower min_words or raise max_length"
        )
    return problems
