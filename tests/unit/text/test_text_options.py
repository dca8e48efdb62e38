"""Options of transforms and detokenization have the effect that their help describes."""

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.text_options import TextOptions
from onmt_lite.errors import OptionError
from onmt_lite.inference.loading import tokenizer_from_options, with_tokenizer
from tests.support.files import DATA
from tests.unit.text.test_transforms import HERE

MODEL = DATA / "m35_st_step_2.pt"
LINE = "der alten hunde „x“, `a` 1\u00a02 ２ \u200b"
TOKENS = ["▁a", "old￭", "▁", "￭b"]

PIECES = dict(src_subword_model="src.model", tgt_subword_model="tgt.model")
CODES = dict(src_subword_model="src.codes", tgt_subword_model="tgt.codes")
SP, BPE = dict(transforms=["sentencepiece"], **PIECES), dict(transforms=["bpe"], **CODES)
ONMT = dict(transforms=["onmt_tokenize"], src_subword_type="sentencepiece", **PIECES)
NORMALIZE = dict(transforms=["normalize"], tgt_lang="en")
JOINED = "{'mode': 'none', 'joiner_annotate': True}"
SHARED = ONMT | dict(share_vocab=True, tgt_onmttok_kwargs=JOINED)
OUTPUT = ONMT | dict(tgt_subword_type="sentencepiece")
RARE, SAME = dict(src_vocab_threshold=2, tgt_vocab_threshold=2), dict(tgt_subword_model="src.codes")
COUNTS = dict(src_subword_vocab="src.counts", tgt_subword_vocab="src.counts")
SAME_PIECES = dict(tgt_subword_model="src.model")


def read_line(side, options):
    """Process LINE or TOKENS with these options.

    Args:
        side: "source" or "target" to tokenize LINE, "output" to detokenize TOKENS.
        options: Options by name, with file names relative to HERE.

    Returns:
        The tokens or the text; the error message if pyonmttok is not installed.
    """
    is_file = {name: name.endswith(("_model", "_vocab")) for name in options}
    is_file["share_vocab"] = False
    paths = {name: str(HERE / value) for name, value in options.items() if is_file[name]}
    given = TranslateOptions.of(**{**options, **paths})
    try:
        checkpoint = with_tokenizer(load_checkpoint(MODEL), given, tokenizer_from_options(given))
    except OptionError as error:
        assert "the package pyonmttok is not installed" in str(error)
        return str(error)
    tokenizer = next(iter(checkpoint.tokenizers.values()))
    if side == "source":
        return checkpoint.src_start, tokenizer.encode(LINE), checkpoint.src_end
    if side == "target":
        return checkpoint.tgt_start, tokenizer.encode_target(LINE), checkpoint.tgt_end
    return tokenizer.decode(TOKENS)


def assert_changes(side, base, **options):
    """Check that options change the source tokens, the target tokens or the output text."""
    assert read_line(side, base) != read_line(side, {**base, **options})


class TestTransforms:
    def test_transforms_changes_source_tokens(self):
        assert_changes("source", CODES, transforms=["bpe"])


class TestSrcSubwordModel:
    def test_src_subword_model_changes_source_tokens(self):
        assert_changes("source", SP, src_subword_model="tgt.model")


class TestTgtSubwordModel:
    def test_tgt_subword_model_changes_target_tokens(self):
        assert_changes("target", SP, tgt_subword_model="src.model")


class TestShareVocab:
    def test_share_vocab_changes_target_tokens(self):
        assert_changes("target", SP, share_vocab=True)


class TestSrcSubwordType:
    def test_src_subword_type_changes_source_tokens(self):
        assert_changes("source", ONMT, src_subword_type="none")


class TestTgtSubwordType:
    def test_tgt_subword_type_changes_output_text(self):
        assert_changes("output", ONMT, tgt_subword_type="sentencepiece")


class TestSrcSubwordVocab:
    def test_src_subword_vocab_changes_source_tokens(self):
        assert_changes("source", BPE | RARE, src_subword_vocab="src.vocab")


class TestTgtSubwordVocab:
    def test_tgt_subword_vocab_changes_target_tokens(self):
        assert_changes("target", BPE | RARE | SAME, tgt_subword_vocab="src.vocab")


class TestSrcVocabThreshold:
    def test_src_vocab_threshold_changes_source_tokens(self):
        assert_changes("source", SP | COUNTS, src_vocab_threshold=2)


class TestTgtVocabThreshold:
    def test_tgt_vocab_threshold_changes_target_tokens(self):
        assert_changes("target", SP | COUNTS | SAME_PIECES, tgt_vocab_threshold=2)


class TestSrcPrefix:
    def test_src_prefix_changes_source_tokens(self):
        assert_changes("source", dict(transforms=["prefix"]), src_prefix="dog")


class TestTgtPrefix:
    def test_tgt_prefix_changes_target_tokens(self):
        assert_changes("target", dict(transforms=["prefix"]), tgt_prefix="DOG")


class TestSrcSuffix:
    def test_src_suffix_changes_source_tokens(self):
        assert_changes("source", dict(transforms=["suffix"]), src_suffix="dog")


class TestTgtSuffix:
    def test_tgt_suffix_changes_target_tokens(self):
        assert_changes("target", dict(transforms=["suffix"]), tgt_suffix="DOG")


class TestSrcOnmttokKwargs:
    def test_src_onmttok_kwargs_changes_output_text(self):
        assert_changes("output", SHARED, src_onmttok_kwargs=JOINED)


class TestTgtOnmttokKwargs:
    def test_tgt_onmttok_kwargs_changes_output_text(self):
        assert_changes("output", OUTPUT, tgt_onmttok_kwargs=JOINED)


class TestDetokenizer:
    def test_detokenizer_changes_output_text(self):
        assert_changes("output", {}, detokenizer="joiner")


class TestPenn:
    def test_penn_changes_source_tokens(self):
        assert_changes("source", NORMALIZE, penn=False)


class TestNormQuoteCommas:
    def test_norm_quote_commas_changes_target_tokens(self):
        assert_changes("target", NORMALIZE, norm_quote_commas=False)


class TestNormNumbers:
    def test_norm_numbers_changes_source_tokens(self):
        assert_changes("source", NORMALIZE, norm_numbers=False)


class TestPreReplaceUnicodePunct:
    def test_pre_replace_unicode_punct_changes_source_tokens(self):
        assert_changes("source", NORMALIZE, pre_replace_unicode_punct=True)


class TestPostRemoveControlChars:
    def test_post_remove_control_chars_changes_target_tokens(self):
        assert_changes("target", NORMALIZE, post_remove_control_chars=True)


class TestUpperCorpusRatio:
    def test_upper_corpus_ratio_changes_source_tokens(self):
        assert_changes("source", dict(transforms=["uppercase"]), upper_corpus_ratio=1)


def test_all_text_options_have_tests():
    elsewhere = {"replace_unk", "phrase_table", "tokenizer", "unknown", "split_longer"}
    tested = [name for name in vars(TextOptions()) if get_class_name(name) in globals()]
    assert sorted([*tested, *elsewhere]) == sorted(vars(TextOptions()))


def get_class_name(option):
    """Return the name of the test class of an option: src_prefix -> TestSrcPrefix."""
    return "Test" + "".join(word.capitalize() for word in option.split("_"))
