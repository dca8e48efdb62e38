"""Weight names: the tables of weight_names.yaml in both directions."""

from pathlib import Path

import pytest
import torch

from onmt_lite.checkpoints.config_reader import load_yaml
from onmt_lite.checkpoints.weight_names import load_weight_names, translate_name
from onmt_lite.checkpoints.weights import Weights, dequantize
from onmt_lite.checkpoints.writing import rename_weights
from onmt_lite.errors import CheckpointError

MODELS = [name for name in load_yaml("weight_names.yaml") if name != "ctranslate2_switches"]
D = 4
QKV = [f"encoder.layers.1.self_attn.{x}_proj.weight" for x in "qkv"]


def make_weights(**tensors: torch.Tensor) -> Weights:
    return Weights(tensors, Path("x.pt"))


@pytest.mark.parametrize(
    ("model", "external", "internal"),
    [
        ("fairseq", "encoder.layers.3.fc1.bias", "encoder.3.ffn.up.bias"),
        ("fairseq", "encoder.layers.0.layer_norms.1.weight", "encoder.0.ffn_residual.norm.weight"),
        ("fairseq", "decoder.embed_out", "output.weight"),
        ("t5", "decoder.block.11.layer.2.DenseReluDense.wo.weight", "decoder.11.ffn.down.weight"),
        ("opennmt_rnn", "decoder.rnn.bias_hh_l1", "decoder.cells.1.bias_hh"),
        ("opennmt_rnn", "encoder.rnn.weight_ih_l0_reverse", "encoder.rnn.weight_ih_l0_reverse"),
        ("ctranslate2", "encoder.layer_2.ffn.linear_0_noact.weight", "encoder.2.ffn.gate.weight"),
    ],
)  # fmt: skip
def test_translate_name_to_ours(model, external, internal):
    assert translate_name(external, load_weight_names(model).internal)[0] == internal


@pytest.mark.parametrize(
    "name",
    ["encoder.layers.3.fc1.lora_A", "encoder.layers.fc1.bias", "encoder.layers.x.fc1.bias", "x"],
)
def test_translate_name_not_in_table_empty(name):
    assert translate_name(name, load_weight_names("fairseq").internal) == []


@pytest.mark.parametrize("model", MODELS)
def test_external_names_are_the_inverse_of_internal_names(model):
    names = load_weight_names(model)
    for internal, stack in names.external.items():
        for external in stack:
            assert names.internal[external] == [internal, *stack]
    assert len({name for stack in names.external.values() for name in stack}) == sum(
        map(len, names.external.values())
    )


def test_rename_and_rename_weights_round_trip():
    matrices = [torch.randn(D, D) for _ in QKV]
    weights = make_weights(**dict(zip(QKV, matrices)))
    weights.rename("fairseq")
    assert torch.equal(weights.tensors["encoder.1.self_attn.qkv.weight"], torch.cat(matrices))
    written = rename_weights(weights.tensors, "fairseq")
    assert list(written) == QKV and all(map(torch.equal, written.values(), matrices))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop(QKV[1]), f"the weights lack {QKV[1]}"),
        (lambda w: w.update({QKV[2]: torch.ones(D, D + 1)}), "differ in width"),
        (lambda w: w.update({QKV[0]: torch.ones(D, D).char()}), "integers"),
        (lambda w: w.update({"encoder.1.self_attn.qkv.weight": torch.ones(1)}), "another name"),
    ],
)
def test_rename_incomplete_stack_refused(change, words):
    weights = make_weights(**{name: torch.ones(D, D) for name in QKV})
    change(weights.tensors)
    with pytest.raises(CheckpointError, match=words):
        weights.rename("fairseq")


@pytest.mark.parametrize(
    ("divide", "expected"), [(False, [[2.0], [12.0]]), (True, [[0.5], [0.75]])]
)
def test_dequantize_scales_rows(divide, expected):
    tensors = {"w": torch.tensor([[1], [3]]).char(), "w.scale": torch.tensor([2.0, 4.0])}
    assert dequantize(tensors, ".scale", divide)["w"].tolist() == expected
