"""Kernels, bytes and operations of a decoding step, without a GPU: `python -m tests.gpu.counts`.

The real decode loop runs on the device `meta`.  Each kernel is counted with the bytes that it reads
and writes and its floating-point operations.  The times are lower bounds: bytes by memory bandwidth
or operations by peak rate, whichever is longer, for each kernel separately.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.cuda_graphs import use_cuda_graphs
from onmt_lite.models.transformer import Transformer
from onmt_lite.search.beam_search import BeamBatch
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits
from tests.support.simulated_gpu import FREE

MODELS = {
    "tiny, 3+3 × 256, V 8k": (3, 256, 1024, 4, 8_000),
    "base, 6+6 × 512, V 32k": (6, 512, 2048, 8, 32_000),
    "large, 12+12 × 1024, V 256k": (12, 1024, 4096, 16, 256_000),
}
SENTENCES = (64, 256, 1024)
BEAM, LENGTH = 5, 24  # hypotheses; tokens of a source and of its translation

# An H100 (SXM): bytes and bfloat16 operations per microsecond
BYTES_PER_US, FLOPS_PER_US = 3.35e6, 989e6
LAUNCH_US = 8.0  # assumed: a kernel launched from Python
REPLAYED_US = 2.0  # assumed: minimum for a kernel in a graph

COLUMNS = (
    *("model", "sentences", "kernels in the graph", "launches", "to the GPU, KB"),
    *("to the host, KB", "MB", "GFLOP", "bound, µs", "matrix products, µs", "in a graph, µs"),
    *("without graphs, µs", "maximum sentences/s"),
)

# Kernels that read as many bytes as they write, whatever the size of their input
SELECTIVE = {"embedding", "index_select", "gather", "index", "copy_", "index_copy_", "fill_"}


class Kernel(NamedTuple):
    name: str
    n_bytes: int
    flops: int

    @property
    def us(self) -> float:
        return max(self.n_bytes / BYTES_PER_US, self.flops / FLOPS_PER_US)


@dataclass
class Counts:
    """Kernels inside and outside the CUDA graph, and bytes of transfers."""

    inside: list[Kernel] = field(default_factory=list)
    outside: list[Kernel] = field(default_factory=list)
    to_host: list[int] = field(default_factory=list)
    to_device: list[int] = field(default_factory=list)

    @property
    def kernels(self) -> list[Kernel]:
        return self.inside + self.outside


class Counter(TorchDispatchMode):
    """Counts the kernels that run on the device `meta`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.is_inside = Counts(), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        inputs = [x for x in find_tensors((*args, *kwargs.values())) if x.dim()]
        if name == "copy_" and args[0].is_cpu and args[1].is_meta:
            self.counts.to_host.append(args[1].nbytes)
            return args[0]
        out = func(*args, **kwargs)
        outputs = [x for x in find_tensors([out]) if x.is_meta]
        if outputs and any(x.is_cpu for x in inputs):
            self.counts.to_device.append(sum(x.nbytes for x in inputs if x.is_cpu))
        elif outputs and name not in FREE:
            kernels = self.counts.inside if self.is_inside else self.counts.outside
            kernels.append(make_kernel(name, args, inputs, outputs))
        return out

    def record(self, step: Any) -> Any:
        """Replace graph capture: all kernels of a replay count as inside."""

        def replay() -> Any:
            self.is_inside = True
            results = step()
            self.is_inside = False
            return results

        return replay


def make_kernel(name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Kernel:
    """Return a kernel with its bytes and operations.

    Args:
        name: the operation.
        args: its arguments.
        inputs: all tensors among the arguments.
        outputs: its results.
    """
    written = sum(map(count_bytes, outputs))
    if name in SELECTIVE:
        if name == "index_copy_":
            written = args[3].nbytes
        return Kernel(name, written if name == "fill_" else 2 * written, 0)
    flops = 0
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        first, second = inputs[-2:]
        flops = 2 * first.numel() * second.size(-1)
    return Kernel(name, written + sum(map(count_bytes, inputs)), flops)


def count_bytes(x: Tensor) -> int:
    """Return the bytes of a tensor; expanded dimensions count once."""
    return min(x.nbytes, x.untyped_storage().nbytes())


def find_tensors(values: Any) -> Iterator[Tensor]:
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from find_tensors(x)


def make_model(sizes: tuple[int, ...]) -> Transformer:
    layers, d_model, d_ff, heads, vocab_size = sizes
    cfg = TransformerConfig(
        vocab_size, vocab_size, d_model, heads, d_ff, layers, layers, pre_norm=False
    )
    return Transformer(cfg).eval()


def make_search(n_sentences: int) -> tuple[SearchSpec, list[Sentence]]:
    """Return the default search and sentences that all reach their limit."""
    preset = PRESETS["opennmt"]
    spec = SearchSpec(preset.policy, preset.stop_rules["ratio=0.0"], BEAM, bos_id=2, eos_id=3)
    return spec, [Sentence([5] * LENGTH, SentenceLimits(LENGTH))] * n_sentences


def count_middle_step(sizes: tuple[int, ...], n_sentences: int) -> Counts:
    """Return the counts of a step at half the length."""
    with torch.device("meta"):
        model = make_model(sizes).to("meta", torch.bfloat16)
    counter = Counter()
    with torch.no_grad(), counter:
        graph_model = use_cuda_graphs(model, counter.record)
        batch = BeamBatch(graph_model, *make_search(n_sentences), n_sentences)
        encoded, _ = batch.scheduler.admit(n_sentences)
        batch.rows.fill(encoded)
        for _ in range(LENGTH // 2):
            counter.counts = Counts()
            chosen = batch.step(
                *graph_model.step(batch.rows.table.tokens.flatten(), batch.rows.state)
            )
            batch.log.send(chosen)
            batch.reorder_and_refill(chosen)
    return counter.counts


def main() -> None:
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for name, sizes in MODELS.items():
        for n in SENTENCES:
            print("| " + " | ".join(count_cells(name, n, count_middle_step(sizes, n))) + " |")


def count_cells(name: str, n: int, step: Counts) -> list[str]:
    """Return the cells of a row, one for each of COLUMNS.

    Args:
        name: key of MODELS.
        n: sentences in the batch.
        step: counts of the step.
    """
    bound = sum(k.us for k in step.kernels)
    products = sum(k.us for k in step.kernels if k.flops)
    n_launches = len(step.outside) + 1
    replayed = sum(max(k.us, REPLAYED_US) for k in step.inside)
    rest = sum(max(k.us, LAUNCH_US) for k in step.outside) + LAUNCH_US
    eager = sum(max(k.us, LAUNCH_US) for k in step.kernels)
    cells = [
        name,
        n,
        len(step.inside),
        n_launches,
        f"{sum(step.to_device) / 1e3:.1f}",
        f"{sum(step.to_host) / 1e3:.1f}",
        f"{sum(k.n_bytes for k in step.kernels) / 1e6:.0f}",
        f"{sum(k.flops for k in step.kernels) / 1e9:.1f}",
        f"{bound:.0f}",
        f"{products:.0f}",
        f"{replayed + rest:.0f}",
        f"{eager:.0f}",
        f"{n / LENGTH / (replayed + rest) * 1e6:.0f}",
    ]
    return list(map(str, cells))


if __name__ == "__main__":
    sys.exit(main())
