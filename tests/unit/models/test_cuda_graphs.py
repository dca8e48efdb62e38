"""Steps as graphs, on a simulated GPU that replays operations on the tensors of the recording."""

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.models.cuda_graphs import round_up, use_cuda_graphs
from onmt_lite.search.beam_search import decode
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SentenceLimits
from onmt_lite.system.log import LOG
from tests.support import random_models, tiny
from tests.support.cases import (
    LINES,
    endless_transformer,
    lively_transformer,
    make_translator,
    translate,
)
from tests.support.model_variants import STATE_TRANSFORMERS as TRANSFORMERS
from tests.support.simulated_gpu import Event, SimulatedDevice, move
from tests.support.sweeps import swept
from tests.support.tables import Settings, make_spec
from tests.unit.search.test_simulated_gpu import assert_same, on_device, simulate

MODELS = {
    **{name: lambda o=o: lively_transformer(**o) for name, o in TRANSFORMERS.items()},
    "plain": lively_transformer,
    "copying": random_models.make_copying_transformer,
}


def count(events: list[Event]) -> Counter[str]:
    """Steps and replays."""
    names = Counter((e.kind, e.name) for e in events)
    return Counter(steps=names["begin", "step"], replays=names["graph", "replay"])


def both(make: Any, **options: Any) -> tuple[list, Translator, list[Counter[str]]]:
    """What the CPU finds; a translator on the device that has found the same twice, and its
    counts."""
    expected = translate(make_translator(make()), **options)
    moved, counts = on_device(make_translator(make())), []
    for _ in range(2):
        found, events = simulate(moved, **options)
        assert_same(found, expected)
        counts.append(count(events))
    return expected, moved, counts


@pytest.mark.parametrize("name", swept(MODELS, ["plain", "shaw_values", "average", "copying"]))
def test_every_step_of_a_shape_that_was_there_is_replayed(name):
    _, moved, (first, second) = both(MODELS[name], n_best=2)
    assert first["steps"] == second["steps"] > 10
    if moved.model.supports_cuda_graphs:
        assert 0 < first["replays"] < second["replays"] == second["steps"]
    else:
        assert name.startswith("average") and second["replays"] == 0


@pytest.mark.parametrize("config", [{}, dict(relative="shaw", positions="none")])
def test_sentences_join_and_keys_are_cleared_away(config):
    """Sentences with limits of their own, for longer than the first capacity, in eight slots."""

    def make():
        return endless_transformer(**{"max_positions": 60, "relative_limit": 4, **config})

    lines = [line for i in range(5) for line in LINES[i % 3 :]]
    expected, moved, (_, second) = both(
        make, lines=lines, batch_size=8, max_length=60, max_length_ratio=9
    )
    lengths = {len(t.hyps[0].tokens) for t in expected}
    assert max(lengths) > 45 and len(lengths) >= 6
    assert second["replays"] > 0.9 * second["steps"]
    lanes = moved.pipeline.runner.searched.graphs.buffers
    assert len(lanes) == 2  # of two batches that take turns
    assert all(len(lane.steps) < second["steps"] / 6 for lane in lanes)


def test_places_where_nobody_is_stay_within_the_tables_of_positions():
    """The last of 18 places is left at position 10, and the others run for eight more steps."""
    limits = [6] * 17 + [10] + [12] * 17
    waiting = [Sentence([5, 6, 7], SentenceLimits(n)) for n in limits]
    spec = replace(make_spec(Settings(beam_size=2, max_length=0)), bos_id=tiny.BOS)
    model, simulated = endless_transformer(max_positions=12), SimulatedDevice()
    move(model)
    with simulated.running():
        found = dict(decode(use_cuda_graphs(model, simulated.recorder), waiting, spec, 18))
    assert [len(found[i].backtrack(found[i].rank_finished()[0])[0]) for i in range(35)] == limits


def test_where_recording_fails_steps_run_as_they_are():
    expected = translate(make_translator(lively_transformer()))
    moved, notes = on_device(make_translator(lively_transformer())), []

    def refuse(step: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(record.getMessage())

    moved.pipeline.runner.searched.graphs.capture = refuse
    LOG.addHandler(handler := Notes())
    for _ in range(2):
        found, events = simulate(moved)
        assert_same(found, expected)
        assert count(events)["replays"] == 0
    LOG.removeHandler(handler)
    (note,) = notes
    assert note.startswith("NOTE: cuda-graph: ") and note.endswith("when stream is capturing")


def test_memory_that_runs_out_while_a_step_is_recorded_is_given_back():
    expected = translate(make_translator(lively_transformer()))
    moved = on_device(make_translator(lively_transformer()))
    graphs, lanes = moved.pipeline.runner.searched.graphs, []
    record = graphs.capture

    def short_once(step: Any) -> Any:
        lanes.extend(graphs.buffers)
        graphs.capture = record
        raise torch.OutOfMemoryError("CUDA out of memory")

    graphs.capture = short_once
    found, events = simulate(moved)
    assert_same(found, expected)
    assert count(events)["replays"] > 0 and not graphs.has_failed
    assert len(lanes) == 2 and not set(lanes) & set(graphs.buffers)


def test_sizes():
    for n in range(1, 3000):
        assert n <= round_up(n) <= n + max(0, n - 1) // 8
    sizes = {round_up(n) for n in range(1, 1025)}
    assert len(sizes) == 16 + 6 * 8
