"""Noise on the source side of the shipped model's text."""

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.de_en.augment import Augment
from recipes.de_en.noise import SLIPS, neighbours, no_commas, plain_letters, typos
from recipes.de_en.options import ChangeOptions

WORDS = st.text("abcdefghijklmnopqrstuvwxyzäöüßABCDEFG", min_size=1, max_size=9)
LINES = st.lists(WORDS, min_size=1, max_size=14).map(" ".join)


def edits(one, other):
    """The least number of letters dropped, added, exchanged, or swapped with the next."""
    table = {(i, 0): i for i in range(len(one) + 1)} | {(0, j): j for j in range(len(other) + 1)}
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            costs = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != b)]
            if i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b):
                costs.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(costs)
    return table[len(one), len(other)]


@given(LINES, st.integers(0, 999))
def test_typos_are_one_edit_in_each_of_one_to_three_words(src, seed):
    words = src.split(" ")
    made, tgt = typos((src, "the target"), Random(seed))
    assert tgt == "the target"
    assert typos((src, tgt), Random(seed)) == (made, tgt)
    pairs = list(zip(words, made.split(" "), strict=True))
    changed = [(old, new) for old, new in pairs if old != new]
    long = sum(len(word) >= 3 for word in words)
    assert len(changed) <= min(3, long // 3)
    for old, new in changed:
        assert edits(old, new) == 1 and len(old) >= 3


def test_every_kind_of_slip_is_made():
    kinds = Counter()
    for seed in range(400):
        made, _ = typos(("sieben Birnen liegen da", ""), Random(seed))
        for old, new in zip("sieben Birnen liegen da".split(), made.split()):
            if old != new:
                same = sorted(old.lower()) == sorted(new.lower())
                kinds["swap" if same else len(new) - len(old)] += 1
    assert min(kinds.values()) > 40 and set(kinds) == {"swap", -1, 0, 1}


def test_neighbours_are_those_of_a_german_keyboard():
    """From the middles of the keys, which are a key wide."""
    rows = (0, "qwertzuiopü"), (0.25, "asdfghjklöä"), (0.75, "yxcvbnm")
    places = {c: (x + i, y) for y, (x, row) in enumerate(rows) for i, c in enumerate(row)}
    for letter, (x, y) in places.items():
        near = {c for c, (a, b) in places.items() if abs(a - x) <= 1 and abs(b - y) <= 1}
        assert set(neighbours(letter)) <= near - {letter}
        assert all(letter in neighbours(other) for other in neighbours(letter))
    assert set("qertsdwa") >= set(neighbours("w")) >= set("qeas")
    assert set(neighbours("z")) == set("tugh") and neighbours("ß") == ""


def test_what_is_copied_has_no_typos_and_keeps_its_umlauts():
    src = "Die schöne Frau Müller schrieb heute an info@müller.de über Köln und große Übel"
    tgt = "Ms. Müller wrote to info@müller.de about Köln"
    made = set()
    for seed in range(200):
        words = typos((src, tgt), Random(seed))[0].split()
        assert {"Müller", "info@müller.de", "Köln"} <= set(words)
        made.add(plain_letters((src, tgt), Random(seed)))
    two = "Die schoene Frau Müller schrieb heute an info@müller.de ueber Köln und grosse Uebel"
    bare = "Die schone Frau Müller schrieb heute an info@müller.de uber Köln und grosse Ubel"
    assert made == {(two, tgt), (bare, tgt)}


def test_commas_of_numbers_stay():
    assert no_commas(("Ja, das sind 1,5 m, oder?", "a, b")) == ("Ja das sind 1,5 m oder?", "a, b")


def test_a_slip_that_finds_nothing_changes_nothing():
    for slip in SLIPS:
        assert len(slip("ßßß", 2, Random(1))) in (2, 3, 4)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_shares_say_how_many_lines_are_changed(share):
    pairs = [(f"Schöner Satz, Nummer {i}, über alle Flüsse.", f"No. {i}.") for i in range(1000)]

    def changed(**on):
        made = Augment(pairs, ChangeOptions(**on))(pairs, Random(3))
        assert made == Augment(pairs, ChangeOptions(**on))(pairs, Random(3))
        assert {tgt for _, tgt in made} == {tgt for _, tgt in pairs}
        return sum(pair not in set(pairs) for pair in made) / len(pairs)

    for name in ("plain_letters", "no_commas"):
        assert changed(**{name: share}) == pytest.approx(share, abs=0.06)
    assert 0.8 * share - 0.06 < changed(typos=share) <= share + 0.06  # equal letters may be swapped


def test_sentences_are_joined_without_marks_on_the_source_side():
    pairs = [(f"Das ist Satz {i}.", f"This is {i}!") for i in range(60)]
    made = Augment(pairs, ChangeOptions(join=1, join_bare=1))(pairs, Random(2))
    assert sum(tgt.count("!") for _, tgt in made) == 60
    for src, tgt in made[:-1]:
        numbers = re.findall(r"\d+", tgt)
        assert re.findall(r"\d+", src) == numbers and len(numbers) >= 2
        assert "." not in src[:-1] and src.endswith(".")
        assert len(re.findall("(?i)das ist satz", src)) == len(numbers)
    # Half of them lose the last mark on both sides, where it is the same
    same = [(src, tgt.replace("!", ".")) for src, tgt in pairs] * 20
    made = Augment(same, ChangeOptions(join=1, join_bare=1))(same, Random(2))
    assert {(src[-1] == ".", tgt[-1] == ".") for src, tgt in made} == {(True,) * 2, (False,) * 2}
