"""Options of the text that a model learns from."""

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

Writes N files of pairs, one for each epoch of a training, with the changes below drawn anew:
DIR/01.tsv.gz, DIR/02.tsv.gz and so on.  Run it in the project's directory."""


@dataclass(frozen=True)
class FileOptions:
    """What is read and written."""

    title: ClassVar[str] = "Files"

    train: tuple[str, ...] = opt(
        (), help="Read pairs from these files, plain or .gz", metavar="FILE", example="my.train.tsv"
    )
    train_weights: tuple[float, ...] = opt(
        (),
        help="Have the pairs of each file so often in an epoch; without weights, once",
        example="2 1",
    )
    train_same: tuple[str, ...] = opt(
        (),
        help="Read lines that a translation leaves as they are from these files",
        metavar="FILE",
        example="names.txt",
    )
    same_lines: int = opt(0, help="Take N lines of train_same in each epoch", min=0, example="500")
    made: tuple[str, ...] = opt(
        (),
        help="Read pairs of which a machine made one side from these files; no names, numbers or "
        "words are taken from them",
        metavar="FILE",
        example="back.tsv.gz",
    )
    made_lines: int = opt(0, help="Take N pairs of made in each epoch", min=0, example="1000")
    held_out: tuple[str, ...] = opt(
        (),
        help="Leave out every pair that shares a side with one of these files' pairs, small "
        "letters and marks not compared, as a line that a machine made may be one of the test set",
        metavar="FILE",
        example="test.tsv.gz",
    )
    slots: str | None = opt(
        None,
        help="Read pairs with slots from this file, such as `{name} kommt um {time}.`; the kinds "
        "are name, person, number, decimal, time, date, phone, mail, url, code, emoji, sign, "
        "script, field",
        metavar="FILE",
        example="recipes/de_en/slots.tsv",
    )
    slot_lines: int = opt(
        0, help="Make N lines in each epoch by filling the pairs of slots", min=0, example="2000"
    )
    epochs: int = opt(8, help="Write N files", min=1, max=99, example="10")
    seed: int = opt(1, help="Start the random choices here", min=0, example="2")
    output: str = opt(
        "",
        help="Write to this directory, which must not exist yet",
        metavar="PATH",
        example="runs/text",
    )


@dataclass(frozen=True)
class ChangeOptions:
    """Shares of lines that are changed, and lines that are added."""

    title: ClassVar[str] = "Changes"

    join: float = opt(
        0.0,
        help="Join this share of lines with those that follow, up to 8 sentences",
        min=0,
        max=1,
        example="0.1",
    )
    join_bare: float = opt(
        0.0,
        help="Take the marks between the sentences off the source in this share of the joins",
        min=0,
        max=1,
        example="0.5 -join 0.1",
    )
    conjunctions: tuple[str, ...] = opt(
        (),
        help="Join by these pairs `source|target`, such as `, und |, and `",
        example='", und |, and "',
    )
    conjunction: float = opt(
        0.0, help="Make this share of the joins with a conjunction", min=0, max=1, example="0.5"
    )
    quotes: tuple[str, ...] = opt(
        (), help='Quote by these pairs, such as `„…“|"…"`', example="'„…“|\"…\"'"
    )
    quote: float = opt(
        0.0, help="Put this share of lines into quotation marks", min=0, max=1, example="0.02"
    )
    no_final: float = opt(
        0.0, help="Take the final mark off this share of lines", min=0, max=1, example="0.1"
    )
    upper: float = opt(
        0.0, help="Put this share of lines into capitals", min=0, max=1, example="0.02"
    )
    lower_src: float = opt(
        0.0, help="Put this share of sources into small letters", min=0, max=1, example="0.05"
    )
    typos: float = opt(
        0.0,
        help="Have one to three slips of the fingers in this share of sources: letters swapped, "
        "dropped, doubled, or those of a neighbouring key",
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
        0.0, help="Take the commas off this share of sources", min=0, max=1, example="0.05"
    )
    names: float = opt(
        0.0,
        help="Put another name, known or made up, in the place of a name that both sides share, in "
        "this share of lines",
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
        help="Have pairs twice whose source has a word that N pairs have, or fewer",
        min=0,
        example="3",
    )
    words: int = opt(
        0,
        help="Add N copies of each pair of words that are sure to translate each other",
        min=0,
        example="2",
    )
    numbers: int = opt(
        0,
        help="Add N copies with other numbers of each pair that shares numbers",
        min=0,
        example="4",
    )


@dataclass(frozen=True)
class TextOptions:
    """Both groups together."""

    files: FileOptions
    changes: ChangeOptions


def wrong_pairs(v: Values) -> list[str]:
    return [
        f"{name}: {pair!r} is not of the form in -help"
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
            f"train_weights: {len(v.train_weights)} weights for {len(v.train)} files of train"
        ),
    ),
    reject_if(
        lambda v: any(weight <= 0 for weight in v.train_weights),
        "train_weights: each must be above 0; leave the file out instead",
    ),
    reject_all(wrong_pairs),
)
OPTIONS: dict[str, Option] = collect_options(
    (FileOptions, ChangeOptions, *META_GROUPS), (), partial(describe_requirements, RULES)
)
PROGRAM = Program(
    "recipes.de_en.text",
    USAGE,
    OPTIONS,
    RULES,
    build=lambda given: TextOptions(given.build(FileOptions), given.build(ChangeOptions)),
)
load_text_options = PROGRAM.load
