"""Sentencepiece models that may use only some of their pieces, or made of a `tokenizer.json`.

The command spm_encode calls the first vocabulary restriction; the Python package lacks it, so the
model is changed instead.  A model is a protocol buffer: field 1, repeated, is a piece, whose field
1 is the text, field 2 the score and field 3 the type.  Of a field that comes twice, the last one
counts.
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


def restrict_vocabulary(model: bytes, known: set[str]) -> bytes:
    """Mark all pieces as unused but those in `known` and single characters."""
    parts = []
    for number, value, whole in _fields(model):
        body = value if number == PIECE and isinstance(value, bytes) else b""
        if match := FIELDS_OF_PIECE.fullmatch(body):
            piece, kind = match[2].decode("utf-8"), match[4] or bytes([NORMAL])
            if kind == bytes([NORMAL]) and len(piece) > 1 and piece not in known:
                whole = _message(PIECE, match[0] + MARK_UNUSED)
        parts.append(whole)
    return b"".join(parts)


def check_model(model: bytes) -> None:
    """Raise ValueError for what no writer of sentencepiece models makes.

    The library passes over fields that it does not know, such as a damaged score, and takes
    defaults for those that are cut off.
    """
    there = set()
    for number, value in _checked_fields(model, MODEL_FIELDS):
        there.add(number)
        if number in (NORMALIZER, DENORMALIZER):
            list(_checked_fields(value, NORMALIZER_FIELDS))
        if number != PIECE:
            continue
        match = FIELDS_OF_PIECE.fullmatch(value)
        if match is None:
            raise ValueError("a piece with other fields than text, score and type")
        size, text, score = match[1], match[2], match[3]
        if len(text) != size[0] % 128 + 128 * (size[1] if len(size) > 1 else 0):
            raise ValueError("a piece whose text has another length")
        if score is not None and not abs(struct.unpack("<f", score)[0]) < MAX_SCORE:
            raise ValueError("a piece without a score")
        text.decode("utf-8")
    if not there >= {PIECE, TRAINER, NORMALIZER}:
        raise ValueError("cut off")


def _checked_fields(data: bytes, known: dict[int, type]) -> Iterator[tuple[int, Any]]:
    for number, value, _ in _fields(data):
        if type(value) is not known.get(number):
            raise ValueError(f"a field of number {number}")
        yield number, value


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


# -- tokenizer.json of Hugging Face: only what was made from a sentencepiece model is read ---------


# The names that the package tokenizers writes; another one is damage that would pass unseen
NAMES = {
    *"version truncation padding added_tokens normalizer pre_tokenizer post_processor".split(),
    *"decoder model type unk_id vocab byte_fallback dropout unk_token merges fuse_unk".split(),
    *"continuing_subword_prefix end_of_word_suffix ignore_merges id content single_word".split(),
    *"lstrip rstrip normalized special normalizers pretokenizers precompiled_charsmap".split(),
    *"pattern strip_left strip_right replacement add_prefix_space prepend_scheme".split(),
    *"str_rep split".split(),
}
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
SPACER = "▁"


def convert_tokenizer_json(table: dict[str, Any], unk_token: str, path: Path) -> bytes:
    """The model as a protocol buffer.

    unk_token: the token of unknown characters, which the file itself can have wrong.
    CheckpointError where the tokenizer does what sentencepiece cannot.
    """
    try:
        _check_names(table)
        model = table["model"]
        kind = model.get("type", "BPE" if "merges" in model else None)
        if kind not in MODEL_TYPES:
            raise ValueError(f"its model is {_short(kind)}; read are {', '.join(MODEL_TYPES)}")
        _check_names(model)
        charsmap = _charsmap(table["normalizer"])
        prefix = _dummy_prefix(table["pre_tokenizer"])
        scores = _unigram_scores(model) if kind == "Unigram" else _bpe_scores(model)
        by_id = _by_id(scores, table["added_tokens"], unk_token)
        parts = []
        for text, score, type_ in by_id:
            fields = bytes([SCORE << 3 | 5]) + struct.pack("<f", score) + _number(TYPE, type_)
            parts.append(_message(PIECE, _message(TEXT, text.encode("utf-8")), fields))
        by_bytes = any(type_ == BYTE for _, _, type_ in by_id)
        trainer = _number(MODEL_TYPE, MODEL_TYPES[kind]), _number(BYTE_FALLBACK, by_bytes)
        normalizer = _message(CHARSMAP, charsmap), _number(DUMMY_PREFIX, prefix)
        return b"".join([*parts, _message(TRAINER, *trainer), _message(NORMALIZER, *normalizer)])
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(f"{path}: not a tokenizer of Hugging Face") from None


def _by_id(
    scores: list[tuple[str, int, float]], added: list[Any], unk_token: str
) -> list[tuple[str, float, int]]:
    """(text, score, type) of all ids.  ValueError where ids have a hole or are there twice."""
    by_id: dict[int, tuple[str, float, int]] = {}
    n_bytes = sum(text.startswith("<0x") for text, _, _ in scores)
    by_bytes = sum(bool(BYTE_PIECE.fullmatch(text)) for text, _, _ in scores) == 256
    if n_bytes > 2 and not by_bytes:
        raise ValueError(f"it has {n_bytes} pieces of a byte, not 256")
    for text, i, score in scores:
        plain = BYTE if by_bytes and BYTE_PIECE.fullmatch(text) else NORMAL
        by_id[i] = (text, score, UNKNOWN if text == unk_token else plain)
    for token in added:
        _check_names(token)
        text, i = token["content"], token["id"]
        if type(text) is not str:
            raise ValueError("an added token without a text")
        if by_id.get(i, (text,))[0] != text or type(i) is not int:
            raise ValueError(f"the added token {text[:50]!r} has the id of another one")
        if type(token.get("special")) is not bool:
            raise ValueError(f"the added token {text[:50]!r} is neither special nor a word")
        kind = CONTROL if token["special"] else USER_DEFINED
        by_id[i] = (text, 0.0, UNKNOWN if text == unk_token else kind)
    n = len(by_id)
    if set(by_id) != set(range(n)) or len({text for text, _, _ in by_id.values()}) != n:
        raise ValueError("its tokens do not have the ids 0, 1, ... once each")
    if sum(kind == UNKNOWN for _, _, kind in by_id.values()) != 1:
        raise ValueError(f"it has no token {unk_token[:50]!r} for unknown characters")
    return [by_id[i] for i in range(n)]


def _unigram_scores(model: dict[str, Any]) -> list[tuple[str, int, float]]:
    found = []
    for i, (text, score) in enumerate(model["vocab"]):
        known = type(text) is str and type(score) in (int, float)
        if not known or not abs(score) < MAX_SCORE:
            raise ValueError("a piece without a text or a score")
        found.append((text, i, float(score)))
    return found


def _bpe_scores(model: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Scores by the rank of the first merge that makes a piece; other pieces are never merged."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges"):
        if model.get(name):
            raise ValueError(f"its model has {name}, which is not read")
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        a, b = merge.split(" ") if isinstance(merge, str) else merge
        if not {a, b, a + b} <= model["vocab"].keys():
            raise ValueError(f"merge {rank + 1} is of a piece that the vocabulary lacks")
        ranks.setdefault(a + b, rank)
    last = len(ranks) + len(model["merges"])
    return [
        (text, i, -float(ranks.get(text, last)))
        for text, i in model["vocab"].items()
        if type(i) is int
    ]


def _parts(step: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a sequence, or the only one, or none."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for inner in step[name] for part in _parts(inner, name)]
    return [step]


def _charsmap(normalizer: Any) -> bytes:
    """The table by which characters are normalised.  The other steps do what sentencepiece does:
    they strip lines and make one blank of several."""
    charsmap = b""
    for step in _parts(normalizer, "normalizers"):
        kind = step.get("type")
        if kind == "Precompiled" and not charsmap:
            try:
                charsmap = base64.b64decode(step["precompiled_charsmap"] or "", validate=True)
            except binascii.Error:
                raise ValueError("its precompiled_charsmap is not base64") from None
        elif kind == "Replace":
            blanks = step.get("pattern") in ({"Regex": " {2,}"}, {"String": " "})
            if not blanks or step.get("content") not in (SPACER, " "):
                raise ValueError("its normalizer replaces more than blanks, which is not read")
        elif kind != "Strip":
            raise ValueError(f"its normalizer has {_short(kind)}, which is not read")
        _check_names(step)
    return charsmap


def _dummy_prefix(pre_tokenizer: Any) -> bool:
    """Whether a line begins as if a blank stood before it."""
    prefix = False
    for step in _parts(pre_tokenizer, "pretokenizers"):
        kind = step.get("type")
        if kind == "Metaspace" and step.get("replacement", SPACER) == SPACER:
            scheme = "always" if step.get("add_prefix_space", True) else "never"
            prefix = step.get("prepend_scheme", scheme) != "never"
        elif kind != "WhitespaceSplit":
            raise ValueError(f"its pre_tokenizer is {_short(kind)}, which is not read")
        _check_names(step)
    return prefix


def _check_names(table: dict[str, Any]) -> None:
    """Raise ValueError for a name that the package does not write."""
    if unknown := table.keys() - NAMES:
        raise ValueError(f"{min(unknown)[:50]!r} is not known")


def _short(kind: Any) -> str:
    return kind[:50] if isinstance(kind, str) else "of no kind"
