"""The best candidates of a step against a plain sort, and normalisers against float64."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.search.logits import normaliser
from onmt_lite.search.policy import Exhausted
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.spec import Plan
from onmt_lite.search.topk import Ranker

CPU = torch.device("cpu")
FEW = (0.0, -0.0, -0.25, -1.0, -1.0000001, -30.0, -math.inf)  # so that many are equal


def make_ranker(k: int, v: int, n_sentences: int) -> Ranker:
    policy = replace(PRESETS["opennmt"].policy, candidates=2)
    plan = Plan(policy, Exhausted(), k, bos_id=1, eos_id=2)
    return Ranker(plan, v, n_sentences, CPU)


def plainly_ranked(values, norm, scores, n):
    """Flat places of the best n of each sentence: higher totals first, then lower places."""
    totals = (values - norm[:, :, None] + scores[:, :, None]).flatten(1).tolist()
    return [sorted(range(len(row)), key=lambda i: (-row[i], i))[:n] for row in totals]


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.integers(0, 1))
def test_the_order_of_a_plain_sort(data, b, k, v, n_spare):
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    some = torch.tensor(FEW)
    values = some[torch.randint(0, len(some), (b, k, v + n_spare), generator=generator)]
    values[:, :, v:] = -math.inf
    values[:, 0, 0] = -0.25  # each sentence has a candidate
    norm = torch.tensor([0.0, 1.5])[torch.randint(0, 2, (b, k), generator=generator)]
    scores = torch.tensor([-2.0, -0.5, -math.inf])[torch.randint(0, 3, (b, k), generator=generator)]
    scores[:, 0] = -1.0
    found = make_ranker(k, v, b).rank(values, norm, scores)
    w, n = v + n_spare, min(2 * k, k * v)
    own = found.row.div(k, rounding_mode="floor")  # also of places that are none
    assert torch.equal(own, torch.arange(b)[:, None].expand_as(own))
    for i, places in enumerate(plainly_ranked(values, norm, scores, n)):
        for j, place in enumerate(places):
            row, token = divmod(place, w)
            log_prob = values[i, row, token] - norm[i, row]
            assert found.score[i, j] == log_prob + scores[i, row]
            if found.score[i, j] > -math.inf:
                assert (found.row[i, j], found.token[i, j]) == (i * k + row, token)
                assert found.log_prob[i, j] == log_prob


@pytest.mark.parametrize("v", [31_991, 32_000, 8_000])
def test_the_order_of_a_plain_sort_in_a_large_vocabulary(v):
    """Widths that are and that are not a multiple of a block's; candidates in the last one."""
    generator = torch.Generator().manual_seed(v)
    values = torch.randn(2, 5, v, generator=generator).mul_(8).round_().div_(4)
    values[0, 4, -1] = values[1, 2, -1] = values[1, 3, -2] = 9.0
    norm, scores = values.logsumexp(2), -torch.rand(2, 5, generator=generator)
    found = make_ranker(5, v, 2).rank(values, norm, scores)
    places = plainly_ranked(values, norm, scores, 10)
    own_row = found.row - 5 * torch.arange(2)[:, None]
    assert (own_row * v + found.token).tolist() == places


@pytest.mark.parametrize("v", [7, 1000, 1024, 50_001])
def test_normaliser(v):
    """As in float64, and of the same bits whatever other rows there are."""
    rows = 5 * torch.randn(8, v, generator=torch.Generator().manual_seed(v)) + 30
    rows[3, : v // 2] = -math.inf
    expected = rows.double().logsumexp(1)
    found = normaliser(rows)
    assert found.double().sub(expected).abs().max() < 4e-6
    for n in range(1, 8):
        assert torch.equal(normaliser(rows[-n:]), found[-n:])
    assert torch.equal(normaliser(rows.view(2, 4, v)), found.view(2, 4))


@pytest.mark.parametrize("gap", [10.0, 17.0, 79.0, 81.0, 200.0, math.inf])
def test_normaliser_of_rows_with_few_large_logits(gap):
    """All others are so much smaller, far down too small for a normal number."""
    rows = torch.full((3, 50_000), -gap)
    rows[:, 7] = 0.0
    expected = rows.double().logsumexp(1)
    assert normaliser(rows).double().sub(expected).abs().max() < 1e-7 * max(1, expected[0])


def test_normaliser_of_rows_that_allow_nothing_and_of_nan():
    rows = torch.tensor([[-math.inf, -math.inf], [math.nan, 0.0], [0.0, 0.0]])
    nothing, unknown, two = normaliser(rows).tolist()
    assert -math.inf - nothing == -math.inf
    assert math.isnan(unknown)
    assert two == pytest.approx(math.log(2))
