"""The native formats: model directories and table models.

A model directory has `model.json` (the manifest), `weights.safetensors` and `sentencepiece.model`.
The manifest contains the configuration and the SHA-256 of all files including itself, so any change
to the directory is detected. It has four optional entries:

    unknown       handling of unknown characters (`onmt_lite.text.placeholders.UnknownPolicy`)
    confidence    calibration curve (`onmt_lite.checkpoints.checkpoint.Confidence`)
    split_longer  default of the option
    languages     source and target codes

Further entries (from older versions) are ignored. `onmt_lite.models.table_model` describes the file
of a table model.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.checkpoint import Checkpoint, Confidence, LanguagePair
from onmt_lite.checkpoints.config_reader import check_tokens, format_value
from onmt_lite.checkpoints.weights import Weights, build_transformer, dequantize
from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.table_model import TableModel, TableSource
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.atomic_files import replace_files
from onmt_lite.text.placeholders import UnknownPolicy, UnknownRule, is_one_word
from onmt_lite.text.tokenizers import SentencePieceTokenizer, SpaceTokenizer
from onmt_lite.text.vocab import Vocab

# By bits per weight of a matrix; see `quantize` for the 8-bit format
FORMATS = {16: "onmt_lite-model-1", 8: "onmt_lite-model-2"}
MALFORMED = (OSError, ValueError, KeyError, TypeError, RecursionError)  # raised for malformed JSON
MANIFEST, WEIGHTS, SENTENCEPIECE = "model.json", "weights.safetensors", "sentencepiece.model"


def can_load(path: Path) -> bool:
    """Return True for a directory with a manifest, or a JSON file."""
    if not path.is_file():
        return (path / MANIFEST).is_file()
    with open(path, "rb") as f:
        return f.read(64).lstrip()[:1] == b"{"


def save(path: Path, model: Transformer, subword_model: bytes, bits: int = 16) -> None:
    """Write a model to a directory; on failure, an older model in it is unchanged.

    Args:
        path: the directory.
        model: the model.
        subword_model: serialized sentencepiece model.
        bits: 16 or 8 bits per weight of a matrix.

    Raises:
        FileError: if a file cannot be written.
    """
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:  # tied weights are stored once
            seen.add(tensor.data_ptr())
            weights[name] = tensor
    weights = quantize(weights) if bits == 8 else {n: t.half() for n, t in weights.items()}
    files = {WEIGHTS: safetensors.dump(weights), SENTENCEPIECE: subword_model}
    manifest: dict[str, Any] = {
        "format": FORMATS[bits],
        "config": dataclasses.asdict(model.cfg),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    files[MANIFEST] = _serialize_manifest(manifest)
    replace_files(path, files)


def update_manifest(
    path: Path,
    config: dict[str, Any],
    unknown: UnknownPolicy,
    confidence: Confidence | None,
    split_longer: int = 0,
    pair: Sequence[str] = (),
) -> None:
    """Update the manifest of a model.

    Args:
        path: the model directory.
        config: fields of the model configuration to change.
        unknown: handling of unknown characters.
        confidence: calibration curve.
        split_longer: default of the option split_longer.
        pair: source and target language codes; empty to keep the stored ones.

    Raises:
        CheckpointError: if the manifest is damaged.
        FileError: if it cannot be written.
    """
    manifest = _read_manifest(path / MANIFEST)
    manifest["config"] |= config
    manifest["unknown"] = dataclasses.asdict(unknown)
    manifest["confidence"] = None if confidence is None else dataclasses.asdict(confidence)
    manifest["split_longer"] = split_longer
    if any(pair):
        manifest["languages"] = list(pair)
    replace_files(path, {MANIFEST: _serialize_manifest(manifest)})


def load(path: Path) -> Checkpoint:
    """Load a model directory or a table model; raise CheckpointError if it is damaged."""
    if path.is_file():
        return _load_table(path)
    manifest = _read_manifest(path / MANIFEST)
    files = {}
    for name, digest in manifest["files"].items():
        try:
            files[name] = (path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{path / name}: {error.strerror}; the model is incomplete"
            ) from None
        if hashlib.sha256(files[name]).hexdigest() != digest:
            reason = "checksum mismatch: the file is damaged or belongs to another model"
            raise CheckpointError(f"{path / name}: {reason}")
    sp = spm.SentencePieceProcessor()
    try:
        cfg, options = TransformerConfig(**manifest["config"]), _read_options(manifest)
        tensors = safetensors.parse(files.pop(WEIGHTS))
        if manifest["format"] == FORMATS[8]:
            tensors = dequantize(tensors, SCALE)
        weights = Weights(tensors, path)
        sp.load_from_serialized_proto(files[SENTENCEPIECE])
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: {MANIFEST}: {str(error).splitlines()[0]}") from None
    weights.tensors |= {name: weights.pop(name) for name in list(weights.tensors)}
    model = build_transformer(cfg, weights)
    return dataclasses.replace(
        make_checkpoint(model, sp, f"(format {manifest['format']})"), **options
    )


def make_checkpoint(
    model: EncoderDecoder, sp: spm.SentencePieceProcessor, version: str = ""
) -> Checkpoint:
    """Build the checkpoint of a model with one sentencepiece model for both sides.

    Args:
        model: the model.
        sp: the sentencepiece model.
        version: version for the model summary.
    """
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
        banned_ids=(sp.pad_id(), sp.bos_id()),
        version=version,
        lowercase_all_caps=True,  # subwords are cased: uppercase words would be split into letters
    )


def _read_options(manifest: dict[str, Any]) -> dict[str, Any]:
    """Read the optional entries as fields of a Checkpoint.

    Raises:
        ValueError, TypeError: for invalid values.
    """
    unknown, confidence = UnknownPolicy(), None
    if manifest.get("unknown") is not None:
        entries = {"names": [], "numbers": [], "words": {}, "rare": "", **manifest["unknown"]}
        names, numbers, words = (entries.pop(name) or {} for name in ("names", "numbers", "words"))
        unknown = UnknownPolicy(
            names=tuple(names), numbers=tuple(numbers), words=dict(words), **entries
        )
        placeholders = (*unknown.names, *unknown.numbers, *words, *unknown.words.values())
        if isinstance(names, str) or not all(map(is_one_word, placeholders)):
            raise ValueError("unknown.names, .numbers and .words must be lists of words")
        if unknown.rule not in get_args(UnknownRule) or not isinstance(unknown.rare, str):
            rules = ", ".join(get_args(UnknownRule))
            raise ValueError(f"unknown.rule must be one of {rules}; unknown.rare must be a string")
    if manifest.get("confidence") is not None:
        confidence = Confidence(**manifest["confidence"])
        curve = dataclasses.astuple(confidence)
        is_finite = {*map(type, curve)} <= {int, float} and all(map(math.isfinite, curve))
        if not is_finite or confidence.per_nat <= 0:
            raise ValueError("confidence must have finite numbers and per_nat above 0")
    split_longer = manifest.get("split_longer", 0)
    if type(split_longer) is not int or split_longer < 0:
        raise ValueError("split_longer must be an integer of at least 0")
    codes = manifest.get("languages", ["", ""])
    if not isinstance(codes, list) or [*map(type, codes)] != [str, str]:
        raise ValueError("languages must be a list of two codes")
    pair = LanguagePair(*codes)
    return dict(
        unknown=unknown, confidence=confidence, split_longer=split_longer, language_pair=pair
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format"]
        if version not in FORMATS.values():
            known = " and ".join(FORMATS.values())
            raise CheckpointError(
                f"{path}: format {format_value(version)} is not supported (supported: {known})"
            )
        if not isinstance(manifest["files"], dict):
            raise TypeError("files")
        has_files = set(manifest["files"]) == {WEIGHTS, SENTENCEPIECE}
        if manifest["sha256"] != _checksum(manifest) or not has_files:
            raise CheckpointError(f"{path}: checksum mismatch: the file is damaged")
    except MALFORMED as error:
        raise CheckpointError(f"{path}: not a model manifest: {error!r:.100}") from None
    return manifest


def _serialize_manifest(manifest: dict[str, Any]) -> bytes:
    """Serialize the manifest as JSON with its checksum."""
    sealed = manifest | {"sha256": _checksum(manifest)}
    return (json.dumps(sealed, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def _checksum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# -- 8-bit quantization with one scale per row: weight = integer * scale ---------------------------

MAX_INTEGER = 127
SCALE = ".scale"  # suffix to the name of the matrix
# Clipping thresholds to try, relative to the largest absolute weight of a row
CLIPPING_RATIOS = torch.linspace(1.0, 0.6, 9)


def quantize(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Quantize matrices to int8 (rows, columns) with float16 scales (rows,).

    Tensors of other ranks become float16.
    """
    quantized = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            quantized[name], quantized[name + SCALE] = quantize_rows(tensor.float())
        else:
            quantized[name] = tensor.half()
    return quantized


def quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row with the clipping ratio that minimizes the squared error.

    Args:
        matrix: float (rows, columns).

    Returns:
        int8 (rows, columns) and float16 scales (rows,).
    """
    largest = matrix.abs().amax(1)  # (rows,)
    best_error = torch.full_like(largest, torch.inf)
    integers, scales = torch.zeros_like(matrix), torch.ones_like(largest)
    for ratio in CLIPPING_RATIOS:
        # The clamp avoids a scale of 0 for a row of zeros
        scale = (
            (largest * ratio / MAX_INTEGER).clamp(min=torch.finfo(torch.half).tiny).half().float()
        )
        rounded = (matrix / scale[:, None]).round().clamp(-MAX_INTEGER, MAX_INTEGER)
        error = (rounded * scale[:, None] - matrix).square().sum(1)
        is_better = error < best_error
        best_error = torch.where(is_better, error, best_error)
        integers = torch.where(is_better[:, None], rounded, integers)
        scales = torch.where(is_better, scale, scales)
    return integers.to(torch.int8), scales.half()


# -- Table models ----------------------------------------------------------------------------------

TABLE_FORMAT = "onmt_lite-table-1"


def _load_table(path: Path) -> Checkpoint:
    try:
        table = json.loads(path.read_bytes())
        if table["format"] != TABLE_FORMAT:
            raise ValueError(f"format {format_value(table['format'])} is not {TABLE_FORMAT!r}")
        vocab = check_tokens(table["vocab"], path)
        sources = {name: _read_source(name, s, len(vocab)) for name, s in table["sources"].items()}
        if not sources:
            raise ValueError("sources is empty")
    except (*MALFORMED, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        is_config = path.name in (MANIFEST, "config.json")
        remedy = (
            f"use the directory {path.parent}" if is_config else "use the file of a table model"
        )
        raise CheckpointError(f"{path}: not a table model: {reason}; {remedy}") from None
    return Checkpoint(
        TableModel(list(sources.values()), len(vocab)),
        src_vocab=Vocab(list(sources)),
        tgt_vocab=Vocab(vocab, eos_id=0),
        tokenizers={"space": SpaceTokenizer()},
        start_id=-1,  # not in the vocabulary
        version=f"(format {TABLE_FORMAT})",
    )


def _read_source(name: str, source: dict[str, Any], vocab_size: int) -> TableSource:
    length = source["length"]
    if type(length) is not int or length < 1:
        raise ValueError(f"source {name}: length {format_value(length)} is not a positive integer")
    uniform = [1 / length] * length
    return TableSource(
        length,
        {key: _read_floats(row, vocab_size) for key, row in source["rows"].items()},
        _read_floats(source["default"], vocab_size),
        {key: _read_floats(row, length) for key, row in source.get("attn", {}).items()},
        _read_floats(source.get("attn_default", uniform), length),
    )


def _read_floats(row: Any, n: int) -> list[float]:
    if not isinstance(row, list) or len(row) != n or not {*map(type, row)} <= {int, float}:
        raise ValueError(f"{str(row)[:50]} is not a list of {n} numbers")
    return [float(x) for x in row]
