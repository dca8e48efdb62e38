"""Finds out which family a Hugging Face directory is of, and has it read or says what it is."""

from pathlib import Path

from onmt_lite.checkpoints.huggingface import bart, t5
from onmt_lite.checkpoints.huggingface.directory import CONFIG, Directory, LanguageCheck
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import CheckpointError

CHECKS_LANGUAGES = True  # `load` takes a LanguageCheck
FAMILIES = {
    "marian": bart.load_marian,
    "m2m_100": bart.load_m2m_100,
    "mbart": bart.load_mbart,
    "t5": t5.load,
    "mt5": t5.load,
}
QUANTISED = ("quantize_config.json", "quant_config.json", "quant_strategy.json")


def recognises(path: Path) -> bool:
    return (path / CONFIG).is_file()


def load(path: Path, check: LanguageCheck) -> Checkpoint:
    """Load a directory; raises what `check` raises too, see `Directory`."""
    directory = Directory(path, check)
    names = [directory.tokenizer.get("tokenizer_class"), directory.model.get("tokenizer_class")]
    texts = [n for n in (*names, directory.model.get("_name_or_path")) if isinstance(n, str)]
    small = any("small100" in text.lower().replace("-", "") for text in texts)
    files = [name for name in QUANTISED if (path / name).is_file()]
    what = ""
    if directory.model.get("quantization_config") is not None or files:
        what = "a quantised model; give the one it was made from"
    elif small or (path / "tokenization_small100.py").is_file():  # M2M100 by its type
        what = "SMaLL-100, which wants the target language before the source"
    elif directory.family not in FAMILIES:
        what = f"a model of type {directory.family[:50]!r}, which is not read"
    if what:
        raise CheckpointError(
            f"{path / CONFIG}: {what}; of Hugging Face, models of type {', '.join(FAMILIES)} are "
            "read, in float32, float16 or bfloat16"
        )
    directory.weights_file()  # whether there are weights, before the rest is looked at
    return FAMILIES[directory.family](directory)
