"""What the writers of other toolkits' formats share."""

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
    """The files of a model by name, the one that makes it a model last, and how to use it."""

    files: dict[str, bytes]
    notes: tuple[str, ...]


def transformer_of(checkpoint: Checkpoint, target: str) -> Transformer:
    """CheckpointError where the model is of another family, or several in one."""
    if not isinstance(checkpoint.model, Transformer):
        kind = type(checkpoint.model).__name__
        raise CheckpointError(f"only a Transformer can be written for {target}, this is a {kind}")
    return checkpoint.model


def refuse(target: str, obstacles: Mapping[str, bool]) -> None:
    """CheckpointError with all that the model has and the target cannot hold."""
    found = [name for name, there in obstacles.items() if there]
    if found:
        raise CheckpointError(f"{target} cannot hold this model: {'; '.join(found)}")


def named_as(vocab: Vocab, special: Mapping[int | None, str], target: str) -> list[str]:
    """The tokens, special ones under the target's names; CheckpointError if two would be one."""
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
    """One layer's weights under the target's names: what `Weights.renamed` puts together."""
    found: dict[str, Tensor] = {}
    for name, targets in parts.items():
        for kind in ("weight", "bias"):
            stacked = ours.get(joined(prefix, name, kind))
            if stacked is not None:
                d_model = ours[joined(prefix, name, "weight")].size(-1)
                pieces = _split(stacked, len(targets), d_model)
                found |= {joined(theirs, t, kind): piece for t, piece in zip(targets, pieces)}
    return found


def _split(stacked: Tensor, n_parts: int, d_model: int) -> list[Tensor]:
    """Queries, as wide as the model, then keys and values, which may be narrower."""
    rows = stacked.size(0)
    sizes = {1: [rows], 2: [rows // 2] * 2, 3: [d_model] + [(rows - d_model) // 2] * 2}[n_parts]
    return [part.clone() for part in stacked.split(sizes)]
