"""Random times, dates and numbers that differ in German and English: halb acht, 7:30.

The English forms are those that the corpora use most: 7:30, a quarter to eight, 4 p.m., January
5th, words up to one hundred and digits above.  Each function returns the German and the English
form, with other English forms that are also correct.
"""

from random import Random
from typing import NamedTuple

from recipes.de_en.numerals import (
    MONTHS,
    ONES_DE,
    WEEKDAYS,
    group_digits,
    spell_english,
    spell_english_ordinal,
    spell_german,
    spell_german_ordinal,
    to_english_ordinal,
)


class Quantity(NamedTuple):
    """A time, date or number in both languages."""

    src: str
    tgt: str
    others: tuple[str, ...] = ()  # other correct English forms


# -- times of day ----------------------------------------------------------------------------------


def clock(rng: Random) -> Quantity:
    """Return a time of day, without a preposition."""
    (form,) = rng.choices(CLOCK_FORMS, [weight for _, weight in CLOCK_WEIGHTS])
    return form(rng)


def list_english_times(hour: int, minute: int) -> tuple[str, ...]:
    """Return English forms of a time: 15:45 -> 15:45, 3:45, a quarter to four, ...

    Args:
        hour: 0 to 23
        minute: 0 to 59
    """
    hour12, next12 = (hour - 1) % 12 + 1, hour % 12 + 1
    word, next_word = spell_english(hour12), spell_english(next12)
    forms = [f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}", f"{hour12}:{minute:02d}"]
    if minute == 0:
        half = "a.m." if hour < 12 else "p.m."
        forms += [f"{hour12} {half}", f"{hour12} {half.replace('.', '')}", f"{hour12} o'clock"]
        forms += [
            f"{word} o'clock",
            f"{word} {half}",
            word,
            *{0: ["midnight"], 12: ["noon"]}.get(hour, []),
        ]
    elif minute == 30:
        forms += [f"half past {word}", f"{word} thirty", f"{word}-thirty", f"half past {hour12}"]
    elif minute in (15, 45):
        sides = (
            (("past", "after"), word, hour12)
            if minute == 15
            else (("to", "till", "before"), next_word, next12)
        )
        forms += [f"quarter {link} {which}" for link in sides[0] for which in sides[1:]]
    elif minute < 30:
        count = spell_english(minute)
        forms += [f"{count}{unit} past {word}" for unit in ("", " minutes")]
        forms += [f"{count} minutes after {word}", f"{count} after {word}"]
    else:
        count = spell_english(60 - minute)
        forms += [f"{count}{unit} to {next_word}" for unit in ("", " minutes")]
        forms += [f"{count} minutes before {next_word}", f"{count} before {next_word}"]
    return tuple(forms)


def _make_time(src: str, tgt: str, hour: int, minute: int) -> Quantity:
    return Quantity(src, tgt, list_english_times(hour % 24, minute))


def _half_hour(rng: Random) -> Quantity:
    """Halb acht: 7:30."""
    following = rng.randrange(1, 13)
    hour = (following - 2) % 12 + 1
    return _make_time(f"halb {_name_hour(following)}", f"{hour}:30", hour, 30)


def _quarter_hour(rng: Random) -> Quantity:
    """Viertel vor acht, drei viertel acht: a quarter to eight; viertel acht: ... past seven."""
    following = rng.randrange(1, 13)
    hour = (following - 2) % 12 + 1
    quarter, name = rng.choice(("Viertel", "Viertel", "viertel")), _name_hour(following)
    form = rng.randrange(8)
    if form < 3:
        return _make_time(
            f"{quarter} vor {name}", f"a quarter to {spell_english(following)}", hour, 45
        )
    if form < 6:
        tgt = f"a quarter past {spell_english(following)}"
        return _make_time(f"{quarter} nach {name}", tgt, following, 15)
    if form < 7:
        return _make_time(f"viertel {name}", f"a quarter past {spell_english(hour)}", hour, 15)
    src = rng.choice(("drei viertel", "dreiviertel", "Dreiviertel"))
    return _make_time(f"{src} {name}", f"a quarter to {spell_english(following)}", hour, 45)


def _minutes(rng: Random) -> Quantity:
    """Zehn vor acht: ten to eight; fünf nach halb acht: 7:35."""
    following, count = rng.randrange(1, 13), rng.choice((5, 5, 10, 10, 20, rng.randrange(2, 25)))
    hour, name = (following - 2) % 12 + 1, _name_hour(following)
    words = spell_german(count) + ("" if count in (5, 10, 20) else " Minuten")
    if rng.random() < 0.1:
        words = str(count) + " Minuten"
    english = spell_english(count) + ("" if count in (5, 10, 20) else " minutes")
    before = rng.random() < 0.5
    if count <= 10 and rng.random() < 0.4:
        minute = 30 - count if before else 30 + count
        src = f"{words} {'vor' if before else 'nach'} halb {name}"
        return _make_time(src, f"{hour}:{minute:02d}", hour, minute)
    if before:
        tgt = f"{english} to {spell_english(following)}"
        return _make_time(f"{words} vor {name}", tgt, hour, 60 - count)
    tgt = f"{english} past {spell_english(following)}"
    return _make_time(f"{words} nach {name}", tgt, following, count)


