"""Score a model on what people type: `python -m recipes.de_en.evaluate -model data/de-en -test F`.

Prints a line for each set of lines: the test files as they are; lines of the first in capitals, in
small letters, without a final mark and joined by eight; and strings to copy, in sentences of their
own.  Needs sacrebleu.  Translates in single precision with beam 5.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

from onmt_lite.api import Translator
from onmt_lite.config.cli import run_program
from onmt_lite.config.files import write_text
from onmt_lite.config.option import META_GROUPS, Option, collect_options, opt
from onmt_lite.config.rules import reject_if
from onmt_lite.config.sources import Program
from onmt_lite.errors import FileError
from onmt_lite.jobs.reports import has_sacrebleu
from onmt_lite.train.data import Pair, read_pairs

USAGE = """\
-test PAIRS.tsv [PAIRS.tsv ...] [options]

Prints BLEU, chrF, empty lines and loops of the test files and of changes of the first, and how many
times, numbers, dates, phone numbers, addresses and names come out as they went in.  Run it in the
project's directory."""

CHANGED, JOINED = 400, 100  # lines of the changed sets
LOOP = re.compile(r"(\b\w[\w ,.']{1,40}?)(?:[ ,.]*\1){2,}")  # a phrase three times running

# Sentences for the strings; none of slots.tsv, from which the model learns
SENTENCES = {
    "time": ("Der Film fängt um {} Uhr an.", "Ich war um {} zu Hause.", "Um {} Uhr wird gegessen."),
    "number": ("Das Dorf hat {} Einwohner.", "Die Nummer ist {}.", "Wir haben {} Stück verkauft."),
    "decimal": ("Er ist {} Meter groß.", "Das Buch kostet {} Euro.", "Der Wert liegt bei {}."),
    "date": ("Ich wurde am {} geboren.", "Die Hochzeit ist am {}.", "Das Fest am {} fällt aus."),
    "phone": ("Ruf mich bitte an: {}", "Meine Nummer ist {}.", "Unter {} meldet sich niemand."),
    "mail": ("Schick es an {}.", "Meine Adresse ist {}.", "Kontakt: {}"),
    "web": ("Alles steht auf {}.", "Schau mal auf {} nach.", "Die Anleitung gibt es unter {}."),
    "surname": (
        "Herr {} arbeitet in unserer Firma.",
        "Gestern hat mich Frau {} besucht.",
        "Haben Sie mit {} gesprochen?",
    ),
    "person": (
        "Kommt {} auch zur Feier?",
        "Der neue Trainer heißt {}.",
        "Gestern ist {} angekommen.",
    ),
    "odd": ("Danke {}", "Das ist {} für dich.", "Ich habe {} gesehen."),
}
# In none of the corpora, and not made by slots.py
SURNAMES = """Kowalczyk Okafor Szymański Lindqvist Abernathy Wojciechowski Hagedorn Petrosyan
Yıldırım Castellanos Vandenberghe Rasmussen Jiříček Achterberg Mbeki Takahashi Oyelaran Stepanović
Quintero Hölzenbein Papadopoulos Krzyżanowska Schneidereit Arslan Burkhardt Celik Czerny Demirci
Dombrowski Dreyer Eichendorff Friedrichsen Gallwitz Grabowski Hackbarth Hasenclever Hufnagel
Ivanova Jankowski Jørgensen Junghans Karagöz Kellermann Kirchhoff Küppers Lachmann Lehmkuhl
Leutheusser Lukaschek Mahlstedt Marquardt Meisenbacher Kaczmarek Ohlendorf Pfannenstiel Piechocki
Poschmann Quandt Rübsam Schachtschneider Steinbrück Stoltenberg Szymanski Thorwald Uhlenbrock
Vandenberg Wachowiak Weidenfeller Weißhäupl Wieczorek Wohlgemuth Yildirim Zeisig Zimmerli
Żukowska""".split()
FIRST_NAMES = """Annegret Ayşe Bettina Giovanni Hildegard Holger Ingeborg Julia Maria Peter Thomas
Xenia""".split()
HOSTS = """beispiel.de web-laden.net firma.com uni-jena.de mueller-gmbh.de posteo.de gmx.at
example.org baeckerei-lang.de stadt-ulm.de""".split()
PEOPLE = "anna peter julia k.meier info kontakt service lukas_89 m-huber buero".split()
ODD = "🙂 ❤ 5€ • → %s {count} <br> &lt; 中文 Москва ©".split()


def _digits(rng: Random, n: int) -> str:
    return "".join(rng.choices("0123456789", k=n))


def _number(rng: Random) -> str:
    return str(rng.randrange(1, 10)) + _digits(rng, rng.randrange(10))


def _date(rng: Random) -> str:
    return f"{rng.randrange(1, 29)}.{rng.randrange(1, 13)}.{rng.randrange(1950, 2031)}"


def _phone(rng: Random) -> str:
    form = rng.choice(("0{} {}", "+49 {} {}", "0{}/{}"))
    return form.format(_digits(rng, 3), _digits(rng, rng.choice((6, 7))))


def _mail(rng: Random) -> str:
    return rng.choice(PEOPLE) + rng.choice(("", "", _digits(rng, 2))) + "@" + rng.choice(HOSTS)


STRINGS: dict[str, Callable[[Random], str]] = {
    "time": lambda rng: f"{rng.randrange(24)}:{rng.randrange(60):02d}",
    "number": _number,
    "decimal": lambda rng: f"{rng.randrange(1000)},{_digits(rng, rng.choice((1, 2, 3)))}",
    "date": _date,
    "phone": _phone,
    "mail": _mail,
    "web": lambda rng: rng.choice(("www.{}", "https://{}/hilfe", "{}")).format(rng.choice(HOSTS)),
    "surname": lambda rng: rng.choice(SURNAMES),
    "person": lambda rng: f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}",
    "odd": lambda rng: rng.choice(ODD),
}


