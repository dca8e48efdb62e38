"""Random strings in pairs such as `{name} kommt {day}.`: names, numbers, dates, addresses.

The values differ each time the slots of a pair are filled.  A model cannot memorize these strings,
so it has to learn to copy them, or to convert quantities such as times of day.
"""

import re
from collections.abc import Callable
from random import Random

from onmt_lite.train.data import EMOJI, SIGNS, Pair
from recipes.de_en.identifiers import (
    address,
    file_name,
    hexadecimal,
    iban,
    order,
    path,
    plate,
    product,
    variable,
    verbatim,
    version,
)
from recipes.de_en.quantities import QUANTITIES

SLOT = re.compile(r"\{([a-z]+)\d?\}")

ONSETS = "b br d dr f fl g gr h j k kl kr l m n p pf r s sch schm schw st t tr v w z".split()
VOWELS = "a a e e i i o o u u ä ö ü ei au ie".split()
CODAS = ["", "", "", *"n r l s t k ck ll rt nn tz ss ch nz rg ff mp".split()]
ENDINGS = (
    [""] * 4
    + """er mann stein hofer ski ić ová sen berg bauer ini ez oğlu ard ley wicz czyk
ska enko ov ova opoulos idis akis sson qvist lund gaard elli etti ardo eira inho eau ier ijk shvili
yan ayan ali uddin moto mura wara nakis ewski anowski escu dóttir""".split()
)
# Parts of German words for last names, which must not be translated
STEMS = """Abend Acker Adler Ahorn Alt Amsel Anger Apfel Arm Asch Bach Bären Bauern Baum Bell Berg
Biber Bier Birken Blau Blech Blei Blumen Bogen Bohnen Bohr Boden Brand Braun Breiten Brink Brot
Brück Brunn Buch Buchen Burg Busch Dahl Dachs Dorn Dreh Drei Ebers Eichen Eil Einsied Eisen Elster
Engel Erlen Esch Falken Fein Feld Fenster Ferch Feuer Fichten Finken Fisch Fischer Flach Flecken
Fleisch Frei Freuden Fried Frisch Froh Frost Fuchs Gans Garten Geier Gerber Gersten Glas Glocken
Gold Gott Grab Gras Grau Groß Grün Gut Haber Hafer Hagel Hahn Hamster Hart Hasel Hasen Haupt Haus
Heiden Heil Hell Hemd Herbst Herz Heu Himmel Hinter Hirsch Hoch Hohen Holder Holz Honig Hopfen
Hufen Hühner Hunger Jäger Jung Kahl Kaiser Kalten Karpfen Kessel Kien Kiesel Kirch Kirsch Klein
Klee Kloster Knob Koch Kohl König Korn Kranz Kraut Krebs Kreuz Kron Krug Kühn Kupfer Lamm Land Lang
Laub Lauter Leder Lehm Leucht Licht Lieb Linden Löffel Löwen Luchs Mandel Marder Markt Maul Meer
Mehl Meister Merz Messer Milch Mitter Mohn Mond Moos Morgen Mühl Müller Mutter Nach Nachti Nagel
Nessel Neu Nieder Nord Nuss Ober Ochsen Ofen Oster Pech Pelz Pfann Pfeffer Pflaum Pilz Quell Raben
Rad Rauch Rauten Reb Regen Reh Reich Reif Rein Ried Ritter Roggen Rosen Ross Rot Rüben Sack Salz
Sand Sauer Säbel Schach Schäfer Schatten Scharf Schau Schelm Schilling Schlegel Schmal Schmied
Schnee Schneider Schön Schuster Schwalben Schwan Schwarz See Seel Segel Seiler Selig Sieben Silber
Sommer Sonnen Spat Speck Spiegel Spiel Stahl Stark Stein Stern Stiefel Stolz Storch Sturm Süd Süß
Tabor Tann Tannen Tauben Teich Teufel Tief Traut Tuch Turm Uhl Unter Veilchen Vogel Vor Wacht Wagen
Wald Wall Wasser Weber Wege Wein Weis Weiß Wend Wester Wetter Wiesen Wild Winter Wohl Wolf Wolken
Wunder Wurm Zacken Zapfen Zauner Ziegel Zimmer Zobel Zorn Zucker Zwick""".split()
TAILS = """acker ammer apfel au bach bacher bart bauer baum becher beck bein berg berger bichler
blatt blum born brand brecht brenner brink brot bruch bruck brunn brunner buch buchner burg burger
busch dorf dorfer eck eder egger eisen ell ert ecker feind feld felder fels fink fisch flug fritz
fuchs fuß gard gartner gast geist gemut ger glas glück gold graf gruber haar haas hahn halm halter
hammer hand hard hardt hart hauer haupt haus hauser hausen heim heimer heit helm hemd her herr hof
hofer hold holz horn huber hut inger kamm kamp karl kern kind kirch kirchner klug knecht kohl kopf
korn kraft kranz lach lager land lechner leben lehner leitner lich lieb ling loch lob macher mann
mantel mark mayr maier meier meister meyer milch mond moser mot mund müller mühl mut nagel ner nick
ohr ort pold pfennig rad rath rat recht reich reiter reuter rieder riegel ried riem ring rock roth
ruh ruf sack sam sattel schall schalk schein schild schink schläger schlager schmidt schneider
schön schuh seer segen singer sohn spieß stab stadt stadler stahl stamm stätter stedt steg stein
steiner stern stetter stiel stock stolz strasser sträßer strom stück tal thal thaler teufel tritt
vater vogel voll wagen wald walder wandt wange wart wasser weber weg weiler wein werk wert wieser
wig wind winkel wirt witz wolf wurst zahn zapf zweig""".split()
# First names, which are also copied before a last name
FIRST_NAMES = """Aisha Alexander Ali Amélie Andreas Angela Anja Anna Antonia Astrid Aylin Barbara
Ben Bernd Björn Brigitte Carla Carlos Charlotte Chen Christa Christian Christine Clara Claudia
Cornelia Daniel David Dennis Dieter Dirk Elena Elisabeth Elke Emil Emma Eva Fatima Felix Finn
Florian Frank Frida Friedrich Gabriele Georg Gerd Gisela Günter Hannah Hans Heike Heinrich Helena
Helga Helmut Herbert Ines Ingrid Irina Iris Ivan Jakob Jan Jana Jens Johann Johanna Johannes Jonas
Jörg José Josef Julia Julian Jürgen Karin Karl Katharina Kathrin Kerstin Klaus Kurt Lara Laura Lea
Lena Leon Lina Lisa Ludwig Luis Luisa Lukas Manfred Manuela Marco Maria Marie Mario Markus Marta
Martin Mathilde Matthias Max Mehmet Mia Michael Michaela Mohammed Monika Moritz Nadja Niklas Nina
Noah Nora Olga Oliver Oskar Otto Paul Paula Peter Petra Philipp Pia Rainer Ralf Regina Renate
Robert Rolf Rosa Ruth Sabine Samuel Sandra Sara Sarah Sebastian Silke Simon Sofia Sophie Stefan
Stefanie Susanne Sven Sylvia Tanja Theo Theresa Thomas Tim Tina Tobias Tom Torsten Udo Ulrich
Ulrike Ursula Ute Uwe Vanessa Vera Viktor Walter Werner Wilhelm Wolfgang Yasmin Yusuf
Zoe""".split()
DOMAINS = "de com org net at ch eu info co.uk fr io".split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# First and last letters of Greek, Cyrillic, Hebrew, Arabic, kana, Han and Hangul
SCRIPTS = ("αω", "ая", "ая", "את", "بي", "ぁん", "ァン", "一龥", "가힣")