def _afternoon_hour(rng: Random) -> Quantity:
    """16 Uhr, sechzehn Uhr: 4 p.m."""
    hour = rng.randrange(13, 24)
    name = rng.choice((str(hour),) * 4 + (spell_german(hour),))
    return _make_time(f"{name} Uhr", f"{hour - 12} p.m.", hour, 0)


def _morning_hour(rng: Random) -> Quantity:
    """7 Uhr: 7 o'clock; sieben Uhr: seven o'clock; sieben: seven."""
    hour = rng.randrange(1, 13)
    word = spell_english(hour)
    form = rng.randrange(4)
    if form < 2:
        return _make_time(f"{hour} Uhr", f"{hour} o'clock", hour, 0)
    if form < 3:
        name = "ein" if hour == 1 else _name_hour(hour)
        return _make_time(f"{name} Uhr", f"{word} o'clock", hour, 0)
    return _make_time(_name_hour(hour), word, hour, 0)


def _digits(rng: Random) -> Quantity:
    """14:15 Uhr, 14.15 Uhr, 14 Uhr 15: 14:15."""
    hour, minute = rng.randrange(24), rng.choice((rng.randrange(1, 60), 5 * rng.randrange(12)))
    if rng.random() < 0.15 and minute:
        return _make_time(f"{hour} Uhr {minute}", f"{hour}:{minute:02d}", hour, minute)
    name = f"{hour:02d}" if rng.random() < 0.3 else str(hour)
    src = f"{name}{rng.choice('::.')}{minute:02d} Uhr"
    return _make_time(src, f"{name}:{minute:02d}", hour, minute)


def _words(rng: Random) -> Quantity:
    """Acht Uhr dreißig: 8:30; zwanzig Uhr fünfzehn: 8:15 p.m.; null Uhr dreißig: 12:30 a.m."""
    hour = rng.choice((0, *range(1, 24)))
    minute = rng.choice((rng.randrange(1, 60), 5 * rng.randrange(1, 12), 15, 30))
    name = "ein" if hour == 1 else spell_german(hour)
    half = " a.m." if not hour else " p.m." if hour > 12 else ""
    tgt = f"{(hour - 1) % 12 + 1}:{minute:02d}{half}"
    return _make_time(f"{name} Uhr {spell_german(minute)}", tgt, hour, minute)


def _named_time(rng: Random) -> Quantity:
    """Mitternacht, 0 Uhr, 24 Uhr: midnight; 12 Uhr mittags: noon."""
    if rng.random() < 0.7:
        return _make_time(
            rng.choice(("Mitternacht", "0 Uhr", "24 Uhr", "null Uhr")), "midnight", 0, 0
        )
    return _make_time(rng.choice(("12 Uhr mittags", "zwölf Uhr mittags")), "noon", 12, 0)


def _part_of_day(rng: Random) -> Quantity:
    """8 Uhr abends: 8 p.m.; halb acht abends: 7:30 in the evening."""
    german, english, first, last = rng.choice(
        (
            ("morgens", "in the morning", 5, 10),
            ("früh", "in the morning", 5, 9),
            ("vormittags", "in the morning", 9, 11),
            ("nachmittags", "in the afternoon", 13, 17),
            ("abends", "in the evening", 18, 22),
            ("nachts", "at night", 1, 4),
        )
    )
    hour = rng.randrange(first, last + 1)
    hour12, half = (hour - 1) % 12 + 1, "p.m." if hour > 12 else "a.m."
    if rng.random() < 0.4:
        night = "at night" if german == "nachts" else english
        src = f"halb {_name_hour(hour12 % 12 + 1)} {german}"
        return _make_time(src, f"{hour12}:30 {night}", hour, 30)
    name = rng.choice((str(hour12), "ein" if hour12 == 1 else _name_hour(hour12)))
    return _make_time(f"{name} Uhr {german}", f"{hour12} {half}", hour, 0)


def _name_hour(hour: int) -> str:
    """Return the German hour of a time such as `halb eins`."""
    return "eins" if hour == 1 else ONES_DE[hour]


CLOCK_WEIGHTS = (
    (_half_hour, 22),
    (_quarter_hour, 15),
    (_minutes, 14),
    (_afternoon_hour, 16),
    (_morning_hour, 10),
    (_digits, 12),
    (_words, 5),
    (_named_time, 2),
    (_part_of_day, 4),
)
CLOCK_FORMS = [form for form, _ in CLOCK_WEIGHTS]


