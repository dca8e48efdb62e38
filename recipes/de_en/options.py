"""Options of the text that a model learns from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from onmt_lite.config.schema import META, Option, Program, Resolved, load, opt, options_of, refusals

USAGE = """\
-train PAIRS.tsv -epochs N -output DIR [options]

Writes N files of pairs, one for each epoch of a training, with the changes below drawn anew:
DIR/01.tsv.gz, DIR/02.tsv.gz and so on.  Run it in the project's directory."""


@dataclass(frozen=True)
class FileOptions:
    """What is read and written."""

    title: ClassVar[str] = "Files"

    train: tuple[str, ...] = opt(
        (), "Read pairs from these files, plain or .gz", value="FILE", example="my.train.tsv"
    )
    train_weights: tuple[float, ...] = opt(
        (), "Have the pairs of each file so often in an epoch; without weights, once", example="2 1"
    )
    train_same: tuple[str, ...] = opt(
        (),
        "Read lines that a translation leaves as they are from these files",
        value="FILE",
        requires="-same_lines",
        example="names.txt",
    )
    same_lines: int = opt(
        0, "Take N lines of train_same in each epoch", min=0, requires="-train_same", example="500"
    )
    made: tuple[str, ...] = opt(
        (),
        "Read pairs of which a machine made one side from these files; no names, numbers or "
        "words are taken from them",
        value="FILE",
        requires="-made_lines",
        example="back.tsv.gz",
    )
    made_lines: int = opt(
        0, "Take N pairs of made in each epoch", min=0, requires="-made", example="1000"
    )
    held_out: tuple[str, ...] = opt(
        (),
        "Leave out every pair that shares a side with one of these files' pairs, small letters and "
        "marks not compared, as a line that a machine made may be one of the test set",
        value="FILE",
        example="test.tsv.gz",
    )
    slots: str | None = opt(
        None,
        "Read pairs with slots from this file, such as `{name} kommt um {time}.`; the kinds are "
        "name, person, number, decimal, time, date, phone, mail, url, code, emoji, sign, script, "
        "field",
        value="FILE",
        requires="-slot_lines",
        example="recipes/de_en/slots.tsv",
    )
    slot_lines: int = opt(
        0,
        "Make N lines in each epoch by filling the pairs of slots",
        min=0,
        requires="-slots",
        example="2000",
    )
    epochs: int = opt(8, "Write N files", min=1, max=99, example="10")
    seed: int = opt(1, "Start the random choices here", min=0, example="2")
    output: str = opt(
        "", "Write to this directory, which must not exist yet", value="PATH", example="runs/text"
    )


@dataclass(frozen=True)
class ChangeOptions:
    """Shares of lines that are changed, and lines that are added."""

    title: ClassVar[str] = "Changes"

    join: float = opt(
        0.0,
        "Join this share of lines with those that follow, up to 8 sentences",
        min=0,
        max=1,
        example="0.1",
    )
    conjunctions: tuple[str, ...] = opt(
        (),
        "Join by these pairs `source|target`, such as `, und |, and `",
        requires="-conjunction",
        example='", und |, and "',
    )
    conjunction: float = opt(
        0.0,
        "Make this share of the joins with a conjunction",
        min=0,
        max=1,
        requires="-join and -conjunctions",
        example="0.5",
    )
    quotes: tuple[str, ...] = opt(
        (),
        'Quote by these pairs, such as `„…“|"…"`',
        requires="-quote",
        example="'„…“|\"…\"'",
    )
    quote: float = opt(
        0.0,
        "Put this share of lines into quotation marks",
        min=0,
        max=1,
        requires="-quotes",
        example="0.02",
    )
    no_final: float = opt(
        0.0, "Take the final mark off this share of lines", min=0, max=1, example="0.1"
    )
    upper: float = opt(0.0, "Put this share of lines into capitals", min=0, max=1, example="0.02")
    lower_src: float = opt(
        0.0, "Put this share of sources into small letters", min=0, max=1, example="0.05"
    )
    names: float = opt(
        0.0,
        "Put another name, known or made up, in the place of a name that both sides share, in "
        "this share of lines",
        min=0,
        max=1,
        example="0.1",
    )
    marks: float = opt(
        0.0,
        "Add bullets, emoji, markup, signs or placeholders to both sides of this share of lines",
        min=0,
        max=1,
        example="0.05",
    )
    rare: int = opt(
        0,
        "Have pairs twice whose source has a word that N pairs have, or fewer",
        min=0,
        example="3",
    )
    words: int = opt(
        0,
        "Add N copies of each pair of words that are sure to translate each other",
        min=0,
        example="2",
    )
    numbers: int = opt(
        0,
        "Add N copies with other numbers of each pair that shares numbers",
        min=0,
        example="4",
    )


@dataclass(frozen=True)
class TextOptions:
    """Both groups together."""

    files: FileOptions
    changes: ChangeOptions


OPTIONS: dict[str, Option] = options_of((FileOptions, ChangeOptions, *META))
PROGRAM = Program("onmt_text", USAGE, OPTIONS)


def load_text_options(argv: Sequence[str]) -> tuple[TextOptions, Resolved]:
    """Raises OptionError with all problems."""
    resolved = load(argv, OPTIONS, cross_check)
    files, changes = map(resolved.build, (FileOptions, ChangeOptions))
    return TextOptions(files, changes), resolved


def cross_check(v: dict[str, Any]) -> list[str]:
    problems = [f"{name} is missing; give a path" for name in ("train", "output") if not v[name]]
    problems += refusals(OPTIONS, v)
    if v["train_weights"] and len(v["train_weights"]) != len(v["train"]):
        problems.append(
            f"train_weights: {len(v['train_weights'])} weights for {len(v['train'])} files of train"
        )
    if any(weight <= 0 for weight in v["train_weights"]):
        problems.append("train_weights: each must be above 0; leave the file out instead")
    for name, marks in (("conjunctions", 0), ("quotes", 1)):
        for pair in v[name]:
            sides = pair.split("|")
            if len(sides) != 2 or any(side.count("…") != marks for side in sides):
                problems.append(f"{name}: {pair!r} is not of the form in -help")
    return problems
