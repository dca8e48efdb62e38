"""Write the text that a model learns from, made anew for each epoch:
`python -m recipes.de_en.text -help`.

Each file holds the pairs of one epoch, `source<TAB>target` lines, for `recipes.de_en.train`.
Number and seed decide what an epoch holds.
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
from onmt_lite.export import write_whole
from onmt_lite.train.data import Pair, read_lines, read_pairs, repeat_by_weight
from recipes.de_en.augment import Augment
from recipes.de_en.options import PROGRAM, TextOptions


def key(side: str) -> str:
    """What two sentences have in common that differ in capitals and marks alone."""
    return " ".join(re.findall(r"\w+", side.lower()))


def epochs_of(options: TextOptions) -> Iterator[list[Pair]]:
    """The pairs of each epoch.  FileError or DataError where a file is no list of pairs."""
    files = options.files
    held_out = {key(side) for path in files.held_out for pair in read_pairs(path) for side in pair}

    def apart(pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if not held_out.intersection(map(key, pair))]

    corpora = [apart(read_pairs(path)) for path in files.train]
    lines = (line.strip() for path in files.train_same for line in read_lines(path))
    same = apart((line, line) for line in lines if line)
    made = apart(pair for path in files.made for pair in read_pairs(path))
    templates = read_pairs(files.slots) if files.slots else []
    weights = files.train_weights or [1.0] * len(corpora)
    every = [pair for corpus in corpora for pair in corpus]
    augment = Augment(every, options.changes, templates, files.slot_lines)
    for epoch in range(files.epochs):
        rng = Random(f"{files.seed} {epoch}")
        pairs = repeat_by_weight(corpora, weights, rng)
        pairs += rng.sample(same, min(files.same_lines, len(same)))
        pairs += rng.sample(made, min(files.made_lines, len(made)))
        # A line that was a final mark alone may have lost it
        yield [(src, tgt) for src, tgt in augment(pairs, rng) if src and tgt]


def write_text(options: TextOptions) -> None:
    """The whole program.  An OnmtLiteError says what is wrong; then nothing has been written."""
    output = Path(os.path.abspath(options.files.output))
    if os.path.lexists(output):
        raise OptionError(f"output: {output} exists already; choose another path or remove it")
    written = {}
    for number, pairs in enumerate(epochs_of(options), 1):
        name, text = f"{number:02d}.tsv.gz", "".join(map("%s\t%s\n".__mod__, pairs))
        written[name] = gzip.compress(text.encode("utf-8"), mtime=0)
        print(f"{name}: {len(pairs):,} pairs", file=sys.stderr)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {output}: {error.strerror}") from None
    write_whole(written, output.parent, output.name)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, write_text)


if __name__ == "__main__":
    sys.exit(main())
