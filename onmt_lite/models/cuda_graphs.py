"""CUDA graphs of decoder steps: recorded once per shape, then replayed by one launch.

A kernel that Python launches takes the host about 8 microseconds, and a step has more than a
hundred, each of which may take the GPU less.  A graph launches all of them at once.  The tensors
that it reads and writes must keep their addresses, so each running state has its own
`GraphBuffers`, and shapes come in few sizes:

    sentences     eighths of a power of two; places after the last sentence hold what was there
    source        multiples of 32 tokens, see `onmt_lite.search.slots`
    own tokens    powers of two, see `onmt_lite.models.cache`

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
    """Records a step as a CUDA graph, whose replay writes its results to the same tensors."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()  # one graph runs at a time: all share memory

    def __call__(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self.pool):
            results = step()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return results

        return replay


class GraphBuffers:
    """Memory that holds the tensors of one running state, and the graphs that use it."""

    def __init__(self) -> None:
        self.stores: dict[tuple[int, torch.dtype], Tensor] = {}
        self.homes: dict[int, Tensor] = {}
        self.steps: dict[Any, Step | None] = {}  # by shapes; None: run once, without a graph
        self.owner: Callable[[], Any] = lambda: None  # a weak reference to the state

    def settle(self, state: Any, tokens: Tensor, n_rows: int) -> Tensor:
        """Move the state's tensors here; return a tensor (n_rows,) that begins with tokens (R,)."""
        for i, (holder, name, x) in enumerate(iterate_tensors(state), start=1):
            if x.numel() and x is not self.homes.get(i):
                self.homes[i] = holder[name] = self._home(i, x.shape, x)
                self.homes[i].copy_(x)
        inputs = self._home(0, torch.Size([n_rows]), tokens)
        inputs[: len(tokens)] = tokens
        return inputs

    def _home(self, number: int, shape: torch.Size, like: Tensor) -> Tensor:
        """The place of tensor `number`, at the beginning of the memory that is kept for it."""
        key, n = (number, like.dtype), shape.numel()
        if key not in self.stores or self.stores[key].numel() < n:
            self.stores[key] = like.new_zeros(n)
            self.steps.clear()  # they read the old memory
        return self.stores[key][:n].view(shape)


class StepGraphs:
    """Runs the device's part of steps: a shape's first as it is, which lets the libraries choose
    their kernels; the second is recorded.  If that fails, all run as they are, and the log says so.
    """

    def __init__(self, recorder: CaptureFn):
        self.recorder = recorder
        self.lanes: list[GraphBuffers] = []
        self.fails = False

    def run(
        self, advance: Callable[..., tuple[Tensor, Tensor]], tokens: Tensor, state: Any
    ) -> tuple[Tensor, Tensor]:
        """Run or replay `Seq2SeqModel.advance`; results are valid until any state's next step."""
        lane, n = self._lane(state), state.n_sentences
        n_run, beam_size = round_up(n), len(tokens) // n
        inputs = lane.settle(state, tokens, n_run * beam_size)  # (n_run * K,)
        step = partial(advance, inputs, state.view_first(n_run))
        shapes = n_run, *(x.shape for x in lane.homes.values())
        hidden, attn = self._recorded(lane, shapes, step)()
        return hidden[:n], attn[:n]  # (B, K, D), (B, K, S)

    def _recorded(self, lane: GraphBuffers, shapes: Any, step: Step) -> Step:
        """The graph of the step, recorded now if it is the second of these shapes; or the step."""
        if self.fails or shapes not in lane.steps:
            lane.steps[shapes] = None
            return step
        recorded = lane.steps[shapes]
        if recorded is None:
            try:
                recorded = lane.steps[shapes] = self.recorder(step)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.fails = True
                reason = str(error).split("\n")[0]
                LOG.warning("NOTE: cuda-graph: steps run without CUDA graphs, slower: %s", reason)
                return step
        return recorded

    def _lane(self, state: Any) -> GraphBuffers:
        """The lane of a state; a new state takes that of a state that is gone."""
        if state.graph_buffers is None:
            free = [lane for lane in self.lanes if lane.owner() is None]
            if not free:
                free = [GraphBuffers()]
                self.lanes += free
            state.graph_buffers = free[0]
            state.graph_buffers.owner = weakref.ref(state)
        return state.graph_buffers


def use_cuda_graphs(model: AnyModel, recorder: CaptureFn) -> AnyModel:
    """A copy that shares the weights and replays its steps; the model itself if it cannot."""
    if not getattr(model, "supports_cuda_graphs", False):
        return model
    own: Any = copy.copy(model)
    own.graphs = StepGraphs(recorder)
    return own


@contextlib.contextmanager
def release_graphs_on_oom(model: AnyModel) -> Iterator[None]:
    """Drop the memory that graphs keep for later if memory runs out inside."""
    try:
        yield
    except torch.OutOfMemoryError:
        graphs = getattr(model, "graphs", None)
        if graphs is not None:
            graphs.lanes.clear()
        raise


def round_up(n: int) -> int:
    """The next of 1 to 8, 9 ... 16, 18 ... 32, 36 ...: at most an eighth more than n."""
    unit = 1 << max(0, (n - 1).bit_length() - 4)
    return -(-n // unit) * unit


def iterate_tensors(holder: Any) -> Iterator[tuple[Any, Any, Tensor]]:
    """All tensors of a state, each with the dictionary or list that holds it and its key there."""
    holds = holder if isinstance(holder, list) else vars(holder)
    for name, x in list(enumerate(holds) if isinstance(holds, list) else holds.items()):
        if isinstance(x, Tensor):
            yield holds, name, x
        elif isinstance(x, list) or hasattr(x, "select"):  # records and caches
            yield from iterate_tensors(x)
