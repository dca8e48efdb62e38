"""Finds out what kind of model a path holds, and loads it."""

from collections.abc import Sequence
from pathlib import Path

from onmt_lite.checkpoints import native, table
from onmt_lite.checkpoints.ctranslate2 import reader as ctranslate2
from onmt_lite.checkpoints.ctranslate2.model_bin import MARIAN_BINARY
from onmt_lite.checkpoints.ensemble import combine
from onmt_lite.checkpoints.fairseq import reader as fairseq
from onmt_lite.checkpoints.huggingface import reader as huggingface
from onmt_lite.checkpoints.huggingface.directory import LanguageCheck
from onmt_lite.checkpoints.marian import reader as marian_npz
from onmt_lite.checkpoints.opennmt import reader as opennmt
from onmt_lite.checkpoints.record import Checkpoint, Languages
from onmt_lite.checkpoints.shipped import find_model, model_names
from onmt_lite.errors import CheckpointError, MemoryExhausted

READERS = (native, ctranslate2, huggingface, marian_npz, fairseq, opennmt, table)

# First bytes of what people give by mistake
KINDS = (
    (b"\x1f\x8b", "a gzip file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"<", "an HTML or XML page"),
    (b"GGUF", "a GGUF file of llama.cpp"),
    (b"\x89HDF", "an HDF5 file, as TensorFlow writes weights"),
    (MARIAN_BINARY, "Marian's binary format, as Bergamot (Firefox) has it; give the .npz file"),
)
ENDS = {
    ".safetensors": "weights without their directory; give the directory",
    ".onnx": "an ONNX file",
    ".msgpack": "weights of Flax",
    ".pb": "a file of TensorFlow",
}
# Directories of toolkits that are not read, by a file in them
DIRECTORIES = {
    "adapter_config.json": "an adapter (LoRA) without the model that it belongs to",
    "*.gguf": "GGUF files of llama.cpp",
    "*.onnx": "an ONNX model",
    "saved_model.pb": "a saved model of TensorFlow",
    "*.index": "weights of TensorFlow",
    "*.h5": "weights of TensorFlow",
    "*.keras": "weights of TensorFlow",
    "params.best*": "a Sockeye model",
    "params.0*": "a Sockeye model",
    "symbol.json": "a Sockeye model",
    "*.ckpt": "a JoeyNMT model",
    "*.intgemm*": "a Marian model in the binary format of Bergamot (Firefox)",
    "lex.*.bin*": "a Marian model in the binary format of Bergamot (Firefox)",
}


def accept(languages: Languages | None) -> None:
    """Whatever the languages are, the weights are read."""


def load_checkpoints(
    paths: Sequence[str | Path],
    weights: Sequence[float] = (),
    of_probs: bool = False,
    check: LanguageCheck = accept,
) -> Checkpoint:
    """The model, or the ensemble of several; see `combine`.

    Raises CheckpointError, and what `check` raises when it sees the languages of a directory whose
    weights have not been read yet.
    """
    found = [load_checkpoint(path, check) for path in paths]
    return found[0] if len(found) == 1 else combine(found, list(map(str, paths)), weights, of_probs)


def load_checkpoint(path: str | Path, check: LanguageCheck = accept) -> Checkpoint:
    """The model at a path, or the shipped one of that name where no such path exists.

    Raises CheckpointError where there is no model of a kind that is read; for `check`, see above.
    """
    path = find_model(path)
    try:
        for reader in READERS:
            if reader.recognises(path):
                if reader in (huggingface, ctranslate2):
                    return reader.load(path, check)
                return reader.load(path)
        raise CheckpointError(
            f"no model at {path}: {_describe(path)}; -model takes a model directory (ours, Marian, "
            "Hugging Face, CTranslate2, fairseq), a .pt file of OpenNMT-py "
            "or a table model's .json file"
        )
    except (OSError, ValueError) as error:  # a path that is no path: unreadable, too long, with NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"cannot read the model at {str(path)[:200]!r}: {reason}") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise MemoryExhausted(
            f"out of memory while the model at {path} is read; close other programs or take a "
            "smaller model"
        ) from None


def _describe(path: Path) -> str:
    if not path.exists():
        return (
            f"there is no such file or directory (shipped are {', '.join(model_names()) or 'none'})"
        )
    if path.is_dir():
        other = [kind for name, kind in DIRECTORIES.items() if any(path.glob(name))]
        if other:
            return f"the directory holds {other[0]}, which is not read"
        return "the directory has no model.json, no config.json and no dict.*.txt"
    if not path.is_file():  # a pipe might never say anything
        return "it is neither a file nor a directory"
    with open(path, "rb") as f:
        start = f.read(64)
    if not start:
        return "the file is empty"
    kinds = [f"it is {kind}" for magic, kind in KINDS if start.startswith(magic)]
    kinds += [f"it is {kind}" for end, kind in ENDS.items() if path.suffix == end]
    return kinds[0] if kinds else "a file of unknown kind"
