"""Formats of onmt_lite: directories of models, and table models.

A directory has `model.json`, `weights.safetensors` and `sentencepiece.model`.  `model.json` holds
the configuration and the SHA-256 of all files, `model.json` included: a directory loads as it was
written or is refused.  Four entries are optional: "unknown", the handling of unknown characters
(`onmt_lite.text.placeholders.Unknown`), "confidence", the curve from score to confidence
(`onmt_lite.checkpoints.checkpoint`), the default of "split_longer", and "languages", the codes of
source and target.  Further entries, such as older versions wrote, are not read.
`onmt_lite.models.table_model` describes a table model's file.
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

# By the bits of a matrix's weights; 8-bit weights are stored as `quantize` says
FORMATS = {16: "onmt_lite-model-1", 8: "onmt_lite-model-2"}
MALFORMED = (OSError, ValueError, KeyError, TypeError, RecursionError)  # JSON of another form
MANIFEST, WEIGHTS, SENTENCEPIECE = "model.json", "weights.safetensors", "sentencepiece.model"


def can_load(path: Path) -> bool:
    if not path.is_file():
        return (path / MANIFEST).is_file()
    with open(path, "rb") as f:
        return f.read(64).lstrip()[:1] == b"{"


def save(path: Path, model: Transformer, pieces: bytes, bits: int = 16) -> None:
    """Write a model into a directory, the manifest last.

    Raises FileError where that fails; an older model in the directory is then unchanged.
    """
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:  # a tied one has the first of its names
            seen.add(tensor.data_ptr())
            weights[name] = tensor
    weights = quantize(weights) if bits == 8 else {n: t.half() for n, t in weights.items()}
    files = {WEIGHTS: safetensors.dump(weights), SENTENCEPIECE: pieces}
    manifest: dict[str, Any] = {
        "format": FORMATS[bits],
        "config": dataclasses.asdict(model.cfg),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    files[MANIFEST] = _sealed(manifest)
    replace_files(path, files)


def update_manifest(
    path: Path,
    config: dict[str, Any],
    unknown: UnknownPolicy,
    confidence: Confidence | None,
    split_longer: int = 0,
    pair: Sequence[str] = (),
) -> None:
    """Update the description of a model: fields of `config`, and the optional entries."""
    manifest = _read_manifest(path / MANIFEST)
    manifest["config"] |= config
    manifest["unknown"] = dataclasses.asdict(unknown)
    manifest["confidence"] = None if confidence is None else dataclasses.asdict(confidence)
    manifest["split_longer"] = split_longer
    if any(pair):
        manifest["languages"] = list(pair)
    replace_files(path, {MANIFEST: _sealed(manifest)})


def load(path: Path) -> Checkpoint:
    """CheckpointError unless a directory is exactly as `save` wrote it, or a file a table model."""
    if path.is_file():
        return _load_table(path)
    manifest = _read_manifest(path / MANIFEST)
    files = {}
    for name, digest in manifest["files"].items():
        try:
            files[name] = (path / name).read_bytes()
        except OSError as error:
            reason = f"{error.strerror}; the model is incomplete"
            raise CheckpointError(f"{path / name}: {reason}") from None
        if hashlib.sha256(files[name]).hexdigest() != digest:
            reason = "damaged or not of this model: checksum mismatch"
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
        banned_ids=(sp.pad_id(), sp.bos_id()),
        version=version,
        lowercase_all_caps=True,  # pieces are cased: words in capitals become single letters
    )


def _read_options(manifest: dict[str, Any]) -> dict[str, Any]:
    """The optional entries.  Raises ValueError or TypeError for values that cannot be used."""
    unknown, confidence = UnknownPolicy(), None
    if manifest.get("unknown") is not None:
        entries = {"names": [], "numbers": [], "words": {}, "rare": "", **manifest["unknown"]}
        names, numbers, words = (entries.pop(name) or {} for name in ("names", "numbers", "words"))
        unknown = UnknownPolicy(
            names=tuple(names), numbers=tuple(numbers), words=dict(words), **entries
        )
        stand_ins = (*unknown.names, *unknown.numbers, *words, *unknown.words.values())
        if isinstance(names, str) or not all(map(is_one_word, stand_ins)):
            raise ValueError("unknown: names, numbers or words are none")
        if unknown.rule not in get_args(UnknownRule) or not isinstance(unknown.rare, str):
            raise ValueError("unknown: rule or rare is none")
    if manifest.get("confidence") is not None:
        confidence = Confidence(**manifest["confidence"])
        curve = dataclasses.astuple(confidence)
        numbers = {*map(type, curve)} <= {int, float} and all(map(math.isfinite, curve))
        if not numbers or confidence.per_nat <= 0:
            raise ValueError("confidence: at_zero, per_nat and per_log_token are no rising curve")
    split_longer = manifest.get("split_longer", 0)
    if type(split_longer) is not int or split_longer < 0:
        raise ValueError("split_longer is below 0 or no number")
    codes = manifest.get("languages", ["", ""])
    if not isinstance(codes, list) or [*map(type, codes)] != [str, str]:
        raise ValueError("languages are not two codes")
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
                f"{path}: format {format_value(version)}, this version reads {known}"
            )
        if not isinstance(manifest["files"], dict):
            raise TypeError("files")
        if manifest["sha256"] != _checksum(manifest) or set(manifest["files"]) != {
            WEIGHTS,
            SENTENCEPIECE,
        }:
            raise CheckpointError(f"{path}: damaged: its checksum does not fit its contents")
    except MALFORMED as error:
        raise CheckpointError(f"{path}: not a model description: {error!r:.100}") from None
    return manifest


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest as JSON, with its checksum."""
    sealed = manifest | {"sha256": _checksum(manifest)}
    return (json.dumps(sealed, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def _checksum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# -- Matrices as 8-bit integers with one scale a row: weight = integer * scale of the row ----------

LARGEST = 127
SCALE = ".scale"  # behind the name of the matrix
CLIPPINGS = torch.linspace(1.0, 0.6, 9)  # of a row's largest weight, tried one by one


def quantize(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store matrices as int8 (rows, columns) and float16 scales (rows,), the rest as float16."""
    packed = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            packed[name], packed[name + SCALE] = quantize_rows(tensor.float())
        else:
            packed[name] = tensor.half()
    return packed


def quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Integers (rows, columns) and scales (rows,) with the least squared error of all CLIPPINGS."""
    largest = matrix.abs().amax(1)
    best_error = torch.full_like(largest, torch.inf)
    integers, scales = torch.zeros_like(matrix), torch.ones_like(largest)
    for share in CLIPPINGS:
        # A row of zeros has the smallest scale
        scale = (largest * share / LARGEST).clamp(min=torch.finfo(torch.half).tiny).half().float()
        rounded = (matrix / scale[:, None]).round().clamp(-LARGEST, LARGEST)
        error = (rounded * scale[:, None] - matrix).square().sum(1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        integers = torch.where(better[:, None], rounded, integers)
        scales = torch.where(better, scale, scales)
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
            raise ValueError("needs a source")
    except (*MALFORMED, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        is_part = path.name in (MANIFEST, "config.json")
        remedy = f"give the directory {path.parent}" if is_part else "give a table model's file"
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
        raise ValueError(
            f"source {name}: length {format_value(length)} is not a positive whole number"
        )
    uniform = [1 / length] * length
    return TableSource(
        length,
        {key: _numbers(row, vocab_size) for key, row in source["rows"].items()},
        _numbers(source["default"], vocab_size),
        {key: _numbers(row, length) for key, row in source.get("attn", {}).items()},
        _numbers(source.get("attn_default", uniform), length),
    )


def _numbers(row: Any, n: int) -> list[float]:
    if not isinstance(row, list) or len(row) != n or not {*map(type, row)} <= {int, float}:
        raise ValueError(f"{str(row)[:50]} is not a list of {n} numbers")
    return [float(x) for x in row]
