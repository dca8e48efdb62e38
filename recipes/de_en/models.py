"""Reading and writing onmt_lite models, for the programs of the recipe."""

import os
from pathlib import Path

from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.files import write_text
from onmt_lite.errors import FileError, OptionError
from onmt_lite.models.transformer import Transformer


def check_new(output: Path) -> None:
    """Raise OptionError if the path exists."""
    if os.path.lexists(output):
        raise OptionError(f"output: {output} already exists; choose another path or remove it")


def read_model(path: Path, option: str) -> tuple[Transformer, bytes]:
    """Read a Transformer and its serialized sentencepiece model.

    Args:
        path: model directory
        option: option that named the directory, for error messages

    Raises:
        OptionError: the model is not an onmt_lite Transformer
    """
    model = load_checkpoint(path).model
    if not isinstance(model, Transformer) or not native.can_load(path):
        raise OptionError(
            f"{option}: {path} is not an onmt_lite model; use a Transformer trained by onmt_lite"
        )
    return model, (path / native.SENTENCEPIECE).read_bytes()


def write_model(output: Path, model: Transformer, pieces: bytes, bits: int) -> None:
    """Write a model to a new directory and print its path.

    Args:
        output: directory to create
        model: model to write
        pieces: serialized sentencepiece model
        bits: 16 or 8 bits per weight

    Raises:
        FileError: the directory cannot be created
    """
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise FileError(f"cannot write {output}: {error.strerror}") from None
    native.save(output, model, pieces, bits)
    write_text(f"model: {output}\n")
