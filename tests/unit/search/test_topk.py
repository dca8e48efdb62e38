"""The best candidates of a step against a plain sort, and normalisers against float64."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.search.logits import log_sum_exp
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.spec import SearchSpec
from onmt_lite.search.stopping import Exhausted
from onmt_lite.search.topk import Candidates, TokenScores, TopK

CPU = torch.device("cpu")
FEW = (0.0, -0.0, -0.25, -1.0, -1.0000001, -30.0, -math.inf)  # so that many are equal


def select(values, norm, scores) -> Candidates:
    """The best candidates of values (B, K, V) less norm (B, K), plus scores (B, K)."""
    b, k, v = values.shape
    policy = replace(PRESETS["opennmt"].policy, candidates=2)
    spec = SearchSpec(policy, Exhausted(), k, bos_id=1, eos_id=2)
    tokens = TokenScores(values.flatten(0, 1), norm.flatten())
    return TopK(spec, v, b, CPU).select(tokens, scores)


def plainly_ranked(values, norm, scores, n):
    """Flat places of the best n of each sentence: higher totals first, then lower places."""
    totals = (values - norm[:, :, None] + scores[:, :, None]).flatten(1).tolist()
    return [sorted(range(len(row)), key=lambda i: (-row[i], i))[:n] for row in totals]


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 40))
def test_the_order_of_a_plain_sort(data, b, k, v):
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    some = torch.tensor(FEW)
    values = some[torch.randint(0, len(some), (b, k, v), generator=generator)]
    values[:, 0, 0] = -0.25  # each sentence has a candidate
    norm = torch.tensor([0.0, 1.5])[torch.randint(0, 2, (b, k), generator=generator)]
    scores = torch.tensor([-2.0, -0.5, -math.inf])[torch.randint(0, 3, (b, k), generator=generator)]
    scores[:, 0] = -1.0
    found = select(values, norm, scores)
    n = min(2 * k, k * v)
    own = found.parent.div(k, rounding_mode="floor")  # also of places that are none
    assert torch.equal(own, torch.arange(b)[:, None].expand_as(own))
    for i, places in enumerate(plainly_ranked(values, norm, scores, n)):
        for j, place in enumerate(places):
            row, token = divmod(place, v)
            log_prob = values[i, row, token] - norm[i, row]
            assert found.score[i, j] == log_prob + scores[i, row]
            if found.score[i, j] > -math.inf:
                assert (found.parent[i, j], found.token[i, j]) == (i * k + row, token)
                assert found.log_prob[i, j] == log_prob


@pytest.mark.parametrize("v", [31_991, 32_000, 8_000])
def test_the_order_of_a_plain_sort_in_a_large_vocabulary(v):
    """Widths that are and that are not a multiple of a block's; candidates in the last one."""
    generator = torch.Generator().manual_seed(v)
    values = torch.randn(2, 5, v, generator=generator).mul_(8).round_().div_(4)
    values[0, 4, -1] = values[1, 2, -1] = values[1, 3, -2] = 9.0
    norm, scores = values.logsumexp(2), -torch.rand(2, 5, generator=generator)
    found = select(values, norm, scores)
    places = plainly_ranked(values, norm, scores, 10)
    own_row = found.parent - 5 * torch.arange(2)[:, None]
    assert (own_row * v + found.token).tolist() == places


@pytest.mark.parametrize("v", [7, 1000, 1024, 50_001])
def test_log_sum_exp(v):
    """As in float64, and of the same bits whatever other rows there are."""
    rows = 5 * torch.randn(8, v, generator=torch.Generator().manual_seed(v)) + 30
    rows[3, : v // 2] = -math.inf
    expected = rows.double().logsumexp(1)
    found = log_sum_exp(rows)
    assert found.double().sub(expected).abs().max() < 4e-6
    for n in range(1, 8):
        assert torch.equal(log_sum_exp(rows[-n:]), found[-n:])
    assert torch.equal(log_sum_exp(rows.view(2, 4, v)), found.view(2, 4))


@pytest.mark.parametrize("gap", [10.0, 17.0, 79.0, 81.0, 200.0, math.inf])
def test_log_sum_exp_of_rows_with_few_large_logits(gap):
    """All others are so much smaller, far down too small for a normal number."""
    rows = torch.full((3, 50_000), -gap)
    rows[:, 7] = 0.0
    expected = rows.double().logsumexp(1)
    assert log_sum_exp(rows).double().sub(expected).abs().max() < 1e-7 * max(1, expected[0])


def test_log_sum_exp_of_rows_that_allow_nothing_and_of_nan():
    rows = torch.tensor([[-math.inf, -math.inf], [math.nan, 0.0], [0.0, 0.0]])
    nothing, unknown, two = log_sum_exp(rows).tolist()
    assert -math.inf - nothing == -math.inf
    assert math.isnan(unknown)
    assert two == pytest.approx(math.log(2))
