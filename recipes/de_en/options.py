"""Options of `recipes.de_en.text`, the training text of each epoch."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.rules import (
    Values,
    any_set,
    describe_requirements,
    reject_all,
    reject_if,
    require_paths,
    requires,
)
from onmt_lite.config.sources import Program

USAGE = """\
-train PAIRS.tsv -epochs N -output DIR [options]

Writes N files of sentence pairs, one per training epoch, each with a new random sample of the
changes below: DIR/01.tsv.gz, DIR/02.tsv.gz and so on. Run it in the project directory."""


@dataclass(frozen=True)
class FileOptions:
    """Input and output files."""

    title: ClassVar[str] = "Files"

    train: tuple[str, ...] = opt(
        (), help="Read pairs from these files, plain or .gz", metavar="FILE", example="my.train.tsv"
    )
    train_weights: tuple[float, ...] = opt(
        (),
        help="Repeat the pairs of each file this many times per epoch (default: 1)",
        example="2 1",
    )
    train_same: tuple[str, ...] = opt(
        (),
        help="Read lines that are their own translation from these files",
        metavar="FILE",
        example="names.txt",
    )
    same_lines: int = opt(0, help="Add N lines of train_same to each epoch", min=0, example="500")
    made: tuple[str, ...] = opt(
        (),
        help="Read pairs with one machine-translated side from these files; no names, numbers or "
        "words are collected from them",
        metavar="FILE",
        example="back.tsv.gz",
    )
    made_lines: int = opt(0, help="Add N pairs of made to each epoch", min=0, example="1000")
    held_out: tuple[str, ...] = opt(
        (),
        help="Exclude every pair that shares a side with a pair in these files, ignoring case and "
        "punctuation; a machine-translated line may occur in the test set",
        metavar="FILE",
        example="test.tsv.gz",
    )
    slots: str | None = opt(
        None,
        help="Read pairs with slots from this file, such as `{name} kommt um {clock}.`; slots are "
        "the functions of slots.py, identifiers.py and quantities.py",
        metavar="FILE",
        example="recipes/de_en/slots.tsv",
    )
    slot_lines: int = opt(
        0, help="Add N pairs with filled slots to each epoch", min=0, example="2000"
    )
    epochs: int = opt(8, help="Write N files", min=1, max=99, example="10")
    seed: int = opt(1, help="Random seed", min=0, example="2")
    output: str = opt(
        "",
        help="Write to this new directory",
        metavar="PATH",
        example="runs/text",
    )


@dataclass(frozen=True)
class ChangeOptions:
    """Shares of lines to change, and numbers of lines to add."""

    title: ClassVar[str] = "Changes"

    join: float = opt(
        0.0,
        help="Join this share of lines with the lines that follow, up to 8 sentences",
        min=0,
        max=1,
        example="0.1",
    )
    join_bare: float = opt(
        0.0,
        help="Remove the marks between source sentences in this share of the joined lines",
        min=0,
        max=1,
        example="0.5 -join 0.1",
    )
    conjunctions: tuple[str, ...] = opt(
        (),
        help="Join sentences with these pairs `source|target`, such as `, und |, and `",
        example='", und |, and "',
    )
    conjunction: float = opt(
        0.0, help="Use a conjunction in this share of the joins", min=0, max=1, example="0.5"
    )
    quotes: tuple[str, ...] = opt(
        (), help='Quotation marks `source|target`, such as `„…“|"…"`', example="'„…“|\"…\"'"
    )
    quote: float = opt(
        0.0, help="Put this share of lines in quotation marks", min=0, max=1, example="0.02"
    )
    no_final: float = opt(
        0.0, help="Remove the final mark from this share of lines", min=0, max=1, example="0.1"
    )
    upper: float = opt(0.0, help="Uppercase this share of lines", min=0, max=1, example="0.02")
    lower_src: float = opt(
        0.0, help="Lowercase this share of sources", min=0, max=1, example="0.05"
    )
    typos: float = opt(
        0.0,
        help="Add one to three typing mistakes to this share of sources: letters swapped, "
        "dropped, doubled, or from an adjacent key",
        min=0,
        max=1,
        example="0.1",
    )
    plain_letters: float = opt(
        0.0,
        help="Spell umlauts as ae, oe, ue or without dots, and ß as ss, in this share of sources",
        min=0,
        max=1,
        example="0.05",
    )
    no_commas: float = opt(
        0.0, help="Remove the commas from this share of sources", min=0, max=1, example="0.05"
    )
    names: float = opt(
        0.0,
        help="Replace a name that both sides share with another name, known or invented, in this "
        "share of lines",
        min=0,
        max=1,
        example="0.1",
    )
    marks: float = opt(
        0.0,
        help="Add bullets, emoji, markup, signs or placeholders to both sides of this share of "
        "lines",
        min=0,
        max=1,
        example="0.05",
    )
    rare: int = opt(
        0,
        help="Repeat pairs whose source has a word that occurs in N pairs or fewer",
        min=0,
        example="3",
    )
    words: int = opt(
        0,
        help="Add N copies of each word pair of the lexicon that word alignment finds",
        min=0,
        example="2",
    )
    numbers: int = opt(
        0,
        help="Add N copies, with other numbers, of each pair that has numbers on both sides",
        min=0,
        example="4",
    )


@dataclass(frozen=True)
class TextOptions:
    """All options of the program."""

    files: FileOptions
    changes: ChangeOptions


def find_malformed_pairs(v: Values) -> list[str]:
    """Return an error for each malformed conjunction or quotation pair."""
    return [
        f"{name}: {pair!r} is malformed; see -help for the form"
        for name, marks in (("conjunctions", 0), ("quotes", 1))
        for pair in v[name]
        if [side.count("…") for side in pair.split("|")] != [marks, marks]
    ]


RULES = (
    require_paths("train", "output"),
    requires("train_same", any_set("same_lines")),
    requires("same_lines", any_set("train_same")),
    requires("made", any_set("made_lines")),
    requires("made_lines", any_set("made")),
    requires("slots", any_set("slot_lines")),
    requires("slot_lines", any_set("slots")),
    requires("join_bare", any_set("join")),
    requires("conjunctions", any_set("conjunction")),
    requires("conjunction", any_set("join") | any_set("conjunctions")),
    requires("quotes", any_set("quote")),
    requires("quote", any_set("quotes")),
    reject_if(
        lambda v: v.train_weights and len(v.train_weights) != len(v.train),
        lambda v: (
            f"train_weights: {len(v.train_weights)} weights for {len(v.train)} train files; "
            "set one for each"
        ),
    ),
    reject_if(
        lambda v: any(weight <= 0 for weight in v.train_weights),
        "train_weights: must be above 0; to exclude a file, remove it from train",
    ),
    reject_all(find_malformed_pairs),
)
OPTIONS: dict[str, Option] = collect_options(
    (FileOptions, ChangeOptions, *META_GROUPS), (), partial(describe_requirements, RULES)
)
PROGRAM = Program(
    "recipes.de_en.text",
    USAGE,
    OPTIONS,
    RULES,
    build=lambda values: TextOptions(values.build(FileOptions), values.build(ChangeOptions)),
)
load_text_options = PROGRAM.load
