"""`State.select`: tile, re-order and drop rows, then go on as if each row stood alone."""

from random import Random

import pytest
import torch

from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.cache import FIRST_CAPACITY
from onmt_lite.models.table import TableModel, TableSource
from tests.support import tiny

ATOL = 1e-5
LENGTHS = [5, 2, 4]


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


class Rows:
    """A model's state beside the plain lists that it must agree with."""

    def __init__(self, model: EncoderDecoder):
        self.model = model
        self.is_table = isinstance(model, TableModel)
        src = torch.full((3, max(LENGTHS)), tiny.PAD)
        for b, n in enumerate(LENGTHS):
            src[b, :n] = b if self.is_table else torch.arange(n) * (b + 3) % 30 + 4
        self.src = src
        self.state = model.init_state(model.encode(src, torch.tensor(LENGTHS)))
        self.sentences = [0, 1, 2]  # of each row
        self.prefixes: list[list[int]] = [[], [], []]  # decoder input of each row

    def select(self, rows: list[list[int]]) -> None:
        self.state = self.state.select(torch.tensor(rows))
        flat = [r for line in rows for r in line]
        self.sentences = [self.sentences[r] for r in flat]
        self.prefixes = [list(self.prefixes[r]) for r in flat]

    def step(self, tokens: list[int]) -> None:
        """One step for all rows, and the same from scratch for each."""
        for prefix, token in zip(self.prefixes, tokens, strict=True):
            prefix.append(token)
        logits, attn = self.model.step(torch.tensor(tokens), self.state)
        for r, (b, prefix) in enumerate(zip(self.sentences, self.prefixes, strict=True)):
            n = LENGTHS[b]
            alone_logits, alone_attn = self.replay(self.src[b : b + 1, :n], prefix)
            torch.testing.assert_close(logits[r], alone_logits, atol=ATOL, rtol=0)
            torch.testing.assert_close(attn[r, :n], alone_attn, atol=ATOL, rtol=0)
            assert attn[r, n:].abs().sum() == 0

    def replay(self, src: torch.Tensor, prefix: list[int]):
        memory = self.model.encode(src, torch.tensor([src.size(1)]))
        state = self.model.init_state(memory)
        for token in prefix:
            logits, attn = self.model.step(torch.tensor([token]), state)
        return logits[0], attn[0]


@pytest.fixture(params=["transformer", "table"])
def rows(request) -> Rows:
    return Rows(tiny.make_model() if request.param == "transformer" else table_model())


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
    state = model.init_state(memory).select(torch.tensor([[0, 0], [1, 1]]))
    random, prefixes = Random(0), [[], [], [], []]
    for _ in range(2 * FIRST_CAPACITY + 5):
        tokens = [random.randrange(40) for _ in prefixes]
        prefixes = [[*p, y] for p, y in zip(prefixes, tokens, strict=True)]
        logits, _ = model.step(torch.tensor(tokens), state)
        order = [random.sample([0, 1], 2), random.choice([[2, 2], [2, 3], [3, 2]])]
        before, prefixes = prefixes, [prefixes[r] for line in order for r in line]
        state = state.select(torch.tensor(order))
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
