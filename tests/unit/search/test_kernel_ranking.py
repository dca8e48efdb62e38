"""The kernel that ranks continuations, against the logits and a top-k in torch."""

import pytest
import torch

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import assign_kernels
from onmt_lite.models.output import KernelLogits
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits
from tests.support import tiny
from tests.support.sweeps import mark_sweeps

pytestmark = pytest.mark.skipif(kernels.get_library() is None, reason="this machine has no kernels")

OPTIONS = {
    "plain": dict(),
    "greedy": dict(beam_size=1),
    "banned tokens": dict(banned_ids=(5, 9), banned_after_softmax=(7,)),
    "stepwise coverage": dict(coverage_penalty="wu", beta=0.3, stepwise_penalty=True),
}


def search(model, sentences, spec, n_slots, observer):
    """Return tokens, scores and log-probabilities of all finished hypotheses by sentence."""
    found = {}
    for index, beam in decode(model, sentences, spec, n_slots, observer):
        found[index] = [(beam.backtrack(h), beam.get_alignment(h), h.score) for h in beam.finished]
    return found


@pytest.mark.parametrize("name", mark_sweeps(sorted(PRESETS), ["opennmt", "fairseq", "marian"]))
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_search_equals_ranking_of_logits(name, option, precision, monkeypatch):
    """An observer (-dump_beam) makes the search rank logits in torch."""
    model = tiny.make_model(dec_layers=2)
    assign_kernels(model, precision)
    preset = PRESETS[name]
    fixed = dict(bos_id=2, eos_id=3, track_attention=True)
    settings = {"beam_size": 4, "length_penalty": "avg", **fixed, **OPTIONS[option]}
    spec = SearchSpec(preset.policy, next(iter(preset.stop_rules.values())), **settings)
    generator = torch.Generator().manual_seed(3)
    sentences = [
        Sentence(
            torch.randint(4, tiny.VOCAB_SIZE, (3 + i % 5,), generator=generator).tolist(),
            SentenceLimits(6 + i % 7, 1 + i % 4),
        )
        for i in range(11)
    ]
    n_ranked, rank = [], KernelLogits.rank
    monkeypatch.setattr(
        KernelLogits, "rank", lambda *args: n_ranked.append(len(args[1])) or rank(*args)
    )
    found = search(model, sentences, spec, 3, None)
    assert n_ranked or preset.policy.masks == "logits"
    del n_ranked[:]
    assert found == search(model, sentences, spec, 3, lambda *_: None)
    assert not n_ranked and len(found) == len(sentences)
