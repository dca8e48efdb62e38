"""Turns a `tokenizer.json` of Hugging Face into the sentencepiece model that says the same.

Only tokenizers that were made from a sentencepiece model are read; the ids are the file's own.
"""

import base64
import binascii
import re
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints import pieces
from onmt_lite.checkpoints.pieces import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from onmt_lite.errors import CheckpointError

# The names that the package tokenizers writes; another one is damage that would pass unseen
TOP = (
    "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model"
)
OF_MODEL = {
    "Unigram": "type unk_id vocab byte_fallback",
    "BPE": "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
    "byte_fallback ignore_merges vocab merges",
}
OF_ADDED = "id content single_word lstrip rstrip normalized special"
OF_STEP = {
    "Sequence": "type normalizers pretokenizers",
    "Precompiled": "type precompiled_charsmap",
    "Replace": "type pattern content",
    "Strip": "type strip_left strip_right",
    "Metaspace": "type replacement add_prefix_space prepend_scheme str_rep split",
    "WhitespaceSplit": "type",
}
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
SPACER = "▁"


def as_sentencepiece(table: dict[str, Any], unk_token: str, path: Path) -> bytes:
    """The model as a protocol buffer.

    unk_token: the token of unknown characters, which the file itself can have wrong.
    CheckpointError where the tokenizer does what sentencepiece cannot.
    """
    try:
        _only(table, TOP)
        model = table["model"]
        kind = model.get("type", "BPE" if "merges" in model else None)
        if kind not in pieces.MODEL_TYPES:
            raise ValueError(
                f"its model is {_short(kind)}; read are {', '.join(pieces.MODEL_TYPES)}"
            )
        _only(model, OF_MODEL[kind])
        charsmap = _charsmap(table["normalizer"])
        prefix = _dummy_prefix(table["pre_tokenizer"])
        scores = _unigram_scores(model) if kind == "Unigram" else _bpe_scores(model)
        by_id = _by_id(scores, table["added_tokens"], unk_token)
        return pieces.assembled(by_id, kind, charsmap, prefix)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(f"{path}: not a tokenizer of Hugging Face") from None


def _by_id(scores: list[tuple[str, int, float]], added: list[Any], unk_token: str) -> list[Any]:
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
        _only(token, OF_ADDED)
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
        if not known or not abs(score) < pieces.MAX_SCORE:
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
    kind = step["type"]
    if kind not in OF_STEP:
        raise ValueError(f"its {name.removesuffix('s')} has {_short(kind)}, which is not read")
    _only(step, OF_STEP[kind])
    if kind == "Sequence":
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
    return prefix


def _only(table: dict[str, Any], known: str) -> None:
    """ValueError where the table has a name that is not one of the known ones."""
    if unknown := table.keys() - {*known.split()}:
        raise ValueError(f"{min(unknown)[:50]!r} is not known")


def _short(kind: Any) -> str:
    return kind[:50] if isinstance(kind, str) else "of no kind"
