"""`-replace_unk`: words of the source in the place of unknown ones."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import OptionError
from onmt_lite.options import TranslateOptions
from onmt_lite.presets import PRESETS
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support.families import VOCAB_SIZE, make_rnn
from tests.support.tables import WORDS, make_checkpoint, make_source, sources

UNK = 1
LINE = "w x y z"


def make_translator(source, phrases=None, around=(0, 0), **options) -> Translator:
    """A table model whose source words are all known and whose target word 1 is the unknown one."""
    checkpoint = make_checkpoint([source])
    vocab_size = len(source.default)
    tokens = ["$", "<unk>", *WORDS[2:vocab_size]]
    before, after = around
    checkpoint = dataclasses.replace(
        checkpoint,
        src_vocab=Vocab(["s0"], unk_id=0),
        tgt_vocab=Vocab(tokens, eos_id=0, unk_id=UNK),
        src_start=(0,) * before,
        src_end=(0,) * after,
    )
    parsed = TranslateOptions.of(device="cpu", **options)
    return Translator(checkpoint, parsed, phrases=phrases)


@pytest.mark.parametrize("name", PRESETS)
@settings(deadline=None, max_examples=20)
@given(source=sources(vocab_sizes=[3, 4], holes=False), beam_size=st.integers(1, 3))
def test_each_is_what_the_model_attended_to(name, source, beam_size):
    """By the table itself: the largest weight after the tokens before."""
    line = " ".join(LINE.split()[: source.length])
    options = dict(search=name, beam_size=beam_size, n_best=beam_size, max_length=6)
    if "ban_unk_token" in PRESETS[name].options:
        options["ban_unk_token"] = False
    plain = make_translator(source).translate([line, line + " "], **options)
    replaced = make_translator(source, replace_unk=True).translate([line, line + " "], **options)
    vocab = ["$", "<unk>", *WORDS[2:]]
    for before, after in zip(plain, replaced):
        expected = []
        for hyp in before.hyps:
            ids = [vocab.index(token) for token in hyp.tokens]
            words = []
            for t, token in enumerate(hyp.tokens):
                weights = source.attention(tuple(ids[:t]))
                own = line.split()[weights.index(max(weights))]
                words.append(own if token == "<unk>" else token)
            expected.append(words)
        found = [hyp.tokens for hyp in after.hyps]
        if PRESETS[name].policy.distinct == "text":  # two that differed may be one now
            expected = [words for i, words in enumerate(expected) if words not in expected[:i]]
            found = found[: len(expected)]
        assert found == expected


def always_unknown(weights: list[float]):
    rows = {"*0": [-9.0, 9.0, -9.0], "*1": [9.0, -9.0, -9.0]}
    return make_source(rows, [9.0, -9.0, -9.0], {"*0": weights}, length=len(weights))


def test_what_stands_around_a_line_is_no_word_of_it():
    source = always_unknown([0.4, 0.1, 0.2, 0.3])
    (found,) = make_translator(source, around=(1, 1), replace_unk=True).translate(["x y"])
    assert found.hyps[0].text == "y"


def test_attention_that_tells_of_the_token_before():
    """What a token renders is then told when the next one is made."""
    rows = {"*0": [-9.0, 9.0, -9.0], "*1": [9.0, -9.0, -9.0]}
    attention = {"*0": [0.2, 0.7, 0.1], "*1": [0.1, 0.2, 0.7]}  # of the first token, of its end
    source = make_source(rows, [9.0, -9.0, -9.0], attention, length=3)
    translator = make_translator(source, replace_unk=True)
    assert translator.translate(["w x y"])[0].text == "x"
    translator.model.aligns_late = True
    assert translator.translate(["w x y"])[0].text == "y"


def test_phrases():
    source = always_unknown([0.2, 0.5, 0.3])
    phrases = {"haus": "house"}
    translator = make_translator(source, phrases, replace_unk=True)
    found = translator.translate(["das haus da", "das x da"])
    assert [t.hyps[0].text for t in found] == ["house", "x"]


def test_scores_are_those_of_the_unknown_token():
    source = always_unknown([0.2, 0.8])
    one, other = (
        make_translator(source, **options).translate(["x y"])[0].hyps[0]
        for options in ({"replace_unk": True}, {})
    )
    assert (one.text, other.text) == ("y", "<unk>")
    assert one.token_log_probs == other.token_log_probs


class TestPhraseTable:
    def test_needs_replace_unk(self):
        with pytest.raises(OptionError, match="phrase_table needs replace_unk"):
            TranslateOptions.of(phrase_table="t.txt")

    @pytest.mark.parametrize(
        "content, words",
        [
            (None, "No such file"),
            ("haus house\n", "line 1: not a `source|||target` line"),
            ("haus|||house\n|||x\n", "line 2"),
            ("a|||b|||c\n", "line 1"),
            (b"\xff\xfe|||x", "UTF-8"),
        ],
    )
    def test_a_bad_one_is_refused_in_one_line(self, tmp_path, capfd, content, words):
        path = tmp_path / "table"
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        argv = ["-model", "data/toy.json", "-replace_unk", "-phrase_table", str(path)]
        assert translate.main([*argv, "-src", "data/toy.json"]) == 4
        err = capfd.readouterr().err
        assert words in err and err.count("\n") == 1


@pytest.mark.parametrize("option", ["replace_unk", "coverage_penalty"])
def test_a_model_without_attention_is_not_asked_for_it(option):
    value = {"replace_unk": True, "coverage_penalty": "wu"}[option]
    vocab = Vocab([f"w{i}" for i in range(VOCAB_SIZE)], unk_id=0, pad_id=1, bos_id=2, eos_id=3)
    blind = Checkpoint(
        make_rnn(attention="none"), vocab, vocab, {"space": SpaceTokenizer()}, start_id=2
    )
    assert Translator(blind, TranslateOptions.of(device="cpu", max_length=3)).translate(["w5"])
    with pytest.raises(OptionError, match=f"{option}: the model has no attention"):
        Translator(blind, TranslateOptions.of(device="cpu", **{option: value})).translate(["w5"])
