"""Recurrent models against OpenNMT-py's scores, and against the formulas."""

import math
import re

import pytest
import torch

from onmt_lite.checkpoints.opennmt.models import build_rnn
from onmt_lite.errors import CheckpointError
from onmt_lite.models.output import sparsemax
from tests.support import archives, rnn_reference
from tests.support.files import assert_gold
from tests.support.random_models import RNNS, build, make_rnn, make_rnn_weights

ATOL = 1e-5
RTOL = 5e-6  # logits are up to 10, in float32
SRC = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 3, 1, 1], [4, 1, 1, 1, 1]])
SRC_LENGTHS = torch.tensor([5, 3, 1])
TGT = torch.tensor([[2, 11, 12, 11, 13, 4], [2, 7, 7, 8, 9, 5], [2, 3, 3, 6, 4, 9]])
LSTM = "onmt120_lstm.pt"
FILES = {
    "gru_mlp": "m12_grumlp_step_2.pt",
    "no_feed_gate_both": "m12_nofeed_step_2.pt",
    "brnn_general": LSTM,
}


def test_scores_equal_opennmt_py():
    assert_gold(archives.CHECKPOINTS / LSTM, "onmt120_lstm")


def assert_matches(model, weights, options):
    logits = model.forward(model.encode(SRC, SRC_LENGTHS), TGT)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        expected = rnn_reference.compute_logits(weights, options, SRC[b, :n], TGT[b])
        torch.testing.assert_close(logits[b], expected.float(), atol=ATOL, rtol=RTOL)


@pytest.mark.parametrize("options", RNNS.values(), ids=RNNS)
def test_logits_match_the_formulas(options):
    assert_matches(make_rnn(**options), make_rnn_weights(**options), options)


@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_opennmt_py_checkpoint_matches_the_formulas(name):
    weights, options = archives.read_opennmt(name)
    options = {**options, "cell": options["rnn_type"], "attention": options["global_attention"]}
    assert_matches(build(build_rnn, weights, options), weights, options)


def test_bridge_does_not_mix_sentences():
    """OpenNMT-py up to 2.x folds (layers, sentences, d) in memory order."""
    encoder = make_rnn(bridge=True).encoder
    state = torch.arange(2 * 3 * 8.0).view(2, 3, 8) / 20  # layers, sentences, d
    ours = encoder._apply_bridge(0, state)
    old = encoder.bridge[0](state.view(-1, 16)).relu().view(state.shape)
    assert not torch.allclose(ours, old)
    for b in range(3):  # for one sentence, both rules are the same
        single = state[:, b : b + 1].contiguous()
        old = encoder.bridge[0](single.view(-1, 16)).relu().view(single.shape)
        torch.testing.assert_close(ours[:, b : b + 1], old)


def test_sparsemax_is_the_projection_onto_the_simplex():
    """Each positive weight is its score minus one threshold."""
    scores = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * 2
    scores[:, 5:] = -math.inf
    weights = sparsemax(scores)
    torch.testing.assert_close(weights.sum(-1), torch.ones(50))
    used = weights > 0
    threshold = torch.where(used, scores - weights, -math.inf).amax(-1, keepdim=True)
    torch.testing.assert_close((scores - weights)[used], threshold.expand_as(scores)[used])
    assert (scores <= threshold + 1e-6)[~used].all() and not used[:, 5:].any()


TABLE = "decoder.embeddings.make_embedding.emb_luts.0.weight"


class TestStrictness:
    @pytest.mark.parametrize("name", make_rnn_weights(context_gate="both", bridge=True, brnn=True))
    def test_missing_weight_is_rejected(self, name):
        weights = make_rnn_weights(context_gate="both", bridge=True, brnn=True)
        del weights[name]
        with pytest.raises(CheckpointError):
            build(build_rnn, weights, {"context_gate": "both", "global_attention": "general"})

    @pytest.mark.parametrize(
        "name, weight, words",
        [
            ("encoder.embeddings.make_embedding.emb_luts.1.weight", torch.ones(3, 3), "emb_luts.1"),
            ("decoder.attn.linear_in.weight", torch.ones(8, 7), "size mismatch"),
            # A decoder of this width would take 16 TB
            ("decoder.attn.linear_out.weight", torch.ones(1_000_000, 1), "size mismatch"),
            ("generator.0.weight", torch.ones(0, 8), "weights"),
            (TABLE, torch.ones(0, 6), "shape [0, 6]"),
            ("generator.0.bias", torch.full((40,), math.nan), "not finite"),
            ("encoder.rnn.weight_hh_l0", torch.ones(8, 8), "only LSTM and GRU"),
        ],
    )
    def test_invalid_weight_is_rejected(self, name, weight, words):
        with pytest.raises(CheckpointError, match=re.escape(words)):
            build(build_rnn, {**make_rnn_weights(), name: weight}, {})

    def test_encoder_and_decoder_must_have_equally_many_layers(self):
        weights, more = make_rnn_weights(layers=1), make_rnn_weights(layers=2)
        weights |= {name: more[name] for name in more if name.startswith("decoder.rnn.layers.1")}
        with pytest.raises(CheckpointError, match="2 decoder layers"):
            build(build_rnn, weights, {})

    @pytest.mark.parametrize(
        "options, words",
        [
            ({}, "context_gate"),  # the weights do not determine the type of gate
            ({"global_attention": ["x"]}, "global_attention (is )?a list"),
            ({"context_gate": ["x"]}, "context_gate .* a list"),
        ],
    )
    def test_invalid_option_is_rejected(self, options, words):
        with pytest.raises(CheckpointError, match=words):
            build(build_rnn, make_rnn_weights(context_gate="source"), options)

    def test_coverage_weights_have_no_effect(self):
        covering = {**make_rnn_weights(), "decoder.attn.linear_cover.weight": torch.ones(8, 1)}
        models = [build(build_rnn, weights, {}) for weights in (make_rnn_weights(), covering)]
        assert torch.equal(*(m.forward(m.encode(SRC, SRC_LENGTHS), TGT) for m in models))
