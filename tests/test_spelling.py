"""How tokens make words, held against the text that the tokenizer makes of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.text.detokenize import DETOKENIZERS
from onmt_lite.text.spelling import fingerprint, spelling_of

# Tokens by the rule that joins them
VOCABULARIES = {
    "space": "a b c the .".split(),
    "bpe": "a b@@ c d@@ xy . @@".split(),
    "joiner": "a ￭b c￭ ￭d￭ . ￭ ￭, e".split(),
    "spacer": "▁a b ▁cd e ▁ .".split(),
    "sentencepiece": "▁a b c▁ ▁ ▁d▁e .".split(),
}


@pytest.fixture(scope="module")
def shipped():
    return Translator.from_pretrained(device="cpu")


class TestCounts:
    @pytest.mark.parametrize("rule", VOCABULARIES)
    @settings(deadline=None, max_examples=200)
    @given(data=st.data())
    def test_the_words_of_a_text(self, rule, data):
        tokens, decode = VOCABULARIES[rule], DETOKENIZERS[rule]
        ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=9))
        spelling = spelling_of(tokens, decode)
        assert spelling.count(ids) == len(decode([tokens[i] for i in ids]).split())

    @settings(deadline=None, max_examples=300)
    @given(data=st.data())
    def test_the_words_of_the_shipped_model(self, shipped, data):
        checkpoint = shipped.checkpoint
        tokens, decode = checkpoint.tgt_vocab.tokens, shipped.tokenizer.decode
        ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=12))
        assert checkpoint.spelling.count(ids) == len(decode([tokens[i] for i in ids]).split())

    def test_bytes_of_a_character_are_parts_of_its_word(self):
        def decode(tokens):
            data = b"".join(
                bytes([int(t[3:5], 16)]) if t.startswith("<0x") else t.encode() for t in tokens
            )
            return data.decode("utf-8", "replace").replace("▁", " ").strip()

        tokens = ["▁a", "b", "<0xC3>", "<0xA9>", "▁"]
        spelling = spelling_of(tokens, decode)
        assert decode(["▁a", "<0xC3>", "<0xA9>"]) == "aé"
        assert spelling.count([0, 2, 3]) == 1 and spelling.count([0, 4, 2, 3, 0]) == 3
        both = spelling.prints[2] * spelling.powers[3] + spelling.prints[3]
        assert int(both) == fingerprint("é".encode())


class TestKinds:
    def test_what_ends_a_word_and_what_binds(self):
        plain, bpe = (
            spelling_of(VOCABULARIES[rule], DETOKENIZERS[rule]) for rule in ("space", "bpe")
        )
        assert plain.ends.all() and not plain.binds.any()
        assert bpe.ends.tolist() == [True, False, True, False, True, True, False]
        assert bpe.binds.tolist()[:6] == [False, True, False, True, False, False]

    def test_several_words_in_one(self):
        spelling = spelling_of(VOCABULARIES["sentencepiece"], DETOKENIZERS["sentencepiece"])
        assert spelling.several.tolist() == [False, False, False, False, True, False]


@given(st.binary(max_size=9), st.binary(max_size=9))
def test_fingerprints_of_parts_are_that_of_the_whole(first, second):
    power = spelling_of(["a"], " ".join).powers[0].item() ** len(second)
    whole = fingerprint(first) * power + fingerprint(second)
    assert (whole - fingerprint(first + second)) % (1 << 64) == 0
