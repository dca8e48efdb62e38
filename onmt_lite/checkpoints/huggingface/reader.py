"""Finds out which family a Hugging Face directory is of, and has it read or says what it is."""

from pathlib import Path

from onmt_lite.checkpoints.huggingface import marian, multilingual, t5
from onmt_lite.checkpoints.huggingface.directory import CONFIG, WEIGHTS, Directory, LanguageCheck
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import CheckpointError

FAMILIES = {
    "marian": marian.load,
    "m2m_100": multilingual.load_m2m_100,
    "mbart": multilingual.load_mbart,
    "t5": t5.load,
    "mt5": t5.load,
}
# By the start of their model_type, the first that fits
OTHERS = {
    "nllb-moe": "NLLB-MoE, a mixture of experts",
    "switch_transformers": "Switch Transformers, a mixture of experts",
    "bart": "BART, which summarises",
    "pegasus": "Pegasus, which summarises",
    "bigbird_pegasus": "BigBird-Pegasus, which summarises",
    "led": "LED, which summarises",
    "fsmt": "FSMT, the WMT19 models of fairseq with words of Moses and fastBPE",
    "umt5": "UMT5, whose layers each have a bias of their own",
    "longt5": "LongT5, with attention to a part of the line",
    "encoder-decoder": "an encoder and a decoder of two models",
    "vision-encoder-decoder": "a model that reads images",
    "speech": "a model that reads speech",
    "seamless": "SeamlessM4T, a model of speech and text",
    "whisper": "Whisper, a model that reads speech",
    "indictrans": "IndicTrans2, whose lines a program of its own prepares",
    "gpt": "a language model",
    "llama": "a language model",
    "mistral": "a language model",
    "gemma": "a language model",
    "qwen": "a language model",
    "bloom": "a language model",
    "opt": "a language model",
    "xglm": "a language model",
    "bert": "BERT, an encoder alone, which translates nothing",
    "roberta": "RoBERTa, an encoder alone, which translates nothing",
    "xlm-roberta": "XLM-RoBERTa, an encoder alone, which translates nothing",
}
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")  # ends of architectures
QUANTISED = ("quantize_config.json", "quant_config.json", "quant_strategy.json")
# What stands in a directory that has no weights in PyTorch's formats
OTHER_WEIGHTS = {
    "*.gguf": "GGUF files of llama.cpp",
    "*.onnx": "ONNX files",
    "onnx/*.onnx": "ONNX files",
    "tf_model*.h5": "weights of TensorFlow",
    "model.ckpt*": "weights of TensorFlow",
    "saved_model.pb": "a saved model of TensorFlow",
    "flax_model*.msgpack": "weights of Flax",
    "rust_model.ot": "weights of rust-bert",
    "openvino*.xml": "an OpenVINO model",
}


def recognises(path: Path) -> bool:
    return (path / CONFIG).is_file()


def load(path: Path, check: LanguageCheck) -> Checkpoint:
    """CheckpointError for a directory of another family, or one that is damaged, and what `check`
    raises, see `Directory`."""
    directory = Directory(path, check)
    if what := _other_kind(directory):
        raise CheckpointError(
            f"{path / CONFIG}: {what}; of Hugging Face, models of type {', '.join(FAMILIES)} are "
            "read, in float32, float16 or bfloat16"
        )
    if not any(
        (path / f"{name}{end}").is_file() for name in WEIGHTS for end in ("", ".index.json")
    ):
        found = [kind for pattern, kind in OTHER_WEIGHTS.items() if any(path.glob(pattern))]
        only = f", only {found[0]}, which are not read" if found else ""
        raise CheckpointError(f"{path}: the directory has neither {' nor '.join(WEIGHTS)}{only}")
    return FAMILIES[directory.family](directory)


def _other_kind(directory: Directory) -> str:
    """What the model is, in words, where it is none that is read; else ""."""
    config, kind = directory.model, directory.family
    architectures = config.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    names = [name for name in listed if isinstance(name, str)]
    files = [name for name in QUANTISED if (directory.path / name).is_file()]
    if config.get("quantization_config") is not None or files:
        return "a quantised model; give the one it was made from"
    if _is_small_100(directory):
        return "SMaLL-100, which wants the target language before the source"
    if kind in FAMILIES:
        alone = [name for name in names if name.endswith("EncoderModel")]
        return f"{alone[0][:50]}, an encoder alone, which translates nothing" if alone else ""
    if any(name.endswith(LANGUAGE_MODELS) for name in names):
        return f"a language model ({kind[:50]})"
    known = (what for start, what in OTHERS.items() if kind.lower().startswith(start))
    return next(known, f"a model of type {kind[:50]!r}, which is not read")


def _is_small_100(directory: Directory) -> bool:
    """M2M100 by its type; its tokenizer tells."""
    if (directory.path / "tokenization_small100.py").is_file():
        return True
    names = [directory.tokenizer.get("tokenizer_class"), directory.model.get("tokenizer_class")]
    names.append(directory.model.get("_name_or_path"))
    texts = (name for name in names if isinstance(name, str))
    return any("small100" in text.lower().replace("-", "") for text in texts)
