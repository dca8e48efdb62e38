"""Seconds of a job by phase: tokenise, encode, decode, write."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator


class Clock:
    """Adds up the seconds of phases.  A phase within another one stops the outer one meanwhile: no
    second is counted twice.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None):
        """`wait` is called before each reading: a GPU works on after a call returns."""
        self.wait = wait
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside: list[str] = []  # phases that have begun, the innermost last
        self._since = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._read()
        self._inside.append(name)
        try:
            yield
        finally:
            self._read()
            self._inside.pop()

    def add(self, seconds: dict[str, float]) -> None:
        """Add the seconds of another clock."""
        for name, more in seconds.items():
            self.seconds[name] += more

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken

    def _read(self) -> None:
        """Give the time since the last reading to the innermost phase."""
        self.wait()
        now = time.perf_counter()
        if self._inside:
            self.seconds[self._inside[-1]] += now - self._since
        self._since = now