@dataclass(frozen=True)
class EvaluateOptions:
    """What is translated, by which model."""

    title: ClassVar[str] = "Evaluate"

    model: str = opt(
        "data/de-en", help="Evaluate this model", metavar="PATH", example="runs/de-en-5"
    )
    test: tuple[str, ...] = opt(
        (), help="Translate the sources of these held-out pairs, plain or .gz", metavar="FILE"
    )
    lines: int = opt(
        0,
        help="Take the first N pairs of each file; 0 takes all",
        min=0,
        metavar="N",
        example="500",
    )
    strings: int = opt(
        60, help="Make N lines with each kind of string to copy", min=0, metavar="N", example="30"
    )
    seed: int = opt(1, help="Seed the strings to copy", min=0, example="2")
    output: str | None = opt(
        None,
        help="Write `source<TAB>reference<TAB>output` lines of each set to this directory",
        metavar="PATH",
        example="runs/read",
    )
    threads: int = opt(1, help="Use N CPU threads", min=1, example="2")


RULES = (
    reject_if(lambda v: not v.test, "test is missing; give a file of pairs"),
    reject_if(lambda v: not has_sacrebleu(), "no scores without sacrebleu; pip install sacrebleu"),
)
OPTIONS: dict[str, Option] = collect_options((EvaluateOptions, *META_GROUPS))
PROGRAM = Program(
    "recipes.de_en.evaluate",
    USAGE,
    OPTIONS,
    RULES,
    build=lambda resolved: resolved.build(EvaluateOptions),
)
load_evaluate_options = PROGRAM.load


def joined(pairs: Sequence[Pair], n: int) -> list[Pair]:
    """Lines of n sentences each; sentences at the end that make no full line are left out."""
    groups = zip(*[iter(pairs)] * n, strict=False)
    return [(" ".join(src for src, _ in g), " ".join(tgt for _, tgt in g)) for g in groups]


def changed(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The sets that are made of a test file, each beside the lines as they were."""
    few, many = pairs[:CHANGED], pairs[: 8 * JOINED]
    marks = ".!?"
    return {
        f"first {len(few)}": [*few],
        "capitals": [(src.upper(), tgt.upper()) for src, tgt in few],
        "small letters": [(src.lower(), tgt) for src, tgt in few],
        "no final mark": [(src.rstrip(marks), tgt.rstrip(marks)) for src, tgt in few],
        f"first {len(many)}": [*many],
        "joined by 8": joined(many, 8),
    }


def copying(kind: str, n: int, rng: Random) -> Iterator[Pair]:
    """(sentence, string that its translation must have), n times."""
    for i in range(n):
        string = STRINGS[kind](rng)
        yield SENTENCES[kind][i % len(SENTENCES[kind])].format(string), string


def copies(string: str, output: str) -> bool:
    """Whether the output has the string; the comma of a decimal number may be a point."""
    return string in output or string.replace(",", ".") in output


def evaluate(options: EvaluateOptions) -> None:
    """The whole program.  An OnmtLiteError says what is wrong."""
    import sacrebleu  # tests only

    translator = Translator.from_pretrained(
        options.model, beam_size=5, device="cpu", precision="fp32", threads=options.threads
    )
    files = {path: read_pairs(path)[: options.lines or None] for path in options.test}
    names = [Path(path).name for path in files]
    sets = {
        name if names.count(name) == 1 else path: files[path] for name, path in zip(names, files)
    }
    sets |= changed(files[options.test[0]])
    for name, pairs in sets.items():
        if not pairs:  # too few to be joined
            continue
        outputs = translated(translator, pairs, name, options.output)
        references = [[tgt for _, tgt in pairs]]
        bleu = sacrebleu.corpus_bleu(outputs, references).score
        chrf = sacrebleu.corpus_chrf(outputs, references).score
        empty = sum(not output.strip() for output in outputs)
        loops = sum(bool(LOOP.search(output)) for output in outputs)
        write_text(
            f"{name:30} {len(pairs):5} lines  BLEU {bleu:4.1f}  chrF {chrf:4.1f}  "
            f"empty {empty}  loops {loops}\n"
        )
    for kind in STRINGS if options.strings else ():
        pairs = list(copying(kind, options.strings, Random(f"{options.seed} {kind}")))
        outputs = translated(translator, pairs, kind, options.output)
        n = sum(copies(string, output) for (_, string), output in zip(pairs, outputs, strict=True))
        write_text(f"{kind:30} {len(pairs):5} lines  copied {n}\n")


def translated(
    translator: Translator, pairs: Sequence[Pair], name: str, folder: str | None
) -> list[str]:
    """Best translations of the sources, also written to the folder where there is one."""
    outputs = [t.hyps[0].text for t in translator.translate([src for src, _ in pairs])]
    if folder is not None:
        rows = (f"{src}\t{tgt}\t{out}\n" for (src, tgt), out in zip(pairs, outputs, strict=True))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(folder, re.sub(r"[ /]", "-", f"{name}.tsv"))
            path.write_text("".join(rows), encoding="utf-8", newline="\n")
        except OSError as error:
            raise FileError(f"cannot write {folder}: {error.strerror}") from None
    return outputs


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, evaluate)


if __name__ == "__main__":
    sys.exit(main())
