"""Edits and builds serialized sentencepiece models (`ModelProto`).

sentencepiece's Python package does not support vocabulary restriction (`spm_encode --vocabulary`),
so the model itself is edited. A Hugging Face `tokenizer.json` that was converted from a
sentencepiece model is converted back.

The model is a protocol buffer. The repeated field 1 is a subword with the fields text (1), score
(2) and type (3). If a field occurs twice, the last occurrence counts.
"""

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onmt_lite.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNUSED_TYPE = bytes([3 << 3, UNUSED])  # field 3, a varint
PIECE, TEXT, SCORE, TYPE = 1, 1, 2, 3  # field of the model, fields of a subword
# Fields of the model, each followed by its own fields that are used here
TRAINER, MODEL_TYPE, BYTE_FALLBACK = 2, 3, 35
NORMALIZER, CHARSMAP, DUMMY_PREFIX = 3, 2, 3
DENORMALIZER = 5
MODEL_TYPES = {"Unigram": 1, "BPE": 2}

# A subword as serialized by all writers: text, score, type
SUBWORD_FIELDS = re.compile(
    rb"\n([\x01-\x7f]|[\x80-\xff][\x01-\x7f])(.+?)(?:\x15(.{4}))?(?:\x18([\x01-\x06]))?", re.S
)
MAX_SCORE = 1e8
# Python types by field number, for the model and for its normalizer
MODEL_FIELDS: dict[int, type] = dict.fromkeys(range(1, 6), bytes)
NORMALIZER_FIELDS = {1: bytes, 2: bytes, 3: int, 4: int, 5: int, 6: bytes}

Field = tuple[int, int | bytes, bytes]  # number, value, serialized field


def restrict_vocabulary(model: bytes, subwords: set[str]) -> bytes:
    """Mark all subwords as unused except `subwords` and single characters."""
    fields = []
    for number, value, serialized in _parse_fields(model):
        body = value if number == PIECE and isinstance(value, bytes) else b""
        if match := SUBWORD_FIELDS.fullmatch(body):
            subword, subword_type = match[2].decode("utf-8"), match[4] or bytes([NORMAL])
            if subword_type == bytes([NORMAL]) and len(subword) > 1 and subword not in subwords:
                serialized = _encode_message(PIECE, match[0] + UNUSED_TYPE)
        fields.append(serialized)
    return b"".join(fields)


def check_model(model: bytes) -> None:
    """Raise ValueError if a sentencepiece model is damaged.

    The library itself skips unknown fields, such as a damaged score, and uses defaults for missing
    fields.
    """
    numbers = set()
    for number, value in _parse_known_fields(model, MODEL_FIELDS):
        numbers.add(number)
        if number in (NORMALIZER, DENORMALIZER):
            list(_parse_known_fields(value, NORMALIZER_FIELDS))
        if number != PIECE:
            continue
        match = SUBWORD_FIELDS.fullmatch(value)
        if match is None:
            raise ValueError("a subword has fields other than text, score and type")
        size, text, score = match[1], match[2], match[3]
        if len(text) != size[0] % 128 + 128 * (size[1] if len(size) > 1 else 0):
            raise ValueError("a subword does not have its declared length")
        if score is not None and not abs(struct.unpack("<f", score)[0]) < MAX_SCORE:
            raise ValueError("a subword has an invalid score")
        text.decode("utf-8")
    if not numbers >= {PIECE, TRAINER, NORMALIZER}:
        raise ValueError("it is truncated")


def _parse_known_fields(data: bytes, types: dict[int, type]) -> Iterator[tuple[int, Any]]:
    for number, value, _ in _parse_fields(data):
        if type(value) is not types.get(number):
            raise ValueError(f"unexpected field {number}")
        yield number, value


def _encode_message(number: int, *body: bytes) -> bytes:
    data = b"".join(body)
    return _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data


def _encode_int(number: int, value: int) -> bytes:
    return _encode_varint(number << 3) + _encode_varint(value)


