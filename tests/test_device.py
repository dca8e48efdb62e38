"""The decode loop on a simulated GPU: equal results, and per step one small transfer each way.

`tests.support.simulated` says what is counted.  A step is all that happens from one call of
`model.step` to the next.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.models.table import TableModel
from onmt_lite.options import TranslateOptions
from onmt_lite.text.tokenizers import SpaceTokenizer
from tests.support import tables, tiny
from tests.support.families import SRC_VOCAB, TGT_VOCAB
from tests.support.simulated import (
    DEVICE,
    SMALL,
    Event,
    SimulatedDevice,
    moved_translator,
    steps,
)
from tests.test_state import MODELS

BEAM, BATCH = 4, 4
# More sentences than a batch holds, of many lengths, so that some end while others go on
LENGTHS = (3, 1, 6, 4, 5, 2)
LINES = [" ".join(f"w{(7 * i + 3 * j) % 28}" for j in range(n)) for i, n in enumerate(LENGTHS)]
MAX_OUTSIDE = 40  # device operations of a step outside of the model, for the default search
ATOL = 1e-4


def lively_transformer(**config: Any) -> Any:
    """Outputs vary, some end early and some are cut off."""
    model = tiny.make_model(seed=10, **{"tie_output": False, **config})
    model.output.weight.mul_(2)
    if model.output.bias is not None:
        model.output.bias[tiny.EOS] += 1.5
    return model


def endless_transformer(**config: Any) -> Any:
    """Never says the end token, so that each sentence runs into its limit."""
    model = tiny.make_model(seed=3, **config)
    model.output.bias[tiny.EOS] -= 1000
    return model


def make_translator(model: Any) -> Translator:
    if isinstance(model, TableModel):
        checkpoint = tables.make_checkpoint(model.sources)
        return Translator(checkpoint, TranslateOptions.of(device="cpu"))
    tokenizers = {"space": SpaceTokenizer()}
    checkpoint = Checkpoint(model, SRC_VOCAB, TGT_VOCAB, tokenizers, start_id=tiny.BOS)
    return Translator(checkpoint, TranslateOptions.of(device="cpu", precision="fp32"))


def translate(translator: Translator, lines: Sequence[str] = LINES, **options: Any) -> list:
    given = dict(beam_size=BEAM, batch_size=BATCH, batch_type="sents", max_length=12) | options
    if isinstance(translator.model, TableModel):
        n = len(translator.model.sources)
        lines = [" ".join([f"s{i % n}"] * (1 + i % 3)) for i in range(len(lines))]
    return translator.translate(lines, **given)


def simulate(translator: Translator, *args: Any, **options: Any) -> tuple[list, list[Event]]:
    """Translations by a translator that has been moved, and what they cost."""
    simulated = translator.simulated
    simulated.events.clear()
    with simulated.running():
        return translate(translator, *args, **options), list(simulated.events)


def on_device(translator: Translator) -> Translator:
    translator.simulated = SimulatedDevice()
    return moved_translator(translator, translator.simulated)


def faults(events: list[Event], any_uploads: bool = False) -> dict[str, int]:
    """What steps do that they must not, each with the number of steps that do it.

    Sentences that enter a batch may bring uploads; what is fetched of sentences that have ended
    may be one download more.
    """
    found: Counter[str] = Counter()
    for part in steps(events):
        admits = any(e.kind == "begin" and e.name == "encode" for e in part)
        names = {
            kind: [f"{e.name} in {e.phase}" for e in part if e.kind == kind]
            for kind in ("wait", "download", "upload")
        }
        most = {"wait": 0, "download": 1 + admits, "upload": math.inf if admits else 1}
        if any_uploads:
            most["upload"] = math.inf
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
            x = torch.zeros(10, 4, device=DEVICE)
            simulated.events.clear()
            x[2:4] = 1
            x[torch.tensor([1, 2, 3], device=DEVICE)] = 5.0
            x.index_select(0, torch.tensor([1, 2], device=DEVICE))
        names = ("fill_", "copy_", "index_put_", "index_select")
        written = [e.n_bytes for e in simulated.events if e.kind == "launch" and e.name in names]
        assert written == [32, 48, 32]


def test_a_table_on_the_device_equals_the_cpu():
    """The host looks it up."""
    expected = translate(make_translator(MODELS["table"]()), n_best=2)
    found, _ = simulate(on_device(make_translator(MODELS["table"]())), n_best=2)
    assert_same(found, expected)
