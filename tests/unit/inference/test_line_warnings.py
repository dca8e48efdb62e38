"""Warnings of a line, checked on known outputs."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import Confidence
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.postprocess import count_max_consecutive_repeats, has_repetition
from onmt_lite.text.lines import Line, decode_line
from tests.support.table_models import WORDS, make_checkpoint, make_source


def count_by_brute_force(text: str) -> int:
    """Count repeats by brute force."""
    words = re.findall(r"\w+", text.casefold())
    best = 1
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            group, n = words[start:end], 1
            while words[start + n * len(group) : end + n * len(group)] == group:
                n += 1
            if any(char.isalpha() for word in group for char in word):
                best = max(best, n)
    return best


@settings(max_examples=300)
@given(st.text(st.sampled_from("aAb1 .-"), max_size=14))
def test_max_consecutive_repeats_equals_brute_force(text):
    assert (count_max_consecutive_repeats(text) >= 3) == (count_by_brute_force(text) >= 3)
    if count_by_brute_force(text) >= 3:
        assert count_max_consecutive_repeats(text) == count_by_brute_force(text)


@pytest.mark.parametrize(
    "text, source, expected",
    [
        ("No no NO!", "Nein!", True),
        ("I see the dog, the dog, the dog.", "Ich sehe den Hund.", True),
        ("I see the dog, the dog.", "Ich sehe den Hund.", False),
        ("-sex-sex-sex", "🙂", True),
        ("Ha ha ha!", "Ha ha ha!", False),
        ("Ha ha ha ha ha!", "Ha ha ha!", True),
        ("... ... ...", "…", False),
        ("1 1 1 1", "Eins", False),
        ("on 1 1 1, on 1 1 1, on 1 1 1", "Eins", True),
        ("", "", False),
        ("Ha" * 22, "ha" * 9, True),
        ("Ha" * 12, "ha" * 9, True),
        ("Ha" * 9, "ha" * 9, False),
        ("ha " * 9, "ha" * 9, False),
        ("He" + "." * 100, "Hallo" + "." * 51, True),
        ("Hello" + "." * 55, "Hallo" + "." * 51, False),
        ("Hi" + "!" * 52, "Hallo" + "!" * 42, True),
        ("<b></b> <b>I'm</b> <b>tired</b>.", "<b>Ich</b> <b>bin</b> <b>müde</b>.", False),
        ("la" * 20, "Was" + "." * 51, True),
        (". . . . . . . . . . . .", "…", True),
        ("Nooooooo!", "Nein!", False),
        ("Nooooooooooooooooooo!", "Nein!", True),
        ("N" + "o" * 19 + "!", "Ne" + "i" * 18 + "n!", False),
        ("1000000000000", "Viel", False),
        ("xyzabc" * 4, "Was?", True),
    ],
)
def test_has_repetition(text, source, expected):
    assert has_repetition(text, source) is expected


def translate_table(source, **options):
    checkpoint = make_checkpoint([source])
    return Translator(checkpoint, TranslateOptions.of(device="cpu", **options))


def test_unfinished_and_repeats_warnings():
    """The most likely token is always "a"; the end comes at the limit or never."""
    goes_on = make_source({}, [-9.0, 9.0, -9.0])
    (found,) = translate_table(goes_on, max_length=4, beam_size=1).translate(["s0"])
    assert found.hyps[0].text == " ".join([WORDS[1]] * 4)
    assert found.notes == ("unfinished", "repeats")
    (found,) = translate_table(goes_on, max_length=2, beam_size=1).translate(["s0"])
    assert found.notes == ("unfinished",)
    ends = make_source({}, [9.0, -9.0, -9.0])
    (found,) = translate_table(ends).translate(["s0"])
    assert found.notes == ()


@pytest.mark.parametrize("max_length, notes", [(4, {"unfinished", "repeats"}), (2, {"unfinished"})])
def test_confidence_of_unfinished_or_repetitive_output_is_below_half(max_length, notes):
    """For any token probabilities and any calibration."""
    endless = make_checkpoint([make_source({}, [-9.0, 9.0, -9.0])])
    checkpoint = replace(endless, confidence=Confidence(99.0, 1.0))
    translator = Translator(checkpoint, TranslateOptions.of(device="cpu", beam_size=1))
    (found,) = translator.translate(["s0"], max_length=max_length)
    assert set(found.notes) == {*notes, "unsure"}
    assert 0 < found.confidence < 0.5
    ends = replace(checkpoint, model=make_checkpoint([make_source({}, [9.0, -9.0, -9.0])]).model)
    (sure,) = Translator(ends, TranslateOptions.of(device="cpu")).translate(["s0"])
    assert sure.notes == () and sure.confidence > 0.99


@pytest.mark.parametrize(
    "default, is_forced", [([-9.0, 9.0, -9.0], True), ([9.0, -9.0, -9.0], False)]
)
def test_unfinished_warning_marks_eos_that_fairseq_forces_at_limit(default, is_forced):
    """A likely EOS at the limit is the model's own."""
    first = [-9.0, 9.0, -9.0]
    table = make_source({"": first, "1": first}, default)
    checkpoint = replace(make_checkpoint([table]), confidence=Confidence(99.0, 1.0))
    options = TranslateOptions.of(device="cpu", search="fairseq", beam_size=1, max_length=2)
    (found,) = Translator(checkpoint, options).translate(["s0"])
    assert found.hyps[0].text == "a a" and found.hyps[0].ended
    assert ("unfinished" in found.notes) == is_forced == (found.confidence < 0.5)