def time(rng: Random) -> Quantity:
    """Return a time in digits without `Uhr`: 14.15 and 14:15."""
    hour, minute = rng.randrange(24), rng.randrange(60)
    name = str(hour).zfill(rng.choice((1, 2)))
    tgt = f"{name}:{minute:02d}"
    return _make_time(f"{name}{rng.choice(':::.')}{minute:02d}", tgt, hour, minute)


def span(rng: Random) -> Quantity:
    """Return opening hours: 9 bis 17 Uhr, 9 a.m. to 5 p.m."""
    first = rng.randrange(5, 16)
    last = rng.randrange(first + 1, 24)
    english = [f"{(h - 1) % 12 + 1} {'p.m.' if h >= 12 else 'a.m.'}" for h in (first, last)]
    plain = [f"{h}:00" for h in (first, last)]
    link = rng.choice((" bis ", " bis ", " bis ", "–", "-"))
    src = f"{first}{' Uhr' if rng.random() < 0.15 else ''}{link}{last} Uhr"
    return Quantity(src, " to ".join(english), (" to ".join(plain),))


# -- dates -----------------------------------------------------------------------------------------


def day(rng: Random) -> Quantity:
    """Return a day with a month: 5. Januar, January 5th; 5. Januar 2024, January 5, 2024."""
    number, german, english = _choose_date(rng)
    others = tuple(f"{english} {n}" for n in (number, f"the {to_english_ordinal(number)}"))
    others += (f"{to_english_ordinal(number)} of {english}", f"{number} {english}")
    if rng.random() < 0.4:
        year = rng.choice((rng.randrange(1500, 2060), rng.randrange(1940, 2030)))
        tgt = f"{english} {number}, {year}"
        return Quantity(f"{number}. {german} {year}", tgt, tuple(f"{o} {year}" for o in others))
    name = f"{number}." if rng.random() < 0.75 else spell_german_ordinal(number) + "n"
    return Quantity(f"{name} {german}", f"{english} {to_english_ordinal(number)}", others)


def _spelled_day(rng: Random) -> Quantity:
    """Achten Juli: July 8th."""
    number, german, english = _choose_date(rng)
    src = f"{spell_german_ordinal(number)}n {german}"
    return Quantity(src, f"{english} {to_english_ordinal(number)}")


def _choose_date(rng: Random) -> tuple[int, str, str]:
    """Return a day of the month, and the month in both languages."""
    month = rng.randrange(12)
    number = rng.randrange(1, 32 if month not in (1, 3, 5, 8, 10) else 29)
    return number, *MONTHS[month]


def weekday(rng: Random) -> Quantity:
    """Return a day of the week."""
    return Quantity(*rng.choice(WEEKDAYS))


def month(rng: Random) -> Quantity:
    """Return a month."""
    return Quantity(*rng.choice(MONTHS))


def year(rng: Random) -> Quantity:
    """Return a year in words: neunzehnhundertvierundsechzig, 1964."""
    number = rng.choice(
        (rng.randrange(1500, 2000), rng.randrange(1900, 2000), rng.randrange(2000, 2040))
    )
    if number >= 2000:
        return Quantity(spell_german(number).replace("eintausend", "tausend"), str(number))
    hundreds, rest = divmod(number, 100)
    src = f"{spell_german(hundreds)}hundert{spell_german(rest) if rest else ''}"
    return Quantity(src, str(number))


# -- numbers ---------------------------------------------------------------------------------------


