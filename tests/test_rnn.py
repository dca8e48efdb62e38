"""Recurrent models against OpenNMT-py's own scores, and against the formulas by hand."""

import math

import pytest
import torch
from torch import Tensor

from onmt_lite.checkpoints import opennmt_rnn
from onmt_lite.errors import CheckpointError
from onmt_lite.search.forced import score_targets
from tests.support import archives
from tests.support.families import RNNS, Weights, make_rnn, rnn_weights

ATOL = 1e-5
PAD = 1
SRC = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 3, 1, 1], [4, 1, 1, 1, 1]])
SRC_LENGTHS = torch.tensor([5, 3, 1])
TGT = torch.tensor([[2, 11, 12, 11, 13, 4], [2, 7, 7, 8, 9, 5], [2, 3, 3, 6, 4, 9]])
LSTM = "onmt120_lstm.pt"
FILES = {
    "gru_mlp": "m12_grumlp_step_2.pt",
    "no_feed_gate_both": "m12_nofeed_step_2.pt",
    "brnn_general": LSTM,
}


@pytest.fixture(params=RNNS.values(), ids=RNNS.keys())
def options(request):
    return request.param


@pytest.fixture
def model(options):
    return make_rnn(**options)


def test_scores_are_those_of_opennmt_py():
    gold = archives.gold("onmt120_lstm")
    src_ids, tgt_ids = (
        {token: i for i, token in enumerate(archives.opennmt_vocab(LSTM, side))}
        for side in ("src", "tgt")
    )
    src = [[src_ids.get(token, 0) for token in g["source"].split()] for g in gold]
    tgt = [[tgt_ids.get(token, 0) for token in g["target"].split()] for g in gold]
    model = opennmt_rnn.build(*archives.opennmt(LSTM))
    found = score_targets(model, *archives.padded(src, PAD), tgt, tgt_ids["<s>"], tgt_ids["</s>"])
    assert len(found) == 20
    assert found == pytest.approx([g["log_prob"] for g in gold], abs=1e-4)


