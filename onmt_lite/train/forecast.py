"""Forecast of a training run: its time, steps and epochs, and a warning if it is far too short.

BLEU of this trainer on other Tatoeba sentences: 8.5 after 3 epochs of 10,000 pairs and 15.8 after
10; with 150,000 pairs, 22.5 after half an epoch.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from onmt_lite.train.data import Example, TrainBatch, pad_batch
from onmt_lite.train.options import LearningOptions

TRIAL_STEPS, TRIAL_SECONDS = 8, 1.0  # the speed is measured until one of these is reached

EPOCHS, MIN_STEPS = 5, 1000  # needed for a first useful model, whichever is more
TOKENS_PER_PARAMETER = 20  # enough for any model (Hoffmann et al. 2022)
SHORTFALL = 2  # a run is far too short if it has less than 1/2 of the useful steps
MIN_PAIRS, FAIR_PAIRS = 5_000, 10_000  # below this, training is pointless; suggested minimum


class RunSpeed(NamedTuple):
    """Sizes of an epoch, and measured speed."""

    n_pairs: int
    n_parameters: int
    epoch_steps: int
    step_tokens: float  # target tokens per step, averaged over an epoch
    tokens_per_second: float

    def estimate_seconds(self, steps: float) -> float:
        """Return the duration of a number of steps."""
        return steps * self.step_tokens / self.tokens_per_second

    def estimate_useful_steps(self) -> float:
        """Return the approximate number of steps to a first useful model."""
        max_steps = TOKENS_PER_PARAMETER * self.n_parameters / self.step_tokens
        return max(MIN_STEPS, min(EPOCHS * self.epoch_steps, max_steps))


def measure_speed(
    batches: list[list[Example]], update: Callable[[TrainBatch], float], stops: Callable[[], bool]
) -> float:
    """Measure the speed of a few updates, after one update to warm up.

    Args:
        batches: examples of each batch
        update: trains on one batch
        stops: returns True if the measurement must end early

    Returns:
        Target tokens per second.
    """
    padded = map(pad_batch, itertools.cycle(batches))
    update(next(padded))
    start, n_tokens = time.monotonic(), 0
    for batch in itertools.islice(padded, TRIAL_STEPS):
        update(batch)
        n_tokens += batch.n_tokens
        if time.monotonic() - start > TRIAL_SECONDS or stops():
            break
    return n_tokens / (time.monotonic() - start)


def forecast(
    speed: RunSpeed, learning: LearningOptions, n_steps: int, seconds: float, is_pretrained: bool
) -> list[str]:
    """Describe the rest of a run, and warn if the whole run is far too short.

    Args:
        speed: sizes and speed
        learning: the limits, including earlier runs
        n_steps: steps of earlier runs, 0 without -resume
        seconds: training time of earlier runs
        is_pretrained: True if the run starts from a trained model; no warning is given then

    Returns:
        One line, followed by the warning if the run is too short.
    """
    by_steps = learning.train_steps or math.inf
    seconds_left = 60 * learning.train_minutes - seconds
    by_time = math.inf
    if learning.train_minutes:
        by_time = n_steps + seconds_left / speed.estimate_seconds(1)
    steps = min(by_steps, by_time)
    epochs, remaining = steps / speed.epoch_steps, steps - n_steps
    earlier = f"more steps, in addition to {format_duration(seconds)} for {n_steps:,} steps so far"
    lines = [
        f"at the measured speed of {speed.tokens_per_second:,.0f} target tokens/s, this run takes "
        f"{format_duration(speed.estimate_seconds(remaining))} for {remaining:,.0f} "
        f"{earlier if n_steps else 'steps'}; an epoch has {speed.epoch_steps:,} steps: "
        f"{format_number(epochs)} epochs{' in total' * (n_steps > 0)}"
    ]
    useful = speed.estimate_useful_steps()
    if is_pretrained:
        pass
    elif speed.n_pairs < MIN_PAIRS:
        lines.append(
            f"NOTE: {speed.n_pairs:,} pairs are far too few to train a translation model, even if "
            f"each is used {format_number(epochs)} times; use at least {FAIR_PAIRS:,}, or "
            "fine-tune a trained model with -init_from"
        )
    elif steps * SHORTFALL < useful:
        total = seconds + speed.estimate_seconds(useful - n_steps)  # earlier runs included
        limit = f"steps {format_number(useful)}"
        if by_time < by_steps:
            limit = f"minutes {format_number(total / 60)}"
        lines.append(
            f"NOTE: this run is far too short for {speed.n_pairs:,} pairs; a first useful model "
            f"of this size takes about {format_duration(total)}: -train_{limit.replace(',', '')}"
        )
    return lines


def format_number(number: float) -> str:
    """Format a number with two significant digits."""
    short = float(f"{number:.2g}")
    return f"{short:,.0f}" if short >= 10 else f"{short:g}"


def format_duration(seconds: float) -> str:
    """Format a duration with two significant digits, in hours, minutes or seconds."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{format_number(seconds / size)} {unit}"
    return f"{format_number(seconds)} seconds"
