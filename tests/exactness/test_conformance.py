"""Every preset against the n-best lists of the system that it reproduces.

`tests/exactness/conformance` contains small tables of logits and, per preset, the original's n-best
lists.  The `system` entry of each file is its version and how it was run; results marked `by: rule`
were derived from its source code.
"""

import json
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.search.presets import PRESETS

ROOT = Path(__file__).parent / "conformance"
FILES = {path.stem: json.loads(path.read_text()) for path in sorted(ROOT.glob("cases/*.json"))}
CASES = [
    pytest.param(name, i, id=f"{name}-{i}" + f" {case.get('name', '')}".rstrip())
    for name, file in FILES.items()
    for i, case in enumerate(file["cases"])
]
MASKED = -1e4  # lower scores in the original are placeholders
COUPLED = "opennmt-2018"  # results depend on the batch


@pytest.fixture(scope="module")
def translators():
    paths = {ROOT / file["table"] for file in FILES.values()}
    return {path: Translator.from_pretrained(path, device="cpu") for path in paths}


def translate(translators, name, case, batch_size):
    """Translate the lines of a case.

    Args:
        translators: translators by table.
        name: key of FILES.
        case: the case, with its options.
        batch_size: in sentences.
    """
    return translators[ROOT / FILES[name]["table"]].translate(
        case["src"],
        search=FILES[name]["preset"],
        batch_type="sents",
        batch_size=batch_size,
        **case["options"],
    )


def assert_equal(found, expected, short):
    """Check that a translation has the original's n-best list, in order.

    Args:
        found: the translation.
        expected: n-best list of the original.
        short: True: the original's list may be shorter.
    """
    expected = [hyp for hyp in expected if hyp["score"] > MASKED]
    hyps = [h for h in found.hyps if h.score > MASKED]
    if short:  # the original pads its list with placeholders
        hyps = hyps[: len(expected)]
    assert [(h.tokens, h.ended) for h in hyps] == [(e["tokens"], e["ended"]) for e in expected]
    for h, e in zip(hyps, expected):
        assert h.score == pytest.approx(e["score"], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name, i", CASES)
def test_preset_n_best_equals_original(translators, name, i):
    case = FILES[name]["cases"][i]
    short = "short" in case.get("tags", ())
    alone = case.get("expected_alone", case["expected"])
    together = case["expected"] if FILES[name]["preset"] == COUPLED else alone
    for found, expected in zip(translate(translators, name, case, 3), together, strict=True):
        assert_equal(found, expected, short)
    for found, expected in zip(translate(translators, name, case, 1), alone, strict=True):
        assert_equal(found, expected, short)


def test_every_preset_has_conformance_cases():
    assert {file["preset"] for file in FILES.values()} == set(PRESETS) - {"opennmt"}
