"""Runtime: device, dtype and threads of a model, and batch sizes that fit in memory."""

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
from onmt_lite.models.linear import C_KERNELS, assign_kernels, choose_kernel
from onmt_lite.models.threads import cpu_threads
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.processor import MIN_INT8_WIDTH
from onmt_lite.system.resources import count_usable_cores, get_free_memory

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,  # dtype of all layers except linear layers
}


def resolve_device(options: SpeedOptions, exact: bool = False) -> tuple[torch.device, str]:
    """Return the device and precision of the model.

    The precision may still be `auto`; see `move_to`.

    Args:
        options: the speed options.
        exact: `auto` means float32 on every CPU.

    Raises:
        OptionError: if the GPU does not exist, or does not support the precision.
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
        requested = Message.of("{gpu}", gpu=options.gpu[0]) if options.gpu else ""
        n = torch.cuda.device_count()
        available = Message.of(f"{n} usable GPUs; the last is -{{gpu}}", gpu=n - 1)
        if n == 0:
            available = Message("no usable GPU; remove the option to run on CPU")
        requested = requested or Message.of("{device}", device=name)
        raise OptionError(Message.of("{0}: this machine has {1}", requested, available))
    if precision == "int8" and device.type != "cpu":
        problem = "{precision} is only supported on CPU; use bf16 or fp16 on GPU"
        raise OptionError(Message.of(problem, precision=precision))
    if precision == "auto" and device.type == "cuda":
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return device, "fp32" if precision == "auto" and exact else precision


def move_to(
    model: EncoderDecoder,
    device: torch.device,
    precision: str,
    in_place: bool = False,
    reread: Callable[[], EncoderDecoder] | None = None,
) -> EncoderDecoder:
    """Return the model with its weights on a device and in a precision.

    The model itself is returned if it matches. Otherwise a copy is returned, because the model may
    be in use elsewhere; weights that do not change are shared.

    Args:
        model: the model.
        device: the device.
        precision: the precision; `auto` selects the kernels for the processor.
        in_place: change the model instead of copying it.
        reread: read the model again; if given, weights that kernels have copied are dropped until
            `restore_weights`.

    Raises:
        MemoryExhausted: if the weights do not fit in memory.
    """
    if not isinstance(model, torch.nn.Module):  # a table model has no weights
        return model
    device = torch.empty(0, device=device).device  # cuda means cuda:0
    dtype, kernels = DTYPES.get(precision, torch.float32), ""  # "": torch matmul
    if device.type == "cpu":
        members = getattr(model, "members", [model])
        if all(isinstance(m, Transformer) for m in members):
            kernels = choose_kernel(
                precision, all(m.cfg.d_model >= MIN_INT8_WIDTH for m in members)
            )
    weights = [*model.parameters(), *model.buffers()]
    stay = all(w.dtype == dtype or not w.is_floating_point() for w in weights)
    stay = stay and all(w.device == device for w in weights)
    if stay and get_kernels(model) == kernels:
        return model
    restore_weights(model)
    try:
        module: Any = model
        if not in_place:
            module = copy.deepcopy(model, {id(w): w for w in weights} if stay else {})
        assign_kernels(module, "")
        module.to(device, dtype)
        assign_kernels(module, kernels, reread is not None)
        module.kernels, module.reread = kernels, reread if kernels in C_KERNELS else None
        return module
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    raise MemoryExhausted(
        f"out of memory: the model does not fit on {device}; use another device or precision"
    )


def restore_weights(model: EncoderDecoder) -> None:
    """Read the weights again that `move_to` has dropped."""
    reread = getattr(model, "reread", None)
    if reread is None:
        return
    module: Any = model
    restored = dict(reread().named_parameters(remove_duplicate=False))
    for name, weight in module.named_parameters(remove_duplicate=False):
        if not weight.numel():
            weight.data = restored[name].to(weight.dtype)
    module.reread = None


def get_kernels(model: EncoderDecoder) -> str:
    """Return the name of the kernels of the linear layers, or ""."""
    return getattr(model, "kernels", "")


def get_precision(model: EncoderDecoder) -> str:
    """Return the precision of a model; "fp32" if it has no weights."""
    if get_kernels(model) in ("int8", "rounded"):
        return "int8"
    dtypes = {w.dtype for w in model.parameters()} if isinstance(model, torch.nn.Module) else set()
    return next((name for name, dtype in DTYPES.items() if dtypes == {dtype}), "fp32")


def count_threads_per_process(speed: SpeedOptions, n: int) -> int:
    """Return the CPU threads per process: the option, or an equal share of the cores."""
    return speed.threads or min(torch.get_num_threads(), max(1, count_usable_cores() // n))


@contextlib.contextmanager
def thread_settings(speed: SpeedOptions, device: torch.device) -> Iterator[None]:
    """Apply the thread and determinism options within the context."""
    n_threads = 1 if speed.deterministic else speed.threads
    is_deterministic_gpu = speed.deterministic and device.type == "cuda"
    mode = torch.get_deterministic_debug_mode()
    with cpu_threads(n_threads):
        if is_deterministic_gpu:  # the same summation order in every run
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by the first matmul
            # Warn if a kernel is not deterministic
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            if is_deterministic_gpu:
                torch.set_deterministic_debug_mode(mode)


# -- memory ----------------------------------------------------------------------------------------

R = TypeVar("R")

# Out-of-memory messages of plain RuntimeErrors: torch CPU and GPU allocators, CUDA libraries, C++,
# and oneDNN, which does not mention memory if it cannot generate code
OUT_OF_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|not enough memory|out.?of.?memory|alloc_failed|bad_alloc"
    r"|could not create a memory|could not create a primitive(?! descriptor)",
    re.IGNORECASE,
)

# Default batch size: at most this many padded source tokens, decoder rows and bytes. The bytes are
# halved until they fit in half of the free memory. Only models whose default batch takes more get
# smaller batches, by powers of two: batches affect the last digits of scores, and should be the
# same on all machines that can run the default. The GPU values are not measured.
DEFAULT_TOKENS = {"cpu": 3072, "cuda": 16384}
DEFAULT_ROWS = {"cpu": 320, "cuda": 2560}
WIDE_MODEL, WIDE_ROWS = 512, 160  # d_model from which a CPU takes fewer rows
CPU_STATES = 7680  # source tokens times beam size on a CPU; proportional to the caches
MAX_BATCH_BYTES = {"cpu": 2 << 30, "cuda": 8 << 30}
MIN_BATCH_BYTES = 16 << 20
SCORED_TOKENS = 1024  # per batch when scoring references
LOGIT_BYTES = 20  # per logit when scoring, including float32 copies


def estimate_batch_bytes(device: str, free: int | None) -> int:
    """Return the bytes for one batch.

    Args:
        device: cpu or cuda.
        free: free bytes; None if unknown, which means enough.
    """
    most = MAX_BATCH_BYTES[device]
    while free is not None and 2 * most > free and most > MIN_BATCH_BYTES:
        most //= 2
    return most


@dataclass(frozen=True)
class MemoryEstimate:
    """Quantities that determine the memory of a batch, for all models of an ensemble together."""

    n_models: int  # each has its own logits
    vocab: int  # logits per row
    past: int  # numbers per target token: keys and values of all decoder layers
    source: int  # numbers per source token: cross-attention keys and values, and one encoder layer
    heads: int  # numbers per pair of source tokens in an encoder layer
    longest: int  # maximum source tokens
    n_bytes: int = 4  # bytes per number; logits have 4
    d_model: int = 0  # of the widest model

    @classmethod
    def of(cls, models: Sequence[Any], n_bytes: int = 4) -> "MemoryEstimate":
        """Return the estimate for models with a `cfg`; a table model needs almost no memory."""
        cfgs = [model.cfg for model in models if hasattr(model, "cfg")]
        past = sum(2 * cfg.dec_layers * cfg.d_model for cfg in cfgs)
        inside = [6 * cfg.d_model + 2 * getattr(cfg, "d_ff", cfg.d_model) for cfg in cfgs]
        heads = [2 * getattr(cfg, "heads", 0) for cfg in cfgs]
        vocab = max(model.vocab_size for model in models)
        longest = min(model.max_positions for model in models)
        source = past + max(inside, default=0)
        d_model = max((cfg.d_model for cfg in cfgs), default=0)
        sizes = past, source, max(heads, default=0), longest
        return cls(len(models), vocab, *sizes, n_bytes, d_model)

    def bytes(self, n: int, width: int, beam_size: int) -> int:
        """Return the bytes for n sentences of up to `width` tokens.

        Targets may be twice as long. Logits exist twice: as the model returns them, and as the
        search modifies them. There are more keys and values than the hypotheses have (see
        `onmt_lite.models.cache`): up to 6.5 times the steps with 5 rows of random models, 2.2 times
        with one row.

        Args:
            n: number of sentences.
            width: source tokens per sentence.
            beam_size: beam size.
        """
        logits = 4 * beam_size * self.vocab * (1 + self.n_models)
        past = (beam_size + 3) * (2 * width + 5) * self.past
        activations = past + width * self.source + width * width * self.heads
        return n * (logits + self.n_bytes * activations)


@dataclass(frozen=True)
class BatchLimit:
    """Maximum batch size in padded source tokens and in sentences."""

    tokens: int
    sentences: int

    def bytes(self, size: MemoryEstimate, beam_size: int) -> int:
        """Return the bytes of the largest batch: many short lines or few long lines."""
        widest = min(self.tokens, size.longest)
        short = size.bytes(self.sentences, max(1, self.tokens // self.sentences), beam_size)
        return max(short, size.bytes(max(1, self.tokens // widest), widest, beam_size))


SMALLEST_BATCH = BatchLimit(64, 1)


@dataclass(frozen=True)
class BatchBudget:
    """The largest batches of a model on a device within a number of bytes."""

    size: MemoryEstimate
    device: str
    n_bytes: int

    @classmethod
    def of(
        cls, model: Any, dtype: torch.dtype, device: torch.device, free: int | None
    ) -> "BatchBudget":
        """Return the budget of a model, or of an ensemble.

        Args:
            model: the model.
            dtype: dtype of its weights.
            device: its device.
            free: bytes of main memory to use (default: all free memory).
        """
        if device.type == "cuda":  # plus memory cached by torch
            kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            free = torch.cuda.mem_get_info(device)[0] + kept
        elif free is None:
            free = get_free_memory()
        size = MemoryEstimate.of(getattr(model, "members", [model]), dtype.itemsize)
        return cls(size, device.type, estimate_batch_bytes(device.type, free))

    def limit(self, beam_size: int) -> BatchLimit:
        """Return the default batch, or the largest of 1/2, 1/4, ... of it that fits in the budget.

        With the C kernels and beam 5, the shipped model (width 256) is 3 % slower with 48 than with
        64 to 128 sentences, and the model base (width 512) 1 % slower with 32 than with 64, which
        take more memory.
        """
        n_rows, n_tokens = DEFAULT_ROWS[self.device], DEFAULT_TOKENS[self.device]
        if self.device == "cpu":
            n_rows = WIDE_ROWS if self.size.d_model >= WIDE_MODEL else n_rows
            n_tokens = max(64, min(n_tokens, CPU_STATES // beam_size))
        most = BatchLimit(n_tokens, max(1, n_rows // beam_size))
        while most != SMALLEST_BATCH and most.bytes(self.size, beam_size) > self.n_bytes:
            most = BatchLimit(max(64, most.tokens // 2), max(1, most.sentences // 2))
        return most

    def notices(self, beam_size: int) -> list[str]:
        """Return a notice if memory is short and batches are smaller than the default."""
        usual = replace(self, n_bytes=MAX_BATCH_BYTES[self.device]).limit(beam_size)
        if (limit := self.limit(beam_size)) == usual:
            return []
        return [
            f"little free memory: batches are limited to {limit.sentences} sentences and "
            f"{limit.tokens} tokens instead of {usual.sentences} and {usual.tokens}; the last "
            "digits of scores may differ"
        ]

    @property
    def scored_tokens(self) -> int:
        """Padded tokens per batch when scoring references, all positions at once."""
        return min(SCORED_TOKENS, self.scored_logits // self.size.vocab)

    @property
    def scored_logits(self) -> int:
        """Maximum number of logits at once when scoring references."""
        return self.n_bytes // (LOGIT_BYTES * self.size.n_models)


class OomRetry:
    """Halves the batch after an out-of-memory error and remembers the size that failed."""

    def __init__(self, remedy: str):
        """
        Args:
            remedy: advice if a single example does not fit.
        """
        self.remedy = remedy
        self.max_size: float = math.inf  # maximum of examples at once x largest width

    def run(
        self,
        group: list[Example],
        n_at_once: int,
        width: Callable[[Example], int],
        work: Callable[[list[Example], int], Iterable[tuple[int, R]]],
    ) -> list[R]:
        """Run a function on examples, with half as many at once after each out-of-memory error.

        Args:
            group: the examples.
            n_at_once: number of examples to run at once, if memory allows.
            width: returns a number that is proportional to the memory of an example.
            work: called with examples and n. It runs at most n of them at once and yields the
                index and result of each. After an error it is called again with the examples
                that have no result.

        Returns:
            The results in the order of `group`.

        Raises:
            MemoryExhausted: if one example does not fit in memory.
        """
        results: dict[int, R] = {}
        while len(results) < len(group):
            waiting = [i for i in range(len(group)) if i not in results]
            widest = max(width(group[i]) for i in waiting)
            n = max(1, int(min(n_at_once, len(waiting), self.max_size / widest)))
            try:
                for i, result in work([group[i] for i in waiting], n):
                    results[waiting[i]] = result
                continue
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                unfinished = [i for i in waiting if i not in results]
                if n == 1 and unfinished:
                    line = group[unfinished[0]].line.id + 1
                    raise MemoryExhausted(
                        f"out of memory at line {line} in a batch of one; {self.remedy}"
                    ) from None
            # Outside of `except`, because the exception keeps tensors alive
            self.max_size = (n + 1) // 2 * max(width(group[i]) for i in unfinished or waiting)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return [results[i] for i in range(len(group))]


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that CPU or GPU memory is exhausted."""
    is_known_message = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error))
    return bool(is_known_message) or isinstance(error, (torch.OutOfMemoryError, MemoryError))