def _parse_fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in order; values are integers or bytes."""
    at = 0
    while at < len(data):
        start = at
        key, at = _read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        n, at = _read_varint(data, at)
        value: int | bytes = n
        if wire_type == 2:  # n is a length in bytes
            value, at = data[at : at + n], at + n
        elif wire_type != 0:
            raise ValueError(f"unexpected wire type {wire_type}")
        if at > len(data):
            raise ValueError("it is truncated")
        yield number, value, data[start:at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint (seven bits per byte, lowest first); return the integer and the end offset."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise ValueError("it is truncated")
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a varint is longer than ten bytes")


def _encode_varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _encode_varint(rest) if rest else bytes([low])


# -- tokenizer.json of Hugging Face, if it was converted from a sentencepiece model ----------------

# All keys that the tokenizers package writes; a misspelled key must not be ignored
KEYS = {
    *"version truncation padding added_tokens normalizer pre_tokenizer post_processor".split(),
    *"decoder model type unk_id vocab byte_fallback dropout unk_token merges fuse_unk".split(),
    *"continuing_subword_prefix end_of_word_suffix ignore_merges id content single_word".split(),
    *"lstrip rstrip normalized special normalizers pretokenizers precompiled_charsmap".split(),
    *"pattern strip_left strip_right replacement add_prefix_space prepend_scheme".split(),
    *"str_rep split".split(),
}
BYTE_SUBWORD = re.compile("<0x[0-9A-F]{2}>")
SPACER = "▁"


def convert_tokenizer_json(tokenizer: dict[str, Any], unk_token: str, path: Path) -> bytes:
    """Convert a tokenizer.json to a serialized sentencepiece model.

    Args:
        tokenizer: the parsed file.
        unk_token: token of unknown characters; the entry in the file can be wrong.
        path: the file, for error messages.

    Raises:
        CheckpointError: if the tokenizer has features that sentencepiece lacks, or is damaged.
    """
    try:
        _check_keys(tokenizer)
        model = tokenizer["model"]
        model_type = model.get("type", "BPE" if "merges" in model else None)
        if model_type not in MODEL_TYPES:
            raise ValueError(
                f"model type {_shorten(model_type)} is not supported "
                f"(supported: {', '.join(MODEL_TYPES)})"
            )
        _check_keys(model)
        charsmap = _read_charsmap(tokenizer["normalizer"])
        prefix = _adds_dummy_prefix(tokenizer["pre_tokenizer"])
        read_scores = _read_unigram_scores if model_type == "Unigram" else _compute_bpe_scores
        subwords = _merge_added_tokens(read_scores(model), tokenizer["added_tokens"], unk_token)
        fields = []
        for text, score, type_ in subwords:
            body = bytes([SCORE << 3 | 5]) + struct.pack("<f", score) + _encode_int(TYPE, type_)
            fields.append(_encode_message(PIECE, _encode_message(TEXT, text.encode("utf-8")), body))
        has_bytes = any(type_ == BYTE for _, _, type_ in subwords)
        trainer = (
            _encode_int(MODEL_TYPE, MODEL_TYPES[model_type]),
            _encode_int(BYTE_FALLBACK, has_bytes),
        )
        normalizer = _encode_message(CHARSMAP, charsmap), _encode_int(DUMMY_PREFIX, prefix)
        fields += [_encode_message(TRAINER, *trainer), _encode_message(NORMALIZER, *normalizer)]
        return b"".join(fields)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(f"{path}: not a Hugging Face tokenizer") from None


def _merge_added_tokens(
    scores: list[tuple[str, int, float]], added_tokens: list[Any], unk_token: str
) -> list[tuple[str, float, int]]:
    """Merge the model's subwords and the added tokens.

    Args:
        scores: (text, ID, score) of each subword.
        added_tokens: the entry `added_tokens` of the file.
        unk_token: token of unknown characters.

    Returns:
        (text, score, type) by ID.

    Raises:
        ValueError: if an ID or a token is missing, duplicate or invalid.
    """
    by_id: dict[int, tuple[str, float, int]] = {}
    n_bytes = sum(text.startswith("<0x") for text, _, _ in scores)
    has_bytes = sum(bool(BYTE_SUBWORD.fullmatch(text)) for text, _, _ in scores) == 256
    if n_bytes > 2 and not has_bytes:
        raise ValueError(f"the vocabulary has {n_bytes} byte tokens instead of 256")
    for text, i, score in scores:
        type_ = BYTE if has_bytes and BYTE_SUBWORD.fullmatch(text) else NORMAL
        by_id[i] = (text, score, UNKNOWN if text == unk_token else type_)
    for token in added_tokens:
        _check_keys(token)
        text, i = token["content"], token["id"]
        if type(text) is not str:
            raise ValueError("content of an added token must be a string")
        if by_id.get(i, (text,))[0] != text or type(i) is not int:
            raise ValueError(f"added token {text[:50]!r} has the ID of another token")
        if type(token.get("special")) is not bool:
            raise ValueError(f"added token {text[:50]!r}: special must be true or false")
        type_ = CONTROL if token["special"] else USER_DEFINED
        by_id[i] = (text, 0.0, UNKNOWN if text == unk_token else type_)
    n = len(by_id)
    if set(by_id) != set(range(n)) or len({text for text, _, _ in by_id.values()}) != n:
        raise ValueError("token IDs must be 0, 1, ... without gaps or duplicates")
    if sum(type_ == UNKNOWN for _, _, type_ in by_id.values()) != 1:
        raise ValueError(f"the vocabulary must have one unknown token {unk_token[:50]!r}")
    return [by_id[i] for i in range(n)]


def _read_unigram_scores(model: dict[str, Any]) -> list[tuple[str, int, float]]:
    scores = []
    for i, (text, score) in enumerate(model["vocab"]):
        is_valid = type(text) is str and type(score) in (int, float)
        if not is_valid or not abs(score) < MAX_SCORE:
            raise ValueError(f"subword {i} does not have a valid text and score")
        scores.append((text, i, float(score)))
    return scores


def _compute_bpe_scores(model: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Score each subword by the rank of the first merge that produces it.

    Subwords that no merge produces get the lowest score, so they are never merged.
    """
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges"):
        if model.get(name):
            raise ValueError(f"{name} is not supported")
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if not {left, right, left + right} <= model["vocab"].keys():
            raise ValueError(f"the vocabulary lacks a subword of merge {rank + 1}")
        ranks.setdefault(left + right, rank)
    lowest = len(ranks) + len(model["merges"])
    return [
        (text, i, -float(ranks.get(text, lowest)))
        for text, i in model["vocab"].items()
        if type(i) is int
    ]


