"""Tokenization and detokenization of random lines equal pyonmttok and subword-nmt."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.loading import tokenizer_from_options
from onmt_lite.text.tokenizers import detokenize_joiner, detokenize_spacer

HERE = Path(__file__).parents[2] / "data" / "transforms"
CODES, SENTENCEPIECE = str(HERE / "src.codes"), str(HERE / "src.model")
LINES = st.text(st.sampled_from("derhunaltg xÄ.,'é￭▁@\u3000\t0/\u0301"), max_size=30)


def make_tokenizer(**options):
    _, tokenizer = tokenizer_from_options(TranslateOptions.of(share_vocab=True, **options))
    return tokenizer


@given(LINES)
def test_onmt_tokenize_without_pyonmttok_equals_pyonmttok(line):
    """Except lines with a literal ▁, or with ｟ ｠, which only pyonmttok protects."""
    line = line.replace("▁", "")
    pyonmttok = pytest.importorskip("pyonmttok")
    reference = pyonmttok.Tokenizer(mode="none", sp_model_path=SENTENCEPIECE)
    tokenizer = make_tokenizer(
        transforms=["onmt_tokenize"],
        src_subword_type="sentencepiece",
        src_subword_model=SENTENCEPIECE,
    )
    tokens = reference(line.strip())
    assert tokenizer.encode(line) == tokens
    assert tokenizer.decode(tokens) == reference.detokenize(tokens)


@given(LINES)
def test_detokenize_joiner_and_spacer_equals_pyonmttok(line):
    pyonmttok = pytest.importorskip("pyonmttok")
    for option, detokenize in (
        ("joiner_annotate", detokenize_joiner),
        ("spacer_annotate", detokenize_spacer),
    ):
        reference = pyonmttok.Tokenizer("aggressive", case_markup=True, **{option: True})
        tokens = reference(line)
        assert detokenize(tokens) == reference.detokenize(tokens)


@given(LINES)
def test_bpe_encode_equals_subword_nmt(line):
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    with open(CODES, encoding="utf-8") as f:
        reference = apply_bpe.BPE(f)
    tokenizer = make_tokenizer(transforms=["bpe"], src_subword_model=CODES)
    assert (
        tokenizer.encode(line) == reference.segment_tokens(line.strip().split(" "))
        or not line.strip()
    )
