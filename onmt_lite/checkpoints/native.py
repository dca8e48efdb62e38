"""Format of onmt_lite: a directory with `model.json`, `weights.safetensors`, `sentencepiece.model`.

`model.json` holds the configuration and the SHA-256 of all files, `model.json` included: a
directory loads as it was written or is refused.  Three entries are optional: "unknown", the
handling of unknown characters (`onmt_lite.text.placeholders.Unknown`), "confidence", the curve from
score to confidence (`onmt_lite.checkpoints.record`), and the default of "split_longer".
Further entries, such as older versions wrote, are not read.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any, get_args

import sentencepiece as spm
from torch import Tensor

from onmt_lite.checkpoints import rows, safetensors
from onmt_lite.checkpoints.building import build_transformer
from onmt_lite.checkpoints.description import shown
from onmt_lite.checkpoints.record import Checkpoint, Confidence
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.placeholders import Unknown, UnknownRule, is_one_word
from onmt_lite.text.tokenizers import SentencePieceTokenizer, SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from onmt_lite.text.whole import replace_files

# By the bits of a matrix's weights; 8-bit weights are stored as `rows` says
FORMATS = {16: "onmt_lite-model-1", 8: "onmt_lite-model-2"}
MANIFEST, WEIGHTS, PIECES = "model.json", "weights.safetensors", "sentencepiece.model"


def recognises(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def save(path: Path, model: Transformer, pieces: bytes, bits: int = 16) -> None:
    """Write a model into a directory, the manifest last.

    Raises FileError where that fails; an older model in the directory is then unchanged.
    """
    weights = _unique_weights(model)
    weights = rows.pack(weights) if bits == 8 else {n: t.half() for n, t in weights.items()}
    files = {WEIGHTS: safetensors.dump(weights), PIECES: pieces}
    manifest: dict[str, Any] = {
        "format": FORMATS[bits],
        "config": dataclasses.asdict(model.cfg),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    manifest["sha256"] = _checksum(manifest)
    files[MANIFEST] = (json.dumps(manifest, indent=1) + "\n").encode("utf-8")
    replace_files(path, files)


def describe(
    path: Path,
    config: dict[str, Any],
    unknown: Unknown,
    confidence: Confidence | None,
    split_longer: int = 0,
) -> None:
    """Update the description of a model: fields of `config`, and the optional entries."""
    manifest = _read_manifest(path / MANIFEST)
    manifest["config"] |= config
    manifest["unknown"] = dataclasses.asdict(unknown)
    manifest["confidence"] = None if confidence is None else dataclasses.asdict(confidence)
    manifest["split_longer"] = split_longer
    manifest["sha256"] = _checksum(manifest)
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    replace_files(path, {MANIFEST: text.encode("utf-8")})


def load(path: Path) -> Checkpoint:
    """Load a directory.  Raises CheckpointError unless it is exactly as `save` wrote it."""
    manifest = _read_manifest(path / MANIFEST)
    files = {name: _read(path / name, digest) for name, digest in manifest["files"].items()}
    sp = spm.SentencePieceProcessor()
    try:
        cfg, options = TransformerConfig(**manifest["config"]), _read_options(manifest)
        tensors = safetensors.parse(files.pop(WEIGHTS))
        if manifest["format"] == FORMATS[8]:
            tensors = rows.unpack(tensors, path)
        weights = Weights(tensors, path)
        sp.load_from_serialized_proto(files[PIECES])
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: {MANIFEST}: {str(error).splitlines()[0]}") from None
    ours = {name: weights.take(name) for name in list(weights.tensors)}
    model = build_transformer(cfg, ours, path)
    if sp.vocab_size() != cfg.tgt_vocab_size:
        raise CheckpointError(
            f"{path}: {PIECES} has {sp.vocab_size()} pieces, the model {cfg.tgt_vocab_size}"
        )
    return dataclasses.replace(checkpoint(model, sp, f"(format {manifest['format']})"), **options)


def checkpoint(
    model: EncoderDecoder, sp: spm.SentencePieceProcessor, version: str = ""
) -> Checkpoint:
    """Checkpoint of a model with one sentencepiece model for both sides."""
    vocab = Vocab(
        [sp.id_to_piece(i) for i in range(sp.vocab_size())],
        eos_id=sp.eos_id(),
        bos_id=sp.bos_id(),
        pad_id=sp.pad_id(),
        unk_id=sp.unk_id(),
    )
    return Checkpoint(
        model,
        src_vocab=vocab,
        tgt_vocab=vocab,
        tokenizers={"sentencepiece": SentencePieceTokenizer(sp), "space": SpaceTokenizer()},
        start_id=sp.bos_id(),
        src_end=(sp.eos_id(),),
        never_ids=(sp.pad_id(), sp.bos_id()),
        version=version,
        lower_capitals=True,  # pieces are cased: words in capitals become single letters
    )


def _read_options(manifest: dict[str, Any]) -> dict[str, Any]:
    """The optional entries.  Raises ValueError or TypeError for values that cannot be used."""
    unknown, confidence = Unknown(), None
    if manifest.get("unknown") is not None:
        entries = {"names": [], "numbers": [], "words": {}, "rare": "", **manifest["unknown"]}
        names, numbers, words = (entries.pop(name) or {} for name in ("names", "numbers", "words"))
        unknown = Unknown(names=tuple(names), numbers=tuple(numbers), words=dict(words), **entries)
        stand_ins = (*unknown.names, *unknown.numbers, *words, *unknown.words.values())
        if isinstance(names, str) or not all(map(is_one_word, stand_ins)):
            raise ValueError("unknown: names, numbers or words are none")
        if unknown.rule not in get_args(UnknownRule) or not isinstance(unknown.rare, str):
            raise ValueError("unknown: rule or rare is none")
    if manifest.get("confidence") is not None:
        confidence = Confidence(**manifest["confidence"])
        curve = (confidence.at_zero, confidence.per_nat)
        if (
            not {*map(type, curve)} <= {int, float}
            or not all(map(math.isfinite, curve))
            or curve[1] <= 0
        ):
            raise ValueError("confidence: at_zero and per_nat are no rising curve")
    split_longer = manifest.get("split_longer", 0)
    if type(split_longer) is not int or split_longer < 0:
        raise ValueError("split_longer is no number from 0 on")
    return dict(unknown=unknown, confidence=confidence, split_longer=split_longer)


def _unique_weights(model: Transformer) -> dict[str, Tensor]:
    """Weights of the model, a tied one under the first of its names only."""
    seen: set[int] = set()
    kept = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept[name] = tensor
    return kept


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format"]
        if version not in FORMATS.values():
            known = " and ".join(FORMATS.values())
            raise CheckpointError(f"{path}: format {shown(version)}, this version reads {known}")
        if not isinstance(manifest["files"], dict):
            raise TypeError("files")
        if manifest["sha256"] != _checksum(manifest) or set(manifest["files"]) != {WEIGHTS, PIECES}:
            raise CheckpointError(f"{path}: damaged: its checksum does not fit its contents")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a model description: {error!r:.100}") from None
    return manifest


def _checksum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; the model is incomplete") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"{path}: damaged or not of this model: checksum mismatch")
    return data
