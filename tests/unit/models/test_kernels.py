"""Each C kernel against the same computation in torch."""

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


def make_random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantize_rows(x, range_):
    """Quantize the rows of x (R, D) to int8, and dequantize them.

    Args:
        x: the tensor
        range_: the largest integer
    """
    step = x.abs().amax(-1, keepdim=True) / range_
    return torch.where(step > 0, (x.double() * (1 / step.double())).round() * step, 0.0).float()


def compute_linear(x, weight, bias, is_int8, positive=False):
    """Compute a linear layer in float64, of quantized inputs and weights for int8.

    Args:
        x: inputs (R, D)
        weight: the weight (N, D)
        bias: the bias (N,)
        is_int8: quantize
        positive: inputs are never negative, so that they have twice the precision
    """
    if is_int8:
        x, weight = quantize_rows(x, 255 if positive else 127), quantize_rows(weight, 127)
    return F.linear(x.double(), weight.double(), bias.double()).float()


def assert_close(found, expected, is_int8):
    """Compare up to rounding errors; an int8 value may be rounded the other way.

    Args:
        found: result of the kernel
        expected: result of torch
        is_int8: allow the larger error
    """
    scale = expected.abs().max().clamp(min=1.0) if expected.numel() else 1.0
    assert found.shape == expected.shape
    assert ((found - expected).abs() <= scale * (0.02 if is_int8 else 2e-5)).all()


def compute_logits(x, weights, norm=None):
    """Return the logits (R, N) of x (R, D) and their log-sum-exp (R,)."""
    logits = torch.empty(len(x), weights.outputs)
    return logits, k.compute_output_logits(x, weights, norm, logits)


def make_norm(seed, d, norm_type):
    """Make a norm of width d with random parameters.

    Args:
        seed: random seed
        d: the width
        norm_type: layer or rms
    """
    norm = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[norm_type](d, eps=1e-5)
    norm.weight.data = make_random(seed, d).abs() + 0.5
    if norm_type == "layer":
        norm.bias.data = make_random(seed + 1, d)
    return norm


@settings(deadline=None, max_examples=60)
@given(SEED, ROWS, SIZES, st.sampled_from(["layer", "rms"]), THREADS)
def test_norm_equals_torch(seed, r, d, norm_type, n_threads):
    torch.set_num_threads(n_threads)
    x, norm = make_random(seed, r, d), make_norm(seed, d, norm_type)
    found = k.normalize(x, k.Norm(norm))
    with torch.no_grad():
        torch.testing.assert_close(found, norm(x), rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=150)
@given(
    *(SEED, ROWS, SIZES, SIZES, st.booleans(), st.sampled_from([None, "layer", "rms"])),
    *(st.sampled_from(list(ACTIVATIONS)), st.booleans(), THREADS),
)
def test_linear_equals_torch(seed, r, d, n, is_int8, norm_type, activation, adds, n_threads):
    torch.set_num_threads(n_threads)
    x, weight, bias = (
        make_random(seed, r, d),
        make_random(seed + 1, n, d) / d**0.5,
        make_random(seed + 2, n),
    )
    norm = None if norm_type is None else make_norm(seed, d, norm_type)
    residual = make_random(seed + 3, r, n) if adds and activation == "none" else None
    weights = k.Weights(weight, bias, is_int8)
    found = k.linear(x, weights, norm and k.Norm(norm), activation, residual)
    with torch.no_grad():
        expected = ACTIVATIONS[activation](
            compute_linear(x if norm is None else norm(x), weight, bias, is_int8)
        )
    assert_close(found, expected if residual is None else residual + expected, is_int8)


@settings(deadline=None, max_examples=80)
@given(
    *(SEED, ROWS, SIZES, SIZES, st.booleans(), st.booleans()),
    *(st.sampled_from(list(ACTIVATIONS)), THREADS),
)
def test_feed_forward_equals_torch(seed, r, d, hidden, is_int8, has_norm, activation, n_threads):
    torch.set_num_threads(n_threads)
    up, down = make_random(seed, hidden, d) / d**0.5, make_random(seed + 1, d, hidden) / hidden**0.5
    up_bias, down_bias, x = (
        make_random(seed + 2, hidden),
        make_random(seed + 3, d),
        make_random(seed + 4, r, d),
    )
    norm = make_norm(seed, d, "layer") if has_norm else None
    both = k.Weights(up, up_bias, is_int8), k.Weights(down, down_bias, is_int8)
    found = k.feed_forward(x, *both, norm and k.Norm(norm), activation, x)
    with torch.no_grad():
        inner = compute_linear(x if norm is None else norm(x), up, up_bias, is_int8)
        inner = ACTIVATIONS[activation](inner)
        expected = compute_linear(inner, down, down_bias, is_int8, activation == "relu")
    assert_close(found, x + expected, is_int8)


