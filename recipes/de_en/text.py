"""Generate the training text of each epoch: `python -m recipes.de_en.text -help`.

Each output file contains the `source<TAB>target` lines of one epoch, for `recipes.de_en.train`.
An epoch depends only on its number and the seed.
"""

import gzip
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.errors import FileError, OptionError
from onmt_lite.export import write_files
from onmt_lite.train.data import Pair, read_lines, read_pairs, repeat_by_weight
from recipes.de_en.augment import Augment
from recipes.de_en.options import PROGRAM, TextOptions


def normalize(side: str) -> str:
    """Lowercase a sentence and remove punctuation, for comparison with held-out text."""
    return " ".join(re.findall(r"\w+", side.lower()))


def generate_epochs(options: TextOptions) -> Iterator[list[Pair]]:
    """Yield the training pairs of each epoch.

    Raises:
        FileError, DataError: an input file does not contain pairs
    """
    files = options.files
    held_out = {
        normalize(side) for path in files.held_out for pair in read_pairs(path) for side in pair
    }

    def exclude_held_out(pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if not held_out.intersection(map(normalize, pair))]

    corpora = [exclude_held_out(read_pairs(path)) for path in files.train]
    lines = (line.strip() for path in files.train_same for line in read_lines(path))
    same = exclude_held_out((line, line) for line in lines if line)
    synthetic = exclude_held_out(pair for path in files.made for pair in read_pairs(path))
    templates = read_pairs(files.slots) if files.slots else []
    weights = files.train_weights or [1.0] * len(corpora)
    all_pairs = [pair for corpus in corpora for pair in corpus]
    augment = Augment(all_pairs, options.changes, templates, files.slot_lines)
    for epoch in range(files.epochs):
        rng = Random(f"{files.seed} {epoch}")
        pairs = repeat_by_weight(corpora, weights, rng)
        pairs += rng.sample(same, min(files.same_lines, len(same)))
        pairs += rng.sample(synthetic, min(files.made_lines, len(synthetic)))
        # Lines that were only a punctuation mark may be empty now
        yield [(src, tgt) for src, tgt in augment(pairs, rng) if src and tgt]


def write_text(options: TextOptions) -> None:
    """Generate and write all epochs; on an error nothing is written.

    Raises:
        OnmtLiteError: an input cannot be read, or the output exists or cannot be written
    """
    output = Path(os.path.abspath(options.files.output))
    if os.path.lexists(output):
        raise OptionError(f"output: {output} already exists; choose another path or remove it")
    files = {}
    for number, pairs in enumerate(generate_epochs(options), 1):
        name, text = f"{number:02d}.tsv.gz", "".join(map("%s\t%s\n".__mod__, pairs))
        files[name] = gzip.compress(text.encode("utf-8"), mtime=0)
        print(f"{name}: {len(pairs):,} pairs", file=sys.stderr)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {output}: {error.strerror}") from None
    write_files(files, output.parent, output.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, write_text)


if __name__ == "__main__":
    sys.exit(main())
