"""Made-up strings that a translation copies: names, numbers, dates, addresses.

A pair with slots, `{name} kommt am {date}.`, becomes a new pair whenever the slots are filled.  No
model can learn these strings by heart, so it has to learn to copy.
"""

import re
from random import Random

from onmt_lite.training.data import EMOJI, SIGNS, Pair

SLOT = re.compile(r"\{([a-z]+)\d?\}")

ONSETS = "b br d dr f fl g gr h j k kl kr l m n p pf r s sch schm schw st t tr v w z".split()
VOWELS = "a a e e i i o o u u ä ö ü ei au ie".split()
CODAS = ["", "", "", *"n r l s t k ck ll rt nn tz ss ch nz rg ff mp".split()]
ENDINGS = ["", "", "", *"er mann stein hofer ski ić ová sen berg bauer ini ez oğlu ard ley".split()]
# Names of German words, which a translation must not translate
STEMS = """Adler Alt Apfel Bach Bären Baum Berg Bier Birken Blumen Braun Brot Buch Burg Eichen Eisen
Feld Fischer Fuchs Gold Gras Groß Hafer Hirsch Hoch Holz Honig Jäger Kirch Klein Koch Korn Kreuz
Kühn Lamm Lang Linden Mühl Neu Nuss Ober Reich Rosen Rot Salz Schmied Schneider Schuster Schwarz
Silber Sommer Sonnen Stark Stein Stern Tann Vogel Wald Weber Wein Weiß Winter Wolf Zimmer""".split()
TAILS = """bach bauer baum berger bichler dorf feld felder hammer hauser hausen heim heimer hof
hofer huber kamp kirchner mann maier meier meyer müller mühl reiter rieder riegel ried schläger
schmidt singer stein steiner stetter tal thaler wald walder wieser zahn""".split()
DOMAINS = "de com org net at ch eu info co.uk fr io".split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# First and last letters of Greek, Cyrillic, Hebrew, Arabic, kana, Han and Hangul
SCRIPTS = ("αω", "ая", "ая", "את", "بي", "ぁん", "ァン", "一龥", "가힣")


def word(rng: Random) -> str:
    """A new word: syllables, two German words, or in a quarter of the cases any letters."""
    kind = rng.random()
    if kind < 0.25:
        return "".join(rng.choices(LETTERS, k=rng.randrange(2, 10)))
    if kind < 0.4:
        return (rng.choice(STEMS) + rng.choice(TAILS)).lower()
    syllables = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    parts = [part for _ in range(syllables) for part in map(rng.choice, (ONSETS, VOWELS, CODAS))]
    return "".join(parts) + rng.choice(ENDINGS)


def plain(rng: Random) -> str:
    """A word of the letters a to z, as in addresses."""
    return re.sub("[^a-z]", "", word(rng)) or "a"


def name(rng: Random) -> str:
    made = word(rng).capitalize()
    if rng.random() < 0.05:
        made += "-" + word(rng).capitalize()
    return made


def number(rng: Random) -> str:
    digits = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10))
    return rng.choice("123456789") + _digits(rng, digits - 1)


def decimal(rng: Random) -> str:
    whole = str(rng.randrange(10 ** rng.choice((1, 1, 2, 2, 3, 4))))
    return whole + rng.choice(",,,.") + _digits(rng, rng.choice((1, 1, 2, 2, 2, 3)))


def time(rng: Random) -> str:
    hour = str(rng.randrange(24))
    return hour.zfill(rng.choice((1, 2))) + rng.choice(":::.") + f"{rng.randrange(60):02d}"


def date(rng: Random) -> str:
    month = rng.randrange(12)
    parts = [rng.randrange(MONTH_DAYS[month]) + 1, month + 1, rng.randrange(1900, 2060)]
    form = rng.choice(("{}.{}.{}", "{}.{}.{}", "{:02d}.{:02d}.{}", "{:02d}.{:02d}.{}", "{}.{}."))
    if rng.random() < 0.15:
        return "{2}-{1:02d}-{0:02d}".format(*parts)
    return form.format(*parts)


