"""N-best lists of other toolkits, for models trained and saved by these toolkits.

`tests/data/checkpoints/references/MODEL.PRESET.json` contains the output of the toolkit for a grid
of settings, in float64 if it supports that.
"""

import json
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.config.options import load_options
from tests.support.sweeps import mark_sweeps

ROOT = Path(__file__).parents[1] / "data" / "checkpoints"
PATHS = {
    "hf_marian": "hf/marian",
    "onmt351_transformer": "onmt351_transformer.pt",
    "onmt120_lstm": "onmt120_lstm.pt",
    "fairseq_transformer": "fairseq_transformer",
    "fairseq_fconv": "fairseq_fconv",
    **{f"ct2_{path.name}": f"ct2/{path.name}" for path in sorted(ROOT.glob("ct2/*"))},
    "npz_opus": "marian_npz/opus",
    "npz_student": "marian_npz/student",
}
FILES = {path.stem: json.loads(path.read_text()) for path in sorted(ROOT.glob("references/*"))}
CASES = {
    f"{name}-{case['id']}": (name, i)
    for name, file in FILES.items()
    for i, case in enumerate(file["cases"])
}
DAILY = [*CASES.values()][::3]
MASKED = -1e4  # lower scores in the original are placeholders


@pytest.fixture(scope="module")
def translators():
    return {
        name: Translator.from_pretrained(
            ROOT / path, device="cpu", tokenizer="space", precision="fp32"
        )
        for name, path in PATHS.items()
    }


def read_hypotheses(row, keeps_copies: bool):
    """Return the hypotheses without placeholders, and without duplicates unless `keeps_copies`."""
    hyps = {}
    for i, hyp in enumerate(row["hyps"]):
        if hyp["score"] <= MASKED:
            break
        key = (hyp["text"], hyp["ended"], i if keeps_copies else 0)
        hyps.setdefault(key, hyp)
    return list(hyps.values())


def assert_equal(hyps, expected, compares_scores: bool):
    """Check that n-best lists are equal; hypotheses with almost equal scores may be exchanged.

    Args:
        hyps: n-best list of the search, at least as long as `expected`.
        expected: n-best list of the toolkit.
        compares_scores: True: scores must be equal at each rank.
    """
    remaining = list(expected)
    for hyp, same_rank in zip(hyps[: len(expected)], expected, strict=True):
        score = pytest.approx(same_rank["score"], rel=1e-4, abs=1e-4)
        assert not compares_scores or hyp.score == score
        matches = [
            e
            for e in remaining
            if hyp.text == e["text"] and e["ended"] in (None, hyp.ended) and e["score"] == score
        ]
        assert matches, (hyp, same_rank)
        remaining.remove(matches[0])


@pytest.mark.parametrize("name, i", mark_sweeps(CASES.values(), DAILY), ids=CASES)
def test_trained_model_n_best_equals_original_toolkit(translators, name, i):
    file = FILES[name]
    case, is_coupled = file["cases"][i], file["search"] == "opennmt-2018"
    words = [str(word) for word in case["options"]]
    tgt = ["-tgt", "tgt.txt"] if "tgt" in case else []
    options, _ = load_options(["-search", file["search"], *words, *tgt])
    excluded = ("precision", "tokenizer", "tgt", "tgt_file_prefix")
    case_options = {k: v for k, v in options.given.items() if k not in excluded}
    if options.data.tgt_file_prefix:
        is_shared = isinstance(case["tgt"], str)
        prefixes = [case["tgt"]] * len(file["sources"]) if is_shared else case["tgt"]
        case_options["prefixes"] = prefixes
    for batch_size in [1] if is_coupled else [20, 3]:
        found = translators[file["model"]].translate(
            file["sources"], batch_type="sents", batch_size=batch_size, **case_options
        )
        for t, row in zip(found, case["rows"], strict=True):
            if row.get("stable", True):
                expected = read_hypotheses(row, keeps_copies=is_coupled)
                assert_equal(t.hyps, expected, compares_scores=case.get("compare") != "tokens")
