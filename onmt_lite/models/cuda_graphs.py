"""CUDA graphs of decoder steps: captured once per shape, then replayed with one launch.

Launching a kernel from Python takes the host about 8 microseconds.  A step launches more than a
hundred kernels, many of which run for less time than that on the GPU.  A graph launches all of them
at once.  The tensors that it reads and writes must keep their addresses, so each running state has
separate `GraphBuffers`.  Sizes are rounded up to reduce the number of shapes:

    sentences     eighths of a power of two; unused slots keep their old contents
    source        multiples of 32 tokens, see `onmt_lite.search.slots`
    target        powers of two, see `onmt_lite.models.cache`

Not run on a GPU: tests/unit/models/test_cuda_graphs.py replays the operations on a simulated one.
"""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.system.log import LOG

Step: TypeAlias = Callable[[], tuple[Tensor, Tensor]]  # returns hidden states and attention
CaptureFn: TypeAlias = Callable[[Step], Step]


class CudaGraphCapture:
    """Captures a step as a CUDA graph.  A replay writes its results to the same tensors."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()  # shared, since one graph runs at a time

    def __call__(self, step: Step) -> Step:
        """Capture a step.  Returns a function that replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self.pool):
            results = step()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return results

        return replay


class GraphBuffers:
    """Static memory for the tensors of one running state, and the graphs that use it."""

    def __init__(self) -> None:
        self.storages: dict[tuple[int, torch.dtype], Tensor] = {}
        self.tensors: dict[int, Tensor] = {}  # views of the storages, by tensor index
        self.steps: dict[Any, Step | None] = {}  # graphs by shapes; None: run once, not captured
        self.owner: Callable[[], Any] = lambda: None  # weak reference to the state

    def copy_in(self, state: Any, tokens: Tensor, n_rows: int) -> Tensor:
        """Move the state's tensors to this memory.

        Args:
            state: a `DecoderState`; its tensors are replaced
            tokens: the last token of each row (R,), int64
            n_rows: number of rows after rounding up

        Returns:
            Input tokens (n_rows,), int64; the first R are set.
        """
        for i, (holder, name, x) in enumerate(iterate_tensors(state), start=1):
            if x.numel() and x is not self.tensors.get(i):
                self.tensors[i] = holder[name] = self._view(i, x.shape, x)
                self.tensors[i].copy_(x)
        inputs = self._view(0, torch.Size([n_rows]), tokens)
        inputs[: len(tokens)] = tokens
        return inputs

    def _view(self, index: int, shape: torch.Size, like: Tensor) -> Tensor:
        """Return a view of the storage of a tensor, allocated if it is too small.

        Args:
            index: index of the tensor
            shape: shape of the view
            like: a tensor with the dtype and device of the view
        """
        key, n = (index, like.dtype), shape.numel()
        if key not in self.storages or self.storages[key].numel() < n:
            self.storages[key] = like.new_zeros(n)
            self.steps.clear()  # these graphs read the old storage
        return self.storages[key][:n].view(shape)


class StepGraphs:
    """Runs the device side of decoder steps, with CUDA graphs if possible.

    The first step of a shape runs without a graph, so that libraries can choose their kernels; the
    second is captured.  If a capture fails, all steps run without graphs, and a warning is logged.
    """

    def __init__(self, capture: CaptureFn):
        self.capture = capture
        self.buffers: list[GraphBuffers] = []
        self.has_failed = False

    def run(
        self, advance: Callable[..., tuple[Tensor, Tensor]], tokens: Tensor, state: Any
    ) -> tuple[Tensor, Tensor]:
        """Run or replay `Seq2SeqModel.advance`.

        Args:
            advance: the bound method of a model
            tokens: the last token of each row (R,), int64
            state: the decoder state, updated in place

        Returns:
            Hidden states (B, K, D) and attention (B, K, S), valid until the next step of any state.
        """
        buffers, n = self._get_buffers(state), state.n_sentences
        n_run, beam_size = round_up(n), len(tokens) // n
        inputs = buffers.copy_in(state, tokens, n_run * beam_size)  # (n_run * K,)
        step = partial(advance, inputs, state.view_first(n_run))
        shapes = n_run, *(x.shape for x in buffers.tensors.values())
        hidden, attn = self._get_step(buffers, shapes, step)()
        return hidden[:n], attn[:n]  # (B, K, D), (B, K, S)

    def _get_step(self, buffers: GraphBuffers, shapes: Any, step: Step) -> Step:
        """Return the graph of a step, captured if this is the second step of these shapes.

        Args:
            buffers: the buffers of the running state
            shapes: key of the graph
            step: the step, returned if it has not been captured
        """
        if self.has_failed or shapes not in buffers.steps:
            buffers.steps[shapes] = None
            return step
        captured = buffers.steps[shapes]
        if captured is None:
            try:
                captured = buffers.steps[shapes] = self.capture(step)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.has_failed = True
                reason = str(error).split("\n")[0]
                problem = "decoding runs without CUDA graphs and is slower"
                LOG.warning("NOTE: cuda-graph: %s: %s", problem, reason)
                return step
        return captured

    def _get_buffers(self, state: Any) -> GraphBuffers:
        """Return the buffers of a state; a new state reuses the buffers of a deleted state."""
        if state.graph_buffers is None:
            free = [buffers for buffers in self.buffers if buffers.owner() is None]
            if not free:
                free = [GraphBuffers()]
                self.buffers += free
            state.graph_buffers = free[0]
            state.graph_buffers.owner = weakref.ref(state)
        return state.graph_buffers


def use_cuda_graphs(model: AnyModel, capture: CaptureFn) -> AnyModel:
    """Return a copy of the model that shares its weights and replays its steps.

    Models that do not support CUDA graphs are returned unchanged.
    """
    if not getattr(model, "supports_cuda_graphs", False):
        return model
    model_with_graphs: Any = copy.copy(model)
    model_with_graphs.graphs = StepGraphs(capture)
    return model_with_graphs


@contextlib.contextmanager
def release_graphs_on_oom(model: AnyModel) -> Iterator[None]:
    """Free the memory of idle graphs if memory runs out inside the block."""
    try:
        yield
    except torch.OutOfMemoryError:
        graphs = getattr(model, "graphs", None)
        if graphs is not None:
            graphs.buffers.clear()
        raise


def round_up(n: int) -> int:
    """Round up to 1 to 8, 9 ... 16, 18 ... 32, 36 ...: at most an eighth more than n."""
    unit = 1 << max(0, (n - 1).bit_length() - 4)
    return -(-n // unit) * unit


def iterate_tensors(holder: Any) -> Iterator[tuple[Any, Any, Tensor]]:
    """Yield all tensors of a state, each with the dict or list that contains it and its key."""
    container = holder if isinstance(holder, list) else vars(holder)
    items = enumerate(container) if isinstance(container, list) else container.items()
    for name, x in list(items):
        if isinstance(x, Tensor):
            yield container, name, x
        elif isinstance(x, list) or hasattr(x, "select"):  # dataclasses and caches
            yield from iterate_tensors(x)
