"""Number words, ordinals, months and days of the week in German and English."""

ONES_DE = """null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn
fünfzehn sechzehn siebzehn achtzehn neunzehn""".split()
TENS_DE = "- zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
ONES_EN = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()
TENS_EN = "- ten twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS_DE = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}
ORDINALS_EN = {"one": "first", "two": "second", "three": "third", "five": "fifth"}
ORDINALS_EN |= {"eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
MONTHS = list(
    zip(
        "Januar Februar März April Mai Juni Juli August September Oktober November "
        "Dezember".split(),
        "January February March April May June July August September October November "
        "December".split(),
    )
)
WEEKDAYS = list(
    zip(
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag Sonnabend".split(),
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Saturday".split(),
    )
)


def spell_german(number: int, final: bool = True) -> str:
    """Return an integer below a million in German words: 321 -> dreihunderteinundzwanzig.

    Args:
        number: 0 to 999,999
        final: a final one is `eins` instead of `ein`
    """
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        return spell_german(thousands, False) + "tausend" + (spell_german(rest) if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return ONES_DE[hundreds] + "hundert" + (spell_german(rest, final) if rest else "")
    if number == 1 and final:
        return "eins"
    if number < 20:
        return ONES_DE[number]
    tens, ones = divmod(number, 10)
    return (ONES_DE[ones] + "und" if ones else "") + TENS_DE[tens]


def spell_english(number: int) -> str:
    """Return an integer below a million in English words: 321 -> three hundred and twenty-one."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        link = " and " if rest < 100 else " "
        return f"{spell_english(thousands)} thousand" + (link + spell_english(rest)) * bool(rest)
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{ONES_EN[hundreds]} hundred" + (f" and {spell_english(rest)}" if rest else "")
    if number < 20:
        return ONES_EN[number]
    tens, ones = divmod(number, 10)
    return TENS_EN[tens] + (f"-{ONES_EN[ones]}" if ones else "")


def spell_german_ordinal(number: int) -> str:
    """Return an ordinal number that ends in e: 3 -> dritte, 21 -> einundzwanzigste."""
    hundreds, rest = divmod(number, 100)
    if hundreds and rest:
        return spell_german(100 * hundreds) + spell_german_ordinal(rest)
    return ORDINALS_DE.get(number) or spell_german(number) + ("te" if number < 20 else "ste")


def spell_english_ordinal(number: int) -> str:
    """Return an ordinal number in words: 3 -> third, 21 -> twenty-first."""
    words = spell_english(number)
    start, separator, last = words[: -len(words.split()[-1])], "", words.split()[-1]
    if "-" in last:
        tens, _, last = last.partition("-")
        start, separator = start + tens, "-"
    if last in ORDINALS_EN:
        last = ORDINALS_EN[last]
    else:
        last = last.removesuffix("y") + "ieth" if last.endswith("y") else last + "th"
    return start + separator + last


def to_english_ordinal(number: int) -> str:
    """Return an ordinal number in digits: 3 -> 3rd."""
    suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def group_digits(number: int) -> str:
    """Return an integer with commas: 1234567 -> 1,234,567."""
    return f"{number:,}"
