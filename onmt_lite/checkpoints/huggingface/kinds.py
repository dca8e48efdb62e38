"""Tells Hugging Face directories that are not read by their descriptions, before weights, which may
have to be fetched."""

from pathlib import Path

from onmt_lite.checkpoints.description import described
from onmt_lite.errors import CheckpointError
from onmt_lite.search.model_defaults import FAMILIES

QUANTISED = ("quantize_config.json", "quant_config.json", "quant_strategy.json")


def refuse_unread(path: Path) -> None:
    """Raise CheckpointError if the directory is not of a family that is read, or quantised."""
    model, tokenizer = (described(path / f"{name}config.json") for name in ("", "tokenizer_"))
    family = model.text("model_type", "unknown")
    names = [tokenizer.get("tokenizer_class"), model.get("tokenizer_class")]
    texts = [n for n in (*names, model.get("_name_or_path")) if isinstance(n, str)]
    small = any("small100" in text.lower().replace("-", "") for text in texts)
    files = [name for name in QUANTISED if (path / name).is_file()]
    what = ""
    if model.get("quantization_config") is not None or files:
        what = "a quantised model; give the one it was made from"
    elif small or (path / "tokenization_small100.py").is_file():  # M2M100 by its type
        what = "SMaLL-100, which wants the target language before the source"
    elif family not in FAMILIES:
        what = f"a model of type {family[:50]!r}, which is not read"
    if what:
        raise CheckpointError(
            f"{model.path}: {what}; of Hugging Face, models of type {', '.join(FAMILIES)} are "
            "read, in float32, float16 or bfloat16"
        )
