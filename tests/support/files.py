"""Checkpoints of other toolkits that the tests read, and what those toolkits say of them."""

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints import archive
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.errors import CheckpointError

DATA = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
GOLD_ATOL = 1e-4
# Values that an option is not expected to have
ODD = [None, True, -1, 0, 3, 2**40, 1.5, float("nan"), "", "x", [], [1], {}, {"a": 1}]


def assert_refused(path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    said = message.replace(f"{Path(path).parent}/", "")  # pytest names folders after cases
    for word in words:
        assert word in said


def assert_scores(path, gold: list[dict[str, Any]], **options: Any) -> Translator:
    """The model gives targets the log-probabilities that its own toolkit gave them."""
    translator = Translator.from_pretrained(
        path, device="cpu", precision="fp32", threads=1, **options
    )
    scores = translator.score([g["source"] for g in gold], [g["target"] for g in gold])
    assert scores == pytest.approx([g["log_prob"] for g in gold], abs=GOLD_ATOL)
    return translator


def assert_gold(path, name: str) -> None:
    """Scores as above, and the model translates greedily into what its toolkit did, if stored."""
    found = json.loads((DATA / "gold" / f"{name}.json").read_text("utf-8"))
    translator = assert_scores(path, found["gold"], tokenizer="space")
    if "greedy" in found:
        sources, targets = zip(*found["greedy"]["lines"])
        found = translator.translate(sources, beam_size=1, **found["greedy"]["options"])
        assert tuple(t.hyps[0].text for t in found) == targets


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Pass over a CheckpointError of one line."""
    try:
        yield
    except CheckpointError as error:
        assert "\n" not in str(error) and len(str(error)) < 700


def loads_or_is_refused(path) -> None:
    """Whatever is in the files: a model or a CheckpointError of one line."""
    with one_line():
        load_checkpoint(path)


def everything(path) -> tuple:
    """What must be the same: weights, sizes and switches, how text is cut, vocabularies, special
    tokens."""
    found = load_checkpoint(path)
    weights = {name: tensor.tolist() for name, tensor in found.model.state_dict().items()}
    words = {name: t.encode("Das Haus <2en> 12") for name, t in found.tokenizers.items()}
    parts = {n: v for n, v in vars(found).items() if n not in ("model", "tokenizers")}
    rest = {n: str(vars(v)) if hasattr(v, "tokens") else v for n, v in parts.items()}
    return weights, found.model.cfg, words, rest


def change(path: Path, **values: Any) -> None:
    """Change entries of a JSON table."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def root_of(path: Path) -> dict[str, Any]:
    """What torch.save stored of a model, to be changed and stored again."""
    root = archive.load(path)
    root |= {n: argparse.Namespace(**root[n].state) for n in ("opt", "args") if n in root}
    return {name: value for name, value in root.items() if not isinstance(value, InertObject)}


def logits_of(path, src: torch.Tensor, lengths: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
    """src (B, S), lengths (B,), tgt (B, T) -> logits (B, T, V) of the model in a file."""
    model = load_checkpoint(path).model
    return model.forward(model.encode(src, lengths), tgt)
