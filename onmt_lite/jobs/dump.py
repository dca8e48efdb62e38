"""The file of `-dump_beam`: collected while a job runs, complete at its end or not there."""

from onmt_lite.errors import refused
from onmt_lite.inference.records import Trace
from onmt_lite.inference.trace_page import to_html, to_json
from onmt_lite.jobs.output import open_sink
from onmt_lite.jobs.store import Store

N_LINES = 100  # that are traced


class Dump:
    """The traces of a job; without a path, of no line.  A context."""

    def __init__(self, path: str | None):
        """Raises FileError."""
        self.path, self.traces = path, list[Trace]()
        self.sink = None if path is None else open_sink(path)
        self.n_left = 0 if path is None else N_LINES  # lines to be traced

    def __enter__(self) -> "Dump":
        """Lock the file.  Raises FileError."""
        if self.sink is not None:
            self.sink.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.sink is not None:
            self.sink.__exit__(*error)

    def take(self, n_lines: int) -> int:
        """How many of the next lines are to be traced."""
        n = min(self.n_left, n_lines)
        self.n_left -= n
        return n

    def leave_out(self) -> None:
        """Trace no line, and leave the file as it is."""
        self.path, self.n_left = None, 0

    def write(self) -> None:
        """Put the file in its place.  Raises FileError, and Interrupted if nobody reads a pipe."""
        if self.path is None or self.sink is None:
            return
        made = to_html if self.path.endswith(".html") else to_json
        if isinstance(self.sink, Store):
            self.sink.clear()
        self.sink.append(made(self.traces).encode("utf-8", "backslashreplace"))
        self.sink.finish()
        if isinstance(self.sink, Store):
            with refused(f"write {self.path}"):
                self.sink.remove()
