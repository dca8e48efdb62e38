"""The warning `numbers`: do a line and its translation contain the same numbers?"""

import sys
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import LanguagePair, Languages
from onmt_lite.inference.postprocess import with_number_warning
from onmt_lite.inference.records import EMPTY_HYPOTHESIS, Translation
from onmt_lite.text.numbers import MAX_NUMBER_LENGTH, find_number_mismatch, parse_word

PAIR = ("de", "en")

TOLD = """
Das kostet 899,00 €. | It costs 899,000 €.
Das kostet 1.299,00 €. | It costs 1.299,000 €.
mit 2 Eiern | with 250 eggs
Heizen Sie auf 180 °C vor. | Preheat to 180 °certificate.
Sa 10–14 Uhr | Sa 10-10-14
vom 1. Mai bis 31. August | from May 11 to 31, 31
5 Äpfel | apples
Äpfel | 5 apples
fünf Äpfel | six apples
einundzwanzig | twelve
8 Uhr | 9 a.m.
20 Uhr | 7 p.m.
halb acht | half past eight
8:15 | 8:50
3. Oktober 1990 | October 3, 1909
in den 1970ern | in the 9970s
der dritte | the fourth
5 % | 50 %
5 % | 5 €
100 km/h | 100 km
20 mg | 20 days
-5 °C | 5 °C
1.234,50 | 1,234.05
1.000 | 10,000
1.500 Euro | 1.5 euros
2,5 | 25
0,5 | 5
pro 100.000 Einwohner | per 10000,0 inhabitants
3,7 Millionen | 3.7 billion
3 Millionen | 3
1/2 | 1/3
½ | ¼
2/3 | 3/4
zweieinhalb | two
2:1 | 1:1
10-14 | 1014
A4 | A5
XIV | XVI
12345678901234567890123 | 12345678901234567890124
0176 48291735 | 0176 4829173
{0} von {1} | {0} of {0}
١٢ | 13
100 nM | 100 to M
100 nM | 100 nm
10 KBps | 10 caps
10 KBps | 10 Kbps
12 V und 60 Ah | 12 v and 60 ah
12 V und 60 Ah | 12 V and 60 ah
5 MW | 5 mW
1013 hPa | 1013
3,5 GHz | 3.5 degrees
20 mmol/l | 20 mmol
5 t | 5
12V | 12
85 dB | 85 db
5 MB | 5 mb
5 kWh | 5 KWH
"""
AGREE = """
1.234,50 Euro | €1,234.50
1.234,5 | 1,234.50
249,90 € | 249,90 euros
2.500 | 2,500
2 500 | 2,500
2'500 | 2500
1.500 | 1.500
1,00,000 | 100000
8 Uhr | 8:00
8 Uhr | 8 a.m.
8.00 Uhr | eight o'clock
20 Uhr | 8 p.m.
20.15 Uhr | 8:15 pm
13 Uhr | one o'clock
von 14 bis 18 Uhr | from 2 to 6 p.m.
24 Uhr | midnight
12 Uhr | noon
halb acht | 7:30
halb acht | half past seven
Viertel nach acht | 8:15
Viertel vor acht | a quarter to eight
Viertel vor acht | 7:45
8 Uhr 30 | eight thirty
am 3. Oktober 1990 | on October 3rd, 1990
am 03.10.1990 | on October 3, 1990
am 3.10. | on October 3
1.5.2024 | 2024-05-01
1.5.2024 | 5/1/2024
im neunzehnten Jahrhundert | in the 19th century
in den 90er Jahren | in the 1990s
in den neunziger Jahren | in the nineties
5 % | 5 percent
fünf Prozent | 5%
100 km/h | 100 kilometers per hour
20 Grad | 20 °C
5 kg | five kilos
10.000 $ | $10,000
72 m² | 72 m2
CO2 | CO₂
-5 °C | minus 5 degrees
½ Liter | half a liter
1/2 TL | ½ tsp
1 1/2 Tassen | one and a half cups
anderthalb Stunden | 1.5 hours
zweieinhalb Jahre | two and a half years
eine halbe Stunde | 30 minutes
zwei Drittel | 2/3
drei Viertel | 3/4
1 Ei | an egg
zweimal | twice
ein Dutzend | twelve
beide | the two
jeden zweiten Tag | every other day
dreijährig | three years old
zwischen hundert und fünfhundert | between one hundred and five hundred
hundertfünfundzwanzigtausend | a hundred and twenty-five thousand
zweitausendvierundzwanzig | 2024
neunzehnhundertvierundachtzig | nineteen eighty-four
3,7 Millionen Einwohner | 3,700,000 people
1,5 Mio. | one and a half million
2 Mrd. | two billion
10–14 | 10 to 14
Ludwig XIV. | Louis the 14th
0176 48291735 | 0176 4829 1735
+49 (0)89 123456-78 | +49 (0)89 123456-78
Version 2.10.1 | version 2.10.1
https://example.com/2024/05 | https://example.com/2024/05
%1$s hat {n} von 3 | %1$s has {n} of 3
Two Sigma | Two Sigma
Gib acht! | Be careful!
Zweifel | doubt
ein Tag | a day
２０ | 20
12 V | 12 volts
60 Ah | 60 ampere-hours
5 MW | 5 megawatts
3 kHz | 3 kilohertz
10 s | ten seconds
100 Mbit/s | 100 megabits per second
5 t | five tons
5 l | 5 L
2 L | two liters
20 µg/m³ | 20 µg/m³
12V | 12 V
Zimmer 12 B | room 12B
"""


