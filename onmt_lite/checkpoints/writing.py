"""Parts shared by the writers of other toolkits' formats."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.weights import joined
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.vocab import Vocab

CAPITALS = (
    "lines in capitals are put into small letters here before the model reads them; elsewhere, do "
    "so yourself"
)


@dataclass(frozen=True)
class Export:
    """Files of a model by name, the one that readers look for last, and notes for its user."""

    files: dict[str, bytes]
    notes: tuple[str, ...]


def transformer_of(checkpoint: Checkpoint, target: str) -> Transformer:
    """The model of a checkpoint.  Raises CheckpointError unless it is one Transformer."""
    if not isinstance(checkpoint.model, Transformer):
        kind = type(checkpoint.model).__name__
        raise CheckpointError(f"only a Transformer can be written for {target}, this is a {kind}")
    return checkpoint.model


def refuse(target: str, obstacles: Mapping[str, bool]) -> None:
    """Raise CheckpointError with the obstacles that are true, if any."""
    reasons = [name for name, is_there in obstacles.items() if is_there]
    if reasons:
        raise CheckpointError(f"{target} cannot hold this model: {'; '.join(reasons)}")


def named_as(vocab: Vocab, special: Mapping[int | None, str], target: str) -> list[str]:
    """Rename special tokens.  Raises CheckpointError where two tokens would be equal."""
    tokens = [special.get(i, token) for i, token in enumerate(vocab.tokens)]
    if len(set(tokens)) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise CheckpointError(
            f"{target} cannot hold this model: its vocabulary has {twice[:50]!r} twice"
        )
    return tokens


def taken_apart(
    ours: Mapping[str, Tensor], prefix: str, theirs: str, parts: Mapping[str, tuple[str, ...]]
) -> dict[str, Tensor]:
    """Split and rename the weights of one layer: the inverse of `Weights.renamed`."""
    split: dict[str, Tensor] = {}
    for name, targets in parts.items():
        for kind in ("weight", "bias"):
            stacked = ours.get(joined(prefix, name, kind))
            if stacked is not None:
                d_model = ours[joined(prefix, name, "weight")].size(-1)
                pieces = _split(stacked, len(targets), d_model)
                split |= {joined(theirs, t, kind): piece for t, piece in zip(targets, pieces)}
    return split


def _split(stacked: Tensor, n_parts: int, d_model: int) -> list[Tensor]:
    """Split a stacked weight: queries, as wide as the model, then keys and values."""
    rows = stacked.size(0)
    sizes = {1: [rows], 2: [rows // 2] * 2, 3: [d_model] + [(rows - d_model) // 2] * 2}[n_parts]
    return [part.clone() for part in stacked.split(sizes)]
