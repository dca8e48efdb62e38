"""Times, dates, numbers and identifiers in generated sentences."""

import re
from pathlib import Path
from random import Random

import pytest

from onmt_lite.train.data import read_pairs
from recipes.de_en import identifiers, slots
from recipes.de_en.evaluate import SENTENCES, STRINGS, is_translated, make_copy_tests
from recipes.de_en.numerals import (
    spell_english,
    spell_english_ordinal,
    spell_german,
    spell_german_ordinal,
    to_english_ordinal,
)
from recipes.de_en.quantities import QUANTITIES, clock, list_english_times

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "de_en"
# German -> English, one of each form
TIMES = {
    "halb acht": "7:30",
    "halb eins": "12:30",
    "Viertel vor drei": "a quarter to three",
    "Viertel nach zwölf": "a quarter past twelve",
    "viertel acht": "a quarter past seven",
    "drei viertel acht": "a quarter to eight",
    "fünf nach halb eins": "12:35",
    "zehn vor halb neun": "8:20",
    "zwanzig vor eins": "twenty to one",
    "zehn nach vier": "ten past four",
    "16 Uhr": "4 p.m.",
    "siebzehn Uhr": "5 p.m.",
    "23 Uhr": "11 p.m.",
    "7 Uhr": "7 o'clock",
    "ein Uhr": "one o'clock",
    "acht": "eight",
    "null Uhr dreißig": "12:30 a.m.",
    "zwanzig Uhr fünfzehn": "8:15 p.m.",
    "acht Uhr dreißig": "8:30",
    "Mitternacht": "midnight",
    "24 Uhr": "midnight",
    "12 Uhr mittags": "noon",
    "8 Uhr abends": "8 p.m.",
    "drei Uhr nachts": "3 a.m.",
    "halb neun morgens": "8:30 in the morning",
}


def test_clock_generates_each_form_with_its_translation():
    rng = Random(1)
    times: dict[str, set[str]] = {}
    for _ in range(60_000):
        quantity = clock(rng)
        times.setdefault(quantity.src, set()).add(quantity.tgt)
    assert {src: times.get(src) for src in TIMES} == {src: {tgt} for src, tgt in TIMES.items()}
    assert all(len(forms) == 1 for forms in times.values())  # one translation per form
    digits = [src for src in times if re.fullmatch(r"\d+[.:]\d\d Uhr", src)]
    assert len(digits) > 500
    assert all(times[src] == {src.removesuffix(" Uhr").replace(".", ":")} for src in digits)


def test_one_and_a_half_has_forms_with_the_unit_before():
    forms = {q.src: (q.tgt, *q.others) for q in map(QUANTITIES["mixed"], map(Random, range(200)))}
    assert is_translated(forms["anderthalb"], "It takes an hour and a half.")
    assert is_translated(forms["zweieinhalb"], "It takes 2.5 hours.")
    assert not is_translated(forms["zweieinhalb"], "It takes an hour and a half.")


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ((7, 30), "half past seven"),
        ((15, 45), "quarter to four"),
        ((0, 15), "quarter past twelve"),
        ((16, 0), "4 p.m."),
        ((16, 0), "16:00"),
        ((0, 0), "midnight"),
        ((12, 50), "ten to one"),
        ((20, 5), "five minutes past eight"),
    ],
)
def test_english_times_include_form(time, expected):
    assert expected in list_english_times(*time)


@pytest.mark.parametrize("slot", sorted(QUANTITIES))
def test_quantity_is_deterministic_and_its_translation_is_accepted(slot):
    function = QUANTITIES[slot]
    values = [function(Random(seed)) for seed in range(300)]
    assert values == [function(Random(seed)) for seed in range(300)]
    assert len({value.src for value in values}) >= min(7, len(values))
    for src, tgt, others in values:
        assert src == src.strip() != "" and tgt == tgt.strip() != ""
        assert is_translated((tgt, *others), f"It was {tgt}.")


