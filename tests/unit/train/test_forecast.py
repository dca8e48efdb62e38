"""The forecast of a training run, and its wall-clock and CPU time."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite.train import forecast as module
from onmt_lite.train.forecast import (
    RunSpeed,
    forecast,
    format_duration,
    format_number,
    measure_speed,
)
from onmt_lite.train.options import LearningOptions
from onmt_lite.train.run import train
from onmt_lite.train.trainer import Trainer
from tests.support.tiny_training import make_tiny_options

# 150,000 pairs of eleven tokens, the default model, two cores
TATOEBA = RunSpeed(150_000, 2_200_000, 1500, 1100.0, 4000.0)


def make_forecast(speed, n_steps=0, seconds=0.0, is_pretrained=False, **limits):
    return forecast(speed, LearningOptions(**limits), n_steps, seconds, is_pretrained)


@pytest.mark.parametrize(
    ("speed", "limits", "expected"),
    [
        # 5 epochs are 7,500 steps, of which 100 take 27.5 s
        (TATOEBA, {"train_steps": 100}, "-train_steps 7500"),
        (TATOEBA, {"train_minutes": 1}, "-train_minutes 34"),
        (TATOEBA, {"train_minutes": 60, "train_steps": 100}, "-train_steps 7500"),
        (TATOEBA, {"train_minutes": 1, "train_steps": 10**6}, "-train_minutes 34"),
        (TATOEBA, {"train_steps": 4000}, None),
        (TATOEBA, {"train_minutes": 30}, None),
        # 5 epochs of 10,000 pairs are 600 steps: below the minimum for any model
        (TATOEBA._replace(n_pairs=10_000, epoch_steps=120), {"train_steps": 300}, "_steps 1000"),
        (TATOEBA._replace(n_pairs=10_000, epoch_steps=120), {"train_steps": 600}, None),
        # 20 tokens for each of 2.2 million parameters are 40,000 steps, 0.4 epochs
        (TATOEBA._replace(n_pairs=10**7, epoch_steps=10**5), {"train_steps": 9000}, "steps 40000"),
        (TATOEBA._replace(n_pairs=10**7, epoch_steps=10**5), {"train_steps": 25000}, None),
    ],
)
def test_forecast_of_short_run_suggests_a_longer_one(speed, limits, expected):
    line, *notes = make_forecast(speed, **limits)
    assert not line.startswith("NOTE")
    assert bool(notes) == (expected is not None)
    assert expected is None or notes[0].endswith(expected)
    assert make_forecast(speed, is_pretrained=True, **limits) == [line]


def test_forecast_gives_time_steps_and_epochs():
    (line,) = make_forecast(TATOEBA, train_steps=6000)
    assert line == (
        "at the measured speed of 4,000 target tokens/s, this run takes 28 minutes for 6,000 "
        "steps; an epoch has 1,500 steps: 4 epochs"
    )


def test_forecast_of_resumed_run_includes_earlier_runs():
    # 20 of 30 minutes are left: 20 * 60 * 4000 / 1100 steps, which make 9,364
    (line,) = make_forecast(TATOEBA, n_steps=5000, seconds=600, train_minutes=30)
    assert line == (
        "at the measured speed of 4,000 target tokens/s, this run takes 20 minutes for 4,364 more "
        "steps, in addition to 10 minutes for 5,000 steps so far; an epoch has 1,500 steps: 6.2 "
        "epochs in total"
    )
    # 1,000 of 6,000 steps are left, of 0.275 s each
    (line,) = make_forecast(TATOEBA, n_steps=5000, seconds=9999, train_steps=6000)
    assert "this run takes 4.6 minutes for 1,000 more steps, in addition to 2.8 hours" in line


def test_forecast_warning_of_resumed_run_includes_earlier_minutes():
    # 7,500 steps are useful: 500 took 10 minutes, 7,000 more take 32.1
    _, note = make_forecast(TATOEBA, n_steps=500, seconds=600, train_minutes=11)
    assert note.endswith("takes about 42 minutes: -train_minutes 42")
    assert len(make_forecast(TATOEBA, n_steps=500, seconds=600, train_minutes=42)) == 1


@pytest.mark.parametrize("n_pairs", [2, 200, 4999])
@pytest.mark.parametrize("steps", [1, 10**6])
def test_forecast_with_too_few_pairs_warns_for_any_number_of_steps(n_pairs, steps):
    _, note = make_forecast(TATOEBA._replace(n_pairs=n_pairs, epoch_steps=2), train_steps=steps)
    assert note.startswith(f"NOTE: {n_pairs:,} pairs are far too few")
    assert f"is used {steps / 2:g} times".replace("500000", "500,000") in note
    assert "-train_" not in note


@given(
    st.integers(5000, 10**8),
    st.integers(10**4, 10**9),
    st.integers(1, 10**6),
    st.floats(10, 10**5),
    st.floats(1, 10**7),
    st.integers(1, 10**6),
)
def test_forecast_has_no_warning_if_the_advice_is_followed(
    pairs, parameters, epoch, tokens, speed, steps
):
    run_speed = RunSpeed(pairs, parameters, epoch, tokens, speed)
    for limit in ("steps", "minutes"):
        value = steps if limit == "steps" else run_speed.estimate_seconds(steps) / 60
        for note in make_forecast(run_speed, **{f"train_{limit}": value})[1:]:
            advised = float(re.search(rf"-train_{limit} (\S+)$", note)[1])
            assert advised > value
            assert len(make_forecast(run_speed, **{f"train_{limit}": advised})) == 1


def test_format_duration_and_number_keep_two_digits():
    assert [*map(format_number, (0.0666, 1.04, 9.96, 123.0, 7321.0))] == [
        "0.067", "1", "10", "120", "7,300"
    ]  # fmt: skip
    assert [*map(format_duration, (5.67, 89, 91, 5399, 5401, 400_000))] == [
        "5.7 seconds", "89 seconds", "1.5 minutes", "90 minutes", "1.5 hours", "110 hours"
    ]  # fmt: skip


def test_measure_speed_ignores_the_first_update(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    batches = [[([4, 3], [5, 6])], [([4, 3], [5]), ([4, 3], [6])]]  # 3 and 4 target tokens
    batch_sizes = []

    def update(batch):
        batch_sizes.append(batch.n_tokens)
        now[0] += 9.0 if len(batch_sizes) == 1 else 0.25

    # Four updates of 4, 3, 4, 3 tokens in a second; a fifth ends the trial
    assert measure_speed(batches, update, lambda: False) == pytest.approx(18 / 1.25)
    assert batch_sizes == [3, 4, 3, 4, 3, 4]
    batch_sizes.clear()
    assert measure_speed(batches, update, lambda: True) == pytest.approx(16)
    assert batch_sizes == [3, 4]


@pytest.fixture
def log_before_training(corpus, tmp_path):
    """log_before_training(*words) -> the log between the sizes and the first step of a run."""

    def log(*words):
        trainer = Trainer(make_tiny_options(corpus, tmp_path / "run", *words))
        trainer.step = lambda batch: 1 / 0
        with pytest.raises(ZeroDivisionError):
            trainer.run()
        log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
        return log.rpartition("training pairs, ")[2]

    return log


def test_forecast_is_logged_before_the_first_step(
    log_before_training, corpus, tmp_path, monkeypatch
):
    assert re.search(
        r"at the measured speed of [\d,]+ target tokens/s, this run takes .* for 8 steps; an epoch "
        r"has (\d+) steps: .*\n.*NOTE: 300 pairs are far too few.*\n$",
        log_before_training(),
    )
    monkeypatch.setattr(module, "MIN_PAIRS", 100)
    assert "-train_steps 1000\n" in log_before_training()
    train(make_tiny_options(corpus, tmp_path / "start"))
    log = log_before_training("-init_from", tmp_path / "start")
    assert "for 8 steps" in log and "far too" not in log


def test_measure_speed_does_not_change_the_run(corpus, tmp_path, monkeypatch):
    train(make_tiny_options(corpus, tmp_path / "measured"))
    trainer = Trainer(make_tiny_options(corpus, tmp_path / "kept"))
    epoch, state = trainer.epochs(0), torch.get_rng_state()
    before = trainer.model, trainer.optimizers, trainer.compute_held_out_losses()
    assert trainer.measure_speed(epoch) > 0
    after = trainer.model, trainer.optimizers, trainer.compute_held_out_losses()
    assert after[:2] == before[:2] and trainer.n_steps == 0
    assert not any(o.state for o in trainer.optimizers)
    torch.set_rng_state(state)
    monkeypatch.setattr(Trainer, "measure_speed", lambda trainer, epoch: 1.0)
    train(make_tiny_options(corpus, tmp_path / "plain"))
    measured, plain = (tmp_path / n / "weights.safetensors" for n in ("measured", "plain"))
    assert measured.read_bytes() == plain.read_bytes()


def test_log_gives_wall_clock_and_cpu_minutes(corpus, tmp_path, monkeypatch):
    """With a minute per step and CPU time twice as long."""
    trainer = Trainer(make_tiny_options(corpus, tmp_path / "run", "-train_steps", 3))
    step, steps = trainer.step, []
    monkeypatch.setattr(
        "onmt_lite.train.trainer.read_clocks", lambda: (60 * len(steps), 120 * len(steps))
    )
    trainer.step = lambda batch: steps.append(batch) or step(batch)
    trainer.run()
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "3.0 min (CPU 6.0)  epoch" in log
    # A resumed run continues the count; a state of an older version has no CPU time
    path = tmp_path / "run" / "train_state.pt"
    for known in (True, False):
        if not known:
            state = torch.load(path, weights_only=True)
            del state["counters"]["processor_seconds"]
            torch.save(state, path)
        resumed = Trainer(make_tiny_options(corpus, tmp_path / "run", "-train_steps", 9, "-resume"))
        assert resumed.seconds == 180
        assert resumed.processor_seconds == (360 if known else 0)


def test_log_ends_with_wall_clock_and_cpu_minutes(corpus, tmp_path):
    train(make_tiny_options(corpus, tmp_path / "run"))
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert re.search(
        r"8 steps took \d+\.\d minutes wall-clock, without validations, and \d+\.\d minutes of "
        r"CPU time\n",
        log,
    )
