"""The counts of `python -m tests.gpu.counts` against sums by hand."""

from tests.gpu.counts import BEAM, count_middle_step


def test_step_counts_of_products_and_transfers_equal_sums_by_hand():
    layers, d, d_ff, heads, v = sizes = (2, 16, 40, 4, 300)
    # 24 source tokens are padded to 32; a cache has room for 16 steps, a power of 2
    n, n_src, n_tgt = 6, 32, 16 * BEAM
    step, rows = count_middle_step(sizes, n), 6 * BEAM
    weights = layers * (3 * d * d + d * d + 2 * d * d + 2 * d * d_ff) + v * d
    attention = layers * 2 * d * (n_tgt + n_src)  # attention weights and weighted sums of all heads
    assert sum(k.flops for k in step.kernels) == 2 * rows * (weights + attention)
    assert step.to_device == [] and len(step.to_host) == 1
    assert [k.flops for k in step.outside if k.flops] == [2 * rows * v * d]  # the output layer
    copied = [k for k in step.inside if k.name == "index_copy_"]
    written = 2 * layers * rows * d * 2 + n * BEAM * BEAM * 4  # keys, values; the mask
    assert sum(k.n_bytes for k in copied) == 2 * written
