"""Make a vocabulary shortlist for a model: `python -m onmt_lite.shortlist -help`.

Which target tokens translate a source token is learned from pairs of lines: references, or the
model's own translations, whose words are those that the search will want.  The words are aligned by
IBM model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine Translation").
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onmt_lite.config.environment import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.config.cli import run_program
from onmt_lite.config.schema import META, Option, Program, Resolved, load, opt, options_of
from onmt_lite.errors import DataError
from onmt_lite.files import check_paths
from onmt_lite.text.line import Line

if TYPE_CHECKING:
    import torch

    from onmt_lite.inference.translator import Translator

USAGE = """\
-src FILE -output FILE [-model PATH] [-tgt FILE] [options]

Writes for each token of the source vocabulary the tokens that translate it, for -shortlist.  The
file is a vocabulary map, which CTranslate2 reads too (as vmap.txt in a model's directory)."""

ROUNDS = 3  # of expectation and maximisation
LINES = 10_000  # aligned at once: their pairs of tokens must fit into memory
LEAST = 1e-6  # probability of a translation that is listed


@dataclass(frozen=True)
class ShortlistOptions:
    """What is made, and of what."""

    title: ClassVar[str] = "Shortlist"

    model: str = opt(
        "",
        "Make a shortlist for this model, of any kind that onmt_translate -model reads; without "
        "it, for the shipped one",
        value="PATH",
        example="opus-mt-de-en",
    )
    src: str = opt(
        "",
        "Learn from these lines, plain or gzip, of the kind that will be translated: 100,000 or "
        "more",
        value="FILE",
        example="train.de",
    )
    tgt: str = opt(
        "",
        "Take these lines for their translations; without it, the model translates them",
        value="FILE",
        example="train.en",
    )
    src_lang: str = opt(
        "",
        "Translate from this language, by the code that the model has for it",
        value="CODE",
        example="deu_Latn",
    )
    tgt_lang: str = opt("", "Translate into this language", value="CODE", example="eng_Latn")
    output: str = opt("", "Write to this file", value="FILE", example="vmap.txt")
    first: int = opt(
        100, "Let the N most frequent target tokens come in all lines", min=0, example="200"
    )
    best: int = opt(
        100, "List at most the N most probable translations of a token", min=1, example="50"
    )


OPTIONS: dict[str, Option] = options_of((ShortlistOptions, *META))
PROGRAM = Program((), USAGE, OPTIONS)


def load_shortlist_options(argv: Sequence[str]) -> tuple[ShortlistOptions, Resolved]:
    """Raises OptionError with all problems."""
    resolved = load(argv, OPTIONS, cross_check)
    return resolved.build(ShortlistOptions), resolved


def cross_check(v: dict[str, Any]) -> list[str]:
    return [f"{name} is missing; give a path" for name in ("src", "output") if not v[name]]


def shortlist(options: ShortlistOptions) -> None:
    """The whole program.  OnmtLiteError where something cannot be read or written."""
    # Imported late: wrong options must not wait for torch
    from onmt_lite.checkpoints.shortlist import write_vocabulary_map
    from onmt_lite.inference.translator import Translator

    check_files(options)
    src = read(options.src)
    tgt = read(options.tgt) if options.tgt else None
    if tgt is not None and len(tgt) != len(src):
        raise DataError(f"{len(src)} lines of src but {len(tgt)} of tgt; give as many")
    languages = dict(src_lang=options.src_lang, tgt_lang=options.tgt_lang)
    translator = Translator.from_pretrained(options.model or None, **languages)
    pairs = [*pairs_of_ids(translator, src, tgt)]
    if not pairs:
        raise DataError(f"{options.src}: no line that can be translated; give another file")
    src_vocab, tgt_vocab = translator.checkpoint.src_vocab, translator.checkpoint.tgt_vocab
    best = best_translations(pairs, len(tgt_vocab), options.best)
    frequent = Counter(i for _, ids in pairs for i in ids).most_common(options.first)
    targets: dict[tuple[str, ...], list[str]] = {(): [tgt_vocab.tokens[i] for i, _ in frequent]}
    for i, token in enumerate(src_vocab.tokens):
        tokens = [tgt_vocab.tokens[j] for j in best.get(i, ())]
        if token in tgt_vocab.ids and token not in tokens:  # names stay as they are
            tokens.append(token)
        targets[(token,)] = tokens
    write_vocabulary_map(options.output, targets)
    n = sum(map(len, targets.values())) - len(frequent)
    print(
        f"wrote {options.output}: {len(pairs)} lines; {n / len(src_vocab):.1f} translations of "
        f"each of {len(src_vocab)} tokens, and {len(frequent)} tokens for all lines",
        file=sys.stderr,
    )


def check_files(options: ShortlistOptions) -> None:
    """Raise OptionError where the output is one of the files that are read, or FileError where it
    cannot be written.  In the directory of the model it may be: as its vmap.txt."""
    from onmt_lite.training.checks import check_file_writable

    given = {"src": options.src, "tgt": options.tgt, "model": options.model}
    named = [(name, path) for name, path in given.items() if path and not os.path.isdir(path)]
    check_paths(named, [("output", options.output)])
    check_file_writable(options.output)


def read(path: str) -> list[str]:
    from onmt_lite.training.data import read_lines

    lines = read_lines(path)
    return lines if lines[-1] else lines[:-1]


def pairs_of_ids(
    translator: "Translator", src: Sequence[str], tgt: Sequence[str] | None
) -> Iterator[tuple[list[int], list[int]]]:
    """Tokens of each line and of its translation, without those that are no text.

    Without `tgt` the model translates; lines without a translation are left out."""
    src_vocab, tgt_vocab = translator.checkpoint.src_vocab, translator.checkpoint.tgt_vocab
    given: list[str | None] = [None] * len(src) if tgt is None else [*tgt]
    made = translator.translate(src) if tgt is None else ()
    found = [[tgt_vocab.ids[token] for token in t.hyps[0].tokens] for t in made]
    for i, (line, reference) in enumerate(zip(src, given)):
        pair = Line(i, line), None if reference is None else Line(i, reference)
        example = translator.examples.make(*pair)
        ids = found[i] if reference is None else example.tgt_ids or []
        own = [j for j in example.src_ids if not src_vocab.is_special(j)]
        ids = [j for j in ids if not tgt_vocab.is_special(j)]
        if own and ids:
            yield own, ids


def best_translations(
    pairs: Sequence[tuple[list[int], list[int]]], n_targets: int, n_best: int
) -> dict[int, list[int]]:
    """At most n_best target tokens of each source token, the most probable first.

    pairs: ids of both sides; n_targets: of the target vocabulary.  IBM model 1: each target token
    is the translation of some source token of its line, of each as probably as the table says.
    """
    import torch

    blocks = [pairs[i : i + LINES] for i in range(0, len(pairs), LINES)]
    keys = torch.cat([links(block, n_targets)[0].unique() for block in blocks]).unique()
    sources = keys.div(n_targets, rounding_mode="floor")
    table = torch.ones(len(keys))  # the probability of each pair of tokens that share a line
    for _ in range(ROUNDS):
        counts = torch.zeros(len(keys))
        for block in blocks:
            keys_of_links, words = links(block, n_targets)
            place = torch.searchsorted(keys, keys_of_links)
            share = table[place]
            of_words = torch.zeros(int(words[-1]) + 1).index_add_(0, words, share)
            counts.index_add_(0, place, share / of_words[words])
        totals = torch.zeros(int(sources[-1]) + 1).index_add_(0, sources, counts)
        table = counts / totals[sources]
    order = table.argsort(descending=True, stable=True)
    best: dict[int, list[int]] = {}
    for i in order[: int((table > LEAST).sum())].tolist():
        tokens = best.setdefault(int(keys[i]) // n_targets, [])
        if len(tokens) < n_best:
            tokens.append(int(keys[i]) % n_targets)
    return best


def links(
    pairs: Sequence[tuple[list[int], list[int]]], n_targets: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """All pairs of tokens that share a line, (N,) each: source * n_targets + target, and the
    number of the target word."""
    import torch

    src_sizes = torch.tensor([len(src) for src, tgt in pairs for _ in tgt])  # of each target word
    words = torch.arange(len(src_sizes)).repeat_interleave(src_sizes)
    sources = torch.tensor([i for src, tgt in pairs for _ in tgt for i in src])
    targets = torch.tensor([i for _, tgt in pairs for i in tgt])
    return sources * n_targets + targets[words], words


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, load_shortlist_options, shortlist)


if __name__ == "__main__":
    sys.exit(main())
