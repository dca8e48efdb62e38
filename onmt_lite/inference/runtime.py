"""Runtime: device, number type and threads of a model."""

import contextlib
import copy
import os
from collections.abc import Iterator
from typing import Any

import torch

from onmt_lite.config.cores import usable_cores
from onmt_lite.config.environment import keep_memory
from onmt_lite.config.job_options import SpeedOptions
from onmt_lite.errors import MemoryExhausted, OptionError
from onmt_lite.inference.budget import is_out_of_memory
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.linear import LEAST_WIDTH, is_right, pack
from onmt_lite.models.processor import kernels_for, processor_words
from onmt_lite.models.transformer import Transformer

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,  # of all but the linear layers
}


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


def choose(options: SpeedOptions, exact: bool = False) -> tuple[torch.device, str]:
    """Device and precision of the model; the precision may still be `auto`, see `placed`.

    exact  whether `auto` is float32 on a CPU, whatever the processor
    """
    device, precision = choose_device(options), options.precision
    if precision == "int8" and device.type != "cpu":
        raise OptionError("precision int8 is only supported on CPU; give bf16 or fp16 for a GPU")
    if precision == "auto" and device.type == "cuda":
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return device, "fp32" if precision == "auto" and exact else precision


def placed(
    model: EncoderDecoder, device: torch.device, precision: str, in_place: bool = False
) -> EncoderDecoder:
    """The model with its weights on that device and in that precision: the same one if they are.

    Else a copy, since somebody else may be using the model; weights that stay as they are belong
    to both.  `in_place`: nobody is using it.  MemoryExhausted if the weights do not fit.
    """
    if not isinstance(model, torch.nn.Module):  # a table model has no weights
        return model
    device = torch.empty(0, device=device).device  # cuda means cuda:0
    if device.type == "cpu":
        keep_memory()
    dtype, kernels = DTYPES.get(precision, torch.float32), choose_kernels(model, device, precision)
    weights = [*model.parameters(), *model.buffers()]
    stay = all(w.dtype == dtype or not w.is_floating_point() for w in weights)
    stay = stay and all(w.device == device for w in weights)
    if stay and kernels_of(model) == kernels:
        return model
    try:
        module: Any = model
        if not in_place:
            module = copy.deepcopy(model, {id(w): w for w in weights} if stay else {})
        pack(module, "")
        module.to(device, dtype)
        pack(module, kernels)
        module.kernels = kernels
        return module
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    raise MemoryExhausted(
        f"out of memory: the model does not fit on {device}; give another device or precision"
    )


def choose_kernels(model: torch.nn.Module, device: torch.device, precision: str) -> str:
    """The kernel of the model's linear layers, "" for torch's own product: the first that fits
    the processor and computes right."""
    if device.type != "cpu":
        return ""
    fitting = kernels_for(precision, is_wide(model), processor_words())
    return next((kind for kind in fitting if is_right(kind)), "")


def is_wide(model: torch.nn.Module) -> bool:
    """Whether linear layers take most of the time: a Transformer that is not small."""
    members = getattr(model, "members", [model])
    return all(isinstance(m, Transformer) and m.cfg.d_model >= LEAST_WIDTH for m in members)


def kernels_of(model: EncoderDecoder) -> str:
    return getattr(model, "kernels", "")


def precision_of(model: EncoderDecoder) -> str:
    """The precision that a model has; "fp32" of one without weights."""
    if kernels_of(model) == "int8":
        return "int8"
    dtypes = {w.dtype for w in model.parameters()} if isinstance(model, torch.nn.Module) else set()
    return next((name for name, dtype in DTYPES.items() if dtypes == {dtype}), "fp32")


def threads_of_each(speed: SpeedOptions, n: int) -> int:
    """CPU threads of each of n processes: as many as are asked for, or its share of the cores."""
    return speed.threads or min(torch.get_num_threads(), max(1, usable_cores() // n))


@contextlib.contextmanager
def computing(speed: SpeedOptions, device: torch.device) -> Iterator[None]:
    """Let torch compute as the options say, and then as before."""
    n_threads, before = 1 if speed.deterministic else speed.threads, torch.get_num_threads()
    ordered = speed.deterministic and device.type == "cuda"
    if n_threads is not None:
        torch.set_num_threads(n_threads)
    try:
        with deterministic_kernels() if ordered else contextlib.nullcontext():
            yield
    finally:
        if n_threads is not None:
            torch.set_num_threads(before)


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
