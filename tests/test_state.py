"""`State.select`: tile, re-order and drop rows, then go on as if each row stood alone."""

from functools import partial
from random import Random

import pytest
import torch

from onmt_lite.models.cache import FIRST_CAPACITY
from onmt_lite.models.table import TableModel, TableSource
from tests.support import families, tiny
from tests.support.families import CNNS, COPYING_RNNS, FCONVS, RNNS
from tests.support.rows import ATOL, LENGTHS, Rows, select


def table_model() -> TableModel:
    """Logits that depend on the whole prefix: any wrong history shows."""
    random = Random(0)

    def row(n: int) -> list[float]:
        return [random.random() for _ in range(n)]

    words = [1, 2, 3]
    prefixes = ["", *map(str, words), *(f"{a} {b}" for a in words for b in words)]
    prefixes += [f"{a} {b} {c}" for a in words for b in words for c in words]
    return TableModel(
        [
            TableSource(
                n, {p: row(4) for p in prefixes}, row(4), {p: row(n) for p in prefixes}, row(n)
            )
            for n in LENGTHS
        ],
        vocab_size=4,
    )


MODELS = {
    "transformer": tiny.make_model,
    "table": table_model,
    **{f"rnn_{k}": partial(families.make_rnn, **v) for k, v in RNNS.items()},
    **{
        f"fconv_{name}": partial(families.make_fconv, **options) for name, options in FCONVS.items()
    },
    **{f"cnn_{k}": partial(families.make_cnn, **v) for k, v in CNNS.items()},
    **{f"copy_{k}": partial(families.make_copying_rnn, **v) for k, v in COPYING_RNNS.items()},
    "copy_transformer": families.make_copying_transformer,
    "ensemble": families.make_ensemble,
    "ensemble_of_probs": partial(families.make_ensemble, of_probs=True, weights=[1, 2, 3, 4, 5]),
}


@pytest.fixture(params=MODELS)
def rows(request) -> Rows:
    return Rows(MODELS[request.param]())


def test_tile_shuffle_and_drop_the_middle_sentence(rows):
    rows.select([[0, 0], [1, 1], [2, 2]])
    rows.step([2] * 6)
    rows.step([1, 2, 1, 3, 2, 3])
    rows.select([[1, 0], [2, 3], [5, 4]])
    rows.step([1, 2, 3, 1, 2, 3])
    rows.select([[1, 0], [5, 4]])
    rows.step([3, 1, 2, 2])
    rows.select([[3, 2]])
    rows.step([1, 3])


def test_children_of_one_parent_diverge(rows):
    rows.select([[0, 0], [1, 1], [2, 2]])
    rows.step([2] * 6)
    rows.step([1, 2, 1, 2, 1, 2])
    rows.select([[0, 0], [3, 3], [4, 5]])
    rows.step([1, 2, 3, 1, 2, 3])
    rows.step([3, 1, 2, 3, 1, 2])


def test_rows_that_stay_as_they_are(rows):
    rows.step([2, 2, 2])
    rows.select([[0], [1], [2]])
    rows.step([1, 2, 3])
    rows.select([[0], [1], [2]])
    rows.step([3, 2, 1])


def test_sentences_change_places_and_widths(rows):
    rows.step([2, 2, 2])
    rows.select([[2, 2, 2], [0, 0, 0]])  # more rows than there have ever been
    rows.step([1, 2, 3, 1, 2, 3])
    rows.select([[5, 3], [2, 0]])
    rows.step([1, 2, 3, 1])
    rows.select([[0, 0, 1, 1], [3, 3, 3, 2]])
    rows.step([1, 2, 3, 1, 2, 3, 1, 2])


@pytest.mark.parametrize("seed", range(4))
def test_random_walk_through_selections(rows, seed):
    random = Random(seed)
    width, n_sentences = 3, 3
    rows.select([[b] * width for b in range(n_sentences)])
    for _ in range(8):
        rows.step([random.randint(1, 3) for _ in rows.prefixes])
        kept = random.sample(
            range(n_sentences), random.choice([n_sentences, max(1, n_sentences - 1)])
        )
        kept.sort()
        rows.select([[b * width + random.randrange(width) for _ in range(width)] for b in kept])
        n_sentences = len(kept)


def test_the_cache_grows_past_its_first_capacity():
    model = tiny.make_model(max_positions=2 * FIRST_CAPACITY + 10)
    memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([3, 2]))
    state = select(model.init_state(memory), 1, [[0, 0], [1, 1]])
    random, prefixes = Random(0), [[], [], [], []]
    for _ in range(2 * FIRST_CAPACITY + 5):
        tokens = [random.randrange(40) for _ in prefixes]
        prefixes = [[*p, y] for p, y in zip(prefixes, tokens, strict=True)]
        logits, _ = model.step(torch.tensor(tokens), state)
        order = [random.sample([0, 1], 2), random.choice([[2, 2], [2, 3], [3, 2]])]
        before, prefixes = prefixes, [prefixes[r] for line in order for r in line]
        state = select(state, 2, order)
    for row, prefix in enumerate(before):
        again = model.encode(torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([3, 2]))
        full = model.forward(again, torch.tensor([prefix, prefix]))
        torch.testing.assert_close(logits[row], full[row // 2, -1], atol=ATOL, rtol=0)


def test_memory_is_shared_by_the_rows_of_a_sentence_and_not_copied():
    rows = Rows(tiny.make_model())
    places = [t.data_ptr() for pair in rows.state.cross for t in pair]
    rows.select([[0] * 4, [1] * 4, [2] * 4])
    rows.step([2] * 12)
    rows.select([[3, 2, 1, 0], [4, 4, 4, 4], [9, 8, 11, 10]])
    rows.step([3] * 12)
    assert [t.data_ptr() for pair in rows.state.cross for t in pair] == places
    assert {t.size(0) for pair in rows.state.cross for t in pair} == {3}
    rows.select([[0, 1, 2, 3], [8, 8, 9, 9]])
    assert {t.size(0) for pair in rows.state.cross for t in pair} == {2}
    assert rows.state.memory_mask.size(0) == 2
