"""Finds out which family a Hugging Face directory is of, and has it read."""

from pathlib import Path

from onmt_lite.checkpoints import marian
from onmt_lite.checkpoints.hf_directory import CONFIG, Directory
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import CheckpointError

FAMILIES = {"marian": marian.load}


def recognises(path: Path) -> bool:
    return (path / CONFIG).is_file()


def load(path: Path) -> Checkpoint:
    """CheckpointError for a directory of another family, or one that is damaged."""
    directory = Directory(path)
    kind = directory.family
    if kind not in FAMILIES:
        raise CheckpointError(
            f"{path / CONFIG}: a Hugging Face model of type {kind[:50]!r}; of these, only "
            f"{', '.join(map(repr, FAMILIES))} are read"
        )
    if directory.model.get("quantization_config") is not None:
        raise CheckpointError(f"{path / CONFIG}: a quantised model; give the one it was made from")
    return FAMILIES[kind](directory)
