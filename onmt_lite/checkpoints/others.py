"""Models that are not read, by what tells them.  Messages that refuse a path name them."""

from pathlib import Path

MARIAN = "Marian's binary format, as Bergamot (Firefox) has it"
# First bytes of files that people give by mistake
STARTS = {
    b"\x1f\x8b": "a gzip file",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"<": "an HTML or XML page",
    b"GGUF": "a GGUF file of llama.cpp",
    b"\x89HDF": "an HDF5 file, as TensorFlow writes weights",
    b"\1\0\0\0\0\0\0\0": f"{MARIAN}; give the .npz file",
}
ENDS = {
    ".safetensors": "weights without their directory; give the directory",
    ".onnx": "an ONNX file",
    ".msgpack": "weights of Flax",
    ".pb": "a file of TensorFlow",
}
# Files in directories, the first pattern that fits
IN_FOLDERS = {
    "adapter_config.json": "an adapter (LoRA) without the model that it belongs to",
    "*.gguf": "GGUF files of llama.cpp",
    "*.onnx": "an ONNX model",
    "onnx/*.onnx": "an ONNX model",
    "saved_model.pb": "a saved model of TensorFlow",
    **dict.fromkeys(("*.index", "*.h5", "*.keras", "model.ckpt*"), "weights of TensorFlow"),
    "flax_model*.msgpack": "weights of Flax",
    "rust_model.ot": "weights of rust-bert",
    "openvino*.xml": "an OpenVINO model",
    **dict.fromkeys(("params.best*", "params.0*", "symbol.json"), "a Sockeye model"),
    "*.ckpt": "a JoeyNMT model",
    **dict.fromkeys(("*.intgemm*", "lex.*.bin*"), f"a model in {MARIAN}"),
}
# Of Hugging Face, by the start of their model_type, the first that fits
MODEL_TYPES = {
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
    **dict.fromkeys("gpt llama mistral gemma qwen bloom opt xglm".split(), "a language model"),
    "bert": "BERT, an encoder alone, which translates nothing",
    "roberta": "RoBERTa, an encoder alone, which translates nothing",
    "xlm-roberta": "XLM-RoBERTa, an encoder alone, which translates nothing",
}
# Of CTranslate2, by the name of the specification
SPECIFICATIONS = {
    "TransformerDecoderSpec": "a language model",
    "TransformerEncoderSpec": "an encoder alone",
    **dict.fromkeys(("WhisperSpec", "Wav2Vec2Spec", "Wav2Vec2BertSpec"), "speech recognition"),
}


def in_folder(path: Path) -> str:
    """What the directory holds; "" for none of these."""
    found = (kind for pattern, kind in IN_FOLDERS.items() if any(path.glob(pattern)))
    return next(found, "")
