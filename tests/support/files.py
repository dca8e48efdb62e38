"""Helpers for tests that load checkpoints of other toolkits and compare with their own results."""

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
# Values of unexpected type or size for any option
UNUSUAL_VALUES = [None, True, -1, 0, 3, 2**40, 1.5, float("nan"), "", "x", [], [1], {}, {"a": 1}]


def assert_refused(path, *words: str) -> None:
    """Loading raises a one-line CheckpointError that contains the words."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    message = message.replace(f"{Path(path).parent}/", "")  # pytest names directories after cases
    for word in words:
        assert word in message


def assert_scores(path, gold: list[dict[str, Any]], **options: Any) -> Translator:
    """Target log-probabilities equal the scores of the original toolkit."""
    translator = Translator.from_pretrained(
        path, device="cpu", precision="fp32", threads=1, **options
    )
    scores = translator.score([g["source"] for g in gold], [g["target"] for g in gold])
    assert scores == pytest.approx([g["log_prob"] for g in gold], abs=GOLD_ATOL)
    return translator


def assert_gold(path, name: str) -> None:
    """Scores and greedy translations equal the stored results of the original toolkit."""
    gold = json.loads((DATA / "gold" / f"{name}.json").read_text("utf-8"))
    translator = assert_scores(path, gold["gold"], tokenizer="space")
    if "greedy" in gold:
        sources, targets = zip(*gold["greedy"]["lines"])
        translations = translator.translate(sources, beam_size=1, **gold["greedy"]["options"])
        assert tuple(t.hyps[0].text for t in translations) == targets


@contextlib.contextmanager
def allow_one_line_error() -> Iterator[None]:
    """Ignore a CheckpointError if its message is one line."""
    try:
        yield
    except CheckpointError as error:
        assert "\n" not in str(error) and len(str(error)) < 700


def assert_loads_or_refused(path) -> None:
    """Loading returns a model or raises a one-line CheckpointError."""
    with allow_one_line_error():
        load_checkpoint(path)


def summarize_checkpoint(path) -> tuple:
    """Return what equal checkpoints share: weights, configuration, tokenization, vocabularies."""
    checkpoint = load_checkpoint(path)
    weights = {name: tensor.tolist() for name, tensor in checkpoint.model.state_dict().items()}
    tokens = {name: t.encode("Das Haus <2en> 12") for name, t in checkpoint.tokenizers.items()}
    fields = {n: v for n, v in vars(checkpoint).items() if n not in ("model", "tokenizers")}
    fields = {n: str(vars(v)) if hasattr(v, "tokens") else v for n, v in fields.items()}
    return weights, checkpoint.model.cfg, tokens, fields


def update_json(path: Path, **values: Any) -> None:
    """Change entries of a JSON object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def load_pickled_root(path: Path) -> dict[str, Any]:
    """Return the dict in a PyTorch file, in a form that can be changed and saved again."""
    root = archive.load(path)
    root |= {n: argparse.Namespace(**root[n].state) for n in ("opt", "args") if n in root}
    return {name: value for name, value in root.items() if not isinstance(value, InertObject)}


def compute_model_logits(
    path, src: torch.Tensor, lengths: torch.Tensor, tgt: torch.Tensor
) -> torch.Tensor:
    """Compute the logits of a stored model.

    Args:
        path: the model
        src: source IDs (B, S)
        lengths: source lengths (B,)
        tgt: target IDs (B, T)

    Returns:
        Logits (B, T, V).
    """
    model = load_checkpoint(path).model
    return model.forward(model.encode(src, lengths), tgt)
