"""Properties of all architectures: cached steps, batch independence, half precision.

The tests of each architecture compare its outputs with formulas and with the original systems.
"""

from functools import partial

import pytest
import torch

from onmt_lite.models.rnn import Rnn
from onmt_lite.models.transformer import Transformer
from tests.support import random_models, tiny
from tests.support.model_variants import TRANSFORMERS
from tests.support.random_models import CNNS, FCONVS, RNNS
from tests.support.state_rows import select

ATOL = 1e-5
MODELS = {
    **{
        f"transformer_{name}": partial(tiny.make_model, **options)
        for name, options in TRANSFORMERS.items()
    },
    **{f"rnn_{name}": partial(random_models.make_rnn, **options) for name, options in RNNS.items()},
    **{f"fconv_{name}": partial(random_models.make_fconv, **o) for name, o in FCONVS.items()},
    **{f"cnn_{name}": partial(random_models.make_cnn, **options) for name, options in CNNS.items()},
}
SRC = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 3, 1, 1], [4, 1, 1, 1, 1]])  # (B, S)
SRC_LENGTHS = torch.tensor([5, 3, 1])
TGT = torch.tensor([[2, 11, 12, 11, 13, 4], [2, 7, 7, 8, 9, 5], [2, 3, 3, 6, 4, 9]])  # (B, T)


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def compute_logits(model) -> torch.Tensor:
    return model.forward(model.encode(SRC, SRC_LENGTHS), TGT)  # (B, T, V)


def test_step_equals_forward(model):
    full, state = compute_logits(model), model.init_state(model.encode(SRC, SRC_LENGTHS))
    for t in range(TGT.size(1)):
        logits, attn = model.step(TGT[:, t], state)
        torch.testing.assert_close(logits, full[:, t], atol=ATOL, rtol=0)
        torch.testing.assert_close(attn.sum(1), torch.ones(3))


def test_forward_does_not_depend_on_the_batch(model):
    batched = compute_logits(model)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        memory = model.encode(SRC[b : b + 1, :n], SRC_LENGTHS[b : b + 1])
        single = model.forward(memory, TGT[b : b + 1])
        torch.testing.assert_close(batched[b], single[0], atol=ATOL, rtol=0)


def test_forward_does_not_see_future_tokens(model):
    memory, changed = model.encode(SRC, SRC_LENGTHS), TGT.clone()
    changed[:, 3:] = 20
    same = model.forward(memory, TGT)[:, :3] - model.forward(memory, changed)[:, :3]
    assert same.abs().max() < ATOL


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_float32(model, dtype):
    exact, model = compute_logits(model), model.to(dtype)
    state = model.init_state(model.encode(SRC, SRC_LENGTHS))
    steps = torch.stack([model.step(tokens, state)[0] for tokens in TGT.unbind(1)], 1)
    for approximate in (compute_logits(model), steps):
        assert approximate.dtype == dtype
        error = (approximate - exact).abs()
        if isinstance(model, Transformer):
            assert error.mean() < 0.1
        else:
            assert error.max() < 0.05 * (1 if isinstance(model, Rnn) else exact.abs().max())


SHARED = {
    "transformer": (tiny.make_model, "keys values mask"),
    "rnn": (partial(random_models.make_rnn, attention="mlp"), "bank keys mask"),
    "fconv": (partial(random_models.make_fconv, **FCONVS["plain"]), "bank values mask scale"),
}


@pytest.mark.parametrize("make, names", SHARED.values(), ids=SHARED)
def test_memory_is_shared_by_the_rows_of_a_sentence(make, names):
    model = make()
    state = model.init_state(model.encode(SRC, SRC_LENGTHS))

    def list_tensors() -> list[torch.Tensor]:
        fields = [getattr(state.memory, name) for name in names.split()]
        return [x for f in fields for x in ([f] if isinstance(f, torch.Tensor) else f)]

    addresses = [x.data_ptr() for x in list_tensors()]
    state = select(state, 1, [[0] * 4, [1] * 4, [2] * 4])
    model.step(torch.full((12,), 2), state)
    state = select(state, 4, [[3, 2, 1, 0], [4, 4, 4, 4], [9, 8, 11, 10]])
    assert [x.data_ptr() for x in list_tensors()] == addresses
    assert {x.size(0) for x in list_tensors()} == {3}
    if hasattr(state, "feed"):  # one entry per row
        assert state.feed.size(0) == 12
    state = select(state, 4, [[0, 1, 2, 3], [8, 8, 9, 9]])
    assert {x.size(0) for x in list_tensors()} == {2}
