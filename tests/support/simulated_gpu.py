"""A GPU that is not there: tensors on the device `meta` that hold real numbers.

Inside `SimulatedDevice` the numbers are computed on the CPU, so results are real, and each thing
that costs time on a GPU is recorded:

    launch    one kernel; views and empty tensors are none
    upload    numbers that the host copies to the device, index tensors included
    download  numbers that the device copies to the host
    wait      the host asks for a number, or for a shape that depends on numbers: .item(),
              .tolist(), bool(), nonzero(), x[mask]

    graph     recorded kernels that the host launches at once; each is a launch of its own, too

An operation on tensors of two devices is an error, as on a GPU.  Left open is how long a kernel
takes, and whether a GPU has that kernel.
"""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_lite.models.cuda_graphs import use_cuda_graphs

DEVICE = torch.device("meta")
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
SMALL = 64 * 1024  # bytes of an upload that costs no more than its launch

# No kernel runs for these: they give a new name to numbers that are there, or reserve memory
FREE = set(
    """_reshape_alias _unsafe_view alias as_strided detach diagonal empty empty_like empty_strided
    expand lift_fresh narrow new_empty new_empty_strided permute select slice split
    split_with_sizes squeeze t transpose unbind unfold unsqueeze view""".split()
)
PRODUCTS = set(
    """_scaled_dot_product_attention addmm baddbmm bmm linear mm scaled_dot_product_attention
    convolution""".split()
)
SHAPED_BY_NUMBERS = set(
    "masked_select nonzero repeat_interleave unique_consecutive unique_dim _unique2".split()
)
INDEXED = {"index", "index_put", "index_put_"}
READ_BY_THE_HOST = {"_local_scalar_dense", "equal", "is_nonzero"}
# Sequences of several lengths, which belong to the host on a GPU, too
PACKED = {"_pack_padded_sequence", "_pad_packed_sequence", "_cudnn_rnn", "lstm", "gru"}


class Event(NamedTuple):
    """Something that costs time.  `n_bytes`: what a launch writes, or a transfer carries."""

    kind: str
    name: str
    n_bytes: int
    phase: str