def test_logits_follow_the_formulas(options, model):
    logits = model.forward(model.encode(SRC, SRC_LENGTHS), TGT)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        expected = by_hand(rnn_weights(**options), options, SRC[b, :n], TGT[b])
        torch.testing.assert_close(logits[b], expected.float(), atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", FILES.values(), ids=FILES.keys())
def test_files_of_opennmt_py_follow_the_formulas(name):
    weights, options = archives.opennmt(name)
    options = {**options, "cell": options["rnn_type"], "attention": options["global_attention"]}
    model = opennmt_rnn.build(weights, options)
    logits = model.forward(model.encode(SRC, SRC_LENGTHS), TGT)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        expected = by_hand(weights, options, SRC[b, :n], TGT[b])
        torch.testing.assert_close(logits[b], expected.float(), atol=ATOL, rtol=0)


def test_cached_steps_equal_a_full_forward(model):
    memory = model.encode(SRC, SRC_LENGTHS)
    full = model.forward(memory, TGT)
    state = model.init_state(memory)
    for t in range(TGT.size(1)):
        logits, attn = model.step(TGT[:, t], state)
        torch.testing.assert_close(logits, full[:, t], atol=ATOL, rtol=0)
        torch.testing.assert_close(attn.sum(1), torch.ones(3))


def test_a_sentence_alone_equals_itself_in_a_batch(model):
    together = model.forward(model.encode(SRC, SRC_LENGTHS), TGT)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        memory = model.encode(SRC[b : b + 1, :n], SRC_LENGTHS[b : b + 1])
        alone = model.forward(memory, TGT[b : b + 1])
        torch.testing.assert_close(together[b], alone[0], atol=ATOL, rtol=0)


def test_the_bridge_does_not_mix_sentences_as_it_once_did():
    """The rule up to 2.x: fold (layers, sentences, d) as it lies in memory."""
    encoder = make_rnn(bridge=True).encoder
    part = torch.arange(2 * 3 * 8.0).view(2, 3, 8) / 20  # layers, sentences, d
    ours = encoder._cross(0, part)
    old = encoder.bridge[0](part.view(-1, 16)).relu().view(part.shape)
    assert not torch.allclose(ours, old)
    for b in range(3):  # alone, the old rule and ours are the same
        alone = part[:, b : b + 1].contiguous()
        old = encoder.bridge[0](alone.view(-1, 16)).relu().view(alone.shape)
        torch.testing.assert_close(ours[:, b : b + 1], old)


def test_memory_is_shared_by_the_rows_of_a_sentence_and_not_copied():
    model = make_rnn(attention="mlp")
    state = model.init_state(model.encode(SRC, SRC_LENGTHS))
    places = [x.data_ptr() for x in (state.bank, state.keys, state.mask)]
    state = state.select(torch.tensor([[0] * 4, [1] * 4, [2] * 4]))
    model.step(torch.full((12,), 2), state)
    state = state.select(torch.tensor([[3, 2, 1, 0], [4, 4, 4, 4], [9, 8, 11, 10]]))
    assert [x.data_ptr() for x in (state.bank, state.keys, state.mask)] == places
    assert state.feed.size(0) == 12
    state = state.select(torch.tensor([[0, 1, 2, 3], [8, 8, 9, 9]]))
    assert {x.size(0) for x in (state.bank, state.keys, state.mask)} == {2}


class TestStrictness:
    @pytest.mark.parametrize("name", rnn_weights(context_gate="both", bridge=True, brnn=True))
    def test_nothing_may_be_missing(self, name):
        weights = rnn_weights(context_gate="both", bridge=True, brnn=True)
        del weights[name]
        with pytest.raises(CheckpointError):
            opennmt_rnn.build(weights, {"context_gate": "both", "global_attention": "general"})

    def test_nothing_may_be_left_over(self):
        extra = "encoder.embeddings.make_embedding.emb_luts.1.weight"
        with pytest.raises(CheckpointError, match=r"emb_luts\.1"):
            opennmt_rnn.build({**rnn_weights(), extra: torch.ones(3, 3)}, {})

    def test_sizes_must_fit(self):
        wrong = {**rnn_weights(), "decoder.attn.linear_in.weight": torch.ones(8, 7)}
        with pytest.raises(CheckpointError, match="size mismatch"):
            opennmt_rnn.build(wrong, {})

    def test_numbers_must_be_finite(self):
        weights = rnn_weights()
        weights["generator.0.bias"][3] = math.nan
        with pytest.raises(CheckpointError, match="not finite"):
            opennmt_rnn.build(weights, {})

    def test_plain_cells_are_refused(self):
        weights = rnn_weights()
        weights["encoder.rnn.weight_hh_l0"] = torch.ones(8, 8)
        with pytest.raises(CheckpointError, match="LSTM nor GRU"):
            opennmt_rnn.build(weights, {})

    def test_layers_must_be_as_many_on_both_sides(self):
        weights = rnn_weights(layers=1)
        more = rnn_weights(layers=2)
        weights |= {name: more[name] for name in more if name.startswith("decoder.rnn.layers.1")}
        with pytest.raises(CheckpointError, match="2 decoder layers"):
            opennmt_rnn.build(weights, {})

    @pytest.mark.parametrize("name", ["global_attention_function", "generator_function"])
    def test_sparsemax_is_refused(self, name):
        with pytest.raises(CheckpointError, match="sparsemax"):
            opennmt_rnn.build(rnn_weights(), {name: "sparsemax"})

    def test_a_gate_must_say_its_kind(self):
        with pytest.raises(CheckpointError, match="context_gate"):
            opennmt_rnn.build(rnn_weights(context_gate="source"), {})

    def test_coverage_weights_have_no_effect(self):
        plain, covering = rnn_weights(), rnn_weights()
        covering["decoder.attn.linear_cover.weight"] = torch.ones(8, 1)
        models = [opennmt_rnn.build(weights, {}) for weights in (plain, covering)]
        logits = [m.forward(m.encode(SRC, SRC_LENGTHS), TGT) for m in models]
        assert torch.equal(*logits)


# -- one sentence by the formulas, from the weights as they are named in the file --------------


def by_hand(weights: Weights, options: dict, src: Tensor, tgt: Tensor) -> Tensor:
    """src (S,), tgt (T,) -> logits (T, V), in float64."""
    w = {name: weight.double() for name, weight in weights.items()}
    bank, hidden = encode_by_hand(w, options, src)
    feed = torch.zeros_like(hidden[0][-1])
    logits = []
    for word in tgt:
        x = w["decoder.embeddings.make_embedding.emb_luts.0.weight"][word]
        if options.get("input_feed", True):
            x = torch.cat([x, feed])
        output, hidden = decoder_cells_by_hand(w, options, x, hidden)
        feed = attend_by_hand(w, options, output, bank)
        if options.get("context_gate"):
            feed = gate_by_hand(w, options["context_gate"], x, output, feed)
        generator = "generator.0" if "generator.0.weight" in w else "generator"
        logits.append(linear(w, generator, feed))
    return torch.stack(logits)


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", torch.zeros(()))


def cell_by_hand(w: Weights, prefix: str, suffix: str, x: Tensor, past: list[Tensor]):
    """past and result: [h] of a GRU, [h, c] of an LSTM."""
    of_x = w[f"{prefix}weight_ih{suffix}"] @ x + w[f"{prefix}bias_ih{suffix}"]
    of_h = w[f"{prefix}weight_hh{suffix}"] @ past[0] + w[f"{prefix}bias_hh{suffix}"]
    if len(past) == 2:
        i, f, g, o = (of_x + of_h).chunk(4)
        c = f.sigmoid() * past[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]
    (xr, xz, xn), (hr, hz, hn) = of_x.chunk(3), of_h.chunk(3)
    z = (xz + hz).sigmoid()
    return [(1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * past[0]]


def encode_by_hand(w: Weights, options: dict, src: Tensor):
    """bank (S, D), and per part (h, c) the last state of each layer."""
    xs = list(w["encoder.embeddings.make_embedding.emb_luts.0.weight"][src])
    n_parts = 2 if options.get("cell", "LSTM") == "LSTM" else 1
    directions = ["", "_reverse"] if options.get("brnn") else [""]
    last = []  # per layer and direction
    while f"encoder.rnn.weight_hh_l{len(last) // len(directions)}" in w:
        layer, outputs = len(last) // len(directions), []
        for direction in directions:
            past = [torch.zeros(w[f"encoder.rnn.weight_hh_l{layer}"].size(1)).double()] * n_parts
            states = []
            for x in reversed(xs) if direction else xs:
                past = cell_by_hand(w, "encoder.rnn.", f"_l{layer}{direction}", x, past)
                states.append(past[0])
            outputs.append(states[::-1] if direction else states)
            last.append(past)
        xs = [torch.cat(both) for both in zip(*outputs)]
    hidden = []
    for i in range(n_parts):
        part = torch.stack([states[i] for states in last])  # (layers * directions, d)
        if f"encoder.bridge.{i}.weight" in w:
            folded = part.reshape(len(directions), -1)
            crossed = [linear(w, f"encoder.bridge.{i}", row).relu() for row in folded]
            part = torch.stack(crossed).reshape(part.shape)
        hidden.append(part.reshape(len(part) // len(directions), -1))
    return torch.stack(xs), hidden


def decoder_cells_by_hand(w: Weights, options: dict, x: Tensor, hidden: list[Tensor]):
    new = []
    for i in range(len(hidden[0])):
        feeds = options.get("input_feed", True)
        names = (f"decoder.rnn.layers.{i}.", "") if feeds else ("decoder.rnn.", f"_l{i}")
        new.append(cell_by_hand(w, *names, x, [part[i] for part in hidden]))
        x = new[-1][0]
    return x, [torch.stack(parts) for parts in zip(*new)]


def attend_by_hand(w: Weights, options: dict, output: Tensor, bank: Tensor) -> Tensor:
    kind = options.get("attention", "general")
    if kind == "mlp":
        query = linear(w, "decoder.attn.linear_query", output)
        keys = [linear(w, "decoder.attn.linear_context", h) for h in bank]
        scores = [linear(w, "decoder.attn.v", (query + key).tanh())[0] for key in keys]
    else:
        query = linear(w, "decoder.attn.linear_in", output) if kind == "general" else output
        scores = [query @ h for h in bank]
    context = torch.stack(scores).softmax(0) @ bank
    attended = linear(w, "decoder.attn.linear_out", torch.cat([context, output]))
    return attended if kind == "mlp" else attended.tanh()


def gate_by_hand(w: Weights, kind: str, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
    name = "decoder.context_gate.context_gate"
    z = linear(w, f"{name}.gate", torch.cat([x, output, attended])).sigmoid()
    s = linear(w, f"{name}.source_proj", attended)
    t = linear(w, f"{name}.target_proj", torch.cat([x, output]))
    mixed = {"source": t + z * s, "target": z * t + s, "both": (1 - z) * t + z * s}
    return mixed[kind].tanh()
