"""How fast, as ratios: `python -m tests.perf.benchmark [-model PATH] [-src FILE]`.

Settings take turns, round after round, and the median of each counts: on a shared machine
a ratio means something, a single figure does not.  On a CPU one thread runs, and its processor time
counts.  The last lines say what the host spends on a sentence.
"""

import gc
import sys
import time
from pathlib import Path
from statistics import median

import torch

from onmt_lite.inference import translator as translator_module
from onmt_lite.inference.translator import Translator
from onmt_lite.search.beam_batch import Frontier
from onmt_lite.search.presets import PRESETS

ROUNDS = 5
SAMPLE = Path(__file__).parents[2] / "data" / "sample.de.txt"
SETTINGS = {
    "default (beam 5)": {},
    "greedy (beam 1)": {"beam_size": 1},
    "n-gram blocking": {"block_ngram_repeat": 3},
    "coverage penalty": {"coverage_penalty": "wu", "beta": 0.2},
    "one sentence a batch": {"batch_type": "sents", "batch_size": 1},
}


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
    print("host time, us per sentence-step, beam 5, 64 sentences at once: events, Beam, log")
    for name, preset in PRESETS.items():
        figures = {"": host_time(translator, lines, search=name)}
        if "block_ngram_repeat" in preset.options:
            figures["   n-gram blocking"] = host_time(
                translator, lines, search=name, block_ngram_repeat=3
            )
        print(f"{name:16}" + "".join(f"{title} {x:4.1f}" for title, x in figures.items()))


def host_time(translator: Translator, lines: list[str], **options) -> float:
    """What `decode` spends on the host, the device's steps and moves aside."""
    spent, n_steps, clock = 0.0, 0, time.thread_time  # of this thread, on a machine others use

    def timed_decode(model, sentences, plan, n_slots, n_batches):
        nonlocal spent, n_steps
        frontier = Frontier(model, plan, sentences, n_slots)
        while admitted(frontier):
            packed = frontier.step()
            n_steps += len(frontier.slots)
            start = clock()
            for beam, event in frontier.events(packed):
                beam.advance(event)
            over = list(frontier.over())
            spent += clock() - start
            yield from over

    def admitted(frontier: Frontier) -> bool:
        """`admit`; what it reads from the log is the host's."""
        read = frontier._read

        def timed_read(b: int) -> None:
            nonlocal spent
            start = clock()
            read(b)
            spent += clock() - start

        frontier._read = timed_read
        more = frontier.admit()
        frontier._read = read
        return more

    gc.collect()  # what the last search has left is not this one's to clear away
    original, translator_module.decode = translator_module.decode, timed_decode
    try:
        with torch.inference_mode():
            translator.translate(lines, beam_size=5, batch_type="sents", batch_size=64, **options)
    finally:
        translator_module.decode = original
    return 1e6 * spent / n_steps


if __name__ == "__main__":
    main()
