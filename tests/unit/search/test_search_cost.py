"""Growth of the search cost, measured in numbers written by operations instead of seconds.

The terms are known (constant, linear, quadratic); their weights are fitted to all sizes at once.
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
TOLERANCE = 0.15

Term = Callable[[float], float]
ONE, SIZE, SQUARE = (lambda x: 1.0), (lambda x: x), (lambda x: x * x)


def make_model(vocab_size: int) -> Any:
    torch.manual_seed(1)
    sizes = dict(d_model=128, heads=4, d_ff=512, enc_layers=2, dec_layers=2, max_positions=600)
    cfg = TransformerConfig(vocab_size, vocab_size, **sizes)
    return Transformer(cfg).eval().requires_grad_(False)


def search(model: Any, n: int, source: int, steps: int, beam: int) -> None:
    """Search n sentences of `source` tokens for exactly `steps` steps.

    Args:
        model: the model.
        n: number of sentences.
        source: source tokens per sentence.
        steps: decoding steps.
        beam: the beam size.
    """
    preset = PRESETS["opennmt"]
    spec = SearchSpec(
        preset.policy, next(iter(preset.stop_rules.values())), beam, bos_id=BOS, eos_id=EOS
    )
    words = torch.randint(4, model.vocab_size, (n, source)).tolist()
    sentences = [Sentence(ids, SentenceLimits(steps, steps + 1)) for ids in words]
    for _ in decode(model, sentences, spec):
        pass


@torch.inference_mode()
def decode_greedily(model: Any, n: int, source: int, steps: int) -> None:
    """Take the best token at each step, without a search: the reference for beam size 1.

    Args:
        model: the model.
        n: number of sentences.
        source: source tokens per sentence.
        steps: decoding steps.
    """
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


def fit(terms: Sequence[Term], times: dict[int, float]) -> dict[int, float]:
    """Return predicted counts by a least-squares fit of relative errors with weights >= 0."""
    remaining = list(terms)
    while True:
        shares = torch.tensor([[f(x) / t for f in remaining] for x, t in times.items()]).double()
        scale = shares.amax(0)
        weights = torch.linalg.lstsq(shares / scale, torch.ones(len(times), 1).double()).solution
        weights = weights[:, 0] / scale
        if (weights >= 0).all():
            return {x: sum(float(w) * f(x) for w, f in zip(weights, remaining)) for x in times}
        del remaining[int((weights * scale).argmin())]


class WriteCounter(TorchDispatchMode):
    """Counts operations and the numbers that they write; views write nothing."""

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


def count_writes(function, *args):
    with WriteCounter() as counter:
        function(*args)
    return counter


MODEL = make_model(1000)


@pytest.mark.parametrize(
    ("argument", "values", "terms"),
    [
        pytest.param(0, (4, 8, 16, 32), (ONE, SIZE), id="sentences"),
        pytest.param(1, (16, 32, 64, 128), (ONE, SIZE, SQUARE), id="source tokens"),
        pytest.param(2, (8, 16, 32, 64), (ONE, SIZE, SQUARE), id="steps"),
        pytest.param(3, (2, 4, 8, 16), (ONE, SIZE), id="beam"),
    ],
)
def test_search_cost_is_linear_except_for_attention(argument, values, terms):
    """Attention weights are quadratic in the lengths."""
    sizes = [2, 8, 8, 4]
    counts = {}
    for value in values:
        sizes[argument] = value
        counts[value] = count_writes(search, MODEL, *sizes).n_numbers
    for value, predicted in fit(terms, counts).items():
        assert counts[value] == pytest.approx(predicted, rel=TOLERANCE)


def test_search_cost_is_linear_in_vocabulary():
    values = (4096, 16384, 65536)
    counts = {v: count_writes(search, make_model(v), 4, 8, 8, 4).n_numbers for v in values}
    for value, predicted in fit((ONE, SIZE), counts).items():
        assert counts[value] == pytest.approx(predicted, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("argument", "values"), [(0, (1, 4, 32)), (1, (4, 32, 128)), (3, (2, 4, 16))]
)
def test_number_of_operations_is_almost_constant(argument, values):
    """It grows slightly with sentences, because the host reads them one by one."""
    sizes, found = [4, 8, 8, 4], []
    for value in values:
        sizes[argument] = value
        found.append(count_writes(search, MODEL, *sizes).n_operations)
    assert max(found) <= 1.15 * min(found)


def test_beam_size_1_calls_model_like_greedy_search(monkeypatch):
    """The same steps with the same number of rows, and one call of the encoder."""
    calls = []
    for name in ("encode", "step"):
        function = getattr(MODEL, name)

        def record(*args, name=name, function=function):
            calls.append((name, args[0].size(0)))
            return function(*args)

        monkeypatch.setattr(MODEL, name, record)
    decode_greedily(MODEL, 4, 8, 8)
    greedy_calls = calls[:]
    del calls[:]
    search(MODEL, 4, 8, 8, 1)
    assert calls == greedy_calls == [("encode", 4), *[("step", 4)] * 8]
