"""What holds for a model of any family: steps, sentences that stand alone, half precision.

Numbers of each family are held against formulas and other systems in the file of the family.
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


def logits_of(model) -> torch.Tensor:
    return model.forward(model.encode(SRC, SRC_LENGTHS), TGT)  # (B, T, V)


def test_cached_steps_equal_a_full_forward(model):
    full, state = logits_of(model), model.init_state(model.encode(SRC, SRC_LENGTHS))
    for t in range(TGT.size(1)):
        logits, attn = model.step(TGT[:, t], state)
        torch.testing.assert_close(logits, full[:, t], atol=ATOL, rtol=0)
        torch.testing.assert_close(attn.sum(1), torch.ones(3))


def test_a_sentence_alone_equals_itself_in_a_batch(model):
    together = logits_of(model)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        memory = model.encode(SRC[b : b + 1, :n], SRC_LENGTHS[b : b + 1])
        alone = model.forward(memory, TGT[b : b + 1])
        torch.testing.assert_close(together[b], alone[0], atol=ATOL, rtol=0)


def test_the_future_is_not_seen(model):
    memory, other = model.encode(SRC, SRC_LENGTHS), TGT.clone()
    other[:, 3:] = 20
    same = model.forward(memory, TGT)[:, :3] - model.forward(memory, other)[:, :3]
    assert same.abs().max() < ATOL


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_is_near(model, dtype):
    exact, model = logits_of(model), model.to(dtype)
    state = model.init_state(model.encode(SRC, SRC_LENGTHS))
    steps = torch.stack([model.step(tokens, state)[0] for tokens in TGT.unbind(1)], 1)
    for near in (logits_of(model), steps):
        assert near.dtype == dtype
        off = (near - exact).abs()
        if isinstance(model, Transformer):
            assert off.mean() < 0.1
        else:
            assert off.max() < 0.05 * (1 if isinstance(model, Rnn) else exact.abs().max())


SHARED = {
    "transformer": (tiny.make_model, "keys values mask"),
    "rnn": (partial(random_models.make_rnn, attention="mlp"), "bank keys mask"),
    "fconv": (partial(random_models.make_fconv, **FCONVS["plain"]), "bank values mask scale"),
}


@pytest.mark.parametrize("make, names", SHARED.values(), ids=SHARED)
def test_memory_is_shared_by_the_rows_of_a_sentence_and_not_copied(make, names):
    model = make()
    state = model.init_state(model.encode(SRC, SRC_LENGTHS))

    def memory() -> list[torch.Tensor]:
        found = [getattr(state.memory, name) for name in names.split()]
        return [x for part in found for x in ([part] if isinstance(part, torch.Tensor) else part)]

    places = [x.data_ptr() for x in memory()]
    state = select(state, 1, [[0] * 4, [1] * 4, [2] * 4])
    model.step(torch.full((12,), 2), state)
    state = select(state, 4, [[3, 2, 1, 0], [4, 4, 4, 4], [9, 8, 11, 10]])
    assert [x.data_ptr() for x in memory()] == places
    assert {x.size(0) for x in memory()} == {3}
    if hasattr(state, "feed"):  # each row has its own
        assert state.feed.size(0) == 12
    state = select(state, 4, [[0, 1, 2, 3], [8, 8, 9, 9]])
    assert {x.size(0) for x in memory()} == {2}
