"""Jobs with languages, of options and of lines: resumed, and shared among processes."""

from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted, OptionError
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs.job import run_job

NLLB = str(Path(__file__).parent / "data" / "families" / "nllb")
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
    """Each line alone, its languages given as options."""
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


def test_a_job_that_goes_on(job, expected, monkeypatch):
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
