"""Finds out which family a Hugging Face directory is of, and has it read."""

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
    is_eole = any(path.glob("model.[0-9][0-9].safetensors"))
    return (path / CONFIG).is_file() and not is_eole


def load(path: Path, check: LanguageCheck) -> Checkpoint:
    """Load a directory; raises what `check` raises too, see `Directory`."""
    refuse_unsupported_model(path)
    directory = Directory(path, check)
    directory.weights_file()  # whether there are weights, before the rest is looked at
    return FAMILIES[directory.family](directory)
