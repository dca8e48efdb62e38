"""Languages of CTranslate2 directories: n-best lists of an mBART-50 from text, as CTranslate2 says
them (`peers/make_ct2_mbart50.py`), and where languages come from."""

import json
import shutil

import pytest

from onmt_lite import Translator
from onmt_lite.checkpoints.ctranslate2 import reader as ctranslate2
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.record import Direction, Languages
from onmt_lite.errors import CheckpointError, OptionError
from tests.support.files import DATA, assert_refused

ROOT = DATA.parent
CT2 = DATA / "ct2"
REFERENCE = json.loads((ROOT / "ct2_mbart50" / "reference.json").read_text("utf-8"))
OURS = dict(
    num_hypotheses="n_best",
    length_penalty="alpha",
    no_repeat_ngram_size="block_ngram_repeat",
    min_decoding_length="min_length",
)
GIVEN = dict(device="cpu", precision="fp32", threads=1, search="ctranslate2")


@pytest.fixture
def mbart50(tmp_path):
    path = shutil.copytree(ROOT / "ct2_mbart50", tmp_path / "mbart50")
    shutil.copy(ROOT / "families" / "mbart50" / "sentencepiece.bpe.model", path)
    return path


@pytest.fixture
def nllb(tmp_path):
    return shutil.copytree(CT2 / "nllb_int8", tmp_path / "nllb")


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: str(case["settings"]))
def test_n_best_lists_of_mbart50(mbart50, case):
    translator = Translator.from_pretrained(mbart50, src_lang="de_DE", tgt_lang="en_XX", **GIVEN)
    options = {OURS.get(name, name): value for name, value in case["settings"].items()}
    lines = [f">>fr_XX<< {line}" for line in REFERENCE["lines"]]
    for size in (1, 4):
        found = translator.translate(
            lines, max_length=12, batch_size=size, batch_type="sents", **options
        )
        for translation, row in zip(found, case["rows"], strict=True):
            assert [h.tokens for h in translation.hyps] == [tokens for tokens, _ in row]
            scores = [score for _, score in row]
            assert [h.score for h in translation.hyps] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(tgt_lang="fr_XX"), "src_lang is missing"),
        (dict(src_lang="de_DE"), "tgt_lang is missing"),
        (dict(src_lang="de", tgt_lang="fr_XX"), "no language 'de'"),
    ],
)
def test_languages_are_missed_before_weights_are_read(mbart50, options, words, monkeypatch):
    def read(path):
        raise AssertionError("read")

    monkeypatch.setattr(ctranslate2, "read_variables", read)
    with pytest.raises(OptionError, match=words):
        Translator.from_pretrained(mbart50, **options, **GIVEN)
    with pytest.raises(AssertionError, match="read"):
        Translator.from_pretrained(mbart50, src_lang="de_DE", tgt_lang="fr_XX", **GIVEN)
    with pytest.raises(AssertionError, match="read"):
        Translator.from_pretrained(mbart50, tokenizer="space", **GIVEN)


def test_the_path_of_the_file_stands_for_its_directory(mbart50):
    one, other = load_checkpoint(mbart50), load_checkpoint(mbart50 / "model.bin")
    assert one.languages == other.languages and one.src_vocab == other.src_vocab
    assert list(one.tokenizers) == list(other.tokenizers) == ["sentencepiece", "space"]


def test_lines_of_tokens_without_a_language_have_their_full_length(nllb):
    """What no option says is not counted: nothing stands before the translation."""
    given = GIVEN | dict(tokenizer="space", beam_size=1, max_length=5, min_length=5)
    alone = Translator.from_pretrained(nllb, **given).translate(["deu_Latn w1 w2 </s>"])
    assert len(alone[0].hyps[0].tokens) == 5
    led = Translator.from_pretrained(nllb, tgt_lang="eng_Latn", **given)
    assert len(led.translate(["deu_Latn w1 w2 </s>"])[0].hyps[0].tokens) == 4
    with pytest.raises(OptionError, match="tgt_lang is missing"):
        Translator.from_pretrained(nllb, src_lang="deu_Latn", **given)
    tagged = Translator.from_pretrained(nllb, **given)  # a tag is then a token like any other
    assert tagged.translate([">>eng_Latn<< w1"])[0].n_unknown == 1


def test_nllb_of_before_2023_has_the_language_behind_the_line(nllb):
    (nllb / "tokenizer_config.json").write_text('{"legacy_behaviour": true}')
    checkpoint = load_checkpoint(nllb)
    frame = checkpoint.frame(Direction("deu_Latn", "eng_Latn"))
    assert (frame.src_start, frame.src_end, frame.start) == ((), (2, 22), (2, 23))


class TestPackagesOfArgosTranslate:
    @pytest.fixture
    def package(self, tmp_path):
        shutil.copytree(CT2 / "marian_int8", tmp_path / "package" / "model")
        return tmp_path / "package"

    def test_target_prefix(self, package):
        """A token that each translation begins with, free, as CTranslate2's target prefix."""
        plain = load_checkpoint(package)
        (package / "metadata.json").write_text('{"target_prefix": "w7"}')
        checkpoint = load_checkpoint(package)
        i = plain.tgt_vocab.ids["w7"]
        assert checkpoint.languages == Languages({"w7": i}, "none", default=Direction("", "w7"))
        assert checkpoint.frame(Direction("", "w7")).start == (plain.start_id, i)
        given = GIVEN | dict(tokenizer="space", search="opennmt", beam_size=1)
        (led,) = Translator.from_pretrained(package, **given).translate(["w1"], max_length=5)
        (package / "metadata.json").unlink()
        paying = Translator.from_pretrained(package, **given)
        (paid,) = paying.translate(["w1"], ["w7"], max_length=6)
        assert ["w7", *led.hyps[0].tokens] == paid.hyps[0].tokens

    def test_a_prefix_that_is_no_token(self, package):
        (package / "metadata.json").write_text('{"target_prefix": ">>por<<"}')
        assert_refused(package, "metadata.json", ">>por<<")

    def test_codes_of_old_packages(self, package):
        (package / "bpe.model").write_text("#version: 0.2\na b\n")
        with pytest.raises(CheckpointError, match="bpe.model and words of Moses are not read"):
            Translator.from_pretrained(package, **GIVEN)
        Translator.from_pretrained(package, tokenizer="space", **GIVEN)
