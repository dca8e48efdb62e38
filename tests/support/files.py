"""Checkpoints of other toolkits that the tests read, and what those toolkits say of them."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError

DATA = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
GOLD_ATOL = 1e-4


def assert_refused(path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def assert_gold(path, name: str) -> None:
    """The model gives targets the log-probabilities that its own toolkit gave them, and
    translates greedily into what that toolkit did."""
    found = json.loads((DATA / "gold" / f"{name}.json").read_text("utf-8"))
    gold, greedy = found["gold"], found["greedy"]
    translator = Translator.from_pretrained(
        path, device="cpu", tokenizer="space", precision="fp32", threads=1
    )
    scores = translator.score([g["source"] for g in gold], [g["target"] for g in gold])
    assert scores == pytest.approx([g["log_prob"] for g in gold], abs=GOLD_ATOL)
    sources, targets = zip(*greedy["lines"])
    translations = translator.translate(sources, beam_size=1, **greedy["options"])
    assert tuple(t.hyps[0].text for t in translations) == targets


def loads_or_is_refused(path) -> None:
    """Whatever is in the files: a model or a CheckpointError of one line."""
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        assert "\n" not in str(error)


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Pass over a CheckpointError of one line."""
    try:
        yield
    except CheckpointError as error:
        assert "\n" not in str(error) and len(str(error)) < 700
