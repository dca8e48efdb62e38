"""Number of CPU threads that torch uses, in this process and in forks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from onmt_lite.errors import Message, OptionError

_used_in: int | None = None  # id of the process in which torch started threads


@contextmanager
def cpu_threads(n: int | None = None) -> Iterator[None]:
    """Set the number of CPU threads inside the block.

    A forked process does not have its parent's OpenMP threads and would wait for them forever, so
    it uses one thread.

    Args:
        n: number of threads; None: torch's current setting

    Raises:
        OptionError: n is larger than 1 in a process forked after torch started threads
    """
    global _used_in
    before = torch.get_num_threads()
    if _used_in not in (None, os.getpid()):
        if n is not None and n > 1:
            problem = (
                "{threads}: this process was forked after torch had started threads, so it can "
                "use only one; set threads to 1, or start the process with spawn instead of fork"
            )
            raise OptionError(Message.of(problem, threads=n))
        n = 1
    elif (n or before) > 1:
        _used_in = os.getpid()
    if n is not None:
        torch.set_num_threads(n)
    try:
        yield
    finally:
        if n is not None:
            torch.set_num_threads(before)
