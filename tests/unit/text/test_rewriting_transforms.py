"""-transforms normalize and uppercase, compared with OpenNMT-py.

`data/opennmt/rewritten.json` contains the output of OpenNMT-py 3.5.1 for these lines.
"""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.options import TranslateOptions, load_options
from onmt_lite.inference.loading import tokenizer_from_options, with_tokenizer
from onmt_lite.text.transforms import Punctuation, uppercase
from tests.support.files import DATA

STORED = json.loads(
    (Path(__file__).parents[2] / "data" / "opennmt" / "rewritten.json").read_text("utf-8")
)
TRAINED = DATA / "onmt351_transformer.pt"


def tokenizer_of(checkpoint=load_checkpoint(TRAINED), **options):  # noqa: B008 read once
    """Return the tokenizer of a model with these options."""
    checked = TranslateOptions.of(**options)
    return next(
        iter(
            with_tokenizer(checkpoint, checked, tokenizer_from_options(checked)).tokenizers.values()
        )
    )


def test_normalize_equals_opennmt():
    for options, line, expected in STORED["normalize"]:
        found = tokenizer_of(transforms="normalize", **options).encode(line)
        assert found == [token for token in expected.split(" ") if token], (options, line)
        tgt = {"tgt_lang" if name == "src_lang" else name: v for name, v in options.items()}
        assert tokenizer_of(transforms="normalize", **tgt).encode_target(line) == found


def test_uppercase_equals_opennmt():
    for line, expected in STORED["uppercase"]:
        assert uppercase(line) == expected


@given(st.text(st.sampled_from("ab1 ()%:;.,\"'`„–’…«»\u00a0０。\u200b"), max_size=20))
def test_normalize_any_line(line):
    """No character with a plain equivalent remains, and no space at an end.

    Spaces are collapsed, except around a control character: as in sacremoses, it is removed later.
    """
    for lang in ("", "en", "de"):
        found = Punctuation(lang, wide=True, controls=True)(line)
        assert not set(found) & set("`„–’…«»０。\u200b")
        assert found == found.strip()
        assert "\u200b" in line or "  " not in found.replace("\u00a0", "x")


@given(st.text(max_size=20))
def test_uppercase_removes_accents(line):
    found = uppercase(line)
    assert not [c for c in found if unicodedata.category(c) == "Mn"]
    assert uppercase(found) == found


@pytest.mark.parametrize(
    ("transforms", "tokens"),
    [
        (["normalize", "uppercase"], ['"É'.replace("É", "E"), 'W3"']),
        (["uppercase", "normalize"], ['"E', 'W3"']),
        (["normalize"], ['"é', 'w3"']),
        (["uppercase"], ["„E", "W3”"]),
    ],
)
def test_transforms_apply_in_order(transforms, tokens):
    tokenizer = tokenizer_of(transforms=transforms, upper_corpus_ratio=1)
    assert tokenizer.encode("  „é  w3” ") == tokens
    assert tokenizer.encode(" \u00a0 ") == []
    assert tokenizer.decode(["„é", "w3”"]) == "„é w3”"  # the output is not normalized


def test_transforms_around_sentencepiece():
    """After the tokenizer, tokens are normalized, as in OpenNMT-py."""
    codes = Path(__file__).parents[2] / "data" / "transforms" / "src.codes"
    options = dict(src_subword_model=str(codes), share_vocab=True, upper_corpus_ratio=1)
    before, after, plain = (
        tokenizer_of(transforms=names, **options).encode
        for names in (["uppercase", "bpe"], ["bpe", "uppercase"], ["bpe"])
    )
    assert before("der hund") == plain("DER HUND")
    assert after("der hund") == [token.upper() for token in plain("der hund")]


def test_job_translates_normalized_lines(tmp_path, monkeypatch, capfd):
    """With any tokenizer of the model."""
    monkeypatch.chdir(tmp_path)
    Path("src.txt").write_text("Das ist „gut“ …\n\nÀ bientôt\n", encoding="utf-8")
    Path("plain.txt").write_text('Das ist "gut" ...\n\nÀ bientôt\n', encoding="utf-8")
    assert translate.main("-src plain.txt -output expected.txt -quiet".split()) == 0
    words = "-transforms normalize -src_lang de -src src.txt -output out.txt"
    assert translate.main(words.split()) == 0
    assert Path("out.txt").read_bytes() == Path("expected.txt").read_bytes()
    err = capfd.readouterr().err
    assert "transforms" not in err and "src_lang" not in err


def test_upper_corpus_ratio_below_one_has_no_effect():
    for words, said in (("", "0.01"), (" -upper_corpus_ratio 0.5", "0.5")):
        options, _ = load_options(f"-transforms uppercase{words}".split())
        (note,) = options.notes
        why = f"upper_corpus_ratio is {said}, but uppercase requires 1"
        assert note == f"transforms: uppercase: has no effect; {why}"
    assert tokenizer_of(transforms="uppercase").encode("der hund") == ["der", "hund"]
    assert load_options("-transforms uppercase -upper_corpus_ratio 1".split())[0].notes == ()


def test_references_are_normalized():
    lines, given = ["w37 w3 w90"], dict(transforms="normalize")
    translator, plain = (Translator.from_pretrained(TRAINED, **more) for more in (given, {}))
    scores = [t.score(lines, ["w3 ( w5"]) for t in (translator, plain)]
    assert scores[0] == plain.score(lines, ["w3 (w5"]) != scores[1]
