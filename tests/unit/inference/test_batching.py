"""-batch_size and -batch_type: grouping examples into batches, and padding."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onmt_lite.inference.records import Example
from onmt_lite.inference.runner import make_batches, pad_batch
from onmt_lite.text.lines import Line

LENGTHS = st.lists(st.integers(1, 12), max_size=30)


def make_examples(lengths):
    return [Example(Line(i, f"line {i}"), [7 + i] * n, n) for i, n in enumerate(lengths)]


def padded_size(batch, batch_type):
    width = max(len(e.src_ids) for e in batch)
    return len(batch) * (width if batch_type == "tokens" else 1)


@settings(max_examples=200)
@given(LENGTHS, st.integers(1, 40), st.sampled_from(["tokens", "sents"]))
@example([12, 1, 1], 5, "tokens")
def test_batches_contain_each_example_once_within_batch_size(lengths, budget, batch_type):
    examples = make_examples(lengths)
    batches = make_batches(examples, budget, batch_type)
    assert sorted(e.line.id for batch in batches for e in batch) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        assert len(batch) == 1 or padded_size(batch, batch_type) <= budget


@settings(max_examples=100)
@given(LENGTHS, st.integers(1, 40), st.sampled_from(["tokens", "sents"]))
def test_batches_are_sorted_longest_first_and_stable(lengths, budget, batch_type):
    batches = make_batches(make_examples(lengths), budget, batch_type)
    order = [(-len(e.src_ids), e.line.id) for batch in batches for e in batch]
    assert order == sorted(order)


@settings(max_examples=100)
@given(LENGTHS, st.integers(1, 40), st.sampled_from(["tokens", "sents"]))
def test_batch_is_closed_only_if_next_example_does_not_fit(lengths, budget, batch_type):
    batches = make_batches(make_examples(lengths), budget, batch_type)
    for batch, following in zip(batches, batches[1:]):
        assert padded_size([*batch, following[0]], batch_type) > budget


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=30), st.integers(1, 40))
def test_examples_with_prefix_are_batched_separately(kinds, budget):
    with_prefix = [
        replace(e, prefix_ids=(5,)) for e in make_examples([n for n, has in kinds if has])
    ]
    without = make_examples([n for n, has in kinds if not has])
    batches = make_batches([*without, *with_prefix], budget, "tokens")
    apart = [*make_batches(with_prefix, budget, "tokens"), *make_batches(without, budget, "tokens")]
    assert batches == apart


def test_batches_worked_example():
    batches = make_batches(make_examples([2, 5, 2, 3, 2]), 8, "tokens")
    assert [[len(e.src_ids) for e in batch] for batch in batches] == [[5], [3, 2], [2, 2]]
    batches = make_batches(make_examples([2, 5, 2, 3, 2]), 2, "sents")
    assert [[len(e.src_ids) for e in batch] for batch in batches] == [[5, 3], [2, 2], [2]]
    assert make_batches([], 8, "tokens") == []


def test_make_batches_does_not_modify_examples():
    examples = make_examples([1, 3, 2])
    make_batches(examples, 4, "tokens")
    assert [len(e.src_ids) for e in examples] == [1, 3, 2]
    pad_batch(examples, 9, torch.device("cpu"))
    assert [len(e.src_ids) for e in examples] == [1, 3, 2]


@pytest.mark.parametrize("pad_id", [0, 9])
def test_pad_batch_pads_right_and_returns_lengths(pad_id):
    examples = make_examples([1, 3, 2])
    src, src_lengths, copied = pad_batch(examples, pad_id, torch.device("cpu"))
    assert src.tolist() == [[7, pad_id, pad_id], [8, 8, 8], [9, 9, pad_id]]
    assert src_lengths.tolist() == [1, 3, 2]
    assert src.dtype == src_lengths.dtype == torch.long
    assert copied is None
