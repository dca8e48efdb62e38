"""Time spent in the phases of a job."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator


class Clock:
    """Adds up the seconds of the phases tokenize, encode, decode and write.

    An inner phase pauses the outer one, so no second is counted twice.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None):
        """`wait` is called before each reading: a GPU is still busy when a call returns."""
        self.wait = wait
        self.seconds: dict[str, float] = defaultdict(float)
        self._phase, self._since = "", 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within as time of this phase."""
        outer = self._phase
        self._switch_to(name)
        try:
            yield
        finally:
            self._switch_to(outer)

    def add(self, seconds: dict[str, float]) -> None:
        """Add the seconds of another clock."""
        for name, elapsed in seconds.items():
            self.seconds[name] += elapsed

    def take(self) -> dict[str, float]:
        """Return seconds by phase since the last call, and reset them."""
        totals, self.seconds = dict(self.seconds), defaultdict(float)
        return totals

    def _switch_to(self, phase: str) -> None:
        """Add the time since the last switch to the current phase; start a new one ("": none)."""
        self.wait()
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
