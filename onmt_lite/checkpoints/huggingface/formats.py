"""Tells Hugging Face directories that are not read by their descriptions, before weights, which may
have to be fetched."""

from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.config_reader import load_yaml, read_config
from onmt_lite.checkpoints.generation_config import FAMILIES
from onmt_lite.errors import CheckpointError

TRANSFORMERS = "run it with Hugging Face transformers"
CONVERTER = (
    "convert it with `ct2-transformers-converter --model DIR --output_dir OUT`, then give "
    "-model OUT, -tokenizer space and lines of the model's tokens with </s> at the end"
)
QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "quant_strategy.json")


def load_family_table(table: str) -> dict[str, Any]:
    """Return a table of families.yaml."""
    return load_yaml("huggingface/families.yaml")[table]


def refuse_unsupported_model(path: Path) -> None:
    """Raise CheckpointError if the directory is not of a family that is read, or quantised."""
    model, tokenizer = (read_config(path / f"{name}config.json") for name in ("", "tokenizer_"))
    family = model.get_str("model_type", "unknown")
    names = [tokenizer.get("tokenizer_class"), model.get("tokenizer_class")]
    texts = [n for n in (*names, model.get("_name_or_path")) if isinstance(n, str)]
    small = any("small100" in text.lower().replace("-", "") for text in texts)
    files = [name for name in QUANTIZATION_FILES if (path / name).is_file()]
    remedy = "give a model of type " + ", ".join(FAMILIES)
    if model.get("quantization_config") is not None or files:
        what, remedy = "a quantised model", "give the model that it was made from"
    elif small or (path / "tokenization_small100.py").is_file():  # M2M100 by its type
        what = "SMaLL-100, a model with the target language before the source,"
    elif any("byt5" in text.lower() for text in texts):  # T5 by its type
        what, remedy = "ByT5, a model that reads bytes,", TRANSFORMERS
    elif family in FAMILIES:
        return
    elif family in load_family_table("converted"):
        what, remedy = f"{load_family_table('converted')[family]} (type {family!r})", CONVERTER
    elif family in load_family_table("others"):
        what, remedy = f"{load_family_table('others')[family]} (type {family!r})", TRANSFORMERS
    else:
        what = f"a model of type {family[:50]!r}"
    raise CheckpointError(f"{model.path}: {what} is not supported; {remedy}")
