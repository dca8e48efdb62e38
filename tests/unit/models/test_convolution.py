"""Convolutional models against fairseq's results, and against the formulas."""

import math

import pytest
import torch
from torch import Tensor

from onmt_lite.checkpoints.fairseq import build_fconv
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.opennmt.models import build_cnn
from onmt_lite.errors import CheckpointError
from tests.support import archives
from tests.support.files import assert_gold
from tests.support.random_models import (
    CNNS,
    FCONVS,
    Tensors,
    build,
    make_cnn,
    make_cnn_weights,
    make_fconv,
    make_fconv_weights,
)

ATOL = 1e-5
SQRT_HALF = math.sqrt(0.5)
SRC = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 3, 1, 1], [4, 1, 1, 1, 1]])
SRC_LENGTHS = torch.tensor([5, 3, 1])
TGT = torch.tensor([[2, 11, 12, 11, 13, 4], [2, 7, 7, 8, 9, 5], [2, 3, 3, 6, 4, 9]])


def test_scores_equal_fairseq():
    """For hypotheses of fairseq's search."""
    path = archives.CHECKPOINTS / "fairseq_fconv"
    assert_gold(path, "fairseq_fconv")
    assert load_checkpoint(path).model.max_positions == 1022


def test_logits_equal_fairseq():
    expected = torch.load(archives.CHECKPOINTS / "fs12_expected.pt", weights_only=True)
    model = build(build_fconv, *archives.read_fairseq("fs12_fc/checkpoint.pt"))
    src = torch.tensor([[4, 5, 2, 1], [6, 7, 8, 2]])  # fairseq pads on the left
    assert src.sort().values.equal(expected["src"].sort().values)
    logits = model.forward(model.encode(src, torch.tensor([3, 4])), expected["tgt"])
    torch.testing.assert_close(logits, expected["fc"], atol=ATOL, rtol=0)


def assert_matches(model, reference, weights):
    logits = model.forward(model.encode(SRC, SRC_LENGTHS), TGT)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        expected = reference(weights, SRC[b, :n], TGT[b])
        torch.testing.assert_close(logits[b], expected.float(), atol=ATOL, rtol=0)


@pytest.mark.parametrize("options", FCONVS.values(), ids=FCONVS)
def test_fconv_matches_the_formulas(options):
    assert_matches(make_fconv(**options), compute_fconv, make_fconv_weights(**options))


@pytest.mark.parametrize("options", CNNS.values(), ids=CNNS)
def test_cnn_matches_the_formulas(options):
    assert_matches(make_cnn(**options), compute_cnn, make_cnn_weights(**options))


def test_opennmt_py_checkpoint_matches_the_formulas():
    weights, options = archives.read_opennmt("m12_cnn_step_2.pt")
    assert_matches(build(build_cnn, weights, options), compute_cnn, weights)


def test_cnn_uses_averaged_weights_only():
    weights = make_cnn_weights()
    plain = {name: w for name, w in weights.items()}
    for name in weights:
        if name.endswith(".conv.V") or name.endswith((".conv.g", ".conv.weight", ".conv.bias")):
            plain[name] = torch.zeros_like(weights[name])
    same = [build(build_cnn, w, {}) for w in (weights, plain)]
    assert torch.equal(*(m.forward(m.encode(SRC, SRC_LENGTHS), TGT) for m in same))


FCONV, CNN = make_fconv_weights(**FCONVS["plain"]), make_cnn_weights(positions=True)
MORE = ["encoder.more.weight", "decoder.adaptive_softmax.head.weight"]
LAYER = "encoder.cnn.layers.0.conv"