def cardinal(rng: Random) -> Quantity:
    """Return an integer above one in words: up to one hundred in words, in digits above."""
    largest = rng.choice((12, 99, 99, 99, 999, 999, 999, 999, 9_999, 999_999))
    number = rng.randrange(2 if largest < 99 else largest // 10, largest + 1)
    if rng.random() < 0.1:
        number = max(2, number // 100 * 100 or number // 10 * 10)
    src, words = _drop_ein(spell_german(number), rng, 0.5), spell_english(number)
    tgt = words if number <= 100 else group_digits(number)
    return Quantity(src, tgt, (str(number), words, group_digits(number)))


def hundreds(rng: Random) -> Quantity:
    """Return an integer from 100 to 999 in words, for which the translation has digits."""
    number = rng.randrange(100, 1000)
    if rng.random() < 0.2:
        number = number // 100 * 100 + rng.choice((0, 10, 11, 12, 20, 30, 40, 50, 60, 70, 80, 90))
    src, words = _drop_ein(spell_german(number), rng, 0.7), spell_english(number)
    return Quantity(src, "one hundred" if number == 100 else str(number), (words, str(number)))


def _drop_ein(number: str, rng: Random, probability: float) -> str:
    """Return einhundert and eintausend as hundert and tausend, with the given probability."""
    if number.startswith(("einhundert", "eintausend")) and rng.random() < probability:
        return number.removeprefix("ein")
    return number


def mixed(rng: Random) -> Quantity:
    """Return a number and a half: anderthalb, zweieinhalb."""
    number = rng.choice((1, 1, 1, 2, 2, *range(3, 13)))
    src = rng.choice(("anderthalb", "anderthalb", "eineinhalb")) if number == 1 else ""
    src = src or ONES_DE[number] + "einhalb"
    others = [f"{number}.5", f"{number} 1/2"]
    if number == 1:
        others += [f"{unit} and a half" for unit in ("hour", "meter", "metre", "spoon", "spoonful")]
    return Quantity(src, spell_english(number) + " and a half", tuple(others))


FRACTIONS = (
    *(("Drittel", "third"), ("Viertel", "quarter"), ("Fünftel", "fifth"), ("Sechstel", "sixth")),
    *(("Siebtel", "seventh"), ("Achtel", "eighth"), ("Zehntel", "tenth")),
)


def fraction(rng: Random) -> Quantity:
    """Return a fraction in words: zwei Drittel, two thirds."""
    german, english = rng.choice(FRACTIONS)
    largest = 2 if german == "Drittel" else 3
    number = rng.randrange(1, largest + 1)
    if (number, german) == (2, "Viertel"):
        number = 3
    if number == 1:
        return Quantity(
            f"ein {german}", f"{'an' if english[0] == 'e' else 'a'} {english}", (f"one {english}",)
        )
    src = rng.choice(("drei Viertel", "Dreiviertel")) if (number, german) == (3, "Viertel") else ""
    src = src or f"{ONES_DE[number]} {german}"
    words = spell_english(number)
    return Quantity(src, f"{words} {english}s", (f"{words}-{english}s",))


def decimal(rng: Random) -> Quantity:
    """Return a number with 1 to 3 decimal places: 1.234,50 and 1,234.50."""
    whole = rng.randrange(10 ** rng.choice((1, 1, 1, 2, 2, 2, 3, 4, 5)))
    places = rng.choice((1, 1, 2, 2, 2, 3))
    digits = "".join(rng.choices("0123456789", k=places))
    if rng.random() < 0.15 and places == 2:
        digits = rng.choice(("99", "50", "95", "00"))
    if whole >= 10_000 or whole >= 1000 and rng.random() < 0.7:
        english = group_digits(whole)
    else:
        english = str(whole)
    german = english.replace(",", ".")
    return Quantity(f"{german},{digits}", f"{english}.{digits}", (f"{whole}.{digits}",))


def spoken(rng: Random) -> Quantity:
    """Return a decimal in words: drei Komma fünf, 3.5."""
    whole, digit = rng.randrange(13), rng.randrange(1, 10)
    words = f"{spell_english(whole)} point {spell_english(digit)}"
    name = "eins" if whole == 1 else spell_german(whole)
    return Quantity(f"{name} Komma {spell_german(digit)}", f"{whole}.{digit}", (words,))


def grouped(rng: Random) -> Quantity:
    """Return an integer with separators: 12.500 and 12,500."""
    number = rng.randrange(1000, 10 ** rng.choice((4, 5, 6, 7)))
    if rng.random() < 0.4:
        number = max(1000, round(number, 2 - len(str(number))))
    english = group_digits(number)
    return Quantity(english.replace(",", "."), english, (str(number),))


def ordinal(rng: Random) -> Quantity:
    """Return an ordinal number that ends in e: dritte, third."""
    number = rng.choice((rng.randrange(1, 13), rng.randrange(13, 100), 100))
    words = spell_english_ordinal(number)
    src = spell_german_ordinal(number).removeprefix("ein" if number == 100 else "-")
    return Quantity(src, words, (to_english_ordinal(number),))


def rank(rng: Random) -> Quantity:
    """Return an ordinal number in digits: 3. and 3rd."""
    number = rng.choice((rng.randrange(1, 13), rng.randrange(13, 100)))
    return Quantity(f"{number}.", to_english_ordinal(number), (spell_english_ordinal(number),))


QUANTITIES = {
    function.__name__: function
    for function in (
        *(clock, time, span, day, weekday, month, year, cardinal, mixed, fraction, decimal, spoken),
        *(grouped, ordinal, rank, hundreds),
    )
}
# Single forms of a time of day or of a date that are harder than the others
QUANTITIES |= {"hour": _afternoon_hour, "half": _half_hour, "quarter": _quarter_hour}
QUANTITIES |= {"minutes": _minutes, "spelt": _words, "daypart": _part_of_day}
QUANTITIES |= {"daywords": _spelled_day}
