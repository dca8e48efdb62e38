"""How many sentences are worked on at once: what the memory of a batch is made of, what is free,
and what is done where memory runs out all the same."""

import math
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from onmt_lite.errors import MemoryExhausted
from onmt_lite.records import Example

R = TypeVar("R")

# How an error that is a plain RuntimeError says that memory is out: torch's allocators for CPUs and
# GPUs, CUDA's libraries, C++, and oneDNN, which has no word for memory where it cannot write code
OUT_OF_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|not enough memory|out.?of.?memory|alloc_failed|bad_alloc"
    r"|could not create a memory|could not create a primitive(?! descriptor)",
    re.IGNORECASE,
)


class Room:
    """What fits into memory: as many examples at once as did not fit are not tried again."""

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
                           each among them and its result; where memory runs out, the work goes on
                           for the examples that have none, with half as many at once

        MemoryExhausted where one example alone does not fit.
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
                if n == 1:
                    line = group[left[0]].line.id + 1
                    raise MemoryExhausted(
                        f"out of memory at line {line} alone; {self.remedy}"
                    ) from None
            # Here, since within `except` the error keeps alive what was in memory
            self.most = (n + 1) // 2 * max(width(group[i]) for i in left)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return [found[i] for i in range(len(group))]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, of the CPU or of a GPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))