def word(rng: Random, german: float = 0.2) -> str:
    """Return an invented word: syllables, two German words, or random letters (0.2).

    `german` is the probability of two German words.
    """
    draw = rng.random()
    if draw < 0.2:
        return "".join(rng.choices(LETTERS, k=rng.randrange(2, 10)))
    if draw < 0.2 + german:
        return (rng.choice(STEMS) + rng.choice(TAILS)).lower()
    syllables = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    letters = [s for _ in range(syllables) for s in map(rng.choice, (ONSETS, VOWELS, CODAS))]
    return "".join(letters) + rng.choice(ENDINGS)


def ascii_word(rng: Random) -> str:
    """Return an invented word with the letters a to z only, for addresses."""
    return re.sub("[^a-z]", "", word(rng)) or "a"


# -- one function per slot, with the name of the slot ---------------------------------------------


def name(rng: Random) -> str:
    """Return a last name; one in twenty is hyphenated."""
    last_name = word(rng, german=0.4).capitalize()
    if rng.random() < 0.05:
        last_name += "-" + word(rng).capitalize()
    return last_name


def person(rng: Random) -> str:
    """Return a first and a last name; one in ten has a second first name or an initial."""
    first = rng.choice(FIRST_NAMES)
    if rng.random() < 0.1:
        first += rng.choice((" ", "-")) + rng.choice(FIRST_NAMES)
    elif rng.random() < 0.1:
        first = rng.choice((first[0] + ".", f"{first} {rng.choice(LETTERS).upper()}."))
    return first + rng.choice((" ",) * 12 + (" von ", " van ", " de ", " el ")) + name(rng)


