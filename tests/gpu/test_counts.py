"""What `python -m tests.gpu.counts` counts, beside sums by hand."""

from tests.gpu.counts import BEAM, middle_step


def test_operations_of_products_and_transfers():
    layers, d, d_ff, heads, v = sizes = (2, 16, 40, 4, 300)
    # A source of 24 tokens is padded, and so is the room of a cache, to a power of 2 in steps
    n, n_src, n_own = 6, 32, 16 * BEAM
    step, rows = middle_step(sizes, n), 6 * BEAM
    weights = layers * (3 * d * d + d * d + 2 * d * d + 2 * d * d_ff) + v * d
    attention = layers * 2 * d * (n_own + n_src)  # scores and weighted sums of all heads
    assert sum(k.flops for k in step.kernels) == 2 * rows * (weights + attention)
    assert step.to_device == [] and len(step.to_host) == 1
    assert [k.flops for k in step.outside if k.flops] == [2 * rows * v * d]  # the head
    copied = [k for k in step.inside if k.name == "index_copy_"]
    written = 2 * layers * rows * d * 2 + n * BEAM * BEAM * 4  # keys, values; the mask
    assert sum(k.n_bytes for k in copied) == 2 * written
