"""A simulated GPU: tensors that appear on the device `meta` but have values.

Inside `SimulatedDevice`, values are computed on the CPU, and operations that take time on a GPU are
recorded:

    launch    one kernel; views and empty tensors need none
    upload    copy from host to device, index tensors included
    download  copy from device to host
    wait      the host needs a value, or a shape that depends on values: .item(), .tolist(), bool(),
              nonzero(), x[mask]
    graph     captured kernels, launched at once; each also counts as a launch

An operation on tensors of two devices raises an error, as on a GPU.  Kernel times and missing
kernels are not simulated.
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
SMALL = 64 * 1024  # bytes; smaller uploads cost no more than a launch

# Operations without a kernel: views and uninitialized memory
FREE = set(
    """_reshape_alias _unsafe_view alias as_strided detach diagonal empty empty_like empty_strided
    expand lift_fresh narrow new_empty new_empty_strided permute select slice split
    split_with_sizes squeeze t transpose unbind unfold unsqueeze view""".split()
)
PRODUCTS = set(
    """_scaled_dot_product_attention addmm baddbmm bmm linear mm scaled_dot_product_attention
    convolution""".split()
)
SHAPE_DEPENDS_ON_VALUES = set(
    "masked_select nonzero repeat_interleave unique_consecutive unique_dim _unique2".split()
)
INDEXED = {"index", "index_put", "index_put_"}
READ_BY_HOST = {"_local_scalar_dense", "equal", "is_nonzero"}
# Packed sequences; their lengths are on the host with a GPU, too
PACKED = {"_pack_padded_sequence", "_pad_packed_sequence", "_cudnn_rnn", "lstm", "gru"}


class Event(NamedTuple):
    """A recorded cost; `n_bytes` are written by a launch or copied by a transfer."""

    kind: str
    name: str
    n_bytes: int
    phase: str


class DeviceTensor(Tensor):
    """A tensor on the simulated device; `cpu_tensor` is a CPU tensor with the same layout."""

    cpu_tensor: Tensor

    @staticmethod
    def __new__(cls, cpu_tensor: Tensor) -> "DeviceTensor":
        with torch.inference_mode(False):  # an inference tensor could have no views
            return Tensor._make_wrapper_subclass(
                cls,
                cpu_tensor.size(),
                strides=cpu_tensor.stride(),
                storage_offset=cpu_tensor.storage_offset(),
                dtype=cpu_tensor.dtype,
                device=DEVICE,
            )

    def __init__(self, cpu_tensor: Tensor):
        self.cpu_tensor = cpu_tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} must run inside SimulatedDevice")


class SimulatedDevice(TorchDispatchMode):
    """Records the `events` of all operations inside."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.phase = "search"
        self.recording: list[Operation] | None = None
        self.pending: list[tuple[Tensor, Tensor]] | None = None  # see `record_copy`

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Simulate the device inside the `with` block."""
        with CallInterceptor(self), self:
            yield

    @contextlib.contextmanager
    def set_phase(self, phase: str) -> Iterator[None]:
        """Set the phase of events inside, unless an outer caller has set one."""
        before = self.phase
        self.phase = phase if before == "search" else before
        try:
            yield
        finally:
            self.phase = before

    def record(self, kind: str, name: str, n_bytes: int = 0) -> None:
        """Record an event.

        Args:
            kind: launch, upload, download, wait, graph, read or begin
            name: the operation
            n_bytes: bytes written or copied
        """
        if self.recording is not None and kind != "launch":
            raise RuntimeError(f"{kind} by {name} is not possible while a graph is captured")
        self.events.append(Event(kind, name, n_bytes, self.phase))

    def capture(self, step: Any) -> Any:
        """Capture a step like a CUDA graph and return a function that replays it.

        Operations have no effect during the capture; a replay runs them on the same tensors.
        """
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
        """Replace `step_log.record_copy`.

        After the first call, the target of a non-blocking copy is NaN until the host waits for it.
        Waiting records an event of kind `read`.
        """
        copies, self.pending = self.pending or [], []

        def wait() -> None:
            for to, values in copies:
                to.copy_(values)
            self.record("read", "copy")

        return wait

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on CPU tensors, and add it to a graph that is being captured.

        Args:
            func: the operation
            args: positional arguments
            kwargs: keyword arguments
        """
        if self.recording is None:
            return func(*args, **kwargs)
        self.recording.append(Operation(func, args, kwargs))
        return self.recording[-1].results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # decompose it, as outside inference mode
            with torch._C.DisableTorchFunction(), self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        name = _name(func)
        inputs = _find_tensors((*args, *kwargs.values()))
        target = kwargs.get("device")
        if name == "copy_":
            return self._copy(*args)
        if name == "_to_copy" and target is not None:
            on_cpu = {**_to_cpu(kwargs), "device": torch.device("cpu")}
            out = self.run(func, _to_cpu(args), on_cpu)
            return self._transfer(inputs[0], out, torch.device(target) == DEVICE)
        creates = target is not None and torch.device(target) == DEVICE
        if not creates and not any(isinstance(x, DeviceTensor) for x in inputs):
            return func(*args, **kwargs)
        return self.launch(func, name, args, kwargs, inputs)

    def launch(self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
        """Run an operation whose tensors are all on the device.

        Args:
            func: the operation
            name: its name
            args: positional arguments
            kwargs: keyword arguments
            inputs: all tensors among the arguments
        """
        self._check_devices(name, inputs)
        if name in READ_BY_HOST:
            self.record("wait", name)
            return func(*_to_cpu(args), **_to_cpu(kwargs))
        if name in SHAPE_DEPENDS_ON_VALUES and kwargs.get("output_size") is None:
            self.record("wait", name)
        elif name in INDEXED and _counts_mask(name, args):
            self.record("wait", f"{name} with a mask")
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        out = self.run(func, _to_cpu(args), _to_cpu(kwargs))
        if name not in FREE:
            self.record("launch", name, _count_bytes(name, args, out))
        if name == "_pack_padded_sequence":
            return DeviceTensor(out[0]), out[1]
        return _wrap(out, inputs)

    def _check_devices(self, name: str, inputs: list[Tensor]) -> None:
        for x in inputs:
            if isinstance(x, DeviceTensor) or x.dim() == 0 or name in PACKED:
                continue
            if name not in INDEXED:
                raise RuntimeError(f"{name}: tensors are on two devices")
            self.record("upload", f"indices of {name}", x.nbytes)

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Run `copy_` and record its cost.

        Args:
            to: the target
            source: the values
            non_blocking: True: a download arrives when the host waits for it
        """
        self.run(torch.ops.aten.copy_.default, (_to_cpu(to), _to_cpu(source)), {})
        to_device, from_device = (isinstance(x, DeviceTensor) for x in (to, source))
        if from_device and not to_device and non_blocking and self.pending is not None:
            self.pending.append((to, to.clone()))
            to.fill_(math.nan)
        if to_device and from_device:
            self.record("launch", "copy_", to.nbytes)
        elif to_device and source.dim():
            self.record("upload", "copy_", source.nbytes)
        elif to_device:
            self.record("launch", "fill_", to.nbytes)
        elif from_device:
            self.record("download", "copy_", source.nbytes)
        return to

    def _transfer(self, source: Tensor, out: Tensor, to_device: bool) -> Tensor:
        """Record a copy between devices and return its result.

        Args:
            source: the tensor that was copied
            out: the copy, on the CPU
            to_device: True if the copy belongs to the device
        """
        from_device = isinstance(source, DeviceTensor)
        if from_device and to_device:
            self.record("launch", "_to_copy", out.nbytes)
        elif from_device or to_device:
            self.record("upload" if to_device else "download", "_to_copy", out.nbytes)
        return DeviceTensor(out) if to_device else out


class Operation:
    """A captured operation on CPU tensors.

    Args:
        func: the operation
        args: positional arguments
        kwargs: keyword arguments
    """

    def __init__(self, func: Any, args: Any, kwargs: Any):
        schema = getattr(func, "_schema", None)  # None for a Python function
        arguments = schema.arguments if schema is not None else []
        written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        self.before = [(x, x.clone()) for x, writes in zip(args, written) if writes]
        self.func, self.args, self.kwargs = func, args, kwargs
        self.results = func(*args, **kwargs)

    @property
    def created(self) -> list[Tensor]:
        """New tensors, views excluded."""
        if self.before or _name(self.func) in FREE:
            return []
        return _find_tensors([self.results])

    def undo(self) -> None:
        for x, values in self.before:
            x.copy_(values)
        for x in self.created:
            x.fill_(math.nan if x.is_floating_point() else 0)

    def replay(self) -> None:
        if _name(self.func) not in FREE:
            results = self.func(*self.args, **self.kwargs)
            for x, new in zip(self.created, _find_tensors([results])):
                x.copy_(new)


class CallInterceptor(TorchFunctionMode):
    """Handles functions that must be seen before torch decomposes them."""

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
                return getattr(args[0].cpu_tensor, name)()
            if name == "new_tensor":
                return torch.tensor(args[1], dtype=kwargs.get("dtype")).to(DEVICE)
            if name == "scaled_dot_product_attention":  # one kernel on a GPU
                inputs = _find_tensors((*args, *kwargs.values()))
                return self.simulated.launch(func, name, args, kwargs, inputs)
        return func(*args, **kwargs)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Return True if torch decomposes the operation on any device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE)


@functools.cache
def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _find_tensors(values: Any) -> list[Tensor]:
    """Return all tensors in the arguments of an operation, also inside lists."""
    found = []
    for x in values:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, list | tuple):
            found += _find_tensors(x)
    return found


def _to_cpu(x: Any) -> Any:
    """Return arguments with device tensors replaced by CPU tensors."""
    cls = type(x)
    if cls is DeviceTensor:
        return x.cpu_tensor
    if cls is tuple or cls is list:
        return cls([_to_cpu(value) for value in x])
    return {name: _to_cpu(value) for name, value in x.items()} if cls is dict else x


def _wrap(out: Any, inputs: list[Tensor]) -> Any:
    """Wrap results as device tensors; for in-place operations, return the input."""
    if isinstance(out, list | tuple):
        return type(out)(_wrap(x, inputs) for x in out)
    if not isinstance(out, Tensor):
        return out
    for x in inputs:
        if isinstance(x, DeviceTensor) and x.cpu_tensor is out:
            return x
    return DeviceTensor(out)


def _counts_mask(name: str, args: Any) -> bool:
    """Return True if True entries must be counted (not for `x[mask] = 0`).

    Args:
        name: the operation
        args: its arguments: tensor, indices and values
    """
    has_mask = any(i is not None and i.dtype == torch.bool for i in args[1])
    return has_mask and (name == "index" or args[2].numel() > 1)


def _count_bytes(name: str, args: Any, out: Any) -> int:
    """Return the bytes that a launch writes; in-place writes count only the changed part.

    Args:
        name: the operation
        args: its arguments
        out: its result
    """
    if name == "index_put_":
        target, indices, *_ = _to_cpu(args)
        index = [slice(None) if i is None else i for i in indices]
        return target[tuple(index)].nbytes
    if name in ("index_copy_", "index_add_"):
        return args[3].nbytes
    if name in ("scatter_", "scatter_add_"):
        return args[2].numel() * args[0].element_size()
    return sum(x.nbytes for x in _find_tensors([out]))


def move(module: nn.Module) -> None:
    """Move parameters and buffers to the simulated device; tied ones stay tied."""
    moved: dict[int, Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, x in table.items():
                if x is not None:
                    table[name] = moved.setdefault(id(x), DeviceTensor(x.detach()))


def move_translator(translator: Any, simulated: SimulatedDevice) -> Any:
    """Move a translator's model to the simulated device and return the translator.

    The model's methods set the phase of events.  Batches are refilled, as on a GPU.
    """
    model = translator.model
    if isinstance(model, nn.Module):
        move(model)
    else:
        model.device = DEVICE
    runner = translator.pipeline.runner
    runner.device, runner.refills = DEVICE, True
    runner.search_model = searched = use_cuda_graphs(model, simulated.capture)
    for phase in ("encode", "init_state", "step"):
        for instance in {id(model): model, id(searched): searched}.values():
            method = getattr(instance, phase)
            setattr(instance, phase, _with_phase(method, phase, simulated))
    return translator


def _with_phase(method: Any, phase: str, simulated: SimulatedDevice) -> Any:
    """Return a method that sets the phase of its events and records its start.

    Args:
        method: the original method
        phase: name of the phase
        simulated: the device
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with simulated.set_phase(phase):
            simulated.record("begin", phase)
            return method(*args, **kwargs)

    return call


def split_into_steps(events: list[Event]) -> list[list[Event]]:
    """Split events at the start of each step; the first part is before any step."""
    parts: list[list[Event]] = [[]]
    for event in events:
        if event.kind == "begin" and event.name == event.phase == "step":
            parts.append([])
        parts[-1].append(event)
    return parts
