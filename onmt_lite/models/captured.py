"""Steps of a Transformer as CUDA graphs: recorded once per shape, then replayed by one launch.

A kernel that Python launches takes the host about 8 microseconds, and a step has more than a
hundred, each of which may take the GPU less.  A graph launches all of them at once.  What it reads
and writes must stay where it was when the graph was recorded, so each running state has a `Lane`,
where its tensors stand, and shapes come in few sizes:

    sentences     eighths of a power of two; places behind the last sentence hold what was there
    source        multiples of 32 tokens, see `onmt_lite.search.scheduler`
    own tokens    powers of two, see `onmt_lite.models.cache`

Not run on a GPU: the tests replay operations on a simulated one (tests/test_captured.py).
"""

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from onmt_lite.models.base import Heads
from onmt_lite.models.cache import KeyValueCache
from onmt_lite.models.family import DecoderState
from onmt_lite.models.memory import Sentences
from onmt_lite.models.selection import Selection
from onmt_lite.models.transformer import Transformer, TransformerMemory, TransformerState

LOG = logging.getLogger("onmt_lite")

Step: TypeAlias = Callable[[], tuple[Tensor, Tensor]]  # returns hidden states and attention
Recorder: TypeAlias = Callable[[Step], Step]


class CudaRecorder:
    """Record a step as a CUDA graph; what is returned replays it and returns the same tensors."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()  # one at a time runs, so all share memory

    def __call__(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self.pool):
            results = step()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return results

        return replay


class CapturedState:
    """A state that keeps places for more sentences than run, so that its shapes seldom change."""

    def __init__(self, state: TransformerState):
        self.state = state
        self.n_sentences, self.n_places = len(state.positions), 0
        self.lane: Lane | None = None

    @property
    def positions(self) -> Tensor:
        return self.state.positions[: self.n_sentences]

    def select(self, selection: Selection, fresh: "CapturedState | None" = None) -> "CapturedState":
        """See `onmt_lite.models.base.State.select`."""
        n = len(selection.rows)
        slots = selection.slots
        if n > self.n_places:
            self.n_places, slots = rounded_up(n), slots or tuple(range(n))
        selection = replace(selection, slots=slots, n_places=self.n_places)
        self.state = self.state.select(selection, fresh.state if fresh else None)
        if slots is not None and n < self.n_places:
            self.state.positions[n:] = 0  # or they would grow beyond the tables of positions
        self.n_sentences = n
        return self


class Lane:
    """Where the tensors of a running state stand, and the graphs that read and write there."""

    def __init__(self) -> None:
        self.stores: dict[tuple[int, torch.dtype], Tensor] = {}
        self.homes: dict[int, Tensor] = {}
        self.steps: dict[Any, Step | None] = {}  # by shapes; None: made once, without a graph
        self.owner: Callable[[], CapturedState | None] = lambda: None

    def settle(self, state: TransformerState, tokens: Tensor, n_rows: int) -> Tensor:
        """Move those of a state's tensors here that stand elsewhere; where tokens (R,) of at most
        n_rows rows are read from."""
        for i, (holder, name, x) in enumerate(tensors_of(state), start=1):
            if x.numel() and x is not self.homes.get(i):
                self.homes[i] = holder[name] = self._home(i, x.shape, x)
                self.homes[i].copy_(x)
        inputs = self._home(0, torch.Size([n_rows]), tokens)
        inputs[: len(tokens)] = tokens
        return inputs

    def _home(self, number: int, shape: torch.Size, like: Tensor) -> Tensor:
        """The place of a tensor: the first of the memory that is kept for its number."""
        key, n = (number, like.dtype), shape.numel()
        if key not in self.stores or self.stores[key].numel() < n:
            self.stores[key] = like.new_zeros(n)
            self.steps.clear()  # which read where it was
        return self.stores[key][:n].view(shape)

    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(x.shape for x in self.homes.values())


class Captured:
    """A Transformer whose steps are replayed: an `onmt_lite.models.base.EncoderDecoder`.

    The first step of a shape runs as it is, which lets the libraries choose their kernels; the
    second is recorded.  Where that fails, all steps run as they are, and the log says so.
    """

    def __init__(self, model: Transformer, recorder: Recorder):
        self.model, self.recorder = model, recorder
        self.vocab_size, self.max_positions = model.vocab_size, model.max_positions
        self.copies, self.attends = model.copies, model.attends
        self.lanes: list[Lane] = []
        self.fails = False

    @property
    def device(self) -> torch.device:
        return self.model.device

    def encode(
        self,
        src: Tensor,
        src_lengths: Tensor,
        ids: Tensor | None = None,
        width: int | None = None,
    ) -> TransformerMemory:
        with self._giving_back():
            return self.model.encode(src, src_lengths, ids, width)

    def init_state(self, memory: TransformerMemory) -> CapturedState:
        with self._giving_back():
            return CapturedState(self.model.init_state(memory))

    def prefill(
        self, tokens: Tensor, lengths: Tensor, state: CapturedState, first: int, at_once: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """See `onmt_lite.models.base.EncoderDecoder.prefill`; not replayed."""
        with self._giving_back():
            return self.model.prefill(tokens, lengths, state.state, first, at_once)

    def forward(self, memory: TransformerMemory, tgt: Tensor) -> Tensor:
        return self.model.forward(memory, tgt)

    def has(self, heads: Heads) -> bool:
        return self.model.has(heads)

    def attention(self, memory: TransformerMemory, tgt: Tensor, heads: Heads) -> Tensor:
        return self.model.attention(memory, tgt, heads)

    def step(self, tokens: Tensor, state: CapturedState) -> tuple[Tensor, Tensor]:
        """See `onmt_lite.models.base.EncoderDecoder.step`.  The attention holds until the next step
        of any state.

        The head is outside of the graphs, each of which would keep its logits for itself.
        """
        lane, own, n = self._lane(state), state.state, state.n_sentences
        n_run, beam_size = rounded_up(n), len(tokens) // n

        def step() -> tuple[Tensor, Tensor]:
            return self.model.advance(inputs, first(own, n_run))

        with self._giving_back():
            own.make_room()
            inputs = lane.settle(own, tokens, n_run * beam_size)
            hidden, attn = self._recorded(lane, (n_run, *lane.shapes()), step)()
            hidden, attn = hidden[:n], attn[:n]
            logits = self.model.output(hidden, attn, first(own.memory, n))
        return logits.flatten(0, 1), attn.flatten(0, 1)

    def _recorded(self, lane: Lane, shapes: Any, step: Step) -> Step:
        """The step as a graph, where there is one or it is time to record one."""
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

    def _lane(self, state: CapturedState) -> Lane:
        """The lane of a state; of a new one, that of a state that is gone."""
        if state.lane is None:
            free = [lane for lane in self.lanes if lane.owner() is None]
            if not free:
                free = [Lane()]
                self.lanes += free
            state.lane = free[0]
            state.lane.owner = weakref.ref(state)
        return state.lane

    @contextlib.contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Where memory runs out, keep none for later."""
        try:
            yield
        except torch.OutOfMemoryError:
            self.lanes.clear()
            raise


