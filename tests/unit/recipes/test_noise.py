"""Typing noise on the source side of the training text."""

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.de_en.augment import Augment
from recipes.de_en.noise import (
    MISTAKES,
    add_typos,
    drop_commas,
    list_adjacent_keys,
    replace_umlauts,
)
from recipes.de_en.options import ChangeOptions

WORDS = st.text("abcdefghijklmnopqrstuvwxyzäöüßABCDEFG", min_size=1, max_size=9)
LINES = st.lists(WORDS, min_size=1, max_size=14).map(" ".join)


def compute_edit_distance(a, b):
    """Return the Damerau-Levenshtein distance (optimal string alignment) of two words."""
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            costs = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (x != y)]
            if i > 1 and j > 1 and (x, a[i - 2]) == (b[j - 2], y):
                costs.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(costs)
    return table[len(a), len(b)]


@given(LINES, st.integers(0, 999))
def test_add_typos_makes_one_edit_in_each_of_one_to_three_words(src, seed):
    words = src.split(" ")
    noisy, tgt = add_typos((src, "the target"), Random(seed))
    assert tgt == "the target"
    assert add_typos((src, tgt), Random(seed)) == (noisy, tgt)
    pairs = list(zip(words, noisy.split(" "), strict=True))
    changed = [(old, new) for old, new in pairs if old != new]
    long = sum(len(word) >= 3 for word in words)
    assert len(changed) <= min(3, long // 3)
    for old, new in changed:
        assert compute_edit_distance(old, new) == 1 and len(old) >= 3


def test_add_typos_makes_every_type_of_mistake():
    types = Counter()
    for seed in range(400):
        noisy, _ = add_typos(("sieben Birnen liegen da", ""), Random(seed))
        for old, new in zip("sieben Birnen liegen da".split(), noisy.split()):
            if old != new:
                same = sorted(old.lower()) == sorted(new.lower())
                types["swap" if same else len(new) - len(old)] += 1
    assert min(types.values()) > 40 and set(types) == {"swap", -1, 0, 1}


def test_adjacent_keys_match_a_german_keyboard():
    """Computed from key positions; a key is one unit wide."""
    rows = (0, "qwertzuiopü"), (0.25, "asdfghjklöä"), (0.75, "yxcvbnm")
    positions = {c: (x + i, y) for y, (x, row) in enumerate(rows) for i, c in enumerate(row)}
    for letter, (x, y) in positions.items():
        near = {c for c, (a, b) in positions.items() if abs(a - x) <= 1 and abs(b - y) <= 1}
        assert set(list_adjacent_keys(letter)) <= near - {letter}
        assert all(letter in list_adjacent_keys(other) for other in list_adjacent_keys(letter))
    assert set("qertsdwa") >= set(list_adjacent_keys("w")) >= set("qeas")
    assert set(list_adjacent_keys("z")) == set("tugh") and list_adjacent_keys("ß") == ""


def test_noise_leaves_words_shared_with_the_target_unchanged():
    src = "Die schöne Frau Müller schrieb heute an info@müller.de über Köln und große Übel"
    tgt = "Ms. Müller wrote to info@müller.de about Köln"
    spellings = set()
    for seed in range(200):
        words = add_typos((src, tgt), Random(seed))[0].split()
        assert {"Müller", "info@müller.de", "Köln"} <= set(words)
        spellings.add(replace_umlauts((src, tgt), Random(seed)))
    two = "Die schoene Frau Müller schrieb heute an info@müller.de ueber Köln und grosse Uebel"
    bare = "Die schone Frau Müller schrieb heute an info@müller.de uber Köln und grosse Ubel"
    assert spellings == {(two, tgt), (bare, tgt)}


def test_drop_commas_keeps_commas_inside_numbers():
    assert drop_commas(("Ja, das sind 1,5 m, oder?", "a, b")) == ("Ja das sind 1,5 m oder?", "a, b")


def test_mistakes_accept_letters_without_adjacent_keys():
    for make_mistake in MISTAKES:
        assert len(make_mistake("ßßß", 2, Random(1))) in (2, 3, 4)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_noise_options_change_the_configured_share_of_lines(share):
    pairs = [(f"Schöner Satz, Nummer {i}, über alle Flüsse.", f"No. {i}.") for i in range(1000)]

    def measure_share(**on):
        noisy = Augment(pairs, ChangeOptions(**on))(pairs, Random(3))
        assert noisy == Augment(pairs, ChangeOptions(**on))(pairs, Random(3))
        assert {tgt for _, tgt in noisy} == {tgt for _, tgt in pairs}
        return sum(pair not in set(pairs) for pair in noisy) / len(pairs)

    for name in ("plain_letters", "no_commas"):
        assert measure_share(**{name: share}) == pytest.approx(share, abs=0.06)
    assert (
        0.8 * share - 0.06 < measure_share(typos=share) <= share + 0.06
    )  # equal letters may be swapped


def test_join_bare_removes_marks_between_source_sentences():
    pairs = [(f"Das ist Satz {i}.", f"This is {i}!") for i in range(60)]
    noisy = Augment(pairs, ChangeOptions(join=1, join_bare=1))(pairs, Random(2))
    assert sum(tgt.count("!") for _, tgt in noisy) == 60
    for src, tgt in noisy[:-1]:
        numbers = re.findall(r"\d+", tgt)
        assert re.findall(r"\d+", src) == numbers and len(numbers) >= 2
        assert "." not in src[:-1] and src.endswith(".")
        assert len(re.findall("(?i)das ist satz", src)) == len(numbers)
    # Half of the lines lose the final mark on both sides if it is the same
    same = [(src, tgt.replace("!", ".")) for src, tgt in pairs] * 20
    noisy = Augment(same, ChangeOptions(join=1, join_bare=1))(same, Random(2))
    assert {(src[-1] == ".", tgt[-1] == ".") for src, tgt in noisy} == {(True,) * 2, (False,) * 2}
