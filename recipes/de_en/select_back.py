"""Select back-translated pairs: `python -m recipes.de_en.select_back -help`.

A weak model invents words and leaves words untranslated.  Pairs are kept if known text contains
every source word twice, and fifty times if the target line contains it, too, unless it is
capitalized there.  Of these, the pairs with the lowest perplexity remain.
"""

import gzip
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.config.files import write_text
from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.rules import require_paths
from onmt_lite.config.sources import Program
from onmt_lite.errors import DataError
from onmt_lite.export import write_files
from onmt_lite.train.data import Pair, read_lines
from recipes.de_en.models import check_new
from recipes.de_en.words import WORD

USAGE = """\
-sources FILE -targets FILE -scores FILE -known FILE [FILE ...] -output FILE [options]

Writes the most probable pairs without invented words to a .gz file of pairs."""


@dataclass(frozen=True)
class SelectOptions:
    """Options of the program."""

    title: ClassVar[str] = "Selection"

    sources: str = opt("", help="Read the machine translations from this file", metavar="FILE")
    targets: str = opt("", help="Read the original lines from this file", metavar="FILE")
    scores: str = opt(
        "",
        help="Read the output of `translate.py -score_only` for the pairs from this file",
        metavar="FILE",
    )
    known: tuple[str, ...] = opt(
        (),
        help="Read known words from the first column of these files, plain or .gz",
        metavar="FILE",
    )
    lines: int = opt(100_000, help="Keep at most N pairs", min=1, metavar="N", example="70000")
    output: str = opt("", help="Write the pairs to this new file", metavar="FILE")


MIN_COUNT, MIN_SHARED_COUNT = 2, 50  # occurrences of a word in known text

RULES = (require_paths("sources", "targets", "scores", "known", "output"),)
OPTIONS: dict[str, Option] = collect_options((SelectOptions, *META_GROUPS))
PROGRAM = Program(
    "recipes.de_en.select_back",
    USAGE,
    OPTIONS,
    RULES,
    build=lambda resolved: resolved.build(SelectOptions),
)
load_select_options = PROGRAM.load


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count the words of the first column of lines, in lowercase."""
    return Counter(word for line in lines for word in WORD.findall(line.partition("\t")[0].lower()))


def has_invented_word(pair: Pair, known: Counter[str]) -> bool:
    """Return True if a source word is rare and is not a name or number of the target line."""
    src, tgt = pair
    targets = WORD.findall(tgt)
    lowercase = {word for word in targets if word.islower()}
    return any(
        known[word.lower()] < (MIN_SHARED_COUNT if word in lowercase else MIN_COUNT)
        for word in WORD.findall(src)
        if word in lowercase or word not in targets
    )


def select_pairs(
    pairs: Sequence[Pair], perplexities: Sequence[float], known: Counter[str], n: int
) -> list[Pair]:
    """Return the n pairs with the lowest perplexity among the ones without invented words.

    Args:
        pairs: source and target lines
        perplexities: perplexity of each target line
        known: occurrences of lowercase words
        n: largest number of pairs to return
    """
    ranked = sorted(zip(perplexities, pairs, strict=True), key=lambda item: item[0])
    clean = [pair for _, pair in ranked if all(pair) and not has_invented_word(pair, known)]
    return clean[:n]


def write_selection(options: SelectOptions) -> None:
    """Select pairs and write them.

    Raises:
        OnmtLiteError: a file cannot be read or written, or the files do not match
    """
    output = Path(options.output)
    check_new(output)
    sides = [read_lines(path) for path in (options.sources, options.targets, options.scores)]
    if len({*map(len, sides)}) > 1:
        raise DataError("sources, targets and scores differ in their number of lines")
    rows = [row for row in zip(*sides, strict=True) if row[2]]
    known = sum((count_words(read_lines(path)) for path in options.known), Counter[str]())
    pairs = [(src.strip(), tgt.strip()) for src, tgt, _ in rows]
    perplexities = [float(scores.split("\t")[2]) for _, _, scores in rows]
    selected = select_pairs(pairs, perplexities, known, options.lines)
    text = "".join(map("%s\t%s\n".__mod__, selected))
    write_files({output.name: gzip.compress(text.encode("utf-8"), mtime=0)}, output.parent)
    write_text(f"pairs: {len(selected):,} of {len(pairs):,}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, write_selection)


if __name__ == "__main__":
    sys.exit(main())