class DeviceTensor(Tensor):
    """A tensor on the simulated device; `numbers` is the CPU's tensor with the same layout."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "DeviceTensor":
        with torch.inference_mode(False):  # views of a wrapper made inside could not be taken
            return Tensor._make_wrapper_subclass(
                cls,
                numbers.size(),
                strides=numbers.stride(),
                storage_offset=numbers.storage_offset(),
                dtype=numbers.dtype,
                device=DEVICE,
            )

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: outside of the SimulatedDevice")


class SimulatedDevice(TorchDispatchMode):
    """Record the `events` of all that runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.phase = "search"
        self.recording: list[Operation] | None = None
        self.on_the_way: list[tuple[Tensor, Tensor]] | None = None  # see `arrival`

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The device exists inside."""
        with Calls(self), self:
            yield

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Events inside are of this phase, unless it has been named by an outer caller."""
        before = self.phase
        self.phase = phase if before == "search" else before
        try:
            yield
        finally:
            self.phase = before

    def record(self, kind: str, name: str, n_bytes: int = 0) -> None:
        if self.recording is not None and kind != "launch":
            raise RuntimeError(f"{kind} by {name}: not while a graph is recorded")
        self.events.append(Event(kind, name, n_bytes, self.phase))

    def recorder(self, step: Any) -> Any:
        """Record a step as a CUDA graph does: no operation has an effect, and a replay runs all of
        them again on the very same tensors, without Python."""
        first, self.recording = len(self.events), []
        try:
            results = step()
        finally:
            operations, self.recording = self.recording, None
            for operation in reversed(operations):
                operation.undo()
        events = self.events[first:]
        del self.events[first:]

        def replay() -> Any:
            self.record("graph", "replay")
            self.events.extend(events)
            for operation in operations:
                operation.replay()
            return results

        return replay

    def record_copy(self, device: torch.device) -> Any:
        """As `scheduler.arrival` of the search: from its first call on, copies for which the host
        need not wait hold NaN until it does, which is an event of the kind `read`."""
        begun, self.on_the_way = self.on_the_way or [], []

        def wait() -> None:
            for to, numbers in begun:
                to.copy_(numbers)
            self.record("read", "arrival")

        return wait

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation on the CPU's numbers, which is recorded where a graph is."""
        if self.recording is None:
            return func(*args, **kwargs)
        self.recording.append(Operation(func, args, kwargs))
        return self.recording[-1].results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # as outside of inference mode, where operations come in parts
            with torch._C.DisableTorchFunction(), self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        name = _name(func)
        inputs = _tensors((*args, *kwargs.values()))
        target = kwargs.get("device")
        if name == "copy_":
            return self._copy(*args)
        if name == "_to_copy" and target is not None:
            given = {**_numbers(kwargs), "device": torch.device("cpu")}
            out = self.run(func, _numbers(args), given)
            return self._transferred(inputs[0], out, torch.device(target) == DEVICE)
        made_there = target is not None and torch.device(target) == DEVICE
        if not made_there and not any(isinstance(x, DeviceTensor) for x in inputs):
            return func(*args, **kwargs)
        return self.launch(func, name, args, kwargs, inputs)

    def launch(self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
        """The result of an operation whose tensors are all on the device."""
        self._check_devices(name, inputs)
        if name in READ_BY_THE_HOST:
            self.record("wait", name)
            return func(*_numbers(args), **_numbers(kwargs))
        if name in SHAPED_BY_NUMBERS and kwargs.get("output_size") is None:
            self.record("wait", name)
        elif name in INDEXED and _counts_a_mask(name, args):
            self.record("wait", f"{name} by a mask")
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        out = self.run(func, _numbers(args), _numbers(kwargs))
        if name not in FREE:
            self.record("launch", name, _written(name, args, out))
        if name == "_pack_padded_sequence":
            return DeviceTensor(out[0]), out[1]
        return _wrapped(out, inputs)

    def _check_devices(self, name: str, inputs: list[Tensor]) -> None:
        for x in inputs:
            if isinstance(x, DeviceTensor) or x.dim() == 0 or name in PACKED:
                continue
            if name not in INDEXED:
                raise RuntimeError(f"{name}: tensors on two devices")
            self.record("upload", f"indices of {name}", x.nbytes)

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        self.run(torch.ops.aten.copy_.default, (_numbers(to), _numbers(source)), {})
        there, here = isinstance(to, DeviceTensor), isinstance(source, DeviceTensor)
        if here and not there and non_blocking and self.on_the_way is not None:
            self.on_the_way.append((to, to.clone()))
            to.fill_(math.nan)
        if there and here:
            self.record("launch", "copy_", to.nbytes)
        elif there and source.dim():
            self.record("upload", "copy_", source.nbytes)
        elif there:
            self.record("launch", "fill_", to.nbytes)
        elif here:
            self.record("download", "copy_", source.nbytes)
        return to

    def _transferred(self, source: Tensor, out: Tensor, to_device: bool) -> Tensor:
        from_device = isinstance(source, DeviceTensor)
        if from_device and to_device:
            self.record("launch", "_to_copy", out.nbytes)
        elif from_device or to_device:
            self.record("upload" if to_device else "download", "_to_copy", out.nbytes)
        return DeviceTensor(out) if to_device else out


class Operation:
    """An operation of a graph, on the CPU's numbers."""

    def __init__(self, func: Any, args: Any, kwargs: Any):
        schema = getattr(func, "_schema", None)  # none: of a function that is one kernel there
        arguments = schema.arguments if schema is not None else []
        written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        self.before = [(x, x.clone()) for x, writes in zip(args, written) if writes]
        self.func, self.args, self.kwargs = func, args, kwargs
        self.results = func(*args, **kwargs)

    @property
    def made(self) -> list[Tensor]:
        """Tensors that the operation makes, views aside."""
        if self.before or _name(self.func) in FREE:
            return []
        return _tensors([self.results])

    def undo(self) -> None:
        for x, numbers in self.before:
            x.copy_(numbers)
        for x in self.made:
            x.fill_(math.nan if x.is_floating_point() else 0)

    def replay(self) -> None:
        if _name(self.func) not in FREE:
            results = self.func(*self.args, **self.kwargs)
            for x, new in zip(self.made, _tensors([results])):
                x.copy_(new)


class Calls(TorchFunctionMode):
    """What has to be seen before torch takes it apart."""

    def __init__(self, simulated: SimulatedDevice):
        super().__init__()
        self.simulated = simulated

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return func(*args, **{**kwargs, "device": None}).to(kwargs["device"])
        if args and isinstance(args[0], DeviceTensor):
            name = getattr(func, "__name__", "")
            if name in ("tolist", "numpy", "__array__"):
                self.simulated.record("wait", name)
                return getattr(args[0].numbers, name)()
            if name == "new_tensor":
                return torch.tensor(args[1], dtype=kwargs.get("dtype")).to(DEVICE)
            if (
                name == "scaled_dot_product_attention"
            ):  # one kernel there, whatever torch makes here
                inputs = _tensors((*args, *kwargs.values()))
                return self.simulated.launch(func, name, args, kwargs, inputs)
        return func(*args, **kwargs)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether torch makes it of other operations, on any device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE)


