"""Rejects unsupported transformers models by their configuration, before weights are downloaded."""

from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.config_reader import load_yaml, read_config
from onmt_lite.checkpoints.generation_config import FAMILIES
from onmt_lite.errors import CheckpointError

TRANSFORMERS = "run it with Hugging Face transformers"
CONVERTER = (
    "convert it with `ct2-transformers-converter --model DIR --output_dir OUT`, then use "
    "-model OUT -tokenizer space with tokenized lines that end in </s>"
)
QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "quant_strategy.json")


def load_family_table(table: str) -> dict[str, Any]:
    """Load a table of families.yaml."""
    return load_yaml("huggingface/families.yaml")[table]


def refuse_unsupported_model(path: Path) -> None:
    """Raise CheckpointError if the model is quantized or its family is not supported."""
    model, tokenizer = (read_config(path / f"{name}config.json") for name in ("", "tokenizer_"))
    family = model.get_str("model_type", "unknown")
    names = [tokenizer.get("tokenizer_class"), model.get("tokenizer_class")]
    texts = [n for n in (*names, model.get("_name_or_path")) if isinstance(n, str)]
    is_small100 = any("small100" in text.lower().replace("-", "") for text in texts)
    files = [name for name in QUANTIZATION_FILES if (path / name).is_file()]
    remedy = "use a model of type " + ", ".join(FAMILIES)
    if model.get("quantization_config") is not None or files:
        label, remedy = "a quantized model", "use the model before quantization"
    elif is_small100 or (path / "tokenization_small100.py").is_file():  # its type is m2m_100
        label = "SMaLL-100 (target language token before the source)"
    elif any("byt5" in text.lower() for text in texts):  # its type is t5
        label, remedy = "ByT5 (a byte-level model)", TRANSFORMERS
    elif family in FAMILIES:
        return
    elif family in load_family_table("convertible"):
        label, remedy = f"{load_family_table('convertible')[family]} (type {family!r})", CONVERTER
    elif family in load_family_table("unsupported"):
        name = load_family_table("unsupported")[family]
        label, remedy = f"{name} (type {family!r})", TRANSFORMERS
    else:
        label = f"a model of type {family[:50]!r}"
    raise CheckpointError(f"{model.path}: {label} is not supported; {remedy}")
