"""Translators that share a checkpoint: each has weights on its device and in its dtype."""

import copy

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.runtime import move_to
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support import random_models, tiny

LINES = ["w9 w5 w30", "w4 w4 w39 w12 w8"]
MODELS = {
    "transformer": tiny.make_model,
    "tied": lambda: tiny.make_model(share_embeddings=True, tie_output=True),
    "rnn": random_models.make_rnn,
    "gru_both_ways": lambda: random_models.make_rnn(cell="GRU", brnn=True, bridge=True),
    "cnn": random_models.make_cnn,
    "fconv": lambda: random_models.make_fconv(**random_models.FCONVS["plain"]),
    "copying": lambda: random_models.make_copying_rnn("general"),
    "ensemble": random_models.make_ensemble,
}


def make_checkpoint(model) -> Checkpoint:
    words = [f"w{i}" for i in range(random_models.VOCAB_SIZE)]
    vocab = Vocab(words, unk_id=0, pad_id=1, bos_id=2, eos_id=3)
    return Checkpoint(model, vocab, vocab, {"space": SpaceTokenizer()}, start_id=2)


def make_options(precision: str) -> TranslateOptions:
    return TranslateOptions.of(device="cpu", precision=precision, max_length=6, n_best=2)


@pytest.mark.parametrize("name", MODELS)
def test_precision_of_second_translator_does_not_change_first(name):
    checkpoint = make_checkpoint(MODELS[name]())
    weights = copy.deepcopy(checkpoint.model.state_dict())
    expected = Translator(make_checkpoint(MODELS[name]()), make_options("bf16")).translate(LINES)
    first = Translator(checkpoint, make_options("fp32"))
    before = first.translate(LINES)
    second = Translator(checkpoint, make_options("bf16"))
    assert {p.dtype for p in second.model.parameters()} == {torch.bfloat16}
    for _ in range(2):
        assert second.translate(LINES) == expected
        assert first.translate(LINES) == before
    after = checkpoint.model.state_dict()
    assert all(torch.equal(after[key], weight) for key, weight in weights.items())
    assert {key: w.dtype for key, w in after.items()} == {
        key: w.dtype for key, w in weights.items()
    }


def test_weights_with_same_dtype_are_shared():
    checkpoint = make_checkpoint(tiny.make_model())
    translators = [Translator(checkpoint, make_options("fp32")) for _ in range(2)]
    pointers = [w.data_ptr() for w in checkpoint.model.parameters()]
    for translator in translators:
        assert [w.data_ptr() for w in translator.model.parameters()] == pointers


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_from_pretrained_does_not_copy_weights(tiny_checkpoint, monkeypatch, precision):
    monkeypatch.setattr(copy, "deepcopy", lambda *args: pytest.fail("a copy"))
    translator = Translator.from_pretrained(tiny_checkpoint, device="cpu", precision=precision)
    assert len({p.dtype for p in translator.model.parameters()}) == 1


def test_move_to_other_device_copies():
    model = tiny.make_model()
    moved = move_to(model, torch.device("meta"), "fp32")
    assert {p.device.type for p in moved.parameters()} == {"meta"}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_move_to_keeps_tied_weights():
    model = tiny.make_model(share_embeddings=True, tie_output=True)
    halved = move_to(model, torch.device("cpu"), "bf16")
    assert halved.output.weight is halved.src_embedding.token.weight


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_load_checkpoint_out_of_memory_error(tiny_checkpoint, monkeypatch, error):
    def full(path):
        raise error

    monkeypatch.setattr(native, "load", full)
    with pytest.raises(MemoryExhausted, match="out of memory while loading .*; close"):
        load_checkpoint(tiny_checkpoint)


def test_load_checkpoint_other_errors_propagate(tiny_checkpoint, monkeypatch):
    def broken(path):
        raise RuntimeError("a bug")

    monkeypatch.setattr(native, "load", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        load_checkpoint(tiny_checkpoint)


@pytest.mark.parametrize("in_place", [False, True])
def test_move_to_out_of_memory_error(monkeypatch, in_place):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(MemoryExhausted, match="out of memory: the model does not fit on cpu; use"):
        move_to(tiny.make_model(), torch.device("cpu"), "bf16", in_place)
