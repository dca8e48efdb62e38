"""Translators on one checkpoint: each has weights of its own device and number type."""

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


def checkpoint_of(model) -> Checkpoint:
    words = [f"w{i}" for i in range(random_models.VOCAB_SIZE)]
    vocab = Vocab(words, unk_id=0, pad_id=1, bos_id=2, eos_id=3)
    return Checkpoint(model, vocab, vocab, {"space": SpaceTokenizer()}, start_id=2)


def options(precision: str) -> TranslateOptions:
    return TranslateOptions.of(device="cpu", precision=precision, max_length=6, n_best=2)


@pytest.mark.parametrize("name", MODELS)
def test_a_second_precision_leaves_the_first_one_alone(name):
    checkpoint = checkpoint_of(MODELS[name]())
    weights = copy.deepcopy(checkpoint.model.state_dict())
    alone = Translator(checkpoint_of(MODELS[name]()), options("bf16")).translate(LINES)
    first = Translator(checkpoint, options("fp32"))
    before = first.translate(LINES)
    second = Translator(checkpoint, options("bf16"))
    assert {p.dtype for p in second.model.parameters()} == {torch.bfloat16}
    for _ in range(2):
        assert second.translate(LINES) == alone
        assert first.translate(LINES) == before
    after = checkpoint.model.state_dict()
    assert all(torch.equal(after[key], weight) for key, weight in weights.items())
    assert {key: w.dtype for key, w in after.items()} == {
        key: w.dtype for key, w in weights.items()
    }


def test_weights_that_fit_are_there_once():
    checkpoint = checkpoint_of(tiny.make_model())
    translators = [Translator(checkpoint, options("fp32")) for _ in range(2)]
    own = [w.data_ptr() for w in checkpoint.model.parameters()]
    for translator in translators:
        assert [w.data_ptr() for w in translator.model.parameters()] == own


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_that_is_loaded_for_one_translator_is_not_copied(
    tiny_checkpoint, monkeypatch, precision
):
    monkeypatch.setattr(copy, "deepcopy", lambda *args: pytest.fail("a copy"))
    translator = Translator.from_pretrained(tiny_checkpoint, device="cpu", precision=precision)
    assert len({p.dtype for p in translator.model.parameters()}) == 1


def test_a_copy_on_another_device():
    model = tiny.make_model()
    moved = move_to(model, torch.device("meta"), "fp32")
    assert {p.device.type for p in moved.parameters()} == {"meta"}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_a_copy_shares_what_its_original_shares():
    model = tiny.make_model(share_embeddings=True, tie_output=True)
    halved = move_to(model, torch.device("cpu"), "bf16")
    assert halved.output.weight is halved.src_embedding.token.weight


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_a_file_that_does_not_fit(tiny_checkpoint, monkeypatch, error):
    def full(path):
        raise error

    monkeypatch.setattr(native, "load", full)
    with pytest.raises(MemoryExhausted, match="out of memory while .* is read; close"):
        load_checkpoint(tiny_checkpoint)


def test_other_errors_of_a_reader_stay_themselves(tiny_checkpoint, monkeypatch):
    def broken(path):
        raise RuntimeError("a bug")

    monkeypatch.setattr(native, "load", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        load_checkpoint(tiny_checkpoint)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_does_not_fit(monkeypatch, in_place):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(MemoryExhausted, match="out of memory: the model does not fit on cpu; give"):
        move_to(tiny.make_model(), torch.device("cpu"), "bf16", in_place)