class TestStrictness:
    @pytest.mark.parametrize(
        "reader, weights, name",
        [(build_fconv, FCONV, name) for name in FCONV] + [(build_cnn, CNN, name) for name in CNN],
    )
    def test_missing_weight_is_rejected(self, reader, weights, name):
        rest = {n: weight for n, weight in weights.items() if n != name}
        # The version also follows from sizes; unaveraged weights are needed for training only
        if name == "decoder.version" or (".conv." in name and not name.endswith("_avg")):
            build(reader, rest, {})
            return
        with pytest.raises(CheckpointError):
            build(reader, rest, {})

    @pytest.mark.parametrize(
        "reader, weights, name, weight, words",
        [
            *((build_fconv, FCONV, name, torch.ones(3, 3), name) for name in MORE),
            *((build_cnn, CNN, name, torch.ones(3, 3), name) for name in MORE),
            (build_fconv, FCONV, "encoder.fc1.weight_g", torch.ones(3, 1), "weight_g does not fit"),
            (build_cnn, CNN, f"{LAYER}.g_avg", torch.ones(3), "g_avg does not fit"),
            # Averages that were never computed
            (build_cnn, CNN, f"{LAYER}.V_avg", torch.zeros(16, 8, 3, 1), "not finite"),
            *(
                (build_fconv, FCONV, name, FCONV[name].sign().long(), "integers")
                for name in ("encoder.fc1.weight_v", "decoder.fc3.weight_g", "decoder.fc3.bias")
            ),
        ],
    )
    def test_invalid_weight_is_rejected(self, reader, weights, name, weight, words):
        with pytest.raises(CheckpointError, match=words):
            build(reader, {**weights, name: weight}, {})

    def test_fconv_residual_over_several_layers_is_rejected(self):
        for spec in ("[(8, 3)] * 2", "[(8, 3), (8, 3, 1)]", "[(8,3)]*1 + [(8,3,1)]"):
            build(build_fconv, FCONV, {"encoder_layers": spec})
        for spec in ("[(8, 3), (8, 3, 2)]", "[(8,3,0)]*2", "[(8, 3, 12)] * 2"):
            with pytest.raises(CheckpointError, match="residuals"):
                build(build_fconv, FCONV, {"encoder_layers": spec})

    @pytest.mark.parametrize(
        "spec", ["[(8, 3), f((8, 3))]", "[(8,)] * 2", "[(8, 'a')] * 2", "[(8, 3, 1 + 1)]",
                 "[(8, 3, -2)]", "__import__('os').system('true')", "-" * 9999, "(" * 9999, 2],
    )  # fmt: skip
    def test_fconv_invalid_layers_option_is_rejected(self, spec):
        """The reach of residual connections does not follow from the weights."""
        with pytest.raises(CheckpointError, match="decoder_layers"):
            build(build_fconv, FCONV, {"decoder_layers": spec})


# ---- The formulas for one sentence, with the weight names of the file ----


def apply_glu(outputs: list[Tensor]) -> Tensor:
    out = torch.stack(outputs)
    half = out.size(1) // 2
    return out[:, :half] * out[:, half:].sigmoid()


