"""`State.select`: tile, reorder, drop and add rows; later steps equal a separate forward pass."""

from random import Random

import pytest
import torch

from onmt_lite.models import cache
from onmt_lite.models.cache import FIRST_CAPACITY
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import assign_kernels
from onmt_lite.models.table_model import TableModel, TableSource
from tests.support import tiny
from tests.support.model_variants import MODELS
from tests.support.state_rows import ATOL, Rows, select
from tests.support.sweeps import mark_sweeps


@pytest.mark.parametrize("seed", mark_sweeps(range(20), range(4)))
def test_table_model_looks_up_prefix_then_length_then_default(seed):
    """Keys that are not prefixes have no effect."""
    random, n_tokens = Random(seed), 3

    def make_table(n: int) -> dict[str, list[float]]:
        prefixes = [random.choices(range(n_tokens), k=random.randrange(5)) for _ in range(6)]
        keys = [" ".join(map(str, prefix)) for prefix in prefixes]
        keys += [f"*{random.randrange(6)}" for _ in range(3)]
        keys += ["01", "0  1", " 0", "x", "*01", "*", "*x", "7", "0 7", "-1", "١", "*999999"]
        return {key: [random.random() for _ in range(n)] for key in keys}

    def look_up(rows: dict[str, list[float]], default: list[float], prefix: list[int]):
        for key in (" ".join(map(str, prefix)), f"*{len(prefix)}"):
            if key in rows:
                return rows[key]
        return default

    sources = [TableSource(n, make_table(3), [0.0] * 3, make_table(n), [0.5] * n) for n in (2, 4)]
    model, lengths = TableModel(sources, n_tokens), torch.tensor([2, 4])
    for _ in range(20):
        state = model.init_state(model.encode(torch.tensor([[0] * 4, [1] * 4]), lengths))
        tokens = [[-1, -1], *(random.choices(range(n_tokens), k=2) for _ in range(8))]
        for t, newest in enumerate(tokens):
            logits, attn = model.step(torch.tensor(newest), state)
            for b, source in enumerate(sources):
                prefix = [both[b] for both in tokens[1 : t + 1]]
                expected = torch.tensor(look_up(source.rows, source.default, prefix))
                assert torch.equal(logits[b], expected)
                expected = torch.tensor(look_up(source.attn, source.attn_default, prefix))
                assert torch.equal(attn[b, : source.length], expected)
                assert attn[b, source.length :].sum() == 0


GPU_MODELS = ["transformer", "transformer_shaw", "transformer_rotary", "copy_transformer"]
# One model per type of state and of self-attention
DAILY = [
    *("transformer", "transformer_shaw_values", "transformer_buckets", "transformer_rotary"),
    *("transformer_alibi", "transformer_average_ffn", "transformer_aligned", "table"),
    *("rnn_lstm", "rnn_brnn_gru", "rnn_gate_both", "rnn_no_attention", "fconv_uneven"),
    *("cnn_plain", "copy_general", "copy_mlp", "copy_transformer", "ensemble_of_probs"),
]
ALL = [*MODELS, *(f"{name} on a GPU" for name in GPU_MODELS), "transformer with kernels"]


@pytest.fixture(params=mark_sweeps(ALL, [*DAILY, "transformer_shaw on a GPU", *ALL[-2:]]))
def rows(request, monkeypatch) -> Rows:
    """A small capacity for keys and values, so that they are often compacted."""
    monkeypatch.setattr(cache, "FIRST_CAPACITY", 2)
    name, *condition = request.param.split(" ")
    model = MODELS[name]()
    if condition[-1:] == ["GPU"]:
        monkeypatch.setattr(cache, "SYNC_FREE_DEVICES", ())
    elif condition:
        assign_fp32_kernels(model)
    return Rows(model)


def assign_fp32_kernels(model: torch.nn.Module) -> None:
    if kernels.get_library() is None:
        pytest.skip("this machine has no kernels")
    assign_kernels(model, "fp32")


def test_select_tiles_reorders_and_drops_a_sentence(rows):
    rows.select([[0, 0], [1, 1], [2, 2]])
    rows.step([2] * 6)
    rows.step([1, 2, 1, 3, 2, 3])
    rows.select([[1, 0], [2, 3], [5, 4]])
    rows.step([1, 2, 3, 1, 2, 3])
    rows.select([[1, 0], [5, 4]])
    rows.step([3, 1, 2, 2])
    rows.select([[3, 2]])
    rows.step([1, 3])


def test_select_duplicated_rows_diverge(rows):
    rows.select([[0, 0], [1, 1], [2, 2]])
    rows.step([2] * 6)
    rows.step([1, 2, 1, 2, 1, 2])
    rows.select([[0, 0], [3, 3], [4, 5]])
    rows.step([1, 2, 3, 1, 2, 3])
    rows.step([3, 1, 2, 3, 1, 2])


def test_select_moves_sentences_and_changes_beam_size(rows):
    rows.step([2, 2, 2])
    rows.select([[0], [1], [2]])  # unchanged
    rows.step([1, 2, 3])
    rows.select([[2, 2, 2], [0, 0, 0]])  # more rows than ever before
    rows.step([1, 2, 3, 1, 2, 3])
    rows.select([[5, 3], [2, 0]])
    rows.step([1, 2, 3, 1])
    rows.select([[0, 0, 1, 1], [3, 3, 3, 2]])
    rows.step([1, 2, 3, 1, 2, 3, 1, 2])


