"""How cost grows: `python -m tests.perf.scaling [-shape tiny] [-precision fp32] [-rounds 3]
[-only beam] [-lines 100000]`.

One size grows at a time; the settings take turns, round after round, and the least processor time
of each counts, on one thread.  Theory says of which terms the time consists (a constant, the size,
its square); their weights are fitted to all sizes at once, and the last column is measured over
predicted.  What is more than 15 % off is marked.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from onmt_lite import Translator
from onmt_lite.inference.runtime import placed
from onmt_lite.models.selection import Selection
from onmt_lite.models.transformer import Transformer, TransformerConfig
from onmt_lite.search.decode import decode
from onmt_lite.search.plan import Limits, Plan, Sentence
from onmt_lite.search.presets import PRESETS

SHAPES = {
    "base": dict(d_model=512, heads=8, d_ff=2048, enc_layers=6, dec_layers=6),
    "tiny": dict(d_model=256, heads=4, d_ff=1024, enc_layers=3, dec_layers=3),
    "small": dict(d_model=128, heads=4, d_ff=512, enc_layers=2, dec_layers=2),
}
BOS, EOS = 2, 3
ALLOWED = 0.15
TOY = Path(__file__).parents[2] / "data" / "toy.json"

Term = Callable[[float], float]
ONE, SIZE, SQUARE = (lambda x: 1.0), (lambda x: x), (lambda x: x * x)


def make_model(shape: str, vocab_size: int, precision: str = "fp32") -> Any:
    torch.manual_seed(1)
    sizes = dict(src_vocab_size=vocab_size, tgt_vocab_size=vocab_size, max_positions=600)
    model = Transformer(TransformerConfig(**SHAPES[shape], **sizes)).eval().requires_grad_(False)
    return placed(model, torch.device("cpu"), precision, in_place=True)


def search(model: Any, n: int, source: int, steps: int, beam: int, slots: int = 0) -> None:
    """Translate n sentences of `source` tokens in `steps` steps each, which nothing cuts short."""
    preset = PRESETS["opennmt"]
    plan = Plan(preset.policy, next(iter(preset.stops.values())), beam, bos_id=BOS, eos_id=EOS)
    words = torch.randint(4, model.vocab_size, (n, source)).tolist()
    sentences = [Sentence(ids, Limits(steps, steps + 1)) for ids in words]
    for start in range(0, n, slots or n):
        for _ in decode(model, sentences[start : start + (slots or n)], plan):
            pass


@torch.inference_mode()
def greedy(model: Any, n: int, source: int, steps: int) -> None:
    """The best token at each step, with no search around it: what a beam of one is held against."""
    src = torch.randint(4, model.vocab_size, (n, source))
    state = model.init_state(model.encode(src, torch.full((n,), source)))
    state = state.select(Selection(torch.arange(n)[:, None]))
    tokens = torch.full((n,), BOS)
    for _ in range(steps):
        logits, _ = model.step(tokens, state)
        logits[:, EOS] = -torch.inf
        scores = logits.log_softmax(-1)
        tokens = scores.argmax(-1)
        scores.gather(1, tokens[:, None]).tolist()


def axes(
    shape: str, precision: str, n_lines: int
) -> dict[str, tuple[Sequence[Term], dict[int, Callable]]]:
    """For each size: the terms of its theory, and the work at each value."""
    model = make_model(shape, 8000, precision)
    run = partial(search, model)
    lengths, beams = (8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32)
    batches, vocabularies = (1, 4, 16, 64, 128, 256, 512), (8000, 16000, 32000, 64000, 256_000)
    models = {v: make_model("small", v, precision) for v in vocabularies}
    return {
        "source tokens (16 sentences, 16 steps)": (
            (ONE, SIZE, SQUARE),
            {n: partial(run, 16, n, 16, 5) for n in lengths},
        ),
        "steps (16 sentences of 16 tokens)": (
            (ONE, SIZE, SQUARE),
            {n: partial(run, 16, 16, n, 5) for n in lengths},
        ),
        "beam (32 sentences of 16 tokens, 16 steps)": (
            (ONE, SIZE),
            {k: partial(run, 32, 16, 16, k) for k in beams},
        ),
        "batch (16 tokens, 16 steps)": (
            (ONE, SIZE),
            {b: partial(run, b, 16, 16, 5) for b in batches},
        ),
        "vocabulary (16 sentences of 16 tokens, 16 steps, shape small)": (
            (ONE, SIZE),
            {v: partial(search, m, 16, 16, 16, 5) for v, m in models.items()},
        ),
        "lines of a file (toy model)": (
            (ONE, SIZE),
            {n: partial(translate_file, n) for n in (n_lines // 10, n_lines // 3, n_lines)},
        ),
    }


def translate_file(n_lines: int) -> None:
    """As the command line does in one process; prints the peak of memory."""
    with tempfile.TemporaryDirectory() as folder:
        src, output = Path(folder, "src"), Path(folder, "out")
        src.write_text("katze\nkatze\n" * (n_lines // 2), "utf-8")
        toy().translate_file(src, output)


def toy(kept: list[Translator] = []) -> Translator:  # noqa: B006
    if not kept:
        kept.append(Translator.from_pretrained(TOY, threads=1))
    return kept[0]


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(work: dict[int, Callable[[], object]], rounds: int) -> dict[int, float]:
    """The least time of each, in seconds."""
    next(iter(work.values()))()
    times = [{x: seconds(one) for x, one in work.items()} for _ in range(rounds)]
    return {x: min(t[x] for t in times) for x in work}


def fitted(terms: Sequence[Term], times: dict[int, float]) -> dict[int, float]:
    """Predicted times: weights of the terms, none below 0, with the least sum of squares of what
    is off, in shares of each time."""
    left = list(terms)
    while True:
        shares = torch.tensor([[f(x) / t for f in left] for x, t in times.items()]).double()
        scale = shares.amax(0)
        weights = torch.linalg.lstsq(shares / scale, torch.ones(len(times), 1).double()).solution
        weights = weights[:, 0] / scale
        if (weights >= 0).all():
            return {x: sum(float(w) * f(x) for w, f in zip(weights, left)) for x in times}
        del left[int((weights * scale).argmin())]


def show(name: str, terms: Sequence[Term], times: dict[int, float]) -> None:
    predicted = fitted(terms, times)
    print(f"\n{name}\n{'':>9} {'ms':>10} {'us each':>10} {'predicted ms':>13} {'ratio':>6}")
    for x, t in times.items():
        ratio = t / predicted[x]
        mark = "  more than theory" if ratio > 1 + ALLOWED else ""
        mark = "  less than theory" if ratio < 1 - ALLOWED else mark
        print(f"{x:9} {1e3 * t:10.1f} {1e6 * t / x:10.1f} {1e3 * predicted[x]:13.1f}", end="")
        print(f" {ratio:6.2f}{mark}", flush=True)


def show_greedy(shape: str, precision: str, rounds: int) -> None:
    model = make_model(shape, 8000, precision)
    for n in (1, 16, 64):
        pair = {0: partial(greedy, model, n, 16, 16), 1: partial(search, model, n, 16, 16, 1)}
        times = in_turns(pair, 3 * rounds)
        ratio = times[1] / times[0]
        print(f"\nbeam 1 to plain greedy search, {n} sentences: {ratio:.2f}", flush=True)


def main() -> None:
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    shape, precision = given.get("-shape", "tiny"), given.get("-precision", "fp32")
    rounds, only = int(given.get("-rounds", 3)), given.get("-only")
    torch.set_num_threads(1)
    print(f"{shape}, {precision}, {rounds} rounds, load of the machine {os.getloadavg()[0]:.1f}")
    for name, (terms, work) in axes(shape, precision, int(given.get("-lines", 100_000))).items():
        if only is None or name.startswith(only):
            show(name, terms, in_turns(work, rounds))
            if name.startswith("lines"):
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                print(f"peak of memory {peak} MB")
    if only in (None, "greedy"):
        show_greedy(shape, precision, rounds)


if __name__ == "__main__":
    main()
