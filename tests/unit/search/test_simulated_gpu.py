"""The decode loop on a simulated GPU: equal results, and one small transfer per step each way.

See `tests.support.simulated_gpu` for the costs that are counted.  A step lasts from one call of
`model.step` to the next.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.search import step_log
from tests.support.cases import (
    BATCH,
    BEAM,
    CASES,
    DAILY_CASES,
    DAILY_FAMILIES,
    FAMILIES,
    LINES,
    make_endless_transformer,
    make_translator,
    make_varied_transformer,
    translate,
)
from tests.support.simulated_gpu import (
    DEVICE,
    PRODUCTS,
    SMALL,
    Event,
    SimulatedDevice,
    move_translator,
    split_into_steps,
)
from tests.support.sweeps import mark_sweeps

MAX_OUTSIDE = 25  # device operations per step outside the model, for the default search
ATOL = 1e-4


def simulate(translator: Translator, *args: Any, **options: Any) -> tuple[list, list[Event]]:
    """Translate on the simulated GPU; return translations and recorded events.

    Args:
        translator: from `move_to_gpu`.
        args: positional arguments of `translate`.
        options: options of the search.
    """
    simulated = translator.simulated
    simulated.events.clear()
    with simulated.running():
        return translate(translator, *args, **options), list(simulated.events)


def move_to_gpu(translator: Translator) -> Translator:
    translator.simulated = SimulatedDevice()
    return move_translator(translator, translator.simulated)


def find_violations(events: list[Event], uploads: float = 1) -> dict[str, int]:
    """Return violations of the transfer limits, with the number of steps that have them.

    Steps that admit sentences may upload more; recurrent encoders need the lengths on the host.
    """
    violations: Counter[str] = Counter()
    for step in split_into_steps(events):
        admits = any(e.kind == "begin" and e.name == "encode" for e in step)
        names = {
            kind: [
                f"{e.name} in {e.phase}"
                for e in step
                if e.kind == kind and (kind, e.phase) != ("download", "encode")
            ]
            for kind in ("wait", "download", "upload")
        }
        limits = {"wait": 0, "download": 1, "upload": math.inf if admits else uploads}
        for kind, limit in limits.items():
            if len(names[kind]) > limit:
                violations[
                    f"{len(names[kind])} x {kind}: {', '.join(sorted(set(names[kind])))}"
                ] += 1
        violations["large upload"] += any(e.kind == "upload" and e.n_bytes >= SMALL for e in step)
    return dict(+violations)


def assert_same(found: list, expected: list) -> None:
    for f, e in zip(found, expected, strict=True):
        assert [h.tokens for h in f.hyps] == [h.tokens for h in e.hyps]
        assert [h.score for h in f.hyps] == pytest.approx([h.score for h in e.hyps], abs=ATOL)


class TestSimulation:
    """The costs that the simulation must record for the tests below to be valid."""

    @pytest.mark.parametrize(
        "kind, run",
        [
            ("wait", lambda x: x[0].item()),
            ("wait", lambda x: bool(x[0] > 1)),
            ("wait", lambda x: x.tolist()),
            ("wait", lambda x: x.nonzero()),
            ("wait", lambda x: x[x > 1]),
            ("wait", lambda x: x.__setitem__(x > 0, torch.ones(2, device=DEVICE))),
            ("wait", lambda x: torch.equal(x, x)),
            ("wait", lambda x: x.repeat_interleave(x.long())),
            ("download", lambda x: x.cpu()),
            ("download", lambda x: torch.empty(3).copy_(x)),
            ("upload", lambda x: torch.tensor([1.0, 2.0], device=DEVICE)),
            ("upload", lambda x: torch.ones(3).to(DEVICE)),
            ("upload", lambda x: x.copy_(torch.ones(3))),
            ("upload", lambda x: x[torch.tensor([0, 2])]),
            ("launch", lambda x: x + 1),
            ("launch", lambda x: x.clone()),
            ("launch", lambda x: torch.full((2,), 1.0, device=DEVICE)),
            ("launch", lambda x: x.to(torch.float16)),
            ("launch", lambda x: x.add_(1)),
        ],
    )
    @pytest.mark.parametrize("inference", [False, True])
    def test_operation_records_cost(self, kind, run, inference):
        simulated = SimulatedDevice()
        with simulated.running(), torch.inference_mode(inference):
            x = torch.arange(3, device=DEVICE).float()
            simulated.events.clear()
            run(x)
        assert kind in {e.kind for e in simulated.events}

    def test_views_are_free_and_results_are_real(self):
        simulated = SimulatedDevice()
        with simulated.running(), torch.inference_mode():
            x = torch.zeros(2, 3, device=DEVICE)
            simulated.events.clear()
            part = x.view(3, 2)[1:].transpose(0, 1)[None]
            assert simulated.events == []
            part += 1
            assert x.cpu().tolist() == [[0, 0, 1], [1, 1, 1]]

    def test_indexing_and_masked_fill_do_not_wait(self):
        simulated = SimulatedDevice()
        with simulated.running():
            x = torch.zeros(3, device=DEVICE, dtype=torch.bool)
            x[torch.tensor([0, 1]).to(DEVICE)] = True
            x = x[torch.tensor([0, 1, 1]).to(DEVICE)].float()
            x[x > 0] = 5.0
            assert {e.kind for e in simulated.events} == {"launch", "upload"}
            assert x.cpu().tolist() == [5, 5, 5]

    def test_operation_with_two_devices_is_rejected(self):
        simulated = SimulatedDevice()
        with simulated.running():
            x = torch.zeros(3, device=DEVICE)
            with pytest.raises(RuntimeError, match="two devices"):
                x + torch.ones(3)
            with pytest.raises(RuntimeError, match="two devices"):
                x.index_select(0, torch.tensor([1]))
            assert (x + torch.tensor(1.0)).cpu().tolist() == [1, 1, 1]  # scalar tensors are allowed

    def test_launches_record_bytes_written(self):
        simulated = SimulatedDevice()
        with simulated.running():
            x, rows = torch.zeros(10, 4, device=DEVICE), torch.ones(3, 4, device=DEVICE)
            simulated.events.clear()
            x[2:4] = 1
            x[torch.tensor([1, 2, 3], device=DEVICE)] = rows
            x.index_select(0, torch.tensor([1, 2], device=DEVICE))
        names = ("fill_", "copy_", "index_put_", "index_select")
        written = [e.n_bytes for e in simulated.events if e.kind == "launch" and e.name in names]
        assert written == [32, 48, 32]


class TestEverySearch:
    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls):
        plain, moved = (make_translator(make_varied_transformer()) for _ in range(2))
        return plain, move_to_gpu(moved)

    @pytest.mark.parametrize("case", mark_sweeps(CASES, DAILY_CASES))
    def test_search_equals_cpu_with_one_transfer_each_way(self, pair, case):
        (plain, moved), (search, options) = pair, CASES[case]
        # opennmt-2018 couples the sentences of a batch on the host.  When one diverse group has
        # finished, corrected scores are uploaded in addition to the indices of moved sentences
        uploads = math.inf if search == "opennmt-2018" else 1 + ("beam_groups" in options)
        expected = translate(plain, search=search, **options)
        found, events = simulate(moved, search=search, **options)
        assert_same(found, expected)
        assert find_violations(events, uploads) == {}

    @pytest.mark.parametrize(
        "phrases",
        [
            dict(force_words="w30"),
            dict(ban_words="w48\tw26\tw35"),
            dict(force_words="w30 w31\tw40", ban_words="w48 w48\tw26"),
        ],
    )
    def test_phrase_constraints_need_no_extra_transfer(self, pair, phrases):
        plain, moved = pair
        found, events = simulate(moved, **phrases)
        assert_same(found, translate(plain, **phrases))
        assert find_violations(events) == {}

    def test_sentences_finish_at_different_steps(self, pair):
        """Otherwise the tests above would drop or refill nothing."""
        found = translate(pair[0])
        assert len({len(t.hyps[0].tokens) for t in found}) >= 3
        assert {h.ended for t in found for h in t.hyps} == {True, False}


class TestEveryFamily:
    @pytest.mark.parametrize("name", mark_sweeps(FAMILIES, DAILY_FAMILIES))
    def test_family_equals_cpu_with_one_transfer_each_way(self, name):
        expected = translate(make_translator(FAMILIES[name]()), n_best=2)
        found, events = simulate(move_to_gpu(make_translator(FAMILIES[name]())), n_best=2)
        assert_same(found, expected)
        assert find_violations(events) == {}

    @pytest.mark.parametrize("name", mark_sweeps(FAMILIES, DAILY_FAMILIES))
    def test_prefixes_need_no_extra_transfer(self, name):
        words = ["a", "b", "c"] if name == "table" else ["w20", "w23", "w21"]
        texts = [" ".join(words[: n % 4]) for n in (2, 0, 3, 1, 0, 7)]
        options = dict(prefixes=texts, n_best=2)
        expected = translate(make_translator(FAMILIES[name]()), **options)
        found, events = simulate(move_to_gpu(make_translator(FAMILIES[name]())), **options)
        assert_same(found, expected)
        assert find_violations(events) == {}


@pytest.mark.parametrize("search", ["opennmt", "transformers", "fairseq"])
def test_start_tokens_of_several_languages_need_no_extra_transfer(search):
    """Sentences take their start tokens while others are at later steps."""
    path = Path(__file__).parents[2] / "data" / "families" / "nllb"
    loading = dict(device="cpu", precision="fp32", threads=1, tgt_lang="eng_Latn")
    lines = ["Das Haus", ">>fra_Latn<< Ich gehe", "a", ">>deu_Latn<< b", "Wann passt es euch?"]
    options = dict(search=search, max_length=12, block_ngram_repeat=2, n_best=2)
    expected = translate(Translator.from_pretrained(path, **loading), lines, **options)
    moved = move_to_gpu(Translator.from_pretrained(path, **loading))
    found, events = simulate(moved, lines, **options)
    assert_same(found, expected)
    assert find_violations(events) == {}


def test_host_reads_one_batch_while_device_runs_another(monkeypatch):
    """Two batches take turns, with the same number of steps; only the last read has no overlap."""
    lines = ["w5 w6" + " " * i for i in range(6)]  # different lines, so that all are searched
    expected = translate(make_translator(make_endless_transformer()), lines, max_length_ratio=0)
    moved = move_to_gpu(make_translator(make_endless_transformer()))
    monkeypatch.setattr(step_log, "record_copy", moved.simulated.record_copy)
    found, events = simulate(moved, lines, max_length_ratio=0)
    assert_same(found, expected)
    n_begun = n_read = 0
    n_running = []
    for event in events:
        n_begun += (event.kind, event.name) == ("begin", "step")
        if event.kind == "read":
            n_read += 1
            n_running.append(n_begun - n_read)
    assert n_begun == n_read > 10
    assert n_running == [1] * (n_read - 1) + [0]


def run_endless(
    length: int, lines: Sequence[str] = LINES[:BATCH], **config: Any
) -> list[list[Event]]:
    """Return the steps after the first of a batch whose sentences all have `length` tokens.

    Args:
        length: tokens of every translation.
        lines: the lines.
        config: settings of the model.
    """
    moved = move_to_gpu(make_translator(make_endless_transformer(**config)))
    moved.pipeline.runner.refills = False  # one batch, no turns
    found, events = simulate(moved, lines, max_length=length, max_length_ratio=0)
    assert {len(t.hyps[0].tokens) for t in found} == {length}
    return split_into_steps(events)[1:]


# Variants of attention.  With few heads, attention weights are small compared to keys and values;
# `shaw` is left out because its vectors for all pairs are as large
WIDE_CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared_keys": dict(kv_heads=1),
    "rotary": dict(relative="rotary", positions="none"),
    "buckets": dict(relative="buckets", relative_limit=5, relative_buckets=6, positions="none"),
    "alibi": dict(relative="alibi", positions="none"),
}
HEADS, WIDTH = 2, 128


class TestCosts:
    """Costs of a step."""

    def test_step_has_at_most_25_operations_outside_the_model(self):
        launches = [
            Counter(e.name for step in run_endless(n) for e in step if is_outside(e))
            for n in (10, 20)
        ]
        extra = launches[1] - launches[0]
        assert extra.total() / 10 <= MAX_OUTSIDE, extra.most_common()

    @pytest.mark.parametrize("config", WIDE_CONFIGS.values(), ids=WIDE_CONFIGS)
    def test_step_does_not_copy_keys_and_values(self, config):
        """The bytes written, matrix products excluded, barely grow with the length."""
        parts = run_endless(40, d_model=WIDTH, heads=HEADS, **config)
        written = [count_bytes(part) for part in parts]
        # Medians, because a cache grows only at some steps
        growth = (median(written[26:38]) - median(written[4:16])) / 22
        share = config.get("kv_heads", HEADS) / HEADS
        assert growth < BATCH * BEAM * share * get_position_size() / 2

    def test_step_does_not_copy_encoder_output(self):
        """The bytes written barely grow with the source length."""
        written = []
        for n in (30, 62):  # padded to different widths
            lines = [" ".join(["w5"] * n)] * BATCH
            parts = run_endless(12, lines, d_model=WIDTH, heads=HEADS, max_positions=70)
            written.append(median(count_bytes(part) for part in parts))
        assert written[1] - written[0] < 32 * BATCH * get_position_size() / 2

    def test_finished_sentence_moves_at_most_one_other(self):
        """Each sentence reaches its own limit; extra bytes written at these steps are counted."""
        moved = move_to_gpu(make_translator(make_endless_transformer(d_model=WIDTH, heads=HEADS)))
        found, events = simulate(moved, batch_size=6, max_length=60, max_length_ratio=8)
        lengths = [len(t.hyps[0].tokens) for t in found]
        assert len(set(lengths)) == 6
        outside = [filter(is_outside, part) for part in split_into_steps(events)[1:]]
        written = [count_bytes(part) for part in outside]
        usual = [median(written[max(0, i - 3) : i + 4]) for i in range(len(written))]
        beyond = sum(max(0, n - u) for n, u in zip(written, usual))
        positions = sum(BEAM * n + len(line.split()) for n, line in zip(lengths, LINES))
        assert beyond < positions * get_position_size()


def get_position_size() -> int:
    """Return the bytes of keys and values of one target or source token in both layers."""
    return 2 * 2 * WIDTH * 4


def is_outside(event: Event) -> bool:
    """Return True for launches outside the model."""
    return event.kind == "launch" and event.phase != "step"


def count_bytes(step: Iterable[Event]) -> int:
    """Return the bytes that a step writes, results of matrix products excluded."""
    return sum(e.n_bytes for e in step if e.kind == "launch" and e.name not in PRODUCTS)
