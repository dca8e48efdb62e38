"""M2M100, NLLB, mBART, T5 and MADLAD: the n-best lists of the installed transformers."""

import json
from pathlib import Path
from random import Random

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.text.lines import make_lines_from_texts

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

OLD = transformers.__version__.startswith("4.")
PRESET = "transformers" if OLD else "transformers-5"
ROOT = Path(__file__).resolve().parents[2] / "data" / "families"
NAMES = ["m2m", "nllb", "mbart50", "mbart25", "t5", "madlad"]
LINES = ["Das Haus steht in Flammen!", "Wann passt es euch zeitlich?", "Ich habe zu tun", "a b c"]
OPTIONS = {
    "num_beams": "beam_size",
    "length_penalty": "alpha",
    "no_repeat_ngram_size": "block_ngram_repeat",
}


def sample_settings(random):
    return dict(
        num_beams=random.choice([2, 3, 5]),
        max_length=random.randint(4, 20),
        min_length=random.choice([0, 0, 4]),
        length_penalty=random.choice([-1.0, 0.0, 0.7, 1.0, 2.5]),
        early_stopping=random.choice([True, False, "never"]),
        no_repeat_ngram_size=random.choice([0, 0, 1, 2, 3]),
        repetition_penalty=random.choice([1.0, 1.0, 1.3]),
    )


def generate(name, forced, ids, settings):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(ROOT / name).double().eval()
    pad, width = model.config.pad_token_id, max(map(len, ids))
    return model.generate(
        torch.tensor([row + [pad] * (width - len(row)) for row in ids]),
        attention_mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids]),
        num_return_sequences=settings["num_beams"],
        forced_bos_token_id=forced,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **settings,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_n_best_lists_equal_transformers(name, seed):
    recorded = json.loads((ROOT / "references" / f"{name}.transformers.json").read_text("utf-8"))
    translator = Translator.from_pretrained(
        ROOT / name, device="cpu", precision="fp32", threads=1, tgt_lang=recorded["target"]
    )
    pipeline = translator.pipeline
    make, direction = pipeline.preprocessor.make_example, pipeline.direction(translator.options)
    ids = [
        make(line, direction=direction).src_ids for line in make_lines_from_texts(LINES, "lines")
    ]
    if OLD:
        tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / name, use_fast=False)
        assert ids == [tokenizer(line)["input_ids"] for line in LINES]
    settings = sample_settings(Random(seed))
    output = generate(name, recorded["forced"], ids, settings)
    k, n = settings["num_beams"], 1 if recorded["forced"] is None else 2
    options = {OPTIONS.get(key, key): value for key, value in settings.items()}
    options["early_stopping"] = str(options["early_stopping"]).lower()
    translations = translator.translate(LINES, search=PRESET, n_best=k, **options)
    decode, eos = translator.checkpoint.tgt_vocab.decode, translator.checkpoint.eos_id
    for i, translation in enumerate(translations):
        rows = output.sequences[i * k : (i + 1) * k, n:].tolist()
        scores = output.sequences_scores[i * k : (i + 1) * k].tolist()
        scored = [(row, score) for row, score in zip(rows, scores) if score > -1e4]
        tokens = [decode(row[: row.index(eos)] if eos in row else row) for row, _ in scored]
        hyps = translation.hyps[: len(scored)]
        expected = [score for _, score in scored]
        assert [h.score for h in hyps] == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert [[*h.tokens] for h in hyps] == tokens
