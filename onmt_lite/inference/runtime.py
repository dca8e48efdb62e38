"""Runtime: device, number type and threads of a model; the size of batches by the memory that is
free, and smaller ones if it runs out."""

import contextlib
import copy
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from onmt_lite.config.job_options import SpeedOptions
from onmt_lite.errors import MemoryExhausted, Message, OptionError
from onmt_lite.inference.records import Example
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.linear import assign_kernels, choose_kernel
from onmt_lite.models.threads import cpu_threads
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.processor import MIN_INT8_WIDTH
from onmt_lite.system.resources import count_usable_cores, get_free_memory, keep_freed_memory

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,  # of all but the linear layers
}


def resolve_device(options: SpeedOptions, exact: bool = False) -> tuple[torch.device, str]:
    """Device and precision of the model; the precision may still be `auto`, see `placed`.

    exact  whether `auto` is float32 on a CPU, whatever the processor

    A GPU that is asked for and missing is an error.
    """
    if len(options.gpu) > 1:
        raise OptionError(
            "gpu: multiple GPUs need workers (command line, or workers=N); pass a single GPU"
        )
    name, precision = options.device, options.precision
    if options.gpu:
        name = "cpu" if options.gpu[0] < 0 else f"cuda:{options.gpu[0]}"
    elif name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        asked = Message.of("{gpu}", gpu=options.gpu[0]) if options.gpu else ""
        n = torch.cuda.device_count()
        has = Message.of(f"{n} usable GPUs; the last is -{{gpu}}", gpu=n - 1)
        if n == 0:
            has = Message("no usable GPU; leave that out to run on the CPU")
        asked = asked or Message.of("{device}", device=name)
        raise OptionError(Message.of("{0}: this machine has {1}", asked, has))
    if precision == "int8" and device.type != "cpu":
        problem = "{precision} is only supported on CPU; give bf16 or fp16 for a GPU"
        raise OptionError(Message.of(problem, precision=precision))
    if precision == "auto" and device.type == "cuda":
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return device, "fp32" if precision == "auto" and exact else precision


def move_to(
    model: EncoderDecoder,
    device: torch.device,
    precision: str,
    in_place: bool = False,
    release: bool = False,
) -> EncoderDecoder:
    """The model with its weights on that device and in that precision: the same one if they are.

    Else a copy, since somebody else may be using the model; weights that stay as they are belong
    to both.  `in_place`: nobody is using it.  `release`: nor will anybody want it otherwise, and
    weights that kernels have copied are let go.  MemoryExhausted if the weights do not fit.
    """
    if not isinstance(model, torch.nn.Module):  # a table model has no weights
        return model
    device = torch.empty(0, device=device).device  # cuda means cuda:0
    dtype, kernels = DTYPES.get(precision, torch.float32), ""  # "": torch's own product
    if device.type == "cpu":
        keep_freed_memory()
        members = getattr(model, "members", [model])
        if all(isinstance(m, Transformer) for m in members):
            kernels = choose_kernel(
                precision, all(m.cfg.d_model >= MIN_INT8_WIDTH for m in members)
            )
    weights = [*model.parameters(), *model.buffers()]
    stay = all(w.dtype == dtype or not w.is_floating_point() for w in weights)
    stay = stay and all(w.device == device for w in weights)
    if stay and kernels_of(model) == kernels:
        return model
    try:
        module: Any = model
        if not in_place:
            module = copy.deepcopy(model, {id(w): w for w in weights} if stay else {})
        assign_kernels(module, "")
        module.to(device, dtype)
        assign_kernels(module, kernels, release)
        module.kernels, module.released = kernels, release and kernels == "int8"
        return module
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    raise MemoryExhausted(
        f"out of memory: the model does not fit on {device}; give another device or precision"
    )


def kernels_of(model: EncoderDecoder) -> str:
    return getattr(model, "kernels", "")


def precision_of(model: EncoderDecoder) -> str:
    """The precision that a model has; "fp32" of one without weights."""
    if kernels_of(model) in ("int8", "rounded"):
        return "int8"
    dtypes = {w.dtype for w in model.parameters()} if isinstance(model, torch.nn.Module) else set()
    return next((name for name, dtype in DTYPES.items() if dtypes == {dtype}), "fp32")


