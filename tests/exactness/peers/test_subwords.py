"""Lines at random are cut and joined as by pyonmttok and subword-nmt."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.loading import tokenizer_from_options
from onmt_lite.text.tokenizers import detokenize_joiner, detokenize_spacer

HERE = Path(__file__).parents[2] / "data" / "transforms"
CODES, PIECES = str(HERE / "src.codes"), str(HERE / "src.model")
LINES = st.text(st.sampled_from("derhunaltg xÄ.,'é￭▁@\u3000\t0/\u0301"), max_size=30)


def own(**options):
    _, tokenizer = tokenizer_from_options(TranslateOptions.of(share_vocab=True, **options))
    return tokenizer


@given(LINES)
def test_onmt_tokenize_by_sentencepiece_alone(line):
    """But for lines with marks: a ▁ of their own, or ｟ ｠, which pyonmttok alone keeps whole."""
    line = line.replace("▁", "")
    pyonmttok = pytest.importorskip("pyonmttok")
    theirs = pyonmttok.Tokenizer(mode="none", sp_model_path=PIECES)
    ours = own(
        transforms=["onmt_tokenize"], src_subword_type="sentencepiece", src_subword_model=PIECES
    )
    tokens = theirs(line.strip())
    assert ours.encode(line) == tokens
    assert ours.decode(tokens) == theirs.detokenize(tokens)


@given(LINES)
def test_marks_are_joined(line):
    pyonmttok = pytest.importorskip("pyonmttok")
    for mark, join in (
        ("joiner_annotate", detokenize_joiner),
        ("spacer_annotate", detokenize_spacer),
    ):
        theirs = pyonmttok.Tokenizer("aggressive", case_markup=True, **{mark: True})
        tokens = theirs(line)
        assert join(tokens) == theirs.detokenize(tokens)


@given(LINES)
def test_codes(line):
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    with open(CODES, encoding="utf-8") as f:
        theirs = apply_bpe.BPE(f)
    ours = own(transforms=["bpe"], src_subword_model=CODES)
    assert ours.encode(line) == theirs.segment_tokens(line.strip().split(" ")) or not line.strip()