def compute_fconv(weights: Tensors, src: Tensor, tgt: Tensor) -> Tensor:
    """Compute the logits of one sentence.

    Args:
        weights: weights by the names in the file
        src: source ids (S,), int64
        tgt: decoder input (T,), int64

    Returns:
        Logits (T, V), float64.
    """
    w = {name: weight.double() for name, weight in weights.items()}

    def linear(name: str, x: Tensor) -> Tensor:
        if f"{name}.weight" in w:
            return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        v, g = w[f"{name}.weight_v"], w[f"{name}.weight_g"]
        rows = [g[i, 0] * v[i] / v[i].square().sum().sqrt() for i in range(len(v))]
        return x @ torch.stack(rows).T + w[f"{name}.bias"]

    def convolve(name: str, x: Tensor, left: int, right: int) -> Tensor:
        v, g = w[f"{name}.weight_v"], w[f"{name}.weight_g"]
        if g.size(0) == 1 and g.size(2) > 1:
            v = v / v.square().sum((0, 1)).sqrt() * g[0, 0]
        else:
            v = torch.stack([g[i, 0, 0] * v[i] / v[i].square().sum().sqrt() for i in range(len(v))])
        padded = torch.cat([x.new_zeros(left, x.size(1)), x, x.new_zeros(right, x.size(1))])
        outputs = [w[f"{name}.bias"].clone() for _ in x]
        for t, out in enumerate(outputs):
            for i in range(len(v)):
                out += padded[t + i] @ v[i]
        return apply_glu(outputs)

    def embed(side: str, ids: Tensor) -> Tensor:
        table = w[f"{side}.embed_positions.weight"]
        return w[f"{side}.embed_tokens.weight"][ids] + table[2 : 2 + len(ids)]

    def iterate_layers(side: str):
        i = 0
        while f"{side}.convolutions.{i}.bias" in w:
            kernel = w[f"{side}.convolutions.{i}.weight_v"].size(0)
            projected = f"{side}.projections.{i}.bias" in w
            yield i, kernel, projected
            i += 1

    source = embed("encoder", src)
    x = linear("encoder.fc1", source)
    for i, k, projected in iterate_layers("encoder"):
        residual = linear(f"encoder.projections.{i}", x) if projected else x
        x = convolve(f"encoder.convolutions.{i}", x, (k - 1) // 2, k // 2)
        x = (x + residual) * SQRT_HALF
    keys = linear("encoder.fc2", x)
    values = (keys + source) * SQRT_HALF

    target = embed("decoder", tgt)
    x = linear("decoder.fc1", target)
    for i, k, projected in iterate_layers("decoder"):
        residual = linear(f"decoder.projections.{i}", x) if projected else x
        x = convolve(f"decoder.convolutions.{i}", x, k - 1, 0)
        attention = f"decoder.attention.{i}"
        if f"{attention}.in_projection.bias" in w:
            query = (linear(f"{attention}.in_projection", x) + target) * SQRT_HALF
            context = (query @ keys.T).softmax(1) @ values * math.sqrt(len(src))
            x = (linear(f"{attention}.out_projection", context) + x) * SQRT_HALF
        x = (x + residual) * SQRT_HALF
    return linear("decoder.fc3", linear("decoder.fc2", x))


def compute_cnn(weights: Tensors, src: Tensor, tgt: Tensor) -> Tensor:
    """Compute the logits of one sentence.

    Args:
        weights: weights by the names in the file
        src: source ids (S,), int64
        tgt: decoder input (T,), int64

    Returns:
        Logits (T, V), float64.
    """
    w = {name: weight.double() for name, weight in weights.items()}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def convolve(name: str, x: Tensor, left: int, right: int) -> Tensor:
        v, g, b = (w[f"{name}.conv.{part}_avg"] for part in "Vgb")
        padded = torch.cat([x.new_zeros(left, x.size(1)), x, x.new_zeros(right, x.size(1))])
        outputs = []
        for t in range(len(x)):
            window = padded[t : t + v.size(2)].T  # (in, kernel)
            norms = [v[o].square().sum().sqrt() for o in range(len(v))]
            sums = [(v[o, :, :, 0] * window).sum() * g[o] / norms[o] for o in range(len(v))]
            outputs.append(torch.stack(sums) + b)
        return apply_glu(outputs)

    def embed(side: str, ids: Tensor) -> Tensor:
        table = f"{side}.embeddings.make_embedding"
        x = w[f"{table}.emb_luts.0.weight"][ids]
        if f"{table}.pe.pe" in w:
            x = x * math.sqrt(x.size(1)) + w[f"{table}.pe.pe"][: len(ids), 0]
        return linear(f"{side}.linear", x)

    source = x = embed("encoder", src)
    i = 0
    while f"encoder.cnn.layers.{i}.conv.V_avg" in w:
        pad = w[f"encoder.cnn.layers.{i}.conv.V_avg"].size(2) // 2
        x = (x + convolve(f"encoder.cnn.layers.{i}", x, pad, pad)) * SQRT_HALF
        i += 1
    keys, values = x, (x + source) * SQRT_HALF

    target = x = embed("decoder", tgt)
    for j in range(i):
        kernel = w[f"decoder.conv_layers.{j}.conv.V_avg"].size(2)
        out = convolve(f"decoder.conv_layers.{j}", x, kernel - 1, 0)
        query = (linear(f"decoder.attn_layers.{j}.linear_in", out) + target) * SQRT_HALF
        context = (query @ keys.T).softmax(1) @ values
        x = (x + (context + out) * SQRT_HALF) * SQRT_HALF
    return linear("generator.0" if "generator.0.bias" in w else "generator", x)