def test_confidence_of_truncated_source_is_below_half():
    model = Translator.from_pretrained(device="cpu", threads=1)
    checkpoint = replace(model.checkpoint, confidence=Confidence(99.0, 1.0))
    translator = Translator(checkpoint, TranslateOptions.of(device="cpu", threads=1))
    long, short = translator.translate(["Haus " * 600, "Haus"], max_length=8)
    assert "truncated" in long.notes and long.confidence < 0.5
    assert short.notes == () and short.confidence > 0.99


def test_unknown_tokens_warning_and_count(translator):
    """The tokenizer does not match the vocabulary, so some tokens are unknown."""
    vocab = translator.checkpoint.src_vocab
    for line in ("a b", "a 🙂 b", "🙂 a 🙂", ""):
        (found,) = translator.translate([line], max_length=3)
        pieces = translator.tokenizer.encode(line)
        expected = sum(piece not in vocab.ids for piece in pieces)
        assert found.n_unknown == expected
        assert found.n_src_tokens == len(pieces)
        assert ("unknown-tokens" in found.notes) == (expected > 0)


@pytest.mark.parametrize(
    ("raw", "cut", "expected"),
    [
        (b"das haus", False, ()),
        (b"das \xff haus", False, ("tgt-invalid-utf8",)),
        (b"das haus", True, ("of-cut",)),
        (b"das \xff haus", True, ("tgt-invalid-utf8", "of-cut")),
    ],
)
@pytest.mark.parametrize(
    ("role", "of_cut"), [("tgt", "tgt-too-long"), ("prefix", "prefix-truncated")]
)
def test_warnings_of_reference_or_prefix(translator, role, of_cut, raw, cut, expected):
    example = translator.pipeline.preprocessor.make_example(
        Line(0, "der hund"), **{role: decode_line(raw, 0, cut)}
    )
    assert example.notes == tuple(note.replace("of-cut", of_cut) for note in expected)
    # A truncated reference is not scored
    assert (example.tgt_ids is None) == (role == "prefix" or cut)


@pytest.mark.parametrize("note", ["invalid-json", "no-text-field"])
@pytest.mark.parametrize("role", ["tgt", "prefix"])
def test_reference_without_text_has_one_warning(translator, role, note):
    line = Line(0, "", ("truncated", note))
    example = translator.pipeline.preprocessor.make_example(Line(0, "der hund"), **{role: line})
    assert example.notes == (f"tgt-{note}",)
