"""Sentencepiece models that may use only some of their pieces, or that are made of a list.

The command spm_encode calls the first vocabulary restriction; the Python package lacks it, so the
model is changed instead.  A model is a protocol buffer: field 1, repeated, is a piece, whose field
1 is the text, field 2 the score and field 3 the type.  Of a field that comes twice, the last one
counts.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK_UNUSED = bytes([3 << 3, UNUSED])  # field 3, a number
PIECE, TEXT, SCORE, TYPE = 1, 1, 2, 3
# Of the whole model, what trained it (2) and how lines are prepared (3), with fields of their own
TRAINER, MODEL_TYPE, BYTE_FALLBACK = 2, 3, 35
NORMALIZER, CHARSMAP, DUMMY_PREFIX = 3, 2, 3
DENORMALIZER = 5
MODEL_TYPES = {"Unigram": 1, "BPE": 2}

# The fields of a piece as every writer orders them: text, score, type
FIELDS_OF_PIECE = re.compile(
    rb"\n([\x01-\x7f]|[\x80-\xff][\x01-\x7f])(.+?)(?:\x15(.{4}))?(?:\x18([\x01-\x06]))?", re.S
)
MAX_SCORE = 1e8
# Fields of a model and of how lines are prepared, by number
MODEL_FIELDS: dict[int, type] = dict.fromkeys(range(1, 6), bytes)
NORMALIZER_FIELDS = {1: bytes, 2: bytes, 3: int, 4: int, 5: int, 6: bytes}

Field = tuple[int, int | bytes, bytes]  # number, value, all bytes


def restricted(model: bytes, known: set[str]) -> bytes:
    """Mark all pieces as unused but those in `known` and single characters.

    Raises ValueError where the bytes are not a sentencepiece model.
    """
    parts = []
    for number, value, whole in _fields(model):
        body = value if number == PIECE and isinstance(value, bytes) else b""
        if match := FIELDS_OF_PIECE.fullmatch(body):
            piece, kind = match[2].decode("utf-8"), match[4] or bytes([NORMAL])
            if kind == bytes([NORMAL]) and len(piece) > 1 and piece not in known:
                whole = _message(PIECE, match[0] + MARK_UNUSED)
        parts.append(whole)
    return b"".join(parts)


def check(model: bytes) -> None:
    """Raise ValueError for what no writer of sentencepiece models makes.

    The library passes over fields that it does not know, such as a damaged score, and takes
    defaults for those that are cut off.
    """
    there = set()
    for number, value in _checked_fields(model, MODEL_FIELDS):
        there.add(number)
        if number == PIECE:
            _check_piece(value)
        elif number in (NORMALIZER, DENORMALIZER):
            list(_checked_fields(value, NORMALIZER_FIELDS))
    if not there >= {PIECE, TRAINER, NORMALIZER}:
        raise ValueError("cut off")


def _checked_fields(data: bytes, known: dict[int, type]) -> Iterator[tuple[int, Any]]:
    for number, value, _ in _fields(data):
        if type(value) is not known.get(number):
            raise ValueError(f"a field of number {number}")
        yield number, value


def _check_piece(body: bytes) -> None:
    match = FIELDS_OF_PIECE.fullmatch(body)
    if match is None:
        raise ValueError("a piece with other fields than text, score and type")
    size, text, score = match[1], match[2], match[3]
    if len(text) != size[0] % 128 + 128 * (size[1] if len(size) > 1 else 0):
        raise ValueError("a piece whose text has another length")
    if score is not None and not abs(struct.unpack("<f", score)[0]) < MAX_SCORE:
        raise ValueError("a piece without a score")
    text.decode("utf-8")


def assembled(
    pieces: Iterable[tuple[str, float, int]], model_type: str, charsmap: bytes, dummy_prefix: bool
) -> bytes:
    """The model of these pieces, each with its score and its type, by id.

    model_type: Unigram or BPE; charsmap: how characters are normalised, b"" where they are not.
    """
    pieces = list(pieces)
    parts = [
        _message(
            PIECE,
            _message(TEXT, text.encode("utf-8")),
            bytes([SCORE << 3 | 5]) + struct.pack("<f", score),
            _number(TYPE, kind),
        )
        for text, score, kind in pieces
    ]
    by_bytes = any(kind == BYTE for _, _, kind in pieces)
    kind = _number(MODEL_TYPE, MODEL_TYPES[model_type])
    parts.append(_message(TRAINER, kind, _number(BYTE_FALLBACK, by_bytes)))
    prefix = _number(DUMMY_PREFIX, dummy_prefix)
    parts.append(_message(NORMALIZER, _message(CHARSMAP, charsmap), prefix))
    return b"".join(parts)


def _message(number: int, *body: bytes) -> bytes:
    data = b"".join(body)
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of a message, in order, each a number or bytes."""
    at = 0
    while at < len(data):
        start = at
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        n, at = _read_varint(data, at)
        value: int | bytes = n
        if wire == 2:  # so many bytes
            value, at = data[at : at + n], at + n
        elif wire != 0:
            raise ValueError(f"a field of wire type {wire}")
        if at > len(data):
            raise ValueError("cut off")
        yield number, value, data[start:at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number, seven bits to a byte, the lowest first.  Returns number and end offset."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise ValueError("cut off")
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])
