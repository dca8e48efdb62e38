"""CUDA graphs of decoder steps, on a simulated GPU that replays the captured operations."""

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
    make_endless_transformer,
    make_translator,
    make_varied_transformer,
    translate,
)
from tests.support.model_variants import STATE_TRANSFORMERS as TRANSFORMERS
from tests.support.simulated_gpu import Event, SimulatedDevice, move
from tests.support.sweeps import mark_sweeps
from tests.support.table_models import Settings, make_spec
from tests.unit.search.test_simulated_gpu import assert_same, move_to_gpu, simulate

MODELS = {
    **{name: lambda o=o: make_varied_transformer(**o) for name, o in TRANSFORMERS.items()},
    "plain": make_varied_transformer,
    "copying": random_models.make_copying_transformer,
}


def count(events: list[Event]) -> Counter[str]:
    """Count steps and replays."""
    names = Counter((e.kind, e.name) for e in events)
    return Counter(steps=names["begin", "step"], replays=names["graph", "replay"])


def run_on_both(make: Any, **options: Any) -> tuple[list, Translator, list[Counter[str]]]:
    """Translate on the CPU once and on the simulated device twice, and compare.

    Args:
        make: builds the model
        options: translation options

    Returns:
        The CPU's translations, the translator on the device, and the counts of its two runs.
    """
    expected = translate(make_translator(make()), **options)
    moved, counts = move_to_gpu(make_translator(make())), []
    for _ in range(2):
        found, events = simulate(moved, **options)
        assert_same(found, expected)
        counts.append(count(events))
    return expected, moved, counts


@pytest.mark.parametrize(
    "name", mark_sweeps(MODELS, ["plain", "shaw_values", "average", "copying"])
)
def test_step_of_known_shape_is_replayed(name):
    _, moved, (first, second) = run_on_both(MODELS[name], n_best=2)
    assert first["steps"] == second["steps"] > 10
    if moved.model.supports_cuda_graphs:
        assert 0 < first["replays"] < second["replays"] == second["steps"]
    else:
        assert name.startswith("average") and second["replays"] == 0


@pytest.mark.parametrize("config", [{}, dict(relative="shaw", positions="none")])
def test_replay_with_new_sentences_and_cache_compaction(config):
    """Sentences with different limits, longer than the first capacity, in eight slots."""

    def make():
        return make_endless_transformer(**{"max_positions": 60, "relative_limit": 4, **config})

    lines = [line for i in range(5) for line in LINES[i % 3 :]]
    expected, moved, (_, second) = run_on_both(
        make, lines=lines, batch_size=8, max_length=60, max_length_ratio=9
    )
    lengths = {len(t.hyps[0].tokens) for t in expected}
    assert max(lengths) > 45 and len(lengths) >= 6
    assert second["replays"] > 0.9 * second["steps"]
    buffers = moved.pipeline.runner.search_model.graphs.buffers
    assert len(buffers) == 2  # two batches alternate
    assert all(len(b.steps) < second["steps"] / 6 for b in buffers)


def test_positions_of_empty_slots_stay_within_the_position_table():
    """The last of 18 slots empties at position 10; the other slots run for eight more steps."""
    limits = [6] * 17 + [10] + [12] * 17
    waiting = [Sentence([5, 6, 7], SentenceLimits(n)) for n in limits]
    spec = replace(make_spec(Settings(beam_size=2, max_length=0)), bos_id=tiny.BOS)
    model, simulated = make_endless_transformer(max_positions=12), SimulatedDevice()
    move(model)
    with simulated.running():
        found = dict(decode(use_cuda_graphs(model, simulated.capture), waiting, spec, 18))
    assert [len(found[i].backtrack(found[i].rank_finished()[0])[0]) for i in range(35)] == limits


def test_capture_failure_runs_steps_without_graphs_and_logs_a_warning():
    expected = translate(make_translator(make_varied_transformer()))
    moved, notes = move_to_gpu(make_translator(make_varied_transformer())), []

    def fail(step: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(record.getMessage())

    moved.pipeline.runner.search_model.graphs.capture = fail
    LOG.addHandler(handler := Notes())
    for _ in range(2):
        found, events = simulate(moved)
        assert_same(found, expected)
        assert count(events)["replays"] == 0
    LOG.removeHandler(handler)
    (note,) = notes
    assert note.startswith("NOTE: cuda-graph: ") and note.endswith("when stream is capturing")


def test_out_of_memory_during_capture_frees_idle_graphs():
    expected = translate(make_translator(make_varied_transformer()))
    moved = move_to_gpu(make_translator(make_varied_transformer()))
    graphs, buffers = moved.pipeline.runner.search_model.graphs, []
    capture = graphs.capture

    def fail_once(step: Any) -> Any:
        buffers.extend(graphs.buffers)
        graphs.capture = capture
        raise torch.OutOfMemoryError("CUDA out of memory")

    graphs.capture = fail_once
    found, events = simulate(moved)
    assert_same(found, expected)
    assert count(events)["replays"] > 0 and not graphs.has_failed
    assert len(buffers) == 2 and not set(buffers) & set(graphs.buffers)


def test_round_up_adds_at_most_an_eighth():
    for n in range(1, 3000):
        assert n <= round_up(n) <= n + max(0, n - 1) // 8
    sizes = {round_up(n) for n in range(1, 1025)}
    assert len(sizes) == 16 + 6 * 8
