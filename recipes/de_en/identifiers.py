"""Random strings of machines and offices, which a translation must copy: v2.1.80, HH-KU 123."""

from random import Random

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HEX = "0123456789abcdef"
# Codes of districts on license plates, and letter pairs that look like words
DISTRICTS = """B M K F S L N H HH HB KI HL MD DD EF MZ SB KA FR UL A R WÜ BN E DO GÖ OL PB KS MR TÜ
OS LG FL PI OHV LDS RÜG GER KU KÖ AC AB WOB SHA ERZ""".split()
COUNTRIES = "DE AT CH FR NL BE IT ES PL".split()
NAMES = """bericht rechnung report invoice foto scan backup readme config setup main index test
data export import draft entwurf protokoll vertrag lebenslauf bild image video notes kunden prices
summary plan angebot""".split()
SUFFIXES = """pdf docx txt xlsx csv jpg png zip tar.gz py js html css json yaml toml md log mp3 mp4
exe dll cpp h sh xml ini""".split()
FOLDERS = "usr etc var home opt tmp src bin lib docs data users temp share media backup".split()
WORDS = """user max min total line file path name key value count index start end time date size
list item error state token batch mode level node page cache buffer thread debug""".split()
PRODUCTS = """RTX GTX iPhone Galaxy WH- XPS MX ThinkPad EOS DSC- A320- Boeing LG- HP- KX- SM- TL-
BR- WD- G502 i7- Ryzen""".split()


def version(rng: Random) -> str:
    """Return a version number: v2.1.80."""
    parts = [
        str(rng.randrange(10 ** rng.choice((1, 1, 1, 2))))
        for _ in range(rng.choice((2, 3, 3, 3, 4)))
    ]
    suffix = rng.choice(("",) * 8 + ("-beta", "-rc1", "a1", "-alpha.2", "+build7"))
    return rng.choice(("", "v", "v", "V", "r")) + ".".join(parts) + suffix


def hexadecimal(rng: Random) -> str:
    """Return a hexadecimal number, color, hash or UUID: 0xE1CC, #1a2b3c."""
    form, n = rng.randrange(6), rng.choice((2, 4, 4, 8))
    upper = rng.random() < 0.6
    digits = _choose(rng, HEX, 32)
    text = {
        3: f"#{digits[:6]}",
        4: digits[: rng.choice((7, 8, 12))],
        5: "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
    }.get(form, digits[:n])
    text = text.upper() if upper else text
    return "0x" + text if form < 3 else text


def plate(rng: Random) -> str:
    """Return a license plate: HH-KU 123."""
    letters = _choose(rng, UPPER, rng.choice((1, 2, 2)))
    number = str(rng.randrange(1, 10 ** rng.choice((2, 3, 3, 4))))
    suffix = rng.choice(("",) * 8 + ("E", "H"))
    return (
        rng.choice(DISTRICTS)
        + rng.choice("-- ")
        + letters
        + rng.choice(("  ", " ", " ", ""))[:1]
        + number
        + suffix
    )


def iban(rng: Random) -> str:
    """Return an IBAN, mostly in groups of four."""
    digits = _choose(rng, "0123456789", rng.choice((14, 18, 18, 18, 20)))
    text = rng.choice(COUNTRIES[:1] * 4 + COUNTRIES) + _choose(rng, "0123456789", 2) + digits
    if rng.random() < 0.3:
        return text
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))


def order(rng: Random) -> str:
    """Return an order, invoice, file or serial number: RE-2024-00817."""
    parts = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        kind, n = rng.randrange(4), rng.randrange(2, 7)
        part = _choose(rng, "0123456789", n)
        if kind == 0:
            part = _choose(rng, UPPER, rng.randrange(1, 4))
        elif kind == 1:
            part = _choose(rng, UPPER + "0123456789", n)
        parts.append(part)
    return rng.choice("---/._ ").join(parts)


def file_name(rng: Random) -> str:
    """Return a file name: Bericht_2024.pdf."""
    name = rng.choice(NAMES)
    name = rng.choice((name, name.capitalize(), name.upper()))
    if rng.random() < 0.6:
        name += rng.choice("_-") + rng.choice(
            (str(rng.randrange(2000, 2030)), f"v{rng.randrange(9)}", rng.choice(NAMES))
        )
    return f"{name}.{rng.choice(SUFFIXES)}"


def path(rng: Random) -> str:
    """Return a path: /etc/setup.ini."""
    folders = [rng.choice(FOLDERS) for _ in range(rng.choice((1, 2, 2, 3)))]
    if rng.random() < 0.3:
        return (
            rng.choice("CD")
            + ":\\"
            + "\\".join(map(str.capitalize, folders))
            + "\\"
            + file_name(rng)
        )
    return rng.choice(("/", "/", "~/", "./", "")) + "/".join([*folders, file_name(rng)])


def variable(rng: Random) -> str:
    """Return a name from a program: max_length, --no-cache, getUserName(), USER_ID."""
    words = [rng.choice(WORDS) for _ in range(rng.choice((2, 2, 3)))]
    form = rng.randrange(5)
    if form == 0:
        return "--" + "-".join(words)
    if form == 1:
        return words[0] + "".join(map(str.capitalize, words[1:])) + rng.choice(("", "()"))
    return "_".join(words).upper() if form == 2 else "_".join(words)


def address(rng: Random) -> str:
    """Return an IP or MAC address: 192.168.1.17."""
    if rng.random() < 0.25:
        return ":".join(_choose(rng, HEX, 2).upper() for _ in range(6))
    text = ".".join(str(rng.randrange(256)) for _ in range(4))
    return text + rng.choice(("", "", "", "/24", ":8080", ":443"))


def product(rng: Random) -> str:
    """Return a product name with a number: RTX 4090."""
    name = rng.choice(PRODUCTS)
    number = str(rng.randrange(10 ** rng.choice((1, 2, 3, 4)))) + rng.choice(
        ("", "", "", "X", " Pro", "S")
    )
    return name + ("" if name[-1] == "-" else " ") + number


def verbatim(rng: Random) -> str:
    """Return one of the strings above."""
    return rng.choice(IDENTIFIERS)(rng)


def _choose(rng: Random, letters: str, n: int) -> str:
    """Return n random letters."""
    return "".join(rng.choices(letters, k=n))


IDENTIFIERS = (
    *(version, version, hexadecimal, hexadecimal, plate, plate, iban, order, order, file_name),
    *(path, variable, address, product),
)