def number(rng: Random) -> str:
    """Return an integer of 1 to 10 digits."""
    digits = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10))
    return rng.choice("123456789") + _digits(rng, digits - 1)


def count(rng: Random) -> str:
    """Return an integer of one or two digits."""
    return str(rng.choice((rng.randrange(1, 13), rng.randrange(1, 100))))


def date(rng: Random) -> str:
    """Return a date, mostly as day.month.year."""
    month = rng.randrange(12)
    parts = [rng.randrange(MONTH_DAYS[month]) + 1, month + 1, rng.randrange(1900, 2060)]
    form = rng.choice(("{}.{}.{}", "{}.{}.{}", "{:02d}.{:02d}.{}", "{:02d}.{:02d}.{}", "{}.{}."))
    if rng.random() < 0.15:
        return "{2}-{1:02d}-{0:02d}".format(*parts)
    return form.format(*parts)


def phone(rng: Random) -> str:
    """Return a phone number."""
    area, rest = _digits(rng, rng.randrange(2, 5)), _digits(rng, rng.randrange(4, 9))
    if rng.random() < 0.4:
        rest = rest[:3] + " " + rest[3:]
    if rng.random() < 0.3:
        rest = " ".join(rest.replace(" ", "")[i : i + 2] for i in range(0, len(rest), 2))
    form = rng.choice(("0{} {}", "0{}/{}", "0{}-{}", "(0{}) {}", "+49 {} {}", "+{1} {0} {2}"))
    if form.startswith("+{"):
        return form.format(area, rng.randrange(1, 999), rest)
    return form.format(area, rest)


def host(rng: Random) -> str:
    """Return a host name."""
    parts = [ascii_word(rng) for _ in range(rng.choice((1, 1, 1, 2)))]
    return rng.choice(("-", ".")).join(parts) + "." + rng.choice(DOMAINS)


def mail(rng: Random) -> str:
    """Return an email address."""
    parts = [ascii_word(rng) for _ in range(rng.choice((1, 2, 2)))]
    who = rng.choice((".", "_", "-", "")).join(parts) + rng.choice(("", "", "", number(rng)[:4]))
    return f"{who}@{host(rng)}"


