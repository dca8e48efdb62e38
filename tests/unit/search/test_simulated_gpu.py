"""The decode loop on a simulated GPU: equal results, and per step one small transfer each way.

`tests.support.simulated_gpu` says what is counted.  A step is all that happens from one call of
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
from onmt_lite.search import step_log as log
from tests.support.cases import (
    BATCH,
    BEAM,
    CASES,
    DAILY_CASES,
    DAILY_FAMILIES,
    FAMILIES,
    LINES,
    endless_transformer,
    lively_transformer,
    make_translator,
    translate,
)
from tests.support.simulated_gpu import (
    DEVICE,
    PRODUCTS,
    SMALL,
    Event,
    SimulatedDevice,
    moved_translator,
    steps,
)
from tests.support.sweeps import swept

MAX_OUTSIDE = 25  # device operations of a step outside of the model, for the default search
ATOL = 1e-4


def simulate(translator: Translator, *args: Any, **options: Any) -> tuple[list, list[Event]]:
    """Translations by a translator that has been moved, and what they cost."""
    simulated = translator.simulated
    simulated.events.clear()
    with simulated.running():
        return translate(translator, *args, **options), list(simulated.events)


def on_device(translator: Translator) -> Translator:
    translator.simulated = SimulatedDevice()
    return moved_translator(translator, translator.simulated)


def faults(events: list[Event], uploads: float = 1) -> dict[str, int]:
    """What steps do that they must not, each with the number of steps that do it.

    Sentences that join bring uploads; for recurrent encoders the host needs their lengths.
    """
    found: Counter[str] = Counter()
    for part in steps(events):
        admits = any(e.kind == "begin" and e.name == "encode" for e in part)
        names = {
            kind: [
                f"{e.name} in {e.phase}"
                for e in part
                if e.kind == kind and (kind, e.phase) != ("download", "encode")
            ]
            for kind in ("wait", "download", "upload")
        }
        most = {"wait": 0, "download": 1, "upload": math.inf if admits else uploads}
        for kind, limit in most.items():
            if len(names[kind]) > limit:
                found[f"{len(names[kind])} x {kind}: {', '.join(sorted(set(names[kind])))}"] += 1
        found["large upload"] += any(e.kind == "upload" and e.n_bytes >= SMALL for e in part)
    return dict(+found)


def assert_same(found: list, expected: list) -> None:
    for f, e in zip(found, expected, strict=True):
        assert [h.tokens for h in f.hyps] == [h.tokens for h in e.hyps]
        assert [h.score for h in f.hyps] == pytest.approx([h.score for h in e.hyps], abs=ATOL)


class TestTheSimulation:
    """What it must see, or the tests below would prove nothing."""

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
    def test_each_cost(self, kind, run, inference):
        simulated = SimulatedDevice()
        with simulated.running(), torch.inference_mode(inference):
            x = torch.arange(3, device=DEVICE).float()
            simulated.events.clear()
            run(x)
        assert kind in {e.kind for e in simulated.events}

    def test_views_are_free_and_results_real(self):
        simulated = SimulatedDevice()
        with simulated.running(), torch.inference_mode():
            x = torch.zeros(2, 3, device=DEVICE)
            simulated.events.clear()
            part = x.view(3, 2)[1:].transpose(0, 1)[None]
            assert simulated.events == []
            part += 1
            assert x.cpu().tolist() == [[0, 0, 1], [1, 1, 1]]

    def test_indices_and_fillings_need_no_wait(self):
        simulated = SimulatedDevice()
        with simulated.running():
            x = torch.zeros(3, device=DEVICE, dtype=torch.bool)
            x[torch.tensor([0, 1]).to(DEVICE)] = True
            x = x[torch.tensor([0, 1, 1]).to(DEVICE)].float()
            x[x > 0] = 5.0
            assert {e.kind for e in simulated.events} == {"launch", "upload"}
            assert x.cpu().tolist() == [5, 5, 5]

    def test_two_devices_in_one_operation(self):
        simulated = SimulatedDevice()
        with simulated.running():
            x = torch.zeros(3, device=DEVICE)
            with pytest.raises(RuntimeError, match="two devices"):
                x + torch.ones(3)
            with pytest.raises(RuntimeError, match="two devices"):
                x.index_select(0, torch.tensor([1]))
            assert (x + torch.tensor(1.0)).cpu().tolist() == [1, 1, 1]  # as a plain number

    def test_bytes_written(self):
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
        plain, moved = (make_translator(lively_transformer()) for _ in range(2))
        return plain, on_device(moved)

    @pytest.mark.parametrize("case", swept(CASES, DAILY_CASES))
    def test_equals_the_cpu_with_one_transfer_each_way(self, pair, case):
        (plain, moved), (search, options) = pair, CASES[case]
        # The search of 2018 couples the sentences of a batch on the host; groups of which one is
        # done are told so beside what moves when a sentence ends
        uploads = math.inf if search == "opennmt-2018" else 1 + ("beam_groups" in options)
        expected = translate(plain, search=search, **options)
        found, events = simulate(moved, search=search, **options)
        assert_same(found, expected)
        assert faults(events, uploads) == {}

    @pytest.mark.parametrize(
        "phrases",
        [
            dict(force_words="w30"),
            dict(ban_words="w48\tw26\tw35"),
            dict(force_words="w30 w31\tw40", ban_words="w48 w48\tw26"),
        ],
    )
    def test_phrases_go_with_the_transfer_of_the_step(self, pair, phrases):
        plain, moved = pair
        found, events = simulate(moved, **phrases)
        assert_same(found, translate(plain, **phrases))
        assert faults(events) == {}

    def test_sentences_end_apart(self, pair):
        """Or nothing would have been dropped or refilled above."""
        found = translate(pair[0])
        assert len({len(t.hyps[0].tokens) for t in found}) >= 3
        assert {h.ended for t in found for h in t.hyps} == {True, False}


class TestEveryFamily:
    @pytest.mark.parametrize("name", swept(FAMILIES, DAILY_FAMILIES))
    def test_equals_the_cpu_with_one_transfer_each_way(self, name):
        expected = translate(make_translator(FAMILIES[name]()), n_best=2)
        found, events = simulate(on_device(make_translator(FAMILIES[name]())), n_best=2)
        assert_same(found, expected)
        assert faults(events) == {}

    @pytest.mark.parametrize("name", swept(FAMILIES, DAILY_FAMILIES))
    def test_steps_that_take_prefixes_are_as_cheap_for_the_host(self, name):
        words = ["a", "b", "c"] if name == "table" else ["w20", "w23", "w21"]
        texts = [" ".join(words[: n % 4]) for n in (2, 0, 3, 1, 0, 7)]
        options = dict(prefixes=texts, n_best=2)
        expected = translate(make_translator(FAMILIES[name]()), **options)
        found, events = simulate(on_device(make_translator(FAMILIES[name]())), **options)
        assert_same(found, expected)
        assert faults(events) == {}


@pytest.mark.parametrize("search", ["opennmt", "transformers", "fairseq"])
def test_sentences_of_several_languages_start_apart(search):
    """Their first steps read start tokens; sentences join while others are at later steps."""
    path = Path(__file__).parents[2] / "data" / "families" / "nllb"
    given = dict(device="cpu", precision="fp32", threads=1, tgt_lang="eng_Latn")
    lines = ["Das Haus", ">>fra_Latn<< Ich gehe", "a", ">>deu_Latn<< b", "Wann passt es euch?"]
    options = dict(search=search, max_length=12, block_ngram_repeat=2, n_best=2)
    expected = translate(Translator.from_pretrained(path, **given), lines, **options)
    moved = on_device(Translator.from_pretrained(path, **given))
    found, events = simulate(moved, lines, **options)
    assert_same(found, expected)
    assert faults(events) == {}


def test_the_host_reads_of_a_step_while_the_device_is_at_another(monkeypatch):
    """Two batches take turns; each has the same number of steps, and the last is read alone."""
    lines = ["w5 w6" + " " * i for i in range(6)]  # no copies
    expected = translate(make_translator(endless_transformer()), lines, max_length_ratio=0)
    moved = on_device(make_translator(endless_transformer()))
    monkeypatch.setattr(log, "record_copy", moved.simulated.record_copy)
    found, events = simulate(moved, lines, max_length_ratio=0)
    assert_same(found, expected)
    begun = read = 0
    under_way = []
    for event in events:
        begun += (event.kind, event.name) == ("begin", "step")
        if event.kind == "read":
            read += 1
            under_way.append(begun - read)
    assert begun == read > 10
    assert under_way == [1] * (read - 1) + [0]


def run_endless(
    length: int, lines: Sequence[str] = LINES[:BATCH], **config: Any
) -> list[list[Event]]:
    """Steps of a batch whose sentences all have `length` tokens, without what comes before."""
    moved = on_device(make_translator(endless_transformer(**config)))
    moved.pipeline.runner.refills = False  # nor do two batches take turns
    found, events = simulate(moved, lines, max_length=length, max_length_ratio=0)
    assert {len(t.hyps[0].tokens) for t in found} == {length}
    return steps(events)[1:]


# The ways in which keys and values are kept or asked, with so few heads that scores weigh little
# beside them; `shaw` looks up vectors for all pairs, which weigh as much
WIDE: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared_keys": dict(kv_heads=1),
    "rotary": dict(relative="rotary", positions="none"),
    "buckets": dict(relative="buckets", relative_limit=5, relative_buckets=6, positions="none"),
    "alibi": dict(relative="alibi", positions="none"),
}
HEADS, WIDTH = 2, 128


class TestCosts:
    """Of steps of a batch in which no sentence ends."""

    def test_at_most_25_operations_outside_of_the_model(self):
        launches = [
            Counter(e.name for part in run_endless(n) for e in part if is_outside(e))
            for n in (10, 20)
        ]
        more = launches[1] - launches[0]
        assert more.total() / 10 <= MAX_OUTSIDE, more.most_common()

    @pytest.mark.parametrize("config", WIDE.values(), ids=WIDE)
    def test_keys_and_values_are_not_copied(self, config):
        """What a step writes beside its products hardly grows with the length."""
        parts = run_endless(40, d_model=WIDTH, heads=HEADS, **config)
        written = [n_written(part) for part in parts]
        # Medians: now and then a cache may grow, which is no cost of each step
        growth = (median(written[26:38]) - median(written[4:16])) / 22
        share = config.get("kv_heads", HEADS) / HEADS
        assert growth < BATCH * BEAM * share * bytes_of_a_position() / 2

    def test_the_memory_is_not_copied(self):
        """Neither per hypothesis nor per sentence: what is written hardly grows with the source."""
        written = []
        for n in (30, 62):  # on either side of a width that sources are padded to
            lines = [" ".join(["w5"] * n)] * BATCH
            parts = run_endless(12, lines, d_model=WIDTH, heads=HEADS, max_positions=70)
            written.append(median(n_written(part) for part in parts))
        assert written[1] - written[0] < 32 * BATCH * bytes_of_a_position() / 2

    def test_a_sentence_that_ends_moves_no_more_than_its_own(self):
        """Sentences run into limits of their own; what is written beyond the usual is counted."""
        moved = on_device(make_translator(endless_transformer(d_model=WIDTH, heads=HEADS)))
        found, events = simulate(moved, batch_size=6, max_length=60, max_length_ratio=8)
        lengths = [len(t.hyps[0].tokens) for t in found]
        assert len(set(lengths)) == 6
        outside = [filter(is_outside, part) for part in steps(events)[1:]]
        written = [n_written(part) for part in outside]
        usual = [median(written[max(0, i - 3) : i + 4]) for i in range(len(written))]
        beyond = sum(max(0, n - u) for n, u in zip(written, usual))
        own = sum(BEAM * n + len(line.split()) for n, line in zip(lengths, LINES))
        assert beyond < own * bytes_of_a_position()


def bytes_of_a_position() -> int:
    """Keys and values of one hypothesis or source token, in both layers."""
    return 2 * 2 * WIDTH * 4


def is_outside(event: Event) -> bool:
    return event.kind == "launch" and event.phase != "step"


def n_written(part: Iterable[Event]) -> int:
    """Bytes that a step writes, other than the results of products."""
    return sum(e.n_bytes for e in part if e.kind == "launch" and e.name not in PRODUCTS)