def _flatten_steps(step: Any, key: str) -> list[dict[str, Any]]:
    """List the steps of a (possibly nested) sequence; none for null.

    Args:
        step: a normalizer or pre-tokenizer.
        key: key of the steps in a sequence.
    """
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [flat for inner in step[key] for flat in _flatten_steps(inner, key)]
    return [step]


def _read_charsmap(normalizer: Any) -> bytes:
    """Return the character normalization table.

    Further steps (stripping lines and collapsing spaces) are built into sentencepiece.
    """
    charsmap = b""
    for step in _flatten_steps(normalizer, "normalizers"):
        step_type = step.get("type")
        if step_type == "Precompiled" and not charsmap:
            try:
                charsmap = base64.b64decode(step["precompiled_charsmap"] or "", validate=True)
            except binascii.Error:
                raise ValueError("precompiled_charsmap is not base64") from None
        elif step_type == "Replace":
            is_space = step.get("pattern") in ({"Regex": " {2,}"}, {"String": " "})
            if not is_space or step.get("content") not in (SPACER, " "):
                raise ValueError("a normalizer that replaces non-spaces is not supported")
        elif step_type != "Strip":
            raise ValueError(f"normalizer {_shorten(step_type)} is not supported")
        _check_keys(step)
    return charsmap


def _adds_dummy_prefix(pre_tokenizer: Any) -> bool:
    """Return True if a space is prepended to each line."""
    prefix = False
    for step in _flatten_steps(pre_tokenizer, "pretokenizers"):
        step_type = step.get("type")
        if step_type == "Metaspace" and step.get("replacement", SPACER) == SPACER:
            scheme = "always" if step.get("add_prefix_space", True) else "never"
            prefix = step.get("prepend_scheme", scheme) != "never"
        elif step_type != "WhitespaceSplit":
            raise ValueError(f"pre_tokenizer {_shorten(step_type)} is not supported")
        _check_keys(step)
    return prefix


def _check_keys(values: dict[str, Any]) -> None:
    """Raise ValueError for a key that the tokenizers package does not write."""
    if unknown := values.keys() - KEYS:
        raise ValueError(f"unknown key {min(unknown)[:50]!r}")


def _shorten(name: Any) -> str:
    return name[:50] if isinstance(name, str) else "(none)"