def phone(rng: Random) -> str:
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
    parts = [plain(rng) for _ in range(rng.choice((1, 1, 1, 2)))]
    return rng.choice(("-", ".")).join(parts) + "." + rng.choice(DOMAINS)


def mail(rng: Random) -> str:
    parts = [plain(rng) for _ in range(rng.choice((1, 2, 2)))]
    who = rng.choice((".", "_", "-", "")).join(parts) + rng.choice(("", "", "", number(rng)[:4]))
    return f"{who}@{host(rng)}"


def url(rng: Random) -> str:
    start = rng.choice(("www.", "www.", "https://", "http://", "https://www.", ""))
    parts = [plain(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
    return start + "/".join([host(rng), *parts])


def code(rng: Random) -> str:
    """A product, flight or order number."""
    letters = "".join(rng.choices(LETTERS.upper(), k=rng.randrange(1, 4)))
    return letters + rng.choice(("", "-", " ")) + _digits(rng, rng.randrange(1, 7))


def emoji(rng: Random) -> str:
    return rng.choice(EMOJI)


def sign(rng: Random) -> str:
    return rng.choice(SIGNS)


def script(rng: Random) -> str:
    """A word of another script."""
    letters = rng.choice(SCRIPTS)
    return "".join(
        chr(rng.randint(ord(letters[0]), ord(letters[1]))) for _ in range(rng.randrange(1, 8))
    )


def field(rng: Random) -> str:
    """A placeholder, which a program fills in."""
    form = rng.choice(("{%s}", "{%s}", "{{%s}}", "%%%s", "${%s}", "%%(%s)s", "<%s>", "[%s]"))
    fixed = rng.choice(("%s", "%d", "%1$s", "{0}", "{1}", "{}", "{count}", "{name}", "<br>"))
    return fixed if rng.random() < 0.5 else form % plain(rng)


KINDS = {
    make.__name__: make
    for make in (name, number, decimal, time, date, phone, mail, url, code, emoji, sign, script)
} | {"field": field}


def fill(template: Pair, rng: Random) -> Pair:
    """Fill the slots of a pair, equal slots alike; `{name2}` is another name than `{name}`."""
    values: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        make = KINDS.get(match[1])
        if make is None:
            return match[0]
        if match[0] not in values:
            values[match[0]] = make(rng)
        return values[match[0]]

    src, tgt = template
    return SLOT.sub(value, src), SLOT.sub(value, tgt)


def decorate(pair: Pair, rng: Random) -> Pair:
    """Put the same bullet, emoji or markup around both sides, or a sign or field behind both."""
    src, tgt = pair
    kind = rng.randrange(5)
    if kind == 0:
        start = rng.choice(
            ("• ", "- ", "* ", "– ", "→ ", "1. ", "2) ", "# ", "> ", emoji(rng) + " ")
        )
        return start + src, start + tgt
    if kind == 1:
        end = " " + "".join(rng.choices(EMOJI, k=rng.choice((1, 1, 1, 2, 3))))
        return src + end, tgt + end
    if kind == 2:
        tag = rng.choice(("b", "i", "p", "h1", "li", "em", "strong", "u", "td", plain(rng)))
        return f"<{tag}>{src}</{tag}>", f"<{tag}>{tgt}</{tag}>"
    if kind == 3:
        mark = rng.choice(("**", "*", "_", "`"))
        return mark + src + mark, mark + tgt + mark
    end = rng.choice((": ", " ", " – ")) + rng.choice((field, sign, script, number, url))(rng)
    return src + end, tgt + end


def _digits(rng: Random, n: int) -> str:
    """n digits; a fifth of them repeat the one before, where a copy is apt to lose one."""
    digits = ""
    for _ in range(n):
        digits += digits[-1] if digits and rng.random() < 0.2 else rng.choice("0123456789")
    return digits