@functools.cache
def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _tensors(values: Any) -> list[Tensor]:
    """All tensors of the arguments of an operation: alone or in lists."""
    found = []
    for x in values:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, list | tuple):
            found += _tensors(x)
    return found


def _numbers(x: Any) -> Any:
    """Arguments of an operation with the tensors of the CPU."""
    kind = type(x)
    if kind is DeviceTensor:
        return x.numbers
    if kind is tuple or kind is list:
        return kind([_numbers(value) for value in x])
    return {name: _numbers(value) for name, value in x.items()} if kind is dict else x


def _wrapped(out: Any, inputs: list[Tensor]) -> Any:
    """Results on the device; one that an operation has changed in place is the same object."""
    if isinstance(out, list | tuple):
        return type(out)(_wrapped(x, inputs) for x in out)
    if not isinstance(out, Tensor):
        return out
    for x in inputs:
        if isinstance(x, DeviceTensor) and x.numbers is out:
            return x
    return DeviceTensor(out)


def _counts_a_mask(name: str, args: Any) -> bool:
    """Whether True entries must be counted: not for `x[mask] = 0`, which is filled in."""
    masked = any(i is not None and i.dtype == torch.bool for i in args[1])
    return masked and (name == "index" or args[2].numel() > 1)


def _written(name: str, args: Any, out: Any) -> int:
    """Bytes that a launch writes: of a part that it changes in place, not of all."""
    if name == "index_put_":
        target, indices, *_ = _numbers(args)
        places = [slice(None) if i is None else i for i in indices]
        return target[tuple(places)].nbytes
    if name in ("index_copy_", "index_add_"):
        return args[3].nbytes
    if name in ("scatter_", "scatter_add_"):
        return args[2].numel() * args[0].element_size()
    return sum(x.nbytes for x in _tensors([out]))


def move(module: nn.Module) -> None:
    """Parameters and buffers to the simulated device; tied ones stay tied."""
    moved: dict[int, Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, x in table.items():
                if x is not None:
                    table[name] = moved.setdefault(id(x), DeviceTensor(x.detach()))


def moved_translator(translator: Any, simulated: SimulatedDevice) -> Any:
    """The translator itself, whose model is on the device from now on and marks its phases; it
    refills batches, as it would have done on a GPU from the first."""
    model = translator.model
    if isinstance(model, nn.Module):
        move(model)
    else:
        model.device = DEVICE
    runner = translator.pipeline.runner
    runner.device, runner.refills = DEVICE, True
    runner.searched = searched = use_cuda_graphs(model, simulated.recorder)
    for phase in ("encode", "init_state", "step"):
        for each in {id(model): model, id(searched): searched}.values():
            setattr(each, phase, _marked(getattr(each, phase), phase, simulated))
    return translator


def _marked(method: Any, phase: str, simulated: SimulatedDevice) -> Any:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with simulated.during(phase):
            simulated.record("begin", phase)
            return method(*args, **kwargs)

    return marked


def steps(events: list[Event]) -> list[list[Event]]:
    """Events from the beginning of each step to that of the next; first, those before any step."""
    parts: list[list[Event]] = [[]]
    for event in events:
        if event.kind == "begin" and event.name == event.phase == "step":
            parts.append([])
        parts[-1].append(event)
    return parts
