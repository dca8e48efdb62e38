"""The machine: device, number type, threads."""

import contextlib
from collections.abc import Iterator

import torch

from onmt_lite.errors import OptionError
from onmt_lite.options import SpeedOptions

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(options: SpeedOptions) -> torch.device:
    """What -device and -gpu ask for.  A GPU that is asked for and missing is an error."""
    if options.gpu is not None:
        name = "cpu" if options.gpu < 0 else f"cuda:{options.gpu}"
    elif options.device == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    else:
        name = options.device
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        asked = f"device {name}" if options.gpu is None else f"gpu {options.gpu}"
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
