"""How the work of a search grows, counted: the numbers that operations write, not seconds.

`python -m tests.perf.scaling` holds processor time against the same laws.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.perf.scaling import ALLOWED, ONE, SIZE, SQUARE, fitted, greedy, make_model, search


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


MODEL = make_model("small", 1000)


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
    counts = {v: written(search, make_model("small", v), 4, 8, 8, 4).n_numbers for v in values}
    for value, predicted in fitted((ONE, SIZE), counts).items():
        assert counts[value] == pytest.approx(predicted, rel=ALLOWED)


@pytest.mark.parametrize(("place", "values"), [(0, (1, 4, 32)), (1, (4, 32, 128)), (3, (2, 4, 16))])
def test_the_number_of_operations_does_not_grow(place, values):
    """Not with the sentences, their length or the beam."""
    sizes, found = [4, 8, 8, 4], []
    for value in values:
        sizes[place] = value
        found.append(written(search, MODEL, *sizes).n_operations)
    assert max(found) <= 1.1 * min(found)


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
