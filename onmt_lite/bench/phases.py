"""Where the time of ours goes, and the floor under it: the same matrix products alone.

Functions of the translator are wrapped from outside, in a process of its own and in a run that is
not compared, so that a translation pays nothing for being watched.
"""

import contextlib
import functools
import importlib
import math
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.inference.runtime import cpu_threads

# What is wrapped, as module:name.  Time belongs to the innermost phase; within those marked as
# whole nothing else is looked for.
PHASES: dict[str, tuple[str, ...]] = {
    "tokenise": (
        "onmt_lite.inference.preprocess:ExampleMaker.make",
        "onmt_lite.inference.postprocess:Renderer.found",
    ),
    "encode": (
        "onmt_lite.models.family:Family.encode",
        "onmt_lite.models.transformer:Transformer.init_state",
    ),
    "decoder products": (
        "onmt_lite.models.linear:Linear.forward",
        "onmt_lite.models.layers:FeedForward.forward",
    ),
    "attention": (
        "onmt_lite.models.attention:attend",
        "onmt_lite.models.cache:KeyValueCache.begin_step",
        "onmt_lite.models.cache:KeyValueCache.append",
    ),
    "rest of the decoder": ("onmt_lite.models.family:Family.step",),
    "vocabulary product": ("onmt_lite.models.heads:Head.forward",),
    "log-sum-exp": ("onmt_lite.search.masks:normaliser",),
    "top-k": ("onmt_lite.search.ranking:Ranker.rank",),
    "select": ("onmt_lite.models.family:DecoderState.select",),
    "rest of a step": ("onmt_lite.search.beam_batch:Frontier.step",),
}
WHOLE = ("tokenise", "encode", "decoder products", "attention", "vocabulary product", "top-k")
HOST = "host"  # all else: beams, batches, Python
PRODUCTS = PHASES["decoder products"]  # methods of layers, of inputs (..., K)

Shape = tuple[int, int, int]  # rows, K, N of a product (rows, K) @ (K, N)


class Watch:
    """Seconds of processor time by phase, and how often each product was computed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.products: Counter[Shape] = Counter()
        self._inside = [HOST]
        self._counted = False  # within what has been counted as a whole
        self._since = time.process_time()

    def wrap(self, phase: str, function: Callable[..., Any], is_product: bool = False) -> Any:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            counts = is_product and not self._counted
            if counts:
                self.products.update(products_of(args[0], args[1]))
                self._counted = True
            whole = self._inside[-1] in WHOLE
            if not whole:
                self._change(lambda: self._inside.append(phase))
            try:
                return function(*args, **kwargs)
            finally:
                if not whole:
                    self._change(self._inside.pop)
                if counts:
                    self._counted = False

        return watched

    def stop(self) -> None:
        self._change(lambda: None)

    def _change(self, change: Callable[[], object]) -> None:
        """Give the time since the last change to the phase that was the innermost one."""
        now = time.process_time()
        self.seconds[self._inside[-1]] += now - self._since
        change()
        self._since = now


def products_of(layer: torch.nn.Module, x: Tensor) -> list[Shape]:
    """What a layer multiplies: one product, or those of the layers in it."""
    if isinstance(layer, torch.nn.Linear):
        return [(x.numel() // x.size(-1), layer.in_features, layer.out_features)]
    return [shape for part in layer.children() for shape in products_of(part, x)]


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Wrap all functions of the table, and put them back."""
    before = []
    watch = Watch()
    for phase, names in PHASES.items():
        for name in names:
            owner, attribute = find(name)
            function = getattr(owner, attribute)
            before.append((owner, attribute, function))
            setattr(owner, attribute, watch.wrap(phase, function, name in PRODUCTS))
    try:
        yield watch
    finally:
        watch.stop()
        for owner, attribute, function in before:
            setattr(owner, attribute, function)