def test_select_adds_sentences_at_different_steps(rows):
    rows.select([[0, 0], [1, 1], [2, 2]])
    rows.step([2] * 6)
    rows.step([1, 2, 1, 3, 2, 3])
    rows.select([[1, 0], [6, 6], [5, 5]], joining=[3])  # in the slot of the second
    rows.step([1, 2, 2, 2, 3, 1])
    rows.select([[0, 0], [3, 2], [4, 5], [6, 6], [7, 7]], joining=[4, 5])  # more than ever before
    rows.step([1, 2, 3, 1, 2, 3, 2, 2, 2, 2])
    rows.select([[8, 9], [10, 10], [2, 3]], joining=[1])  # the older sentences have finished
    rows.step([3, 1, 2, 2, 3, 2])
    rows.step([1, 1, 2, 3, 3, 2])


def test_select_adds_sentences_with_beam_size_one(rows):
    rows.step([2, 2, 2])
    rows.step([1, 2, 3])
    rows.select([[0], [3], [2]], joining=[3])
    rows.step([3, 2, 1])
    rows.select([[3], [4], [1]], joining=[5, 4])
    rows.step([2, 2, 3])
    rows.select([[0], [1]])
    rows.step([1, 2])
    rows.select([[1, 1, 1], [0, 0, 0]])
    rows.step([1, 2, 3, 3, 2, 1])


@pytest.mark.parametrize("seed", mark_sweeps(range(3), [2]))
def test_select_random_sequence_of_selections(rows, seed):
    """As in a search, new and moved sentences take the slots of finished sentences."""
    random, width = Random(seed), 1 + seed
    rows.select([[b] * width for b in range(3)])
    for _ in range(9):
        n = len(rows.prefixes) // width
        rows.step([random.randint(1, 3) for _ in rows.prefixes])
        joining = random.sample(range(6), random.choice([0, 0, 1, 2]))
        kept = random.sample(range(n), random.randint(0 if joining else 1, min(n, 4)))
        lines = [[b * width + random.randrange(width) for _ in range(width)] for b in kept]
        lines += [[n * width + i] * width for i in range(len(joining))]
        if random.random() < 0.5:
            random.shuffle(lines)
        rows.select(lines, joining)


@pytest.mark.parametrize("name", ["transformer", "transformer_shaw", "transformer_rotary"])
def test_cache_without_sync_keeps_entries_since_oldest_sentence_was_added(name, monkeypatch):
    """On a GPU, the cache is compacted by the ages of sentences only."""
    monkeypatch.setattr(cache, "FIRST_CAPACITY", 2)
    monkeypatch.setattr(cache, "SYNC_FREE_DEVICES", ())
    rows, sizes = Rows(MODELS[name]()), []
    rows.select([[0, 0], [1, 1], [2, 2]])
    for t in range(24):
        rows.step([1 + t % 3, 2, 3, 1, 2, 1 + t % 2])
        sizes.append(rows.state.past.capacity)
        lines, joining = [[1, 0], [2, 2], [4, 5]], []
        if t % 3 == 0:
            lines[t // 3 % 3], joining = [6, 6], [t // 3 % 6]
        rows.select(lines, joining)
    assert max(sizes) <= 2 * 2 * 9  # a sentence stays nine steps


def test_cache_grows_beyond_first_capacity():
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


def test_cache_select_does_not_move_entries():
    rows = Rows(tiny.make_model())
    rows.select([[0] * 4, [1] * 4, [2] * 4])
    rows.step([2] * 12)
    rows.step([3] * 12)
    past, n = rows.state.past, rows.state.past.length

    def copy_entries(b: int) -> list[torch.Tensor]:
        return [buffer[:, b, :, :n].clone() for buffer in (*past.keys, *past.values)]

    def equals(b: int, before: list[torch.Tensor]) -> bool:
        return all(map(torch.equal, copy_entries(b), before))

    first = [copy_entries(b) for b in range(3)]
    addresses = [buffer.data_ptr() for buffer in (*past.keys, *past.values)]
    rows.select([[3, 2, 1, 0], [4, 4, 4, 4], [9, 8, 11, 10]])
    assert all(map(equals, range(3), first))
    rows.select([[8, 9, 10, 11], [5, 4, 6, 7]])  # the last moves into the slot of the first
    assert equals(0, first[2]) and equals(1, first[1])
    assert [buffer.data_ptr() for buffer in (*past.keys, *past.values)] == addresses


def test_kernel_cache_reuses_entries_that_are_in_no_past():
    model = tiny.make_model()
    assign_fp32_kernels(model)
    rows = Rows(model)
    rows.select([[0] * 4, [1] * 4, [2] * 4])
    used = set()
    for t in range(12):
        rows.step([1 + (t + k) % 3 for _ in range(3) for k in range(4)])
        used.update(rows.state.past.past.entries.flatten().tolist())
        rows.select([[4 * b] * 4 for b in range(3)])  # the past of each sentence is one prefix
    assert max(used) < 3 * 12 + 12  # one entry per sentence and step, and those of the newest step
    rows.select([[8, 8, 8, 8]])
    for t in range(12):
        rows.step([1 + t % 3] * 4)
        rows.select([[0, 0, 0, 0]])
    assert max(rows.state.past.past.entries.flatten().tolist()) < 3 * 12 + 12