@settings(deadline=None, max_examples=60)
@given(
    *(SEED, st.sampled_from([0, 1, 5, 13, 200]), SIZES),
    *(st.sampled_from([1, 5, 31, 32, 500, 512, 513, 1100, 2049]), st.booleans()),
    *(st.sampled_from(["none", "layer", "rms"]), THREADS),
)
def test_output_logits_equals_torch(seed, r, d, n, is_int8, norm_type, n_threads):
    torch.set_num_threads(n_threads)
    x, weight, bias = (
        make_random(seed, r, d),
        make_random(seed + 1, n, d),
        10 * make_random(seed + 2, n),
    )
    weights = k.Weights(weight, bias, is_int8)
    norm = None if norm_type == "none" else k.Norm(make_norm(seed, d, norm_type))
    logits, log_z = compute_logits(x, weights, norm)
    assert torch.equal(logits, k.linear(x, weights, norm))
    torch.testing.assert_close(log_z, logits.logsumexp(1), rtol=1e-6, atol=2e-6)
    assert torch.equal(k.logsumexp(logits), log_z)


@settings(deadline=None, max_examples=80)
@given(data=st.data(), seed=SEED, is_int8=st.booleans(), n_threads=THREADS)
def test_ranked_continuations_equal_sorted_scores(data, seed, is_int8, n_threads):
    """Against a sort of all continuations, with equal logits, masks, and rows without a score."""
    torch.set_num_threads(n_threads)
    b, n_rows = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    vocab, d = data.draw(st.sampled_from([1, 3, 64, 65, 130, 600])), 8
    # Weights of a few values make many logits equal
    weight = make_random(seed, vocab, d).round() if data.draw(st.booleans()) else None
    weight = make_random(seed, vocab, d) if weight is None else weight
    weights = k.Weights(weight, None, is_int8)
    n_distinct = data.draw(st.integers(1, b * n_rows))
    x = make_random(seed + 1, n_distinct, d)
    rows = torch.randint(n_distinct, (b, n_rows), dtype=torch.int32)
    scores = data.draw(st.sampled_from([0.0, 1.0])) * make_random(seed + 2, b, n_rows)
    scores[torch.rand(b, n_rows) < 0.3] = -math.inf
    masked = torch.randperm(vocab)[: data.draw(st.integers(0, 3))]
    mask = torch.rand(b, n_rows, len(masked)) < 0.5
    ends = torch.randperm(vocab)[:2]
    n = data.draw(st.integers(1, min(12, n_rows * vocab)))
    found = k.rank_continuations(x, weights, None, rows, scores, n, (masked, mask), ends)

    logits, log_z = compute_logits(x, weights)
    for i in range(b):
        expected = []
        for j, row in enumerate(rows[i].tolist()):
            row_logits = logits[row].clone()
            row_logits[masked[mask[i, j]]] = -math.inf
            log_probs = row_logits - log_z[row]
            for token, score in enumerate((log_probs + scores[i, j]).tolist()):
                expected.append((-score, i * n_rows + j, token, log_probs[token].item()))
        expected.sort(key=lambda x: x[:3])
        for place, (score, parent, token, log_prob) in enumerate(expected[:n]):
            actual = [column[i, place].item() for column in found]
            assert actual == [-score, parent, token, log_prob, token in ends]


def test_ranked_continuations_are_nan_for_sentence_with_nan():
    x = make_random(0, 4, 8)
    x[1] = math.nan
    weights, rows = k.Weights(make_random(1, 100, 8), None, False), torch.arange(4).int()
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
    scores, parents, tokens, _, ended = k.rank_continuations(
        x, weights, None, rows.view(2, 2), torch.zeros(2, 2), 3, nothing, torch.tensor([0])
    )
    assert scores[0].isnan().all() and scores[1].isfinite().all()
    assert ((parents >= 0) & (parents < 4)).all() and ((tokens >= 0) & (tokens < 100)).all()


def compute_attention(q, keys, values, visible):
    """Compute attention in float64.

    Args:
        q: queries (.., T, d)
        keys: keys (.., S, d)
        values: values (.., S, d)
        visible: True for keys that a query attends to (.., T, S), bool

    Returns:
        Context (.., T, d) and weights (.., T, S), float32.
    """
    scores = (q.double() @ keys.double().transpose(-2, -1)) * q.size(-1) ** -0.5
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return (weights @ values.double()).float(), weights.float()


HEADS = st.sampled_from([(1, 1), (2, 2), (3, 3), (4, 2), (6, 1)])
WIDTHS = st.sampled_from([1, 5, 8, 16, 24, 32, 64, 80, 130])