def pairs(table):
    return [tuple(line.split(" | ")) for line in table.strip().splitlines()]


@pytest.mark.parametrize("source, translation", pairs(TOLD))
def test_different_numbers_are_reported(source, translation):
    assert find_number_mismatch(source, translation, *PAIR)


@pytest.mark.parametrize("source, translation", pairs(AGREE))
def test_same_numbers_are_not_reported(source, translation):
    assert not find_number_mismatch(source, translation, *PAIR)
    assert not find_number_mismatch(translation, source, *reversed(PAIR))
    assert not find_number_mismatch(source, translation, "deu_Latn", "eng_Latn")
    assert not find_number_mismatch(source, translation)  # unknown languages


def test_decimal_zeros_may_be_lost_but_not_added():
    assert not find_number_mismatch("1,500 kg", "1.5 kg", *PAIR)
    assert find_number_mismatch("1,5 kg", "1.500 kg", *PAIR)


@pytest.mark.parametrize(
    "source, translation, lost",
    [
        ("&#8222;Faust&#8220; von &#x47;oethe", '"Faust" by Goethe', ""),
        ("&#39;5 Äpfel&#39;", "'7 apples'", "5 → 7"),
        ("Die Datei hat 20 KiB.", "The file has 20 kib.", "KiB → "),
        ("Die Datei hat 20 KiB.", "The file has 20 KiB.", ""),
        ("Der Speicher hat 3 GiB.", "The memory has 3 gigabytes.", ""),
    ],
)
def test_numeric_entities_and_binary_prefixes(source, translation, lost):
    assert find_number_mismatch(source, translation, *PAIR) == lost


def test_mismatch_lists_numbers_of_both_sides():
    assert (
        find_number_mismatch("Von 5 Äpfeln für 899,00 €", "5 for 899,000", *PAIR)
        == "899,00 → 899,000"
    )
    assert find_number_mismatch("zwei, drei und 4", "two, three, four and 7", *PAIR) == " → 7"
    assert find_number_mismatch("180 °C", "180", *PAIR) == "°C → "


# -- spellings -------------------------------------------------------------------------------------

