"""-retry_repeats: what repeats itself is searched again, and equals a search with n-gram block."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.calibrate import calibrate, load_calibrate_options
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.confidence import Confidence
from onmt_lite.checkpoints.summary import describe
from onmt_lite.config.options import TranslateOptions, load_options
from onmt_lite.errors import CheckpointError, MemoryExhausted, OptionError
from onmt_lite.inference.fallbacks import cures
from onmt_lite.inference.records import NOTHING, Found
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.line import Line
from onmt_lite.text.placeholders import Unknown
from tests.support import tables, tiny

LINES = ["s0", "s1", "s2"]
LOOPS = [True, False, True]  # of their translations
ROWS = (
    (0.05, 0.8, 0.15),  # a a a a ...
    (0.8, 0.1, 0.1),
    (0.1, 0.2, 0.7),  # b b b b ...
)
BLOCKING = [name for name, preset in PRESETS.items() if "block_ngram_repeat" in preset.options]
USUAL = dict(max_length=7, max_length_ratio=0.0, beam_size=4, n_best=4)


def translator(wish=0):
    sources = [tables.make_source({}, tables.logits(*row)) for row in ROWS]
    checkpoint = replace(tables.make_checkpoint(sources), retry_repeats=wish)
    return Translator(checkpoint, TranslateOptions.of(device="cpu", **USUAL))


def hyps(translations):
    return [t.hyps for t in translations]


def noted(translations, note):
    return [note in t.notes for t in translations]


def cured(old, new):
    """Whether the second of two translations does without what is wrong with the first."""
    complete = new.hyps[0].ended or not old.hyps[0].ended
    return "repeats" in old.notes and "repeats" not in new.notes and new.text != "" and complete


@pytest.mark.parametrize("search", BLOCKING)
@pytest.mark.parametrize("n", [2, 3])
def test_lines_that_repeat_are_those_of_a_search_with_block(search, n):
    model = translator()
    plain = model.translate(LINES, search=search)
    found = model.translate(LINES, search=search, retry_repeats=n)
    expected = plain
    for size in (n, 2):
        blocked = model.translate(LINES, search=search, block_ngram_repeat=size)
        expected = [new if cured(old, new) else old for old, new in zip(expected, blocked)]
    assert hyps(found) == hyps(expected)
    was, still = noted(plain, "repeats"), noted(found, "repeats")
    assert noted(found, "retried") == [a and not b for a, b in zip(was, still)]
    if search == "opennmt":
        assert was == noted(found, "retried") == LOOPS and not any(still)


@pytest.mark.parametrize(
    "given",
    [
        dict(block_ngram_repeat=2, ignore_when_blocking=["a"]),
        dict(block_ngram_repeat=1, ignore_when_blocking=["a"]),
        dict(search="opennmt-3", block_ngram_repeat=1),  # which blocks none
    ],
)
@pytest.mark.filterwarnings("ignore::onmt_lite.OptionWarning")
def test_a_block_that_lets_some_repeat_is_not_as_strict(given):
    model = translator()
    plain = model.translate(LINES, **given)
    found = model.translate(LINES, retry_repeats=3, **given)
    strict = {**given, "ignore_when_blocking": []}
    expected = plain
    for size in (3, 2):
        blocked = model.translate(LINES, **{**strict, "block_ngram_repeat": size})
        expected = [new if cured(old, new) else old for old, new in zip(expected, blocked)]
    assert hyps(found) == hyps(expected) and "retried" in found[0].notes


@pytest.mark.parametrize("search", sorted(set(PRESETS) - set(BLOCKING)))
def test_a_search_without_block_refuses_it(search):
    with pytest.raises(OptionError, match=f"retry_repeats: -search {search} has no such option"):
        TranslateOptions.of(search=search, retry_repeats=3)


def test_the_models_wish_is_for_our_own_search():
    model, plain = translator(wish=2), translator()
    asked = plain.translate(LINES, retry_repeats=2)
    assert model.translate(LINES) == asked != plain.translate(LINES)
    assert model.translate(LINES, retry_repeats=0) == plain.translate(LINES)
    for search in set(PRESETS) - {"opennmt"}:
        assert model.translate(LINES, search=search) == plain.translate(LINES, search=search)


def test_a_line_is_the_same_alone():
    model = translator(wish=2)
    together = model.translate(LINES)
    for line, found in zip(LINES, together, strict=True):
        (alone,) = model.translate([line])
        assert alone.hyps == found.hyps and alone.notes == found.notes


@pytest.mark.parametrize("given", [dict(do_sample=True), dict(block_ngram_repeat=2)])
def test_nothing_is_searched_again_where_that_cannot_help(given):
    """Tokens that are drawn may repeat; a block that is as strict has done what it can."""
    assert translator(wish=2).translate(LINES, **given) == translator().translate(LINES, **given)


def test_what_repeats_in_each_search_is_as_at_first():
    """Here the model has one token only, which must come five times."""
    source = tables.make_source({}, tables.logits(0.4, 0.6))
    model = Translator(tables.make_checkpoint([source]), translator().options)
    given = dict(min_length=4, beam_size=1, n_best=1)
    (plain,), (found,) = (model.translate(["s0"], retry_repeats=n, **given) for n in (0, 3))
    assert found.hyps == plain.hyps and "repeats" in found.notes and "retried" not in found.notes


def test_forced_phrases_are_kept():
    """A phrase that says the same three times is more than a search with block can hold."""
    for phrase, again in (("a a a", False), ("b", True)):
        (found,) = translator(wish=2).translate(["s0"], force_words=phrase)
        assert ("retried" in found.notes) == again and not found.unmet


def test_without_room_for_a_second_search_the_first_counts(monkeypatch):
    plain, run = translator().translate(LINES), Translator._run

    def small(self, model, group, n_slots, rules):
        if rules.plan.block_ngram_repeat:
            raise MemoryExhausted("out of memory")
        return run(self, model, group, n_slots, rules)

    monkeypatch.setattr(Translator, "_run", small)
    assert translator(wish=2).translate(LINES) == plain


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("-retry_repeats 1", "give 2 or more, or 0"),
        ("-retry_repeats 3 -search fairseq -replace_unk -report_align", "after all searches"),
    ],
)
def test_what_cannot_be_is_refused(words, problem):
    with pytest.raises(OptionError, match=problem):
        load_options(words.split())
    with pytest.raises(OptionError, match="give 2 or more, or 0"):
        load_calibrate_options("-model a -valid b -retry_repeats 1".split())


def test_a_translation_gives_way_to_a_better_one_only():
    """Neither to a blank one, nor to one that is cut off; and the words are counted, too."""
    (example,) = translator().examples_of([Line(0, "s0")], None, None, TranslateOptions.of())

    def found(text, ended=True, note=""):
        return Found([replace(NOTHING, text=text, ended=ended)], note)

    first = found("a a a")
    assert cures(found("a b"), first, example)
    for worse in (found(""), found("a b", ended=False), found("b b b"), found("a", note="x")):
        assert not cures(worse, first, example)
    assert cures(found("a b", ended=False), found("a a a", ended=False), example)


def test_texts_differ_where_they_must():
    found = translator(wish=2).translate(LINES, n_best_unique=True)
    for each in found:
        assert len({hyp.text for hyp in each.hyps}) == len(each.hyps) == USUAL["n_best"]
    assert noted(found, "retried") == LOOPS


def test_the_shipped_model_asks_for_it():
    assert native.load(Path("data/de-en")).retry_repeats == 3


def test_it_is_stored_with_a_model(tmp_path, tiny_pieces):
    native.save(tmp_path, tiny.make_model(), tiny_pieces)
    assert native.load(tmp_path).retry_repeats == 0
    native.describe(tmp_path, {}, Unknown(), None, 3)
    assert native.load(tmp_path).retry_repeats == 3
    assert "asks for           -retry_repeats 3\n" in describe(native.load(tmp_path), "model")
    for wrong in (-1, 1):
        native.describe(tmp_path, {}, Unknown(), None, wrong)
        with pytest.raises(CheckpointError, match="retry_repeats is neither 0 nor 2"):
            native.load(tmp_path)


@pytest.mark.parametrize("name", ["retry_repeats", "split_longer"])
def test_calibration_keeps_it_or_sets_it(name, tmp_path, tiny_pieces, monkeypatch, capfd):
    native.save(tmp_path, tiny.make_model(), tiny_pieces)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("der hund\tthe dog\ndie katze\tthe cat\n", encoding="utf-8")
    monkeypatch.setattr("onmt_lite.calibrate.fit", lambda points: Confidence(0.0, 1.0))
    for words, expected in (([f"-{name}", "4"], 4), ([], 4), ([f"-{name}", "0"], 0)):
        argv = ["-model", str(tmp_path), "-valid", str(pairs), *words]
        calibrate(load_calibrate_options(argv)[0])
        said = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
        assert said[name] == expected
