"""Seconds by phase, with a simulated clock."""

from types import SimpleNamespace

import pytest

from onmt_lite.system import clock as module
from onmt_lite.system.clock import Clock


@pytest.fixture
def now(monkeypatch):
    """now[0] is the time."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_clock_inner_phase_pauses_outer_phase(now):
    clock = Clock()
    now[0] += 5  # of no phase
    with clock.phase("decode"):
        now[0] += 2
        with clock.phase("encode"):
            now[0] += 8
        with clock.phase("encode"):
            now[0] += 1
        now[0] += 16
    now[0] += 32
    with clock.phase("tokenize"):
        now[0] += 64
    assert clock.take() == {"decode": 18, "encode": 9, "tokenize": 64}
    assert clock.take() == {}


def test_clock_failed_phase_ends(now):
    clock = Clock()
    with pytest.raises(KeyError), clock.phase("decode"), clock.phase("encode"):
        now[0] += 4
        raise KeyError
    now[0] += 8
    with clock.phase("write"):
        now[0] += 1
    assert clock.take() == {"encode": 4, "decode": 0, "write": 1}


def test_clock_waits_for_device_before_reading(now):
    def work_on():
        now[0] += 1

    clock = Clock(wait=work_on)
    with clock.phase("encode"):
        now[0] += 10
    assert clock.take() == {"encode": 11}


def test_clock_phases_of_translator(translator, now, monkeypatch):
    """Each phase takes as long as its work, on a clock that only the work advances."""

    def slowed(owner, name, seconds):
        original = getattr(owner, name)

        def work(*args, **kwargs):
            now[0] += seconds
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, work)

    slowed(translator.pipeline.preprocessor, "make_example", 1.0)
    slowed(translator.model, "encode", 1000.0)
    slowed(translator.model, "init_state", 1_000_000.0)  # once a batch, as encode
    translator.pipeline.clock.take()
    translator.translate(["der hund", "", "die katze sieht"], batch_size=1, batch_type="sents")
    seconds = translator.pipeline.clock.take()
    assert seconds == {"tokenize": 3.0, "encode": 2000.0, "decode": 2_000_000.0}
