"""Top-k against a plain sort, and log-sum-exp against float64."""

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
# Few values, so that many scores tie
TIED_VALUES = (0.0, -0.0, -0.25, -1.0, -1.0000001, -30.0, -math.inf)


def select(values, log_z, scores) -> Candidates:
    """Return the 2K best candidates.

    Args:
        values: (B, K, V) logits.
        log_z: (B, K) log-sum-exp of the logits.
        scores: (B, K) scores of the rows.
    """
    b, k, v = values.shape
    policy = replace(PRESETS["opennmt"].policy, candidates=2)
    spec = SearchSpec(policy, Exhausted(), k, bos_id=1, eos_id=2)
    token_scores = TokenScores(values.flatten(0, 1), log_z.flatten())
    return TopK(spec, v, b, CPU).select(token_scores, scores)


def sort_candidates(values, log_z, scores, n):
    """Return the flat indices of the best n of each sentence; ties by the lower index.

    Args:
        values: (B, K, V) logits.
        log_z: (B, K) log-sum-exp of the logits.
        scores: (B, K) scores of the rows.
        n: number of candidates.
    """
    candidate_scores = (values - log_z[:, :, None] + scores[:, :, None]).flatten(1)
    rows = candidate_scores.tolist()
    return [sorted(range(len(row)), key=lambda i: (-row[i], i))[:n] for row in rows]


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 40))
def test_top_k_with_ties_equals_plain_sort(data, b, k, v):
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    choices = torch.tensor(TIED_VALUES)
    values = choices[torch.randint(0, len(choices), (b, k, v), generator=generator)]
    values[:, 0, 0] = -0.25  # each sentence has a candidate
    log_z = torch.tensor([0.0, 1.5])[torch.randint(0, 2, (b, k), generator=generator)]
    scores = torch.tensor([-2.0, -0.5, -math.inf])[torch.randint(0, 3, (b, k), generator=generator)]
    scores[:, 0] = -1.0
    found = select(values, log_z, scores)
    n = min(2 * k, k * v)
    sentence = found.parent.div(k, rounding_mode="floor")  # also for missing candidates
    assert torch.equal(sentence, torch.arange(b)[:, None].expand_as(sentence))
    for i, indices in enumerate(sort_candidates(values, log_z, scores, n)):
        for j, index in enumerate(indices):
            row, token = divmod(index, v)
            log_prob = values[i, row, token] - log_z[i, row]
            assert found.score[i, j] == log_prob + scores[i, row]
            if found.score[i, j] > -math.inf:
                assert (found.parent[i, j], found.token[i, j]) == (i * k + row, token)
                assert found.log_prob[i, j] == log_prob


@pytest.mark.parametrize("v", [31_991, 32_000, 8_000])
def test_top_k_with_large_vocabulary_equals_plain_sort(v):
    """With and without a narrower last block; some candidates are in the last block."""
    generator = torch.Generator().manual_seed(v)
    values = torch.randn(2, 5, v, generator=generator).mul_(8).round_().div_(4)
    values[0, 4, -1] = values[1, 2, -1] = values[1, 3, -2] = 9.0
    log_z, scores = values.logsumexp(2), -torch.rand(2, 5, generator=generator)
    found = select(values, log_z, scores)
    indices = sort_candidates(values, log_z, scores, 10)
    row = found.parent - 5 * torch.arange(2)[:, None]
    assert (row * v + found.token).tolist() == indices


@pytest.mark.parametrize("v", [7, 1000, 1024, 50_001])
def test_log_sum_exp_is_accurate_and_independent_of_other_rows(v):
    rows = 5 * torch.randn(8, v, generator=torch.Generator().manual_seed(v)) + 30
    rows[3, : v // 2] = -math.inf
    expected = rows.double().logsumexp(1)
    found = log_sum_exp(rows)
    assert found.double().sub(expected).abs().max() < 4e-6
    for n in range(1, 8):
        assert torch.equal(log_sum_exp(rows[-n:]), found[-n:])
    assert torch.equal(log_sum_exp(rows.view(2, 4, v)), found.view(2, 4))


@pytest.mark.parametrize("gap", [10.0, 17.0, 79.0, 81.0, 200.0, math.inf])
def test_log_sum_exp_with_one_large_logit_is_accurate(gap):
    """The exponentials of all other logits are small, or below the normal floats."""
    rows = torch.full((3, 50_000), -gap)
    rows[:, 7] = 0.0
    expected = rows.double().logsumexp(1)
    assert log_sum_exp(rows).double().sub(expected).abs().max() < 1e-7 * max(1, expected[0])


def test_log_sum_exp_of_masked_row_is_finite_and_of_nan_is_nan():
    rows = torch.tensor([[-math.inf, -math.inf], [math.nan, 0.0], [0.0, 0.0]])
    nothing, unknown, two = log_sum_exp(rows).tolist()
    assert -math.inf - nothing == -math.inf
    assert math.isnan(unknown)
    assert two == pytest.approx(math.log(2))
