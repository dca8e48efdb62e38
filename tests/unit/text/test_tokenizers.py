"""Detokenization, and the alignment of tokens to words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.text.tokenizers import (
    CAPITALIZED,
    DETOKENIZERS,
    UPPERCASE_BEGIN,
    UPPERCASE_END,
    compute_token_word_ids,
    word_log_probs,
)

SP = "sentencepiece"


@pytest.mark.parametrize(
    ("rule", "tokens", "words"),
    [
        ("space", "der hund bellt", [0, 1, 2]),
        ("bpe", "Mor@@ gen !", [0, 0, 1]),
        (SP, "▁Gu ten ▁Mor gen !", [0, 0, 1, 1, 1]),
        (SP, "Gu ten ▁ Mor gen", [0, 0, 1, 1, 1]),  # a separate spacer starts a word
        (SP, "▁Ja ▁", [0, 0]),  # unless no word follows
        ("joiner", "Mor￭ gen ￭! Ja", [0, 0, 0, 1]),
        ("joiner", f"so {CAPITALIZED} ja ￭ nein", [0, 1, 1, 1, 1]),
        ("joiner", f"so {UPPERCASE_BEGIN} ja {UPPERCASE_END} nein", [0, 1, 1, 2, 2]),
        ("spacer", "Mor gen ! ▁Ja", [0, 0, 0, 1]),
        ("space", "", []),
    ],
)
def test_token_word_ids_of_detokenizers(rule, tokens, words):
    tokens, decode = tokens.split(), DETOKENIZERS[rule]
    assert compute_token_word_ids(tokens, decode, decode(tokens)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A B C D", [0, 1, 2, 3]),  # uppercased
        ("a x.org b c d", [0, 2, 3, 4]),  # restored span
        ("a b c/y/z d", [0, 1, 2, 3]),  # replaced
        ("a d", [0, 1, 1, 1]),  # removed: belongs to the next word
        ("a b", [0, 1, 1, 1]),  # at the end: belongs to the last word
        ("x y d", [0, 1, 1, 2]),  # three words become two
        ("nothing of it", [0, 1, 2, 2]),
        ("x", [0, 0, 0, 0]),
    ],
)
def test_token_word_ids_of_changed_text(text, words):
    assert compute_token_word_ids("a b c d".split(), " ".join, text) == words


WORDS = st.lists(st.sampled_from(["a", "b@@", "▁c", "￭d", "e￭", "▁", "￭", CAPITALIZED, "f"]))


@settings(max_examples=200)
@given(st.sampled_from(sorted(DETOKENIZERS)), WORDS, st.text("ab f", max_size=9), st.booleans())
def test_word_log_probs_count_each_token_once(rule, tokens, other, changed):
    decode = DETOKENIZERS[rule]
    text = other if changed else decode(tokens)
    log_probs = [-(2.0**-i) for i in range(len(tokens))] + [-4.0]  # no two sums are equal
    sums = word_log_probs(tokens, log_probs, decode, text)
    assert len(sums) == len(text.split())
    if sums:
        assert sum(sums) == pytest.approx(sum(log_probs[:-1]))
        found = compute_token_word_ids(tokens, decode, text)
        assert found == sorted(found) and all(word < len(sums) for word in found)


@given(st.lists(st.text("abc", min_size=1), min_size=1), st.data())
def test_token_word_ids_of_random_segmentation(words, data):
    """Each word is segmented at random; its subwords belong to it, for two tokenizers."""
    pieces = []
    for i, word in enumerate(words):
        at = data.draw(st.integers(0, len(word)))
        pieces.append((i, [part for part in (word[:at], word[at:]) if part]))
    spaced = [("▁" * (n == 0) + part, i) for i, parts in pieces for n, part in enumerate(parts)]
    marked = [
        (part + "@@" * (n + 1 < len(parts)), i)
        for i, parts in pieces
        for n, part in enumerate(parts)
    ]
    for rule, cut in (("sentencepiece", spaced), ("bpe", marked)):
        tokens = [token for token, _ in cut]
        expected = [i for _, i in cut]
        assert compute_token_word_ids(tokens, DETOKENIZERS[rule], " ".join(words)) == expected