def test_number_words_are_spelled_in_both_languages():
    for number, german, english in (
        (0, "null", "zero"),
        (1, "eins", "one"),
        (21, "einundzwanzig", "twenty-one"),
        (70, "siebzig", "seventy"),
        (101, "einhunderteins", "one hundred and one"),
        (316, "dreihundertsechzehn", "three hundred and sixteen"),
        (1001, "eintausendeins", "one thousand and one"),
        (
            621_731,
            "sechshunderteinundzwanzigtausendsiebenhunderteinunddreißig",
            "six hundred and twenty-one thousand seven hundred and thirty-one",
        ),
    ):
        assert (spell_german(number), spell_english(number)) == (german, english)
    for number, german, english, digits in (
        (1, "erste", "first", "1st"),
        (3, "dritte", "third", "3rd"),
        (8, "achte", "eighth", "8th"),
        (12, "zwölfte", "twelfth", "12th"),
        (20, "zwanzigste", "twentieth", "20th"),
        (22, "zweiundzwanzigste", "twenty-second", "22nd"),
        (100, "einhundertste", "one hundredth", "100th"),
        (111, "einhundertelfte", "one hundred and eleventh", "111th"),
    ):
        ordinals = (spell_german_ordinal(number), spell_english_ordinal(number))
        assert (*ordinals, to_english_ordinal(number)) == (german, english, digits)


def test_quantities_are_converted_and_identifiers_copied_in_sentences():
    pair = "Am {date} waren es {decimal} Euro.", "On {date}, it was {decimal} euros."
    for seed in range(300):
        src, tgt = slots.fill(pair, Random(seed))
        date, euros = re.fullmatch(r"Am (\S+) waren es (\S+) Euro\.", src).groups()
        english = euros.translate(str.maketrans(".,", ",."))
        assert tgt == f"On {date}, it was {english} euros."
    pair = "{cardinal} Gäste um {clock}.", "{cardinal} guests at {clock}."
    sides = {side for seed in range(300) for side in slots.fill(pair, Random(seed))}
    assert not any(side[0].islower() or side.endswith("..") for side in sides)
    for seed in range(300):
        src, tgt = slots.fill(("Ist {verbatim} da?", "Is {verbatim} there?"), Random(seed))
        assert src[4:-4] == tgt[3:-7]


def test_identifiers_have_their_form():
    rng = Random(2)
    for function, form in (
        (identifiers.version, r"[vVr]?\d+(\.\d+){1,3}([-+a][a-z\d.]+)?"),
        (identifiers.hexadecimal, r"(0x)?#?[\dA-Fa-f-]{2,36}"),
        (identifiers.plate, r"[A-ZÖÜ]{1,3}[- ][A-Z]{1,2} ?\d{1,4}[EH]?"),
        (identifiers.iban, r"[A-Z]{2}\d\d[\d ]+"),
        (identifiers.order, r"[A-Z\d]+([-/._ ][A-Z\d]+)*"),
        (identifiers.file_name, r"[A-Za-z]+([_-]\w+)?\.[a-z\d.]+"),
    ):
        values = [function(rng) for _ in range(500)]
        assert [value for value in values if not re.fullmatch(form, value)] == [], form
        assert len(set(values)) > 300


def test_every_slot_of_the_templates_is_known():
    known = {*slots.SLOTS, *QUANTITIES}
    for src, tgt in read_pairs(RECIPE / "slots.tsv"):
        names = [re.findall(r"\{([a-z]+)\d?\}", side) for side in (src, tgt)]
        assert set(names[0]) == set(names[1]) <= known, src


def test_evaluation_sentences_are_not_in_the_templates():
    frames = {re.sub(r"\{\w+\}", "{}", src) for src, _ in read_pairs(RECIPE / "slots.tsv")}
    assert set(SENTENCES) == set(STRINGS)
    assert not frames & {s for sentences in SENTENCES.values() for s in sentences}
    tests = list(make_copy_tests("clock", 60, Random(5)))
    assert tests == list(make_copy_tests("clock", 60, Random(5)))
    assert all(is_translated(accepted, f"at {accepted[0]}") for _, accepted in tests)
    assert not is_translated(("4 p.m.", "4:00"), "at 14:00 and 4:000")


def test_signs_have_one_translation_and_are_not_in_the_other_lists():
    signs = read_pairs(RECIPE / "signs.tsv")
    lists = [
        pair for name in ("phrases.tsv", "dictionary.tsv") for pair in read_pairs(RECIPE / name)
    ]
    sources = [src for src, _ in (*signs, *lists)]
    assert len(signs) > 390 and len(sources) == len(set(sources))
