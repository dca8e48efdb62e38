"""The machine: device, number type, threads."""

import contextlib
import copy
import os
from collections.abc import Iterator

import torch

from onmt_lite.budget import is_out_of_memory
from onmt_lite.errors import MemoryExhausted, OptionError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.options import SpeedOptions

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(options: SpeedOptions) -> torch.device:
    """What -device and -gpu ask for.  A GPU that is asked for and missing is an error."""
    if len(options.gpu) > 1:
        raise OptionError("gpu: several are for workers, one each, of the command line; give one")
    if options.gpu:
        name = "cpu" if options.gpu[0] < 0 else f"cuda:{options.gpu[0]}"
    elif options.device == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    else:
        name = options.device
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        asked = f"gpu {options.gpu[0]}" if options.gpu else f"device {name}"
        n = torch.cuda.device_count()
        if n == 0:
            remedy = "leave that out, or give -gpu -1 for the CPU"
            raise OptionError(f"{asked}: this machine has no usable GPU; {remedy}")
        raise OptionError(f"{asked}: this machine has {n} usable GPUs; the last is -gpu {n - 1}")
    return device


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU, where results are the same everywhere, else bfloat16."""
    if precision == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    return DTYPES[precision]


def choose(options: SpeedOptions) -> tuple[torch.device, torch.dtype]:
    """Device and number type of the model."""
    device = choose_device(options)
    return device, choose_dtype(options.precision, device)


def placed(
    model: EncoderDecoder, device: torch.device, dtype: torch.dtype, in_place: bool = False
) -> EncoderDecoder:
    """The model with its weights on that device and of that number type: the same one if they are.

    Else a copy, since somebody else may be using the model; `in_place`: nobody is.
    MemoryExhausted where the weights do not fit.
    """
    if not isinstance(model, torch.nn.Module):  # a table model has no weights
        return model
    device = torch.empty(0, device=device).device  # cuda:0 where that is meant by cuda
    weights = [*model.parameters(), *model.buffers()]
    as_is = (w.dtype == dtype or not w.is_floating_point() for w in weights)
    if all(as_is) and all(w.device == device for w in weights):
        return model
    try:
        return (model if in_place else copy.deepcopy(model)).to(device, dtype)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    raise MemoryExhausted(
        f"out of memory: the model does not fit on {device}; give another device or precision"
    )


@contextlib.contextmanager
def cpu_threads(n: int | None) -> Iterator[None]:
    """Let torch compute with n CPU threads, and then with as many as before; None changes
    nothing."""
    before = torch.get_num_threads()
    if n is not None:
        torch.set_num_threads(n)
    try:
        yield
    finally:
        if n is not None:
            torch.set_num_threads(before)


@contextlib.contextmanager
def computing(speed: SpeedOptions, device: torch.device) -> Iterator[None]:
    """Let torch compute as the options say, and then as before."""
    with contextlib.ExitStack() as settings:
        settings.enter_context(cpu_threads(1 if speed.deterministic else speed.threads))
        if speed.deterministic and device.type == "cuda":
            settings.enter_context(deterministic_kernels())
        yield


@contextlib.contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Let a GPU add up in the same order each time; torch warns of a kernel that cannot."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
