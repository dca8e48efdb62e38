"""Each kernel in C beside a restatement in torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onmt_lite.models.kernels import bindings as k

pytestmark = pytest.mark.skipif(k.get_library() is None, reason="this machine has no kernels")

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
SIZES = st.sampled_from([1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 130])
ROWS = st.sampled_from([0, 1, 2, 5, 11, 12, 13, 25, 96, 97, 192, 193, 200])
THREADS = st.sampled_from([1, 2, 3])
SEED = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(x, range_, positive=False):
    """Rows of x rounded to bytes, as numbers again."""
    step = x.abs().amax(-1, keepdim=True) / range_
    return torch.where(step > 0, (x.double() * (1 / step.double())).round() * step, 0.0).float()


def product(x, weight, bias, in_bytes, positive=False):
    """In float64, of the rounded numbers if in bytes."""
    if in_bytes:
        x, weight = rounded(x, 255 if positive else 127), rounded(weight, 127)
    return F.linear(x.double(), weight.double(), bias.double()).float()


def close(found, expected, in_bytes):
    """Equal but for rounding; a byte may be rounded the other way."""
    scale = expected.abs().max().clamp(min=1.0) if expected.numel() else 1.0
    assert found.shape == expected.shape
    assert ((found - expected).abs() <= scale * (0.02 if in_bytes else 2e-5)).all()


def head(x, weights, block):
    """Logits, their log-sum-exp and maxima."""
    logits = torch.empty(len(x), weights.outputs)
    return logits, *k.output_logits(x, weights, logits, block)


def norm_of(seed, d, kind):
    norm = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[kind](d, eps=1e-5)
    norm.weight.data = numbers(seed, d).abs() + 0.5
    if kind == "layer":
        norm.bias.data = numbers(seed + 1, d)
    return norm


@settings(deadline=None, max_examples=150)
@given(
    *(SEED, ROWS, SIZES, SIZES, st.booleans(), st.sampled_from([None, "layer", "rms"])),
    *(st.sampled_from(list(ACTIVATIONS)), st.booleans(), THREADS),
)
def test_linear(seed, r, d, n, in_bytes, kind, activation, adds, n_threads):
    torch.set_num_threads(n_threads)
    x, weight, bias = numbers(seed, r, d), numbers(seed + 1, n, d) / d**0.5, numbers(seed + 2, n)
    norm = None if kind is None else norm_of(seed, d, kind)
    residual = numbers(seed + 3, r, n) if adds and activation == "none" else None
    weights = k.Weights(weight, bias, in_bytes)
    found = k.linear(x, weights, norm and k.Norm(norm), activation, residual)
    with torch.no_grad():
        expected = ACTIVATIONS[activation](
            product(x if norm is None else norm(x), weight, bias, in_bytes)
        )
    close(found, expected if residual is None else residual + expected, in_bytes)


@settings(deadline=None, max_examples=80)
@given(
    *(SEED, ROWS, SIZES, SIZES, st.booleans(), st.booleans()),
    *(st.sampled_from(list(ACTIVATIONS)), THREADS),
)
def test_feed_forward(seed, r, d, hidden, in_bytes, normed, activation, n_threads):
    torch.set_num_threads(n_threads)
    up, down = numbers(seed, hidden, d) / d**0.5, numbers(seed + 1, d, hidden) / hidden**0.5
    of_up, of_down, x = numbers(seed + 2, hidden), numbers(seed + 3, d), numbers(seed + 4, r, d)
    norm = norm_of(seed, d, "layer") if normed else None
    both = k.Weights(up, of_up, in_bytes), k.Weights(down, of_down, in_bytes)
    found = k.feed_forward(x, *both, norm and k.Norm(norm), activation, x)
    with torch.no_grad():
        between = product(x if norm is None else norm(x), up, of_up, in_bytes)
        between = ACTIVATIONS[activation](between)
        expected = product(between, down, of_down, in_bytes, activation == "relu")
    close(found, x + expected, in_bytes)


@settings(deadline=None, max_examples=60)
@given(
    *(SEED, st.sampled_from([0, 1, 5, 13, 200]), SIZES),
    *(st.sampled_from([1, 5, 31, 32, 500, 512, 513, 1100, 2049]), st.booleans()),
    *(st.sampled_from([1, 2, 8, 16, 64, 512]), THREADS),
)
def test_head(seed, r, d, n, in_bytes, block, n_threads):
    torch.set_num_threads(n_threads)
    x, weight, bias = numbers(seed, r, d), numbers(seed + 1, n, d), 10 * numbers(seed + 2, n)
    weights = k.Weights(weight, bias, in_bytes)
    logits, log_sums, maxima = head(x, weights, block)
    assert torch.equal(logits, k.linear(x, weights))
    torch.testing.assert_close(log_sums, logits.logsumexp(1), rtol=1e-6, atol=2e-6)
    assert torch.equal(k.logsumexp(logits), log_sums)
    padded = F.pad(logits, (0, -n % block), value=-math.inf)
    assert torch.equal(maxima, padded.view(r, padded.size(1) // block, block).amax(2))


def plain_attention(q, keys, values, visible):
    """q (.., T, d), keys and values (.., S, d), visible (.., T, S)."""
    scores = (q.double() @ keys.double().transpose(-2, -1)) * q.size(-1) ** -0.5
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return (weights @ values.double()).float(), weights.float()


HEADS = st.sampled_from([(1, 1), (2, 2), (3, 3), (4, 2), (6, 1)])
WIDTHS = st.sampled_from([1, 5, 8, 16, 24, 32, 64, 80, 130])


@settings(deadline=None, max_examples=60)
@given(SEED, st.lists(st.integers(1, 40), max_size=6), HEADS, WIDTHS, THREADS)
def test_attend_self(seed, lengths, heads_groups, d, n_threads):
    torch.set_num_threads(n_threads)
    (heads, groups), n = heads_groups, sum(lengths)
    qkv = numbers(seed, n, (heads + 2 * groups) * d)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    found = k.attend_self(qkv, starts, heads, groups)
    assert found.shape == (n, heads * d)
    for start, length in zip(starts.tolist(), lengths):
        parts = qkv[start : start + length].view(length, -1, d).transpose(0, 1)
        q, keys, values = parts.split([heads, groups, groups])
        keys, values = (x.repeat_interleave(heads // groups, 0) for x in (keys, values))
        seen = torch.ones(length, length, dtype=torch.bool)
        expected, _ = plain_attention(q, keys, values, seen)
        own = found[start : start + length]
        torch.testing.assert_close(
            own, expected.transpose(0, 1).reshape(length, -1), rtol=1e-5, atol=1e-5
        )


@settings(deadline=None, max_examples=60)
@given(
    *(SEED, st.lists(st.integers(1, 40), min_size=1, max_size=6)),
    *(st.sampled_from([1, 2, 5, 6, 7, 13, 64]), HEADS, WIDTHS, THREADS),
)
def test_attend_memory(seed, lengths, beams, heads_groups, d, n_threads):
    torch.set_num_threads(n_threads)
    (heads, groups), b, s = heads_groups, len(lengths), max(lengths)
    q = numbers(seed, b, beams, heads * d)
    keys, values = numbers(seed + 1, b, groups, d, s), numbers(seed + 2, b, groups, s, d)
    context, weights = k.attend_memory(q, keys, values, torch.tensor(lengths), True)
    seen = (torch.arange(s) < torch.tensor(lengths)[:, None])[:, None, None]  # (B, 1, 1, S)
    by_head = q.view(b, beams, heads, d).transpose(1, 2)
    both = (x.repeat_interleave(heads // groups, 1) for x in (keys.transpose(2, 3), values))
    expected, expected_weights = plain_attention(by_head, *both, seen)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-6)
    expected = expected.transpose(1, 2).reshape(context.shape)
    torch.testing.assert_close(context, expected, rtol=1e-5, atol=1e-5)
    alone, nothing = k.attend_memory(q, keys, values, torch.tensor(lengths))
    assert nothing is None and torch.equal(alone, context)


@settings(deadline=None, max_examples=60)
@given(
    *(SEED, st.integers(1, 4), st.sampled_from([1, 2, 5, 64]), st.integers(0, 40)),
    *(HEADS, WIDTHS, THREADS),
)
def test_look_back(seed, b, beams, n_before, heads_groups, d, n_threads):
    torch.set_num_threads(n_threads)
    (heads, groups), n = heads_groups, n_before + beams
    keys, values = numbers(seed, b, groups, n + 3, d), numbers(seed + 1, b, groups, n + 3, d)
    qkv = numbers(seed + 2, b, beams, (heads + 2 * groups) * d)
    seen = numbers(seed + 3, b * beams, n + 3) > 0
    seen[:, n_before:] = torch.eye(beams, n + 3 - n_before, dtype=torch.bool).repeat(b, 1)
    past = k.find_past(torch.where(seen, 0.0, -math.inf), n)
    entries, counts = past
    for row in range(b * beams):
        own = entries[row, : counts[row]].tolist()
        assert own == seen[row, :n].nonzero().flatten().tolist()
    found = k.attend_cached(qkv, keys, values, n_before, past, heads)
    parts = qkv.view(b, beams, -1, d).transpose(1, 2)
    q, own_keys, own_values = parts.split([heads, groups, groups], 1)
    assert torch.equal(keys[:, :, n_before:n], own_keys)
    assert torch.equal(values[:, :, n_before:n], own_values)
    both = (x[:, :, :n].repeat_interleave(heads // groups, 1) for x in (keys, values))
    expected, _ = plain_attention(q, *both, seen[:, :n].view(b, 1, beams, n))
    expected = expected.transpose(1, 2).reshape(found.shape)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_bytes", [False, True])
def test_a_row_is_alone(in_bytes):
    """To the last bit, whatever the other rows, their number and the number of threads."""
    weights = k.Weights(numbers(1, 70, 50), numbers(2, 70), in_bytes)
    down = k.Weights(numbers(3, 50, 70), numbers(4, 50), in_bytes)
    x, norm = numbers(5, 400, 50), k.Norm(norm_of(6, 50, "layer"))
    results = [
        lambda rows: k.linear(rows, weights, norm, "silu"),
        lambda rows: k.feed_forward(rows, weights, down, norm, "relu", rows),
        lambda rows: torch.cat([part.view(len(rows), -1) for part in head(rows, weights, 16)], 1),
    ]
    for result in results:
        torch.set_num_threads(2)
        together = result(x)
        torch.set_num_threads(1)
        order = torch.randperm(400, generator=torch.Generator().manual_seed(7))
        assert torch.equal(result(x[order]), together[order])
        for n in (1, 7, 13):
            assert torch.equal(result(x[:n]), together[:n])


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(in_bytes, odd):
    """One of them makes its row NaN or infinite, and no other; nothing of that is lost."""
    weight, bias = numbers(1, 40, 20), numbers(2, 40)
    weights, x = k.Weights(weight, bias, in_bytes), numbers(3, 30, 20)
    expected = k.linear(x, weights)
    x[4, 17] = odd
    found, (logits, log_sums, _) = k.linear(x, weights), head(x, weights, 8)
    others = [i for i in range(30) if i != 4]
    assert torch.equal(found[others], expected[others])
    assert not found[4].isfinite().any()
    assert not log_sums[4].isfinite() and log_sums[others].isfinite().all()
    assert torch.equal(logits[others], expected[others])
    inner = k.feed_forward(x, weights, k.Weights(weight.T, bias[:20], in_bytes))
    assert not inner[4].isfinite().any() and inner[others].isfinite().all()


@pytest.mark.parametrize("in_bytes", [False, True])
def test_extreme_rows_and_weights(in_bytes):
    weight, bias = numbers(1, 40, 20), numbers(2, 40)
    weight[3], weight[5] = 0.0, 1e-42
    weights = k.Weights(weight, bias, in_bytes)
    x = torch.zeros(3, 20)
    x[1], x[2] = 1e-42, 1e30
    found = k.linear(x, weights)
    assert torch.equal(found[0], bias) and torch.equal(found[1], bias)
    close(found[2] / 1e30, product(x[2:], weight, bias, False)[0] / 1e30, in_bytes)
    bias[7] = -math.inf  # a token that a model never says
    weights = k.Weights(weight, bias, in_bytes)
    logits, log_sums, maxima = head(x[:2], weights, 1)
    assert (logits[:, 7] == -math.inf).all() and (maxima[:, 7] == -math.inf).all()
    torch.testing.assert_close(log_sums, logits.logsumexp(1))
    silent = k.Weights(weight, torch.full((40,), -math.inf), in_bytes)
    _, log_sums, _ = head(x[:1], silent, 16)
    assert log_sums.item() == torch.finfo(torch.float32).min


def test_threads_of_a_fork_and_of_python():
    """Helpers of the parent do not exist in a fork, and two callers do not wait for each other."""
    import os
    import threading

    torch.set_num_threads(2)
    weights, x = k.Weights(numbers(1, 64, 64), numbers(2, 64), True), numbers(3, 500, 64)
    expected = k.linear(x, weights)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(k.linear(x, weights), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    results = []
    callers = [
        threading.Thread(target=lambda: results.extend(k.linear(x, weights) for _ in range(50)))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 200 and all(torch.equal(each, expected) for each in results)
