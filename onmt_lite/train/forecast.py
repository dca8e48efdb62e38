"""What a run will come to: said before it begins, with a note if that is far too little.

BLEU of this trainer on other Tatoeba sentences: 8.5 after 3 epochs of 10,000 pairs and 15.8 after
10; of 150,000 pairs 22.5 after half an epoch.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from onmt_lite.train.data import Example, TrainBatch, pad_batch
from onmt_lite.train.options import LearningOptions

TRIAL_STEPS, TRIAL_SECONDS = 8, 1.0  # the speed is measured until one of these is reached

EPOCHS, LEAST_STEPS = 5, 1000  # what a first useful model takes, whichever is more
TOKENS_PER_PARAMETER = 20  # no more than this: the model is full (Hoffmann et al. 2022)
FAR = 2  # times less than that is far too little
FEW_PAIRS, SOME_PAIRS = 5_000, 10_000  # far too few for a translator, and a beginning


class RunSpeed(NamedTuple):
    """Sizes of an epoch, and measured speed."""

    n_pairs: int
    n_parameters: int
    epoch_steps: int
    step_tokens: float  # target tokens, the mean of an epoch
    tokens_per_second: float

    def seconds(self, steps: float) -> float:
        return steps * self.step_tokens / self.tokens_per_second

    def useful_steps(self) -> float:
        """Return about how many steps a first useful model takes."""
        most = TOKENS_PER_PARAMETER * self.n_parameters / self.step_tokens
        return max(LEAST_STEPS, min(EPOCHS * self.epoch_steps, most))


def measure_speed(
    batches: list[list[Example]], update: Callable[[TrainBatch], float], is_over: Callable[[], bool]
) -> float:
    """Return the target tokens a second of a few updates, after a first one, which takes longer."""
    padded = map(pad_batch, itertools.cycle(batches))
    update(next(padded))
    began, n_tokens = time.monotonic(), 0
    for batch in itertools.islice(padded, TRIAL_STEPS):
        update(batch)
        n_tokens += batch.n_tokens
        if time.monotonic() - began > TRIAL_SECONDS or is_over():
            break
    return n_tokens / (time.monotonic() - began)


def forecast(
    pace: RunSpeed, learning: LearningOptions, n_steps: int, seconds: float, is_trained: bool
) -> list[str]:
    """Describe what is left of a run, and note if the whole run is far too short.

    Args:
        pace: sizes and speed
        learning: the limits, which count earlier runs
        n_steps: steps of earlier runs, 0 without -resume
        seconds: time of earlier runs, without validations
        is_trained: no length is too short for a model that was trained before

    Returns:
        One line, and a note if there is one.
    """
    by_steps = learning.train_steps or math.inf
    left = 60 * learning.train_minutes - seconds
    by_time = n_steps + left / pace.seconds(1) if learning.train_minutes else math.inf
    steps = min(by_steps, by_time)
    epochs, more = steps / pace.epoch_steps, steps - n_steps
    earlier = f"more steps, in addition to {format_duration(seconds)} for {n_steps:,} steps so far"
    told = [
        f"at {pace.tokens_per_second:,.0f} target tokens/s, as measured now, this run takes "
        f"{format_duration(pace.seconds(more))} for {more:,.0f} {earlier if n_steps else 'steps'}; "
        f"an epoch has {pace.epoch_steps:,}: {format_number(epochs)} epochs"
        f"{' in all' * (n_steps > 0)}"
    ]
    needed = pace.useful_steps()
    if is_trained:
        pass
    elif pace.n_pairs < FEW_PAIRS:
        told.append(
            f"NOTE: {pace.n_pairs:,} pairs are far too few to learn to translate from, however "
            f"often they are seen (here {format_number(epochs)} times); {SOME_PAIRS:,} are a "
            "beginning, and a trained model, named with -init_from, learns from fewer"
        )
    elif steps * FAR < needed:
        whole = seconds + pace.seconds(needed - n_steps)  # with what earlier runs took
        minutes = by_time < by_steps
        option = (
            f"minutes {format_number(whole / 60)}" if minutes else f"steps {format_number(needed)}"
        )
        told.append(
            f"NOTE: that is far too little to learn to translate from {pace.n_pairs:,} pairs; "
            f"a first useful model of this size takes about {format_duration(whole)}: "
            f"-train_{option.replace(',', '')}"
        )
    return told


def format_number(number: float) -> str:
    """Format a number with two significant digits."""
    short = float(f"{number:.2g}")
    return f"{short:,.0f}" if short >= 10 else f"{short:g}"


def format_duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{format_number(seconds / size)} {unit}"
    return f"{format_number(seconds)} seconds"