def captures(model: Any) -> TypeGuard[Transformer]:
    """Whether a model's step is a function of tensors that stay where they are."""
    return isinstance(model, Transformer) and model.cfg.dec_self_attn == "dot"


def rounded_up(n: int) -> int:
    """The next of 1 to 8, 9 ... 16, 18 ... 32, 36 ...: at most an eighth more than n."""
    unit = 1 << max(0, (n - 1).bit_length() - 4)
    return -(-n // unit) * unit


def tensors_of(holder: Any) -> Iterator[tuple[Any, Any, Tensor]]:
    """All tensors of a state with the dictionary or list that holds each, and its name there."""
    holds = holder if isinstance(holder, list) else vars(holder)
    for name, x in list(enumerate(holds) if isinstance(holds, list) else holds.items()):
        if isinstance(x, Tensor):
            yield holds, name, x
        elif isinstance(x, (list, Sentences, KeyValueCache)):
            yield from tensors_of(x)


def first(state: Any, n: int) -> Any:
    """A view of the first n sentences of a state, or of what it holds."""
    if isinstance(state, Tensor):
        return state[:n]
    if isinstance(state, list):
        return [first(x, n) for x in state]
    if not isinstance(state, (Sentences, DecoderState)):
        return state  # keys and values, which look at how many sentences ask
    view = object.__new__(type(state))
    for name, x in vars(state).items():
        setattr(view, name, first(x, n))
    return view
