"""BLEU and chrF of a job's translations, by sacrebleu: `-report_bleu`.

Both scores are made of sums over lines (matches, n-grams, lengths), so that sums are all that a
bucket leaves, and its journal has them where a job goes on.  The package is optional.
"""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from onmt_lite.config.options import TranslateOptions

LACKS = (
    "report_bleu: sacrebleu 2 or newer is not installed, and nothing is scored; run: pip install "
    "sacrebleu"
)

Sums = list[list[int]]  # of each metric


def is_wanted(options: TranslateOptions) -> bool:
    """Whether there are translations, and references to compare them with."""
    data = options.data
    has_both = data.tgt is not None and not data.tgt_file_prefix and not data.score_only
    return options.information.report_bleu and has_both


def is_installed() -> bool:
    """Whether sacrebleu is there, in a version that has these metrics."""
    try:
        return int(metadata.version("sacrebleu").split(".")[0]) >= 2
    except (metadata.PackageNotFoundError, ValueError):
        return False


def sums_of(texts: Sequence[str], references: Sequence[str]) -> Sums:
    """Of lines, one reference each."""
    return [
        [sum(column) for column in zip(*metric._extract_corpus_statistics(texts, [references]))]
        for metric in metrics()
    ]


def joined(sums: Sums, later: Sums) -> Sums:
    """Those of two parts of a text; either may be missing."""
    if not sums or not later:
        return sums or later
    return [[a + b for a, b in zip(*pair)] for pair in zip(sums, later)]


def scores(sums: Sums) -> list[str]:
    """A line for each metric: its signature and score."""
    lines = []
    for metric, own in zip(metrics(), sums):
        metric.corpus_score(["a"], [["a"]])  # the signature counts the references of a line
        score = metric._compute_score_from_stats(own)
        lines.append(score.format(width=2, signature=str(metric.get_signature())))
    return lines


def metrics() -> list[Any]:
    """With sacrebleu's defaults.  Tokens with spaces between them are what some jobs write, and no
    reason for its warning."""
    from sacrebleu.metrics import BLEU, CHRF  # late: it is optional

    return [BLEU(force=True), CHRF()]
