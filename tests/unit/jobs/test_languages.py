"""Jobs with language codes from options and lines: resumed, and with workers."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.checkpoint import describe
from onmt_lite.checkpoints.loading import load_checkpoint, load_checkpoints
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, MemoryExhausted, OptionError
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs.job import run_job
from onmt_lite.text.placeholders import UnknownPolicy
from onmt_lite.train.calibrate import apply_options, load_calibrate_options
from tests.support.files import update_json

NLLB = str(Path(__file__).parents[2] / "data" / "families" / "nllb")
LINES = [
    "Das Haus",
    ">>fra_Latn<< Ich gehe",
    "a",
    ">>fra_Latn:deu_Latn<< Tom",
    "Wann passt es?",
] * 4


@pytest.fixture
def job(tmp_path):
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), "utf-8")

    def run(name, **more):
        given = dict(model=(NLLB,), src=str(tmp_path / "in"), output=str(tmp_path / name))
        given |= dict(device="cpu", precision="fp32", threads=1, quiet=True, bucket_lines=6)
        given |= dict(search="transformers", max_length=8, tgt_lang="eng_Latn")
        run_job(TranslateOptions.of(**given | more))
        return (tmp_path / name).read_text("utf-8").splitlines()

    return run


@pytest.fixture(scope="module")
def expected():
    """Translate each line separately, with its languages as options."""
    given = dict(device="cpu", precision="fp32", threads=1, tgt_lang="eng_Latn")
    translator = Translator.from_pretrained(NLLB, **given)
    found = []
    for text, *langs in (
        *(("Das Haus", "eng_Latn"), ("Ich gehe", "fra_Latn"), ("a", "eng_Latn")),
        *(("Tom", "deu_Latn", "fra_Latn"), ("Wann passt es?", "eng_Latn")),
    ):
        given = dict(zip(("tgt_lang", "src_lang"), langs), search="transformers", max_length=8)
        found.append(translator.translate([text], **given)[0].text)
    return found * 4


def test_resume_with_other_languages_is_rejected(job, expected, monkeypatch):
    translate, n_calls = Pipeline.translate_lines, []

    def stops(self, *args, **kwargs):
        n_calls.append(1)
        if len(n_calls) == 3:
            raise MemoryExhausted("out of memory")
        return translate(self, *args, **kwargs)

    monkeypatch.setattr(Pipeline, "translate_lines", stops)
    with pytest.raises(MemoryExhausted):
        job("out")
    with pytest.raises(OptionError, match="tgt_lang was eng_Latn, now fra_Latn"):
        job("out", tgt_lang="fra_Latn", resume=True)
    n_calls.extend([1] * 10)
    assert job("out", resume=True) == expected
    assert len(n_calls) == 13 + 2  # two buckets of four were left


def test_processes(job, expected):
    assert job("out", workers=2) == expected


# -- models of one pair of languages ---------------------------------------------------------------

CHECKPOINTS = Path(__file__).parents[2] / "data" / "checkpoints"
ONLY = "the model translates from {} to {} only"


def described(tiny_checkpoint, path, **entries):
    """Copy a native model and change entries of its config."""
    shutil.copytree(tiny_checkpoint, path)
    manifest = json.loads((path / native.MANIFEST).read_text("utf-8")) | entries
    manifest["sha256"] = native._checksum(manifest)
    (path / native.MANIFEST).write_text(json.dumps(manifest), "utf-8")
    return path


@pytest.fixture
def pair(tiny_checkpoint, tmp_path):
    return described(tiny_checkpoint, tmp_path / "pair", languages=["de", "en"])


@pytest.mark.parametrize("workers", [1, 2])
def test_src_lang_bilingual_model_rejects_other_languages(pair, workers):
    """While loading and in a call; the Translator stays usable."""
    given = dict(device="cpu", workers=workers)
    for languages in (dict(tgt_lang="fr"), dict(src_lang="en", tgt_lang="de")):
        with pytest.raises(OptionError, match=ONLY.format("de", "en")) as refused:
            Translator.from_pretrained(pair, **given, **languages)
        asked = ", ".join(f"{name} {code}" for name, code in languages.items())
        assert str(refused.value).startswith(f"{asked}: ")
    with (
        Translator.from_pretrained(pair, **given, src_lang="de") as translator,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        (usual,) = translator.translate(["der hund"])
        with pytest.raises(OptionError, match=ONLY.format("de", "en")):
            translator.translate(["der hund"], tgt_lang="fr")
        assert translator.translate(["der hund"], tgt_lang="EN") == [usual]


@pytest.mark.parametrize("entry", ["de", ["de"], ["de", 5], ["de", "en", "fr"], {"de": "en"}, None])
def test_config_with_invalid_language_pair_is_rejected(tiny_checkpoint, tmp_path, entry):
    path = described(tiny_checkpoint, tmp_path / "other", languages=entry)
    with pytest.raises(CheckpointError, match="languages"):
        load_checkpoint(path)


def test_calibration_keeps_language_pair(pair, tiny_checkpoint, tmp_path):
    assert load_checkpoint(tiny_checkpoint).language_pair == ("", "")
    native.update_manifest(pair, {}, UnknownPolicy(), None)
    assert load_checkpoint(pair).language_pair == ("de", "en")
    options = load_calibrate_options(["-model", "a", "-valid", "b", "-languages", "xx", "yy"])[0]
    changed = apply_options(load_checkpoint(pair), options)
    native.update_manifest(pair, {}, UnknownPolicy(), None, pair=changed.language_pair)
    assert load_checkpoint(pair).language_pair == ("xx", "yy")
    assert "languages          xx to yy\n" in describe(load_checkpoint(pair), "model")
    for words in (["de"], ["de", "en", "fr"]):
        with pytest.raises(OptionError, match="languages: must be two codes"):
            load_calibrate_options(["-model", "a", "-valid", "b", "-languages", *words])


def test_language_pair_is_read_from_other_toolkits(tmp_path):
    """From a fairseq checkpoint and a Marian directory, unless lines start with a language tag."""
    fairseq = load_checkpoint(CHECKPOINTS / "switches" / "fairseq_pre_norm")
    assert fairseq.language_pair == ("xx", "aa")
    path = shutil.copytree(CHECKPOINTS / "hf" / "marian", tmp_path / "marian")
    update_json(path / "tokenizer_config.json", source_lang="de", target_lang="en")
    assert load_checkpoint(path).language_pair == ("de", "en")
    with pytest.raises(OptionError, match=ONLY.format("de", "en")):
        Translator.from_pretrained(path, device="cpu", tgt_lang="fr")
    words = (path / "vocab.json").read_text("utf-8")
    (path / "vocab.json").write_text(words.replace('"▁w7"', '">>fra<<"'), "utf-8")
    assert load_checkpoint(path).language_pair == ("", "")
    (path / "vocab.json").write_text(words, "utf-8")
    update_json(path / "tokenizer_config.json", source_lang=None)
    assert load_checkpoint(path).language_pair == ("", "")


def test_ensemble_language_pair_is_shared_by_all_models(pair, tiny_checkpoint):
    assert load_checkpoints([pair, pair]).language_pair == ("de", "en")
    assert load_checkpoints([pair, tiny_checkpoint]).language_pair == ("", "")