def url(rng: Random) -> str:
    """Return a web address."""
    start = rng.choice(("www.", "www.", "https://", "http://", "https://www.", ""))
    parts = [ascii_word(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
    return start + "/".join([host(rng), *parts])


def code(rng: Random) -> str:
    """Return a product, flight or order number."""
    letters = "".join(rng.choices(LETTERS.upper(), k=rng.randrange(1, 4)))
    return letters + rng.choice(("", "-", " ")) + _digits(rng, rng.randrange(1, 7))


def emoji(rng: Random) -> str:
    """Return an emoji."""
    return rng.choice(EMOJI)


def sign(rng: Random) -> str:
    """Return a currency sign, arrow or similar character."""
    return rng.choice(SIGNS)


def script(rng: Random) -> str:
    """Return a word in a script other than Latin."""
    letters = rng.choice(SCRIPTS)
    return "".join(
        chr(rng.randint(ord(letters[0]), ord(letters[1]))) for _ in range(rng.randrange(1, 8))
    )


def field(rng: Random) -> str:
    """Return a placeholder, as in user interface texts."""
    form = rng.choice(("{%s}", "{%s}", "{{%s}}", "%%%s", "${%s}", "%%(%s)s", "<%s>", "[%s]"))
    fixed = rng.choice(("%s", "%d", "%1$s", "{0}", "{1}", "{}", "{count}", "{name}", "<br>"))
    return fixed if rng.random() < 0.5 else form % ascii_word(rng)


FILLERS = (
    *(name, person, number, count, date, phone, mail, url, code, emoji, sign, script, field),
    *(verbatim, version, hexadecimal, plate, iban, order, file_name, path, variable, address),
    product,
)
# Slot name -> function that returns the string
SLOTS: dict[str, Callable[[Random], str]] = {
    filler.__name__.partition("_")[0]: filler for filler in FILLERS
}


def fill(template: Pair, rng: Random) -> Pair:
    """Fill the slots of a pair.  `{name}` has the same value everywhere; `{name2}` has another.

    A quantity differs on the two sides.  At the start of a sentence it is capitalized.
    """
    values: dict[str, Pair] = {}

    def choose(match: re.Match[str]) -> Pair | None:
        if match[0] not in values:
            if match[1] in SLOTS:
                values[match[0]] = (SLOTS[match[1]](rng),) * 2
            elif match[1] in QUANTITIES:
                values[match[0]] = QUANTITIES[match[1]](rng)[:2]
        return values.get(match[0])

    def fill_side(i: int) -> str:
        def replace(match: re.Match[str]) -> str:
            pair = choose(match)
            if pair is None:
                return match[0]
            starts_sentence = match.start() == 0 and match[1] in QUANTITIES and side[-1] in ".!?"
            return pair[i][:1].upper() + pair[i][1:] if starts_sentence else pair[i]

        side = template[i]
        return SLOT.sub(replace, side).replace(".m..", ".m.")  # at 8 a.m..

    return fill_side(0), fill_side(1)


def decorate(pair: Pair, rng: Random) -> Pair:
    """Add the same bullet, emoji, markup, sign or placeholder to both sides."""
    src, tgt = pair
    decoration = rng.randrange(5)
    if decoration == 0:
        start = rng.choice(
            ("• ", "- ", "* ", "– ", "→ ", "1. ", "2) ", "# ", "> ", emoji(rng) + " ")
        )
        return start + src, start + tgt
    if decoration == 1:
        end = " " + "".join(rng.choices(EMOJI, k=rng.choice((1, 1, 1, 2, 3))))
        return src + end, tgt + end
    if decoration == 2:
        tag = rng.choice(("b", "i", "p", "h1", "li", "em", "strong", "u", "td", ascii_word(rng)))
        return f"<{tag}>{src}</{tag}>", f"<{tag}>{tgt}</{tag}>"
    if decoration == 3:
        mark = rng.choice(("**", "*", "_", "`"))
        return mark + src + mark, mark + tgt + mark
    end = rng.choice((": ", " ", " – ")) + rng.choice((field, sign, script, number, url))(rng)
    return src + end, tgt + end


def _digits(rng: Random, n: int) -> str:
    """Return n digits; a fifth repeat the previous digit, because models tend to drop repeats."""
    digits = ""
    for _ in range(n):
        digits += digits[-1] if digits and rng.random() < 0.2 else rng.choice("0123456789")
    return digits