GERMAN = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
GERMAN = (GERMAN + "fünfzehn sechzehn siebzehn achtzehn neunzehn").split()
GERMAN_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
ENGLISH = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
ENGLISH = (ENGLISH + "fifteen sixteen seventeen eighteen nineteen").split()
ENGLISH_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_german(n):
    if n >= 1000:
        return in_german(n // 1000) + "tausend" + (in_german(n % 1000) if n % 1000 else "")
    if n >= 100:
        return in_german(n // 100) + "hundert" + (in_german(n % 100) if n % 100 else "")
    if n < 20:
        return GERMAN[n]
    return (GERMAN[n % 10] + "und" if n % 10 else "") + GERMAN_TENS[n // 10]


def in_english(n):
    if n >= 1000:
        rest = n % 1000
        return f"{in_english(n // 1000)} thousand" + (f" {in_english(rest)}" if rest else "")
    if n >= 100:
        return f"{ENGLISH[n // 100]} hundred" + (f" and {in_english(n % 100)}" if n % 100 else "")
    if n < 20:
        return ENGLISH[n]
    return ENGLISH_TENS[n // 10] + (f"-{ENGLISH[n % 10]}" if n % 10 else "")


def spell_number(n):
    """Return spellings of a number in German and in English."""
    return (in_german(n), f"{n:,}".replace(",", "."), str(n)), (in_english(n), f"{n:,}", str(n))


@settings(max_examples=300)
@given(st.integers(2, 999_999), st.integers(2, 999_999))
def test_number_words_match_digits(n, other):
    for source in spell_number(n)[0]:
        for translation in spell_number(n)[1]:
            assert not find_number_mismatch(
                f"Es sind {source} Leute.", f"There are {translation}.", *PAIR
            )
        for translation in spell_number(other)[1]:
            told = find_number_mismatch(
                f"Es sind {source} Leute.", f"There are {translation}.", *PAIR
            )
            assert bool(told) == (n != other)


@settings(max_examples=300)
@given(st.integers(0, 10**9), st.integers(0, 99), st.data())
def test_decimal_formats_match(n, hundredths, data):
    german = f"{n:,}".replace(",", data.draw(st.sampled_from([".", "", "\u202f", "'"])))
    english = f"{n:,}" if data.draw(st.booleans()) else str(n)
    source, translation = f"{german},{hundredths:02}", f"{english}.{hundredths:02}"
    assert not find_number_mismatch(f"Das kostet {source} €.", f"It costs €{translation}.", *PAIR)
    assert not find_number_mismatch(f"Das kostet {source} €.", f"It costs {source} euros.", *PAIR)
    places = [i for i, char in enumerate(translation) if char.isdigit()]
    at = data.draw(st.sampled_from(places))
    digit = data.draw(st.sampled_from(sorted(set("123456789") - {translation[at]})))
    for wrong in (
        translation[:at] + digit + translation[at + 1 :],
        translation[:at] + digit + translation[at:],
    ):
        assert find_number_mismatch(f"Das kostet {source} €.", f"It costs €{wrong}.", *PAIR)


@settings(max_examples=200)
@given(st.dates(date(1000, 1, 1)), st.times())
def test_date_and_time_formats_match(day, time):
    source = f"am {day.day}.{day.month}.{day.year} um {time.hour}.{time:%M} Uhr"
    months = "January February March April May June July August September October November December"
    written = f"{months.split()[day.month - 1]} {day.day}, {day.year}"
    clock = f"{time.hour % 12 or 12}:{time:%M} {'ap'[time.hour > 11]}.m."
    for on in (written, f"{day.month}/{day.day}/{day.year}", day.isoformat()):
        for at in (clock, f"{time:%H:%M}"):
            assert not find_number_mismatch(source, f"on {on} at {at}", *PAIR)
    others = {1, day.day, day.month, time.hour % 12, time.minute}
    wrong = next(hour for hour in range(12) if hour not in others)
    assert find_number_mismatch(source, f"on {written} at {wrong}:{time:%M}", *PAIR)


PIECES = list("0129.,:/' ½²XIV-–abkm%€°\u202f٣٫②万") + ["and a half", "VIIII", "zwei", "hundert"]
PIECES += ["Million", "und", "one", "a", "halb ", "second", "Uhr", "p.m.", "@@ ", "▁", "￭ ", "erst"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.sampled_from(PIECES)))
def test_any_text_matches_itself(pieces, others):
    text = "".join(pieces)
    for codes in (("de", "de"), ("en", "en"), ("", ""), ("xx", "xx")):
        assert not find_number_mismatch(text, text, *codes)
    find_number_mismatch(text, "".join(others), *PAIR)  # must not raise


# -- unknown languages -----------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [("deu_Latn", "fra_Latn"), ("de", "zh"), ("", "")])
def test_unknown_language_may_use_number_words(codes):
    for source, translation in (("2 Kinder", "deux enfants"), ("zwei Kinder", "2 enfants")):
        assert not find_number_mismatch(source, translation, *codes)
    assert find_number_mismatch("2 Kinder", "3 enfants", *codes)
    assert find_number_mismatch("25 Kinder", "enfants", *codes)


def test_cjk_myriads_after_digits():
    assert not find_number_mismatch("3 million yen", "300万円", "en", "jpn_Jpan")
    assert find_number_mismatch("3 million yen", "30万円", "en", "jpn_Jpan")


@pytest.mark.parametrize(
    "tokens", ["Es sind 25@@ 0 Euro .", "▁Es ▁sind ▁25 0 ▁Euro .", "Es sind 25 ￭0 Euro ￭."]
)
def test_tokenized_lines_match(tokens):
    assert not find_number_mismatch(tokens, "It is 250 euros.", *PAIR)


# -- cost ------------------------------------------------------------------------------------------

LONG_TEXTS = ["1", "1.", "1 ", "100 ", "1:", "1/", "½ ", "zwei", "zwei ", "million ", "X", "II "]
LONG_TEXTS += ["a", "halb ", "1 km ", "-1 ", "fünf und ", " and a half", "1.000,", "hundert"]


def count_calls(text):
    """Return the number of Python and C function calls for a text."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += 1

    parse_word.cache_clear()
    sys.setprofile(note)
    try:
        find_number_mismatch(text, f"{text} 7", *PAIR)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("text", LONG_TEXTS)
def test_time_is_linear_in_text_length(text):
    find_number_mismatch(text * 1000, text, *PAIR)
    small, large = count_calls(text * 1000), count_calls(text * 2000)
    assert large < 2.1 * small + 100


@pytest.mark.parametrize("text", LONG_TEXTS)
def test_long_texts_finish(text):
    assert not find_number_mismatch(text * 100_000, text * 100_000, *PAIR)


def test_very_long_numbers_are_compared_by_digits():
    digits = "1234567890" * 10_000
    assert not find_number_mismatch(digits, digits, *PAIR)
    assert find_number_mismatch(digits, digits[:-1], *PAIR)
    # Too long to be a number word
    long_word = "hundert" * (MAX_NUMBER_LENGTH + 1)
    assert find_number_mismatch(long_word, "five", *PAIR) == " → five"


# -- the warning -----------------------------------------------------------------------------------


def test_numbers_warning_only_for_model_output(translator):
    hyp = replace(EMPTY_HYPOTHESIS, text="250 eggs", token_log_probs=[-0.1], ended=True)
    right, checkpoint = replace(hyp, text="2 eggs"), translator.checkpoint

    def noted(*hyps, **fields):
        return with_number_warning(
            Translation(0, "2 Eier", [*hyps], **fields), checkpoint, LanguagePair()
        ).notes

    assert noted(hyp, right, notes=("capitals",)) == ("capitals", "numbers")
    assert noted(right, hyp) == ()
    assert noted(replace(hyp, token_log_probs=[])) == noted() == ()


@pytest.mark.parametrize(
    "line, amounts",
    [
        ("Die Konzentration beträgt 100 nM.", ["100 nM"]),
        ("10 KBps sind nicht 10 Kbps.", ["10 KBps", "10 Kbps"]),
        ("Die Batterie hat 12 V und 60 Ah.", ["12 V", "60 Ah"]),
        ("Es waren -5 kV im Netz.", ["-5 kV"]),
    ],
)
def test_case_sensitive_units_are_copied(line, amounts):
    (found,) = Translator.from_pretrained(device="cpu").translate([line])
    assert all(amount in found.text for amount in amounts) and "numbers" not in found.notes


def test_numbers_warning_uses_languages_of_model_options_or_line(translator):
    """In a language without a list, 3 may be an unknown word."""
    hyp = replace(EMPTY_HYPOTHESIS, text="Kinder", token_log_probs=[-0.1], ended=True)
    languages = Languages({"deu": 1, "xxx": 2})

    def noted(text, direction, **fields):
        checkpoint = replace(translator.checkpoint, **fields)
        return with_number_warning(
            Translation(0, text, [hyp]), checkpoint, LanguagePair(*direction)
        ).notes

    assert noted("3 Kinder", ("", ""), language_pair=LanguagePair("de", "de")) == ("numbers",)
    assert noted("3 Kinder", ("", ""), language_pair=LanguagePair("de", "xxx")) == ()
    assert noted("3 Kinder", ("xxx", "deu"), languages=languages) == ("numbers",)
    assert noted("3 Kinder", ("deu", "xxx"), languages=languages) == ()
    assert noted(">>xxx<< 3 Kinder", ("xxx", "deu"), languages=languages) == ()
