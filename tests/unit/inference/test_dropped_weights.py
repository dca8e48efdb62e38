"""Weights that kernels have copied are dropped, and read again if they are needed."""

import math
from pathlib import Path

import pytest

from onmt_lite import Translator, load_checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import SearchResult
from onmt_lite.models.kernels.build import load_library
from onmt_lite.models.linear import Linear

ROOT = Path(__file__).parents[3]
LINES = ["Ein Hund schläft.", "Das ist gut."]
pytestmark = pytest.mark.skipif(load_library() is None, reason="this machine has no kernels")


def get_scores(translator):
    return [t.hyps[0].score for t in translator.translate(LINES)]


@pytest.fixture(params=["fp32", "int8"])
def translator(request):
    return Translator.from_pretrained(device="cpu", precision=request.param)


def test_linear_layers_have_no_weights(translator):
    model = translator.pipeline.model
    layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
    kept = [layer for layer in layers if layer.weight.numel()]
    assert len(layers) > 50
    # The output layer shares its weight with the embeddings
    assert kept == [model.output]


@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16"])
def test_other_precision_reads_weights_again(translator, precision):
    options = dict(device="cpu", precision=precision)
    other = Translator(translator.checkpoint, TranslateOptions.of(**options))
    assert other.machine["precision"] == precision
    assert get_scores(other) == get_scores(Translator.from_pretrained(**options))


def test_nan_is_searched_again_in_fp32(translator, monkeypatch):
    """The first search of each line returns NaN."""
    expected = get_scores(Translator.from_pretrained(device="cpu", precision="fp32"))
    model = translator.pipeline.runner.fp32_model
    monkeypatch.setattr(
        type(translator.pipeline.runner.retry), "run", make_nan_once(translator, len(LINES))
    )
    assert [t.hyps[0].score for t in translator.translate(LINES)] == expected
    assert model is translator.pipeline.model or translator.machine["precision"] == "int8"


def make_nan_once(translator, n):
    """Return OomRetry.run that first returns n results without hypotheses."""
    run = type(translator.pipeline.runner.retry).run
    calls = []

    def run_after_nan(self, group, *arguments):
        calls.append(len(group))
        return [SearchResult([])] * n if len(calls) == 1 else run(self, group, *arguments)

    return run_after_nan


def test_scores_and_alignments_need_no_dropped_weights(translator):
    texts = [t.text for t in translator.translate(LINES, report_align=True)]
    assert all(math.isfinite(score) for score in translator.score(LINES, texts))


def test_model_of_translator_has_all_weights(translator):
    weights = dict(translator.model.named_parameters())
    for name, weight in load_checkpoint(ROOT / "data" / "de-en").model.named_parameters():
        assert weights[name].equal(weight.float())
