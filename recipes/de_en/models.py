"""Reading and writing of models of the project's own format, for the programs of the recipe."""

import os
from pathlib import Path

from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.files import write_text
from onmt_lite.errors import FileError, OptionError
from onmt_lite.models.transformer import Transformer


def check_new(output: Path) -> None:
    """Raise OptionError if there is anything at the path."""
    if os.path.lexists(output):
        raise OptionError(f"output: {output} exists already; choose another path or remove it")


def read_model(path: Path, option: str) -> tuple[Transformer, bytes]:
    """Read a model, and the content of its sentencepiece model; `option` named it."""
    model = load_checkpoint(path).model
    if not isinstance(model, Transformer) or not native.can_load(path):
        raise OptionError(f"{option}: {path} is no model of the project's own format")
    return model, (path / native.SENTENCEPIECE).read_bytes()


def write_model(output: Path, model: Transformer, pieces: bytes, bits: int) -> None:
    """Write a model into a new directory, and say so."""
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise FileError(f"cannot write {output}: {error.strerror}") from None
    native.save(output, model, pieces, bits)
    write_text(f"model: {output}\n")
