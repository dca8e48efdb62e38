"""Evaluate robustness: `python -m recipes.de_en.evaluate -model data/de-en -test F`.

Prints one line for each test set: the test files; the first file in uppercase, in lowercase,
without final punctuation and joined by eight; and sentences with strings to copy, or with times,
dates and numbers to convert.  Translates in fp32 with beam size 5.  Requires sacrebleu.
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
from recipes.de_en import identifiers, quantities
from recipes.de_en.quantities import Quantity

USAGE = """\
-test PAIRS.tsv [PAIRS.tsv ...] [options]

Prints BLEU, chrF, and the number of empty lines and repetitions for the test files and for variants
of the first file; how many times, numbers, dates, phone numbers, addresses and names are copied
unchanged; and how many times of day, dates and number words are translated correctly. Run it in the
project directory."""

N_CHANGED, N_JOINED = 400, 100  # lines per variant
REPETITION = re.compile(r"(\b\w[\w ,.']{1,40}?)(?:[ ,.]*\1){2,}")  # a phrase three times in a row

# Sentences around the strings; slots.tsv, the training file, has other sentences
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
    "version": ("Ist {} schon erschienen?", "Der Absturz tritt nur in {} auf.", "Laden Sie {}."),
    "hexadecimal": ("Im Protokoll steht {}.", "Das Gerät meldet {}.", "Der Schlüssel ist {}."),
    "plate": ("{} parkt vor unserer Tür.", "Wem gehört der Wagen {}?", "Es war ein Audi mit {}."),
    "iban": ("Zahlen Sie bitte auf {} ein.", "Die IBAN {} ist ungültig.", "Mein Konto: {}"),
    "clock": (
        "Wir haben um {} Besuch bekommen.",
        "Der Arzt ist ab {} zu sprechen.",
        "Mein Bruder kommt gegen {} vorbei.",
        "Die Post wird um {} geleert.",
        "Der Strom fiel um {} aus.",
        "Es ist {}, und ich bin noch müde.",
    ),
    "day": (
        "Am {} um 14:15 Uhr ist die Besprechung.",
        "Meine Tochter heiratet am {}.",
        "Wir sind erst ab dem {} wieder da.",
    ),
    "cardinal": (
        "Der Ofen wiegt {} Kilo.",
        "Im Lager liegen {} Kisten.",
        "Auf dem Parkplatz standen {} Autos.",
    ),
    "mixed": ("Die Wanderung dauert {} Stunden.", "Es fehlen {} Meter.", "Nimm {} Löffel Zucker."),
    "amount": (
        "Gestern habe ich dafür {} Euro ausgegeben.",
        "Die Schuhe kosten jetzt {} Euro.",
        "Am 12.05.2024 waren es {} Euro.",
    ),
}
# Names that occur in no corpus and that slots.py cannot generate
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


def _sample_digits(rng: Random, n: int) -> str:
    return "".join(rng.choices("0123456789", k=n))


def _sample_number(rng: Random) -> str:
    return str(rng.randrange(1, 10)) + _sample_digits(rng, rng.randrange(10))


def _sample_date(rng: Random) -> str:
    return f"{rng.randrange(1, 29)}.{rng.randrange(1, 13)}.{rng.randrange(1950, 2031)}"


def _sample_phone(rng: Random) -> str:
    form = rng.choice(("0{} {}", "+49 {} {}", "0{}/{}"))
    return form.format(_sample_digits(rng, 3), _sample_digits(rng, rng.choice((6, 7))))


def _sample_mail(rng: Random) -> str:
    return (
        rng.choice(PEOPLE) + rng.choice(("", "", _sample_digits(rng, 2))) + "@" + rng.choice(HOSTS)
    )


# A string is copied; a quantity is converted
STRINGS: dict[str, Callable[[Random], str | Quantity]] = {
    "time": lambda rng: f"{rng.randrange(24)}:{rng.randrange(60):02d}",
    "number": _sample_number,
    "decimal": lambda rng: f"{rng.randrange(1000)},{_sample_digits(rng, rng.choice((1, 2, 3)))}",
    "date": _sample_date,
    "phone": _sample_phone,
    "mail": _sample_mail,
    "web": lambda rng: rng.choice(("www.{}", "https://{}/hilfe", "{}")).format(rng.choice(HOSTS)),
    "surname": lambda rng: rng.choice(SURNAMES),
    "person": lambda rng: f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}",
    "odd": lambda rng: rng.choice(ODD),
    "version": identifiers.version,
    "hexadecimal": identifiers.hexadecimal,
    "plate": identifiers.plate,
    "iban": identifiers.iban,
    "clock": quantities.clock,
    "day": quantities.day,
    "cardinal": quantities.cardinal,
    "mixed": quantities.mixed,
    "amount": quantities.decimal,
}


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of the program."""

    title: ClassVar[str] = "Evaluate"

    model: str = opt(
        "data/de-en", help="Evaluate this model", metavar="PATH", example="runs/de-en-5"
    )
    test: tuple[str, ...] = opt(
        (), help="Translate the sources of these held-out pairs, plain or .gz", metavar="FILE"
    )
    lines: int = opt(
        0, help="Use the first N pairs of each file; 0: all", min=0, metavar="N", example="500"
    )
    strings: int = opt(
        60, help="Test N lines with each type of string to copy", min=0, metavar="N", example="30"
    )
    seed: int = opt(1, help="Random seed of the strings to copy", min=0, example="2")
    output: str | None = opt(
        None,
        help="Write `source<TAB>reference<TAB>output` lines for each set to this directory",
        metavar="PATH",
        example="runs/read",
    )
    threads: int = opt(1, help="Use N CPU threads", min=1, example="2")


