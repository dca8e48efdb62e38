"""Files of models that are not read, by what tells them.  Messages that refuse a path name them."""

from pathlib import Path

MARIAN = "Marian's binary format, as Bergamot (Firefox) has it"
# First bytes of files that people give by mistake
STARTS = {
    b"\x1f\x8b": "a gzip file",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"<": "an HTML or XML page",
    b"\1\0\0\0\0\0\0\0": f"{MARIAN}; give the .npz file",
}
# Patterns of file names
NAMES = {
    "adapter_config.json": "an adapter (LoRA) without the model that it belongs to",
    "*.gguf": "a GGUF file of llama.cpp",
    **dict.fromkeys(("*.onnx", "onnx/*.onnx"), "an ONNX model"),
    **dict.fromkeys(("*.pb", "*.h5", "ckpt*.index", "model.ckpt*"), "weights of TensorFlow"),
    "*.msgpack": "weights of Flax",
    "params.*": "a Sockeye model",
    "*.ckpt": "a JoeyNMT model",
    "*.intgemm*": f"a model in {MARIAN}",
}


def by_name(path: Path) -> str:
    """Say what the file is, or what the directory holds; "" for none of these."""
    for pattern, kind in NAMES.items():
        if any(path.glob(pattern)) if path.is_dir() else path.match(pattern):
            return kind
    return ""
