"""How fast, as ratios: `python tests/perf/benchmark.py [-model PATH] [-src FILE]`.

Settings take turns, round after round, and the median of each counts: on a shared machine
a ratio means something, a single figure does not.  The last lines say where a step's time goes.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from onmt_lite.search import decode as loop
from onmt_lite.search.beam import Beam
from onmt_lite.translator import Translator

ROUNDS = 5
SAMPLE = Path(__file__).parents[2] / "data" / "sample.de.txt"
SETTINGS = {
    "default (beam 5)": {},
    "greedy (beam 1)": {"beam_size": 1},
    "n-gram blocking": {"block_ngram_repeat": 3},
    "coverage penalty": {"coverage_penalty": "wu", "beta": 0.2},
    "one sentence a batch": {"batch_type": "sents", "batch_size": 1},
}


class Timed:
    """A function that adds up the time spent in it."""

    def __init__(self, function: Callable):
        self.function, self.seconds, self.calls = function, 0.0, 0

    def __call__(self, *args):
        start = time.perf_counter()
        result = self.function(*args)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return result


def main() -> None:
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    translator = Translator.from_pretrained(given.get("-model"))
    text = Path(given.get("-src", SAMPLE)).read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line]
    lines = lines * max(1, 240 // len(lines))
    seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    translator.translate(lines[:20])
    for _ in range(ROUNDS):
        for name, options in SETTINGS.items():
            start = time.perf_counter()
            translator.translate(lines, **options)
            seconds[name].append(time.perf_counter() - start)
    default = median(seconds["default (beam 5)"])
    print(f"{len(lines)} lines, {ROUNDS} rounds, {translator.device}")
    for name, times in seconds.items():
        rate = len(lines) / median(times)
        print(f"{name:24} {rate:8.1f} lines/s   {default / median(times):5.2f} x default")
    print_host_time(translator, lines)


def print_host_time(translator: Translator, lines: list[str]) -> None:
    """Time of the per-sentence Python code, in microseconds per sentence and step."""
    advance = Timed(Beam.advance)
    select = Timed(loop.select_indices)
    original = Beam.advance, loop.select_indices
    Beam.advance = lambda *args: advance(*args)  # a plain function binds as a method
    loop.select_indices = select
    translator.translate(lines)
    Beam.advance, loop.select_indices = original
    print(f"Beam.advance      {1e6 * advance.seconds / advance.calls:6.1f} us per sentence-step")
    print(f"select_indices    {1e6 * select.seconds / advance.calls:6.1f} us per sentence-step")


if __name__ == "__main__":
    main()
