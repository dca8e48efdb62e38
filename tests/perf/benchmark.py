"""How fast, as ratios: `python -m tests.perf.benchmark [-model PATH] [-src FILE]`.

Settings take turns, round after round, and the median of each counts: on a shared machine
a ratio means something, a single figure does not.  On a CPU one thread runs, and its processor time
counts.  The last lines say where a step's time goes.
"""

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from onmt_lite.presets import PRESETS
from onmt_lite.search import candidates as device
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
        start = time.thread_time()  # of this thread alone, on a machine that others use too
        result = self.function(*args)
        self.seconds += time.thread_time() - start
        self.calls += 1
        return result


def main() -> None:
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    translator = Translator.from_pretrained(given.get("-model"), threads=1)
    clock = time.process_time if translator.device.type == "cpu" else time.perf_counter
    text = Path(given.get("-src", SAMPLE)).read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line]
    lines = lines * max(1, 240 // len(lines))
    seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    translator.translate(lines[:20])
    for _ in range(ROUNDS):
        for name, options in SETTINGS.items():
            start = clock()
            translator.translate(lines, **options)
            seconds[name].append(clock() - start)
    default = median(seconds["default (beam 5)"])
    print(f"{len(lines)} lines, {ROUNDS} rounds, {translator.device}")
    for name, times in seconds.items():
        rate = len(lines) / median(times)
        print(f"{name:24} {rate:8.1f} lines/s   {default / median(times):5.2f} x default")
    print_host_time(translator, lines)


def print_host_time(translator: Translator, lines: list[str]) -> None:
    """Time of the per-sentence Python code, in microseconds per sentence and step."""
    print("host time, us per sentence-step: candidates + Beam.advance + select + next step")
    for name, preset in PRESETS.items():
        figures = [host_time(translator, lines, search=name)]
        if "block_ngram_repeat" in preset.options:
            figures.append(host_time(translator, lines, search=name, block_ngram_repeat=3))
        plain, *blocking = (
            " + ".join(f"{x:.1f}" for x in parts) + f" = {sum(parts):.1f}" for parts in figures
        )
        print(f"{name:16} {plain}   {'n-gram blocking ' + blocking[0] if blocking else ''}")


def host_time(translator: Translator, lines: list[str], **options) -> list[float]:
    """Of each part; beam_size 5 for all, so that they can be compared."""
    parts = {
        (device, "as_columns"): Timed(device.as_columns),
        (Beam, "advance"): Timed(Beam.advance),
        (loop, "select_indices"): Timed(loop.select_indices),
        (loop, "next_step"): Timed(loop.next_step),
    }
    gc.collect()  # what the last search has left is not this one's to clear away
    originals = {(owner, name): getattr(owner, name) for owner, name in parts}
    for (owner, name), timed in parts.items():
        # A plain function binds as a method
        setattr(owner, name, lambda *args, timed=timed: timed(*args))
    try:
        translator.translate(lines, beam_size=5, **options)
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)
    steps, clock = parts[Beam, "advance"].calls, cost_of_the_clock()
    return [1e6 * (timed.seconds - timed.calls * clock) / steps for timed in parts.values()]


def cost_of_the_clock() -> float:
    """Seconds that timing adds to a call."""
    nothing = Timed(lambda: None)
    for _ in range(10_000):
        nothing()
    return nothing.seconds / nothing.calls


if __name__ == "__main__":
    main()