@settings(deadline=None, max_examples=60)
@given(SEED, st.lists(st.integers(1, 40), max_size=6), HEADS, WIDTHS, THREADS)
def test_attend_self_equals_torch(seed, lengths, heads_groups, d, n_threads):
    torch.set_num_threads(n_threads)
    (heads, groups), n = heads_groups, sum(lengths)
    qkv = make_random(seed, n, (heads + 2 * groups) * d)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    found = k.attend_self(qkv, starts, heads, groups)
    assert found.shape == (n, heads * d)
    for start, length in zip(starts.tolist(), lengths):
        parts = qkv[start : start + length].view(length, -1, d).transpose(0, 1)
        q, keys, values = parts.split([heads, groups, groups])
        keys, values = (x.repeat_interleave(heads // groups, 0) for x in (keys, values))
        seen = torch.ones(length, length, dtype=torch.bool)
        expected, _ = compute_attention(q, keys, values, seen)
        sentence = found[start : start + length]
        torch.testing.assert_close(
            sentence, expected.transpose(0, 1).reshape(length, -1), rtol=1e-5, atol=1e-5
        )


@settings(deadline=None, max_examples=60)
@given(
    *(SEED, st.lists(st.integers(1, 40), min_size=1, max_size=6)),
    *(st.sampled_from([1, 2, 5, 6, 7, 13, 64]), HEADS, WIDTHS, THREADS),
)
def test_attend_memory_equals_torch(seed, lengths, beams, heads_groups, d, n_threads):
    torch.set_num_threads(n_threads)
    (heads, groups), b, s = heads_groups, len(lengths), max(lengths)
    q = make_random(seed, b, beams, heads * d)
    keys, values = make_random(seed + 1, b, groups, d, s), make_random(seed + 2, b, groups, s, d)
    starts = torch.arange(0, b * beams + 1, beams)
    inputs = q, starts, keys, values, torch.tensor(lengths)
    context, weights = k.attend_memory(*inputs, needs_weights=True)
    weights = weights.view(b, beams, heads, s).transpose(1, 2)
    seen = (torch.arange(s) < torch.tensor(lengths)[:, None])[:, None, None]  # (B, 1, 1, S)
    by_head = q.view(b, beams, heads, d).transpose(1, 2)
    both = (x.repeat_interleave(heads // groups, 1) for x in (keys.transpose(2, 3), values))
    expected, expected_weights = compute_attention(by_head, *both, seen)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-6)
    expected = expected.transpose(1, 2).reshape(context.shape)
    torch.testing.assert_close(context, expected, rtol=1e-5, atol=1e-5)
    context_only, no_weights = k.attend_memory(*inputs)
    assert no_weights is None and torch.equal(context_only, context)
    # A single row of some sentences
    kept = torch.rand(b, beams) < 0.5
    kept[:, 0] = True
    inputs = q[kept], F.pad(kept.sum(1).cumsum(0), (1, 0)), *inputs[2:]
    assert torch.equal(k.attend_memory(*inputs)[0], context[kept])


@settings(deadline=None, max_examples=60)
@given(
    *(SEED, st.integers(1, 4), st.sampled_from([1, 2, 5, 64]), st.integers(0, 40)),
    *(HEADS, WIDTHS, THREADS),
)
def test_attend_cached_equals_torch(seed, b, beams, longest, heads_groups, d, n_threads):
    torch.set_num_threads(n_threads)
    (heads, groups), n = heads_groups, b * beams
    capacity = n * (longest + 1) + 3
    cache = make_random(seed, capacity, 2, groups, d)
    qkv = make_random(seed + 1, b, beams, (heads + 2 * groups) * d)
    torch.manual_seed(seed)
    counts = torch.randint(longest + 1, (n,), dtype=torch.int32)
    entries = torch.stack([torch.randperm(capacity, dtype=torch.int32)[:longest] for _ in range(n)])
    parents = torch.randint(n, (n,))
    starts = torch.arange(0, n + 1, beams)
    old = k.Past(entries, counts, entries[0])
    past, before = k.advance_past(old, parents, starts, capacity), cache.clone()
    kept = {e for p in parents.tolist() for e in entries[p, : counts[p]].tolist()}
    free = [e for e in range(capacity + n) if e not in kept]
    assert past.new_entries.tolist() == free[:n]
    cache = torch.cat([cache, torch.full((n, 2, groups, d), math.nan)])  # room for new entries
    found = k.attend_cached(qkv, starts, cache, past, heads).view(n, heads, d)
    parts = qkv.view(n, -1, d)
    assert torch.equal(cache[past.new_entries], parts[:, heads:].reshape(n, 2, groups, d))
    others = [e for e in range(capacity) if e not in free[:n]]
    assert torch.equal(cache[others], before[others])
    for row, parent in enumerate(parents.tolist()):
        own = [*entries[parent, : counts[parent]].tolist(), free[row]]
        assert past.entries[row, : past.counts[row]].tolist() == own
        keys, values = cache[own].repeat_interleave(heads // groups, 2).permute(1, 2, 0, 3)
        expected, _ = compute_attention(parts[row, :heads, None], keys, values, torch.tensor(True))
        torch.testing.assert_close(found[row], expected[:, 0], rtol=1e-5, atol=1e-5)


def test_advance_past_shares_an_entry_among_equal_hypotheses():
    """The first of two sentences has one row for its three hypotheses."""
    none = torch.empty(2, 0, dtype=torch.int32)
    past = k.Past(none, torch.zeros(2, dtype=torch.int32), none[0])
    past = k.advance_past(past, torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 4]), 0)
    assert past.counts.tolist() == [1] * 6
    assert past.entries[:, 0].tolist() == [0, 0, 0, 1, 2, 3]
    assert past.new_entries.tolist() == [0, 1, 2, 3]
    # No hypothesis continues the fifth, so that its entry is used again
    parents = torch.tensor([2, 0, 1, 5, 5, 3])
    past = k.advance_past(past, parents, torch.tensor([0, 3, 6]), 4)
    assert past.counts.tolist() == [2] * 6
    assert past.entries.tolist() == [[0, 2], [0, 4], [0, 5], [3, 6], [3, 7], [1, 8]]


@pytest.mark.parametrize("is_int8", [False, True])
def test_row_result_does_not_depend_on_batch_or_threads(is_int8):
    """Bitwise equal for any other rows, number of rows and number of threads."""
    weights = k.Weights(make_random(1, 70, 50), make_random(2, 70), is_int8)
    down = k.Weights(make_random(3, 50, 70), make_random(4, 50), is_int8)
    x, norm = make_random(5, 400, 50), k.Norm(make_norm(6, 50, "layer"))
    results = [
        lambda rows: k.linear(rows, weights, norm, "silu"),
        lambda rows: k.feed_forward(rows, weights, down, norm, "relu", rows),
        lambda rows: torch.cat(
            [part.view(len(rows), -1) for part in compute_logits(rows, weights)], 1
        ),
    ]
    for result in results:
        torch.set_num_threads(2)
        expected = result(x)
        torch.set_num_threads(1)
        order = torch.randperm(400, generator=torch.Generator().manual_seed(7))
        assert torch.equal(result(x[order]), expected[order])
        for n in (1, 7, 13):
            assert torch.equal(result(x[:n]), expected[:n])


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_input_affects_its_row_only(is_int8, value):
    """The whole row becomes NaN or infinite, and no other row changes."""
    weight, bias = make_random(1, 40, 20), make_random(2, 40)
    weights, x = k.Weights(weight, bias, is_int8), make_random(3, 30, 20)
    expected = k.linear(x, weights)
    x[4, 17] = value
    found, (logits, log_z) = k.linear(x, weights), compute_logits(x, weights)
    others = [i for i in range(30) if i != 4]
    assert torch.equal(found[others], expected[others])
    assert not found[4].isfinite().any()
    assert not log_z[4].isfinite() and log_z[others].isfinite().all()
    assert torch.equal(logits[others], expected[others])
    inner = k.feed_forward(x, weights, k.Weights(weight.T, bias[:20], is_int8))
    assert not inner[4].isfinite().any() and inner[others].isfinite().all()


@pytest.mark.parametrize("is_int8", [False, True])
def test_extreme_inputs_and_weights(is_int8):
    weight, bias = make_random(1, 40, 20), make_random(2, 40)
    weight[3], weight[5] = 0.0, 1e-42
    weights = k.Weights(weight, bias, is_int8)
    x = torch.zeros(3, 20)
    x[1], x[2] = 1e-42, 1e30
    found = k.linear(x, weights)
    assert torch.equal(found[0], bias) and torch.equal(found[1], bias)
    assert_close(found[2] / 1e30, compute_linear(x[2:], weight, bias, False)[0] / 1e30, is_int8)
    bias[7] = -math.inf  # a token that is never predicted
    weights = k.Weights(weight, bias, is_int8)
    logits, log_z = compute_logits(x[:2], weights)
    assert (logits[:, 7] == -math.inf).all()
    torch.testing.assert_close(log_z, logits.logsumexp(1))
    impossible = k.Weights(weight, torch.full((40,), -math.inf), is_int8)
    _, log_z = compute_logits(x[:1], impossible)
    assert log_z.item() == torch.finfo(torch.float32).min


def test_linear_in_forked_process_and_python_threads():
    """Worker threads of the parent do not exist in a fork; concurrent callers do not deadlock."""
    import os
    import threading

    torch.set_num_threads(2)
    weights, x = (
        k.Weights(make_random(1, 64, 64), make_random(2, 64), True),
        make_random(3, 500, 64),
    )
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
    assert len(results) == 200 and all(torch.equal(result, expected) for result in results)
