"""How the work of a search grows, counted: the numbers that operations write, not seconds.

Theory says of which terms the work consists (a constant, the size, its square); their weights are
fitted to all sizes at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_lite.models.base import Selection
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits

BOS, EOS = 2, 3
ALLOWED = 0.15

Term = Callable[[float], float]
ONE, SIZE, SQUARE = (lambda x: 1.0), (lambda x: x), (lambda x: x * x)


def make_model(vocab_size: int) -> Any:
    torch.manual_seed(1)
    sizes = dict(d_model=128, heads=4, d_ff=512, enc_layers=2, dec_layers=2, max_positions=600)
    cfg = TransformerConfig(vocab_size, vocab_size, **sizes)
    return Transformer(cfg).eval().requires_grad_(False)


def search(model: Any, n: int, source: int, steps: int, beam: int) -> None:
    """Translate n sentences of `source` tokens in `steps` steps each, which nothing cuts short."""
    preset = PRESETS["opennmt"]
    spec = SearchSpec(
        preset.policy, next(iter(preset.stop_rules.values())), beam, bos_id=BOS, eos_id=EOS
    )
    words = torch.randint(4, model.vocab_size, (n, source)).tolist()
    sentences = [Sentence(ids, SentenceLimits(steps, steps + 1)) for ids in words]
    for _ in decode(model, sentences, spec):
        pass


@torch.inference_mode()
def greedy(model: Any, n: int, source: int, steps: int) -> None:
    """The best token at each step, with no search around it: what a beam of one is held against."""
    src = torch.randint(4, model.vocab_size, (n, source))
    state = model.init_state(model.encode(src, torch.full((n,), source)))
    state = state.select(Selection(torch.arange(n)[:, None]))
    tokens = torch.full((n,), BOS)
    for _ in range(steps):
        logits, _ = model.step(tokens, state)
        logits[:, EOS] = -torch.inf
        scores = logits.log_softmax(-1)
        tokens = scores.argmax(-1)
        scores.gather(1, tokens[:, None]).tolist()


def fitted(terms: Sequence[Term], times: dict[int, float]) -> dict[int, float]:
    """Predicted times: weights of the terms, none below 0, with the least sum of squares of what
    is off, in shares of each time."""
    left = list(terms)
    while True:
        shares = torch.tensor([[f(x) / t for f in left] for x, t in times.items()]).double()
        scale = shares.amax(0)
        weights = torch.linalg.lstsq(shares / scale, torch.ones(len(times), 1).double()).solution
        weights = weights[:, 0] / scale
        if (weights >= 0).all():
            return {x: sum(float(w) * f(x) for w, f in zip(weights, left)) for x in times}
        del left[int((weights * scale).argmin())]


class Written(TorchDispatchMode):
    """Counts operations and the numbers that they write; views write none."""

    def __init__(self):
        super().__init__()
        self.n_operations = self.n_numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = out if isinstance(out, (list, tuple)) else [out]
            self.n_operations += 1
            self.n_numbers += sum(x.numel() for x in tensors if isinstance(x, torch.Tensor))
        return out


def written(work, *args):
    with Written() as counted:
        work(*args)
    return counted


MODEL = make_model(1000)


@pytest.mark.parametrize(
    ("place", "values", "terms"),
    [
        pytest.param(0, (4, 8, 16, 32), (ONE, SIZE), id="sentences"),
        pytest.param(1, (16, 32, 64, 128), (ONE, SIZE, SQUARE), id="source tokens"),
        pytest.param(2, (8, 16, 32, 64), (ONE, SIZE, SQUARE), id="steps"),
        pytest.param(3, (2, 4, 8, 16), (ONE, SIZE), id="beam"),
    ],
)
def test_work_grows_by_its_law(place, values, terms):
    """Linear, but for the weights of attention, which go with the square of lengths."""
    sizes = [2, 8, 8, 4]
    counts = {}
    for value in values:
        sizes[place] = value
        counts[value] = written(search, MODEL, *sizes).n_numbers
    for value, predicted in fitted(terms, counts).items():
        assert counts[value] == pytest.approx(predicted, rel=ALLOWED)


def test_a_larger_vocabulary_costs_its_logits():
    values = (4096, 16384, 65536)
    counts = {v: written(search, make_model(v), 4, 8, 8, 4).n_numbers for v in values}
    for value, predicted in fitted((ONE, SIZE), counts).items():
        assert counts[value] == pytest.approx(predicted, rel=ALLOWED)


@pytest.mark.parametrize(("place", "values"), [(0, (1, 4, 32)), (1, (4, 32, 128)), (3, (2, 4, 16))])
def test_the_number_of_operations_does_not_grow(place, values):
    """Hardly with the sentences, which the host reads one by one; not with length or beam."""
    sizes, found = [4, 8, 8, 4], []
    for value in values:
        sizes[place] = value
        found.append(written(search, MODEL, *sizes).n_operations)
    assert max(found) <= 1.15 * min(found)


def test_one_beam_makes_the_steps_of_greedy_search(monkeypatch):
    """As many steps of the model, of as many rows, and one encoding."""
    calls = []
    for name in ("encode", "step"):
        function = getattr(MODEL, name)

        def counted(*args, name=name, function=function):
            calls.append((name, args[0].size(0)))
            return function(*args)

        monkeypatch.setattr(MODEL, name, counted)
    greedy(MODEL, 4, 8, 8)
    of_greedy = calls[:]
    del calls[:]
    search(MODEL, 4, 8, 8, 1)
    assert calls == of_greedy == [("encode", 4), *[("step", 4)] * 8]
