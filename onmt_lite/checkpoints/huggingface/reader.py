"""Loads a transformers directory with the reader of its model family."""

from pathlib import Path

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.huggingface import bart, t5
from onmt_lite.checkpoints.huggingface.directory import CONFIG, Directory, LanguageCheck
from onmt_lite.checkpoints.huggingface.formats import refuse_unsupported_model

CHECKS_LANGUAGES = True  # `load` takes a LanguageCheck
FAMILIES = {
    "marian": bart.load_marian,
    "m2m_100": bart.load_m2m_100,
    "mbart": bart.load_mbart,
    "t5": t5.load,
    "mt5": t5.load,
}


def can_load(path: Path) -> bool:
    """Return True for a directory with config.json that is not an Eole model."""
    is_eole = any(path.glob("model.[0-9][0-9].safetensors"))
    return (path / CONFIG).is_file() and not is_eole


def load(path: Path, check: LanguageCheck) -> Checkpoint:
    """Load a directory; exceptions of the language check propagate."""
    refuse_unsupported_model(path)
    directory = Directory(path, check)
    directory.find_weights()  # fail early if there are no weights
    return FAMILIES[directory.family](directory)
