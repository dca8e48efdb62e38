"""A vocabulary map limits CTranslate2 and `-search ctranslate2` to the same tokens.

pip install ctranslate2 && python -m pytest tests/peers
"""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.shipped import DEFAULT_MODEL
from onmt_lite.export import ExportOptions, export
from onmt_lite.shortlist import main

ctranslate2 = pytest.importorskip("ctranslate2")

SAMPLE = Path(__file__).parents[2] / "data" / "sample.de.txt"
LINES = [line for line in SAMPLE.read_text(encoding="utf-8").split("\n") if line]
CASES = [
    (dict(beam_size=1), dict(beam_size=1)),
    (dict(beam_size=5, num_hypotheses=5), dict(beam_size=5, n_best=5)),
    (
        dict(beam_size=4, num_hypotheses=2, no_repeat_ngram_size=2, disable_unk=True),
        dict(beam_size=4, n_best=2, block_ngram_repeat=2, ban_unk_token=True),
    ),
    (dict(beam_size=3, min_decoding_length=9), dict(beam_size=3, min_length=9)),
]


@pytest.fixture(scope="module")
def vmap(tmp_path_factory):
    """Of the model's own translations, so short that every line is limited; and two n-grams."""
    path = tmp_path_factory.mktemp("vmap") / "vmap.txt"
    options = ["-src", str(SAMPLE), "-output", str(path), "-first", "9", "-best", "2"]
    assert main(options) == 0
    pieces = load_checkpoint(DEFAULT_MODEL).tokenizers["sentencepiece"]
    first, second = pieces.encode(LINES[0])[:2], pieces.encode(LINES[1])[:3]
    with open(path, "a", encoding="utf-8", newline="\n") as file:
        file.write(f"{' '.join(first)}\t▁we ▁never ▁a\n{' '.join(second)}\t▁zoo ▁not\n")
    return path


@pytest.fixture(scope="module")
def theirs(vmap):
    from ctranslate2.converters import OpenNMTPyConverter

    exported, converted = str(vmap.parent / "model.pt"), str(vmap.parent / "converted")
    export(ExportOptions(model=str(DEFAULT_MODEL), to="opennmt-py", output=exported))
    with torch.serialization.safe_globals([argparse.Namespace]):
        OpenNMTPyConverter(exported).convert(converted, vmap=str(vmap))
    return ctranslate2.Translator(converted, compute_type="float32", intra_threads=1)


@pytest.mark.parametrize(("given", "options"), CASES)
def test_limits_both_alike(vmap, theirs, given, options):
    """CTranslate2 lets all lines of a batch say what one of them may: a batch has one line."""
    pieces = load_checkpoint(DEFAULT_MODEL).tokenizers["sentencepiece"]
    expected = theirs.translate_batch(
        [[*pieces.encode(line), "</s>"] for line in LINES],
        use_vmap=True,
        return_scores=True,
        max_batch_size=1,
        **given,
    )
    ours, whole = (
        Translator.from_pretrained(device="cpu", precision="fp32", search="ctranslate2", **more)
        for more in ({"shortlist": str(vmap)}, {})
    )
    ours.checkpoint = replace(ours.checkpoint, never_ids=())  # theirs may say its start token
    found = ours.translate(LINES, **options)
    for translation, result in zip(found, expected, strict=True):
        assert [hyp.tokens for hyp in translation.hyps] == result.hypotheses
        scores = [hyp.score for hyp in translation.hyps]
        assert scores == pytest.approx(result.scores, abs=1e-4)
    n_changed = sum(t.text != w.text for t, w in zip(found, whole.translate(LINES, **options)))
    assert n_changed > len(LINES) / 4
