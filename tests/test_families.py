"""M2M100, NLLB, mBART, T5 and MADLAD directories of Hugging Face, against transformers itself.

`data/families/references/MODEL.PRESET.json` holds what transformers 4.46.3 and 5.23.0 print for
fixed weights, see `peers/make_families.py`.
"""

import json
from pathlib import Path

import pytest

from onmt_lite import Translator

ROOT = Path(__file__).parent / "data" / "families"
FILES = {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(ROOT.glob("references/*.json"))}
CASES = [
    pytest.param(name, i, id=f"{name}-{i}")
    for name, file in FILES.items()
    for i in range(len(file["cases"]))
]
NAMES = {
    "num_beams": "beam_size",
    "length_penalty": "alpha",
    "no_repeat_ngram_size": "block_ngram_repeat",
    "num_beam_groups": "beam_groups",
    "diversity_penalty": "diversity_rate",
}


def load(name, path=None, **options):
    target = FILES[f"{name}.transformers"]["target"]
    given = dict(device="cpu", precision="fp32", threads=1, tgt_lang=target) | options
    return Translator.from_pretrained(path or ROOT / name, **given)


@pytest.fixture(scope="module")
def translators():
    return {name: load(name) for name in {file["model"] for file in FILES.values()}}


def ours(settings):
    options = {NAMES.get(name, name): value for name, value in settings.items()}
    early = options["early_stopping"]
    return options | dict(early_stopping=str(early).lower(), n_best=options["beam_size"])


def expected(translator, file, row):
    """(tokens, ended, score) of each hypothesis that transformers returned, each once."""
    eos, n = translator.checkpoint.eos_id, 1 if file["forced"] is None else 2
    found = {}
    for hyp in row:
        ids = hyp["ids"][n:]
        ended = eos in ids
        ids = ids[: ids.index(eos)] if ended else ids
        found.setdefault((tuple(ids), ended), hyp["score"])
    tokens = translator.checkpoint.tgt_vocab.decode
    return [(tokens(list(ids)), ended, score) for (ids, ended), score in found.items()]


@pytest.mark.parametrize("name, i", CASES)
def test_n_best_lists_are_those_of_transformers(translators, name, i):
    file = FILES[name]
    case, translator = file["cases"][i], translators[file["model"]]
    for batch_size in (5, 2):
        found = translator.translate(
            file["sources"],
            search=name.split(".")[1],
            batch_size=batch_size,
            batch_type="sents",
            **ours(case["settings"]),
        )
        for translation, row in zip(found, case["rows"], strict=True):
            wanted = expected(translator, file, row)
            hyps = translation.hyps[: len(wanted)]
            scores = [score for _, _, score in wanted]
            assert [h.score for h in hyps] == pytest.approx(scores, rel=1e-4, abs=1e-4)
            assert [(h.tokens, h.ended) for h in hyps] == [w[:2] for w in wanted]