RULES = (
    reject_if(lambda v: not v.test, "test: is missing; set it to a file of pairs"),
    reject_if(lambda v: not has_sacrebleu(), "sacrebleu is not installed; pip install sacrebleu"),
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


def join_lines(pairs: Sequence[Pair], n: int) -> list[Pair]:
    """Join every n sentences into a line; an incomplete last line is dropped."""
    groups = zip(*[iter(pairs)] * n, strict=False)
    return [(" ".join(src for src, _ in g), " ".join(tgt for _, tgt in g)) for g in groups]


def make_variants(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Return variants of a test file by name, with the unchanged lines before the variants."""
    few, many = pairs[:N_CHANGED], pairs[: 8 * N_JOINED]
    marks = ".!?"
    return {
        f"first {len(few)}": [*few],
        "uppercase": [(src.upper(), tgt.upper()) for src, tgt in few],
        "lowercase": [(src.lower(), tgt) for src, tgt in few],
        "no final mark": [(src.rstrip(marks), tgt.rstrip(marks)) for src, tgt in few],
        f"first {len(many)}": [*many],
        "joined by 8": join_lines(many, 8),
    }


def make_copy_tests(string_type: str, n: int, rng: Random) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield n (sentence, strings of which its translation must contain one) pairs.

    Args:
        string_type: key of STRINGS and SENTENCES
        n: number of pairs
        rng: source of randomness
    """
    sentences = SENTENCES[string_type]
    for i in range(n):
        string = STRINGS[string_type](rng)
        sentence = sentences[i % len(sentences)]
        if isinstance(string, Quantity):
            yield sentence.format(string.src), (string.tgt, *string.others)
        else:
            yield sentence.format(string), (string,)


def is_copied(string: str, output: str) -> bool:
    """Return True if the output contains the string, with a decimal comma or a decimal point."""
    return string in output or string.replace(",", ".") in output


def is_translated(accepted: Sequence[str], output: str) -> bool:
    """Return True if the output contains one of the strings as whole words, ignoring case."""
    return any(re.search(rf"(?<!\w){re.escape(s)}(?!\w)", output, re.I) for s in accepted)


def evaluate(options: EvaluateOptions) -> None:
    """Run the program and print the scores."""
    import sacrebleu  # tests only

    translator = Translator.from_pretrained(
        options.model, beam_size=5, device="cpu", precision="fp32", threads=options.threads
    )
    files = {path: read_pairs(path)[: options.lines or None] for path in options.test}
    names = [Path(path).name for path in files]
    sets = {
        name if names.count(name) == 1 else path: files[path] for name, path in zip(names, files)
    }
    sets |= make_variants(files[options.test[0]])
    for name, pairs in sets.items():
        if not pairs:  # fewer than 8 lines to join
            continue
        outputs = translate_set(translator, pairs, name, options.output)
        references = [[tgt for _, tgt in pairs]]
        bleu = sacrebleu.corpus_bleu(outputs, references).score
        chrf = sacrebleu.corpus_chrf(outputs, references).score
        empty = sum(not output.strip() for output in outputs)
        repetitions = sum(bool(REPETITION.search(output)) for output in outputs)
        write_text(
            f"{name:30} {len(pairs):5} lines  BLEU {bleu:4.1f}  chrF {chrf:4.1f}  "
            f"empty {empty}  repetitions {repetitions}\n"
        )
    for string_type in STRINGS if options.strings else ():
        rng = Random(f"{options.seed} {string_type}")
        tests = list(make_copy_tests(string_type, options.strings, rng))
        pairs = [(src, accepted[0]) for src, accepted in tests]
        outputs = translate_set(translator, pairs, string_type, options.output)
        n = sum(
            is_copied(accepted[0], output)
            if len(accepted) == 1
            else is_translated(accepted, output)
            for (_, accepted), output in zip(tests, outputs, strict=True)
        )
        write_text(f"{string_type:30} {len(pairs):5} lines  copied {n}\n")


def translate_set(
    translator: Translator, pairs: Sequence[Pair], name: str, directory: str | None
) -> list[str]:
    """Translate the sources of a test set.

    Args:
        translator: the model
        pairs: sources and references
        name: name of the test set
        directory: directory for a file with sources, references and outputs, or None

    Returns:
        The best hypothesis of each source.

    Raises:
        FileError: the file cannot be written
    """
    outputs = [t.hyps[0].text for t in translator.translate([src for src, _ in pairs])]
    if directory is not None:
        rows = (f"{src}\t{tgt}\t{out}\n" for (src, tgt), out in zip(pairs, outputs, strict=True))
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            path = Path(directory, re.sub(r"[ /]", "-", f"{name}.tsv"))
            path.write_text("".join(rows), encoding="utf-8", newline="\n")
        except OSError as error:
            raise FileError(f"cannot write {directory}: {error.strerror}") from None
    return outputs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, evaluate)


if __name__ == "__main__":
    sys.exit(main())