def threads_per_process(speed: SpeedOptions, n: int) -> int:
    """CPU threads of each of n processes: as many as are asked for, or its share of the cores."""
    return speed.threads or min(torch.get_num_threads(), max(1, count_usable_cores() // n))


@contextlib.contextmanager
def thread_settings(speed: SpeedOptions, device: torch.device) -> Iterator[None]:
    """Let torch compute as the options say, and then as before."""
    n_threads = 1 if speed.deterministic else speed.threads
    ordered = speed.deterministic and device.type == "cuda"
    mode = torch.get_deterministic_debug_mode()
    with cpu_threads(n_threads):
        if ordered:  # a GPU then adds up in the same order each time
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
            torch.use_deterministic_algorithms(True, warn_only=True)  # warns if a kernel cannot
        try:
            yield
        finally:
            if ordered:
                torch.set_deterministic_debug_mode(mode)


# -- memory ----------------------------------------------------------------------------------------

R = TypeVar("R")

# How an error that is a plain RuntimeError says that memory is out: torch's allocators for CPUs and
# GPUs, CUDA's libraries, C++, and oneDNN, which does not mention memory if it cannot write code
OUT_OF_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|not enough memory|out.?of.?memory|alloc_failed|bad_alloc"
    r"|could not create a memory|could not create a primitive(?! descriptor)",
    re.IGNORECASE,
)

# A batch that nobody sized: at most so many padded source tokens and so many rows of the decoder,
# and at most so many bytes, which are halved until half of the free memory has room for them.  Only
# a model whose usual batch takes more gets smaller ones, by powers of two: batches decide the last
# digits of scores, and are to be the same on all machines that have room for the usual ones.  The
# figures for GPUs have not been measured.
TOKENS = {"cpu": 3072, "cuda": 16384}
ROWS = {"cpu": 320, "cuda": 2560}
MAX_BATCH_BYTES = {"cpu": 2 << 30, "cuda": 8 << 30}
LEAST_BYTES = 16 << 20
SCORED_TOKENS = 1024  # in a batch whose references are scored
LOGIT_BYTES = 20  # that one takes in scoring, with its copies in float32


def batch_bytes(device: str, free: int | None) -> int:
    """Bytes that one batch may take if so many are free; None: unknown, and taken as enough."""
    most = MAX_BATCH_BYTES[device]
    while free is not None and 2 * most > free and most > LEAST_BYTES:
        most //= 2
    return most


@dataclass(frozen=True)
class MemoryEstimate:
    """Numbers that the memory of a batch is made of, for all models of an ensemble together."""

    n_models: int  # each makes logits of its own
    vocab: int  # logits of a row
    past: int  # of a token of the output: keys and values in all layers of the decoder
    source: int  # of a source token: as many for the decoder, and what an encoder layer has
    heads: int  # of a pair of source tokens, in an encoder layer
    longest: int  # tokens of a source line, at most
    n_bytes: int = 4  # of a number; logits have 4

    @classmethod
    def of(cls, models: Sequence[Any], n_bytes: int = 4) -> "MemoryEstimate":
        """The sizes of models with a `cfg`; a table model needs next to no memory."""
        cfgs = [model.cfg for model in models if hasattr(model, "cfg")]
        past = sum(2 * cfg.dec_layers * cfg.d_model for cfg in cfgs)
        inside = [6 * cfg.d_model + 2 * getattr(cfg, "d_ff", cfg.d_model) for cfg in cfgs]
        heads = [2 * getattr(cfg, "heads", 0) for cfg in cfgs]
        vocab = max(model.vocab_size for model in models)
        longest = min(model.max_positions for model in models)
        source = past + max(inside, default=0)
        return cls(len(models), vocab, past, source, max(heads, default=0), longest, n_bytes)

    def bytes(self, n: int, width: int, beam_size: int) -> int:
        """Bytes of n sentences of up to `width` tokens, decoded to up to twice as many.

        Logits are there twice: as the model makes them, and as the search changes them.  Of keys
        and values there are more than the hypotheses have, see `onmt_lite.models.cache`: up to 6.5
        times the steps with 5 rows of random models, 2.2 times with one.
        """
        logits = 4 * beam_size * self.vocab * (1 + self.n_models)
        past = (beam_size + 3) * (2 * width + 5) * self.past
        others = past + width * self.source + width * width * self.heads
        return n * (logits + self.n_bytes * others)


@dataclass(frozen=True)
class BatchLimit:
    """How large a batch may be: in padded source tokens, and in sentences."""

    tokens: int
    sentences: int

    def bytes(self, size: MemoryEstimate, beam_size: int) -> int:
        """Of the largest batch: one of many short lines, or of few long ones."""
        widest = min(self.tokens, size.longest)
        short = size.bytes(self.sentences, max(1, self.tokens // self.sentences), beam_size)
        return max(short, size.bytes(max(1, self.tokens // widest), widest, beam_size))


SMALLEST_BATCH = BatchLimit(64, 1)


@dataclass(frozen=True)
class BatchBudget:
    """The largest batches of a model on a device that take at most n_bytes."""

    size: MemoryEstimate
    device: str
    n_bytes: int

    @classmethod
    def of(
        cls, model: Any, dtype: torch.dtype, device: torch.device, free: int | None
    ) -> "BatchBudget":
        """The budget of a model, or of an ensemble.  `free`: bytes of main memory that it may use,
        by default all that are free."""
        if device.type == "cuda":  # torch keeps some for later
            kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            free = torch.cuda.mem_get_info(device)[0] + kept
        elif free is None:
            free = get_free_memory()
        size = MemoryEstimate.of(getattr(model, "members", [model]), dtype.itemsize)
        return cls(size, device.type, batch_bytes(device.type, free))

    def limit(self, beam_size: int) -> BatchLimit:
        """The batch that is fast, or the half, a quarter ... of it that takes at most n_bytes.

        With the kernels in C 32 to 128 sentences at once take the same time (tiny; the shipped
        model is 3 % slower with 48 than with 64 to 128).  Two workers of tiny hold 500 MB with 64.
        """
        most = BatchLimit(TOKENS[self.device], max(1, ROWS[self.device] // beam_size))
        while most != SMALLEST_BATCH and most.bytes(self.size, beam_size) > self.n_bytes:
            most = BatchLimit(max(64, most.tokens // 2), max(1, most.sentences // 2))
        return most

    def notes(self, beam_size: int) -> list[str]:
        """A note that memory is short, if batches are smaller for it."""
        usual = replace(self, n_bytes=MAX_BATCH_BYTES[self.device]).limit(beam_size)
        if (limit := self.limit(beam_size)) == usual:
            return []
        return [
            f"little memory is free: batches of {limit.sentences} sentences and {limit.tokens} "
            f"tokens at most, not {usual.sentences} and {usual.tokens}; the last digits of scores "
            "may differ"
        ]

    @property
    def scored_tokens(self) -> int:
        """Padded tokens of a batch whose references are scored, all positions at once."""
        return min(SCORED_TOKENS, self.scored_logits // self.size.vocab)

    @property
    def scored_logits(self) -> int:
        """Logits that references have at once."""
        return self.n_bytes // (LOGIT_BYTES * self.size.n_models)


class OomRetry:
    """Halves the batch after an out-of-memory error and remembers the size that failed."""

    def __init__(self, remedy: str):
        """`remedy`: what to do about one example that does not fit."""
        self.remedy = remedy
        self.most: float = math.inf  # examples at once, times the width of the widest

    def run(
        self,
        group: list[Example],
        n_at_once: int,
        width: Callable[[Example], int],
        work: Callable[[list[Example], int], Iterable[tuple[int, R]]],
    ) -> list[R]:
        """The results of `work` for the examples of `group`, in order.

        width(example)     a number that the memory for an example grows with
        work(examples, n)  with at most n of the examples in memory at once, yields the place of
                           each among them and its result; if memory runs out, the work goes on
                           for the examples that have none, with half as many at once

        Raises MemoryExhausted if one example alone does not fit.
        """
        found: dict[int, R] = {}
        while len(found) < len(group):
            waiting = [i for i in range(len(group)) if i not in found]
            widest = max(width(group[i]) for i in waiting)
            n = max(1, int(min(n_at_once, len(waiting), self.most / widest)))
            try:
                for i, result in work([group[i] for i in waiting], n):
                    found[waiting[i]] = result
                continue
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                left = [i for i in waiting if i not in found]
                if n == 1 and left:
                    line = group[left[0]].line.id + 1
                    raise MemoryExhausted(
                        f"out of memory at line {line} alone; {self.remedy}"
                    ) from None
            # After `except`, within which the error keeps tensors alive
            self.most = (n + 1) // 2 * max(width(group[i]) for i in left or waiting)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return [found[i] for i in range(len(group))]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, of the CPU or of a GPU."""
    told = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error))
    return bool(told) or isinstance(error, (torch.OutOfMemoryError, MemoryError))
