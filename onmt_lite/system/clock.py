"""How a job spends its time."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator


class Clock:
    """Adds up the seconds of a job's phases: tokenize, encode, decode, write.

    A phase within another one stops the outer one meanwhile: no second is counted twice.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None):
        """`wait` is called before each reading: a GPU works on after a call returns."""
        self.wait = wait
        self.seconds: dict[str, float] = defaultdict(float)
        self._phase, self._since = "", 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer = self._phase
        self._go_over(name)
        try:
            yield
        finally:
            self._go_over(outer)

    def add(self, seconds: dict[str, float]) -> None:
        """Add the seconds of another clock."""
        for name, more in seconds.items():
            self.seconds[name] += more

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken

    def _go_over(self, phase: str) -> None:
        """Give the time since the last call to the phase that has run; "" is none."""
        self.wait()
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