def find(name: str) -> tuple[Any, str]:
    """Where module:Class.method is: the class and the method's name.  AttributeError if nowhere."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, last = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    getattr(owner, last)
    return owner, last


def profile(translate: Callable[[], object], precision: str) -> dict[str, Any]:
    """Processor seconds of one translation by phase, and of its products alone (`floor`), in
    `precision` by the kernel that is the fastest here."""
    with watching() as watch:
        translate()
    with cpu_threads(1):
        seconds, kernels = floor(watch.products, precision)
    return {
        "phases": {name: watch.seconds.get(name, 0.0) for name in (*PHASES, HOST)},
        "floor": seconds,
        "kernels": kernels,
        "gflop": sum(n * flops(shape) for shape, n in watch.products.items()) / 1e9,
    }


# -- the floor ------------------------------------------------------------------------------------

Kernel = Callable[[Tensor, Tensor], Callable[[], object]]  # x (R, K), weight (N, K) -> the product


def plain(x: Tensor, weight: Tensor) -> Callable[[], object]:
    return lambda: F.linear(x, weight)


def packed(x: Tensor, weight: Tensor) -> Callable[[], object]:
    ops: Any = torch.ops.mkldnn
    ready = ops._reorder_linear_weight(weight, x.size(0))
    return lambda: ops._linear_pointwise(x, ready, None, "none", [], "")


def int_mm(x: Tensor, weight: Tensor) -> Callable[[], object]:
    x8, w8 = (x * 40).to(torch.int8), (weight * 40).to(torch.int8).t()
    return lambda: torch._int_mm(x8, w8)


def qlinear(x: Tensor, weight: Tensor) -> Callable[[], object]:
    ops: Any = torch.ops.onednn
    x8 = (x * 40 + 128).clamp(0, 255).to(torch.uint8)
    ready = ops.qlinear_prepack((weight * 40).to(torch.int8), list(x.shape))
    scales, zeros = torch.full((len(weight),), 0.025), torch.zeros(len(weight), dtype=torch.int64)
    end: tuple[Any, ...] = None, 1.0, 0, torch.float32, "none", [], ""
    return lambda: ops.qlinear_pointwise(x8, 0.025, 128, ready, scales, zeros, *end)


def dynamic(x: Tensor, weight: Tensor) -> Callable[[], object]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "onednn"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch will drop that type
            w8 = torch.quantize_per_tensor(weight, 0.025, 0, torch.qint8)
        ready = torch.ops.quantized.linear_prepack(w8, None)
    finally:
        torch.backends.quantized.engine = before
    return lambda: torch.ops.quantized.linear_dynamic(x, ready, False)


KERNELS: dict[str, dict[str, Kernel]] = {
    "fp32": {"plain": plain, "packed oneDNN": packed},
    "bf16": {"plain": plain, "packed oneDNN": packed},
    "int8": {"oneDNN qlinear": qlinear, "_int_mm": int_mm, "oneDNN linear_dynamic": dynamic},
}


def floor(products: Counter[Shape], precision: str) -> tuple[float, list[str]]:
    """Seconds that the products take alone with the fastest kernels, and which those are.

    A rate is measured for each K and N with rows in a few numbers, powers of four.
    """
    rates: dict[Shape, tuple[float, str]] = {}
    seconds = 0.0
    for (rows, k, n), times in products.items():
        near = 4 ** round(math.log(rows, 4)), k, n
        if near not in rates:
            rates[near] = fastest(near, precision)
        seconds += times * flops((rows, k, n)) / rates[near][0]
    return seconds, sorted({name for _, name in rates.values()})


def fastest(shape: Shape, precision: str) -> tuple[float, str]:
    """FLOP per second of the fastest kernel, and its name.  RuntimeError where none works."""
    rows, k, n = shape
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x, weight = torch.rand(rows, k).to(dtype), torch.rand(n, k).to(dtype)
    found = []
    for name, kernel in KERNELS[precision].items():
        try:
            found.append((flops(shape) / seconds_of(kernel(x, weight)), name))
        except (RuntimeError, AttributeError, NotImplementedError):
            continue  # not of this torch or this processor
    if not found:
        raise RuntimeError(f"no kernel of {precision} works here")
    return max(found)


def seconds_of(product: Callable[[], object], least: float = 0.015) -> float:
    """Processor time of one call: the least of a few means."""
    with torch.inference_mode():
        product()
        n = 1
        means: list[float] = []
        while len(means) < 3:
            start = time.process_time()
            for _ in range(n):
                product()
            taken = time.process_time() - start
            if taken >= least:
                means.append(taken / n)
            else:
                n = max(2 * n, math.ceil(1.2 * n * least / max(taken, least / 50)))
    return min(means)


def flops(shape: Shape) -> float:
    rows, k, n = shape
    return 2.0 * rows * k * n
