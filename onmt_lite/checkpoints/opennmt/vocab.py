"""Vocabularies in checkpoints of OpenNMT-py.

Version 3 keeps lists of tokens.  Older versions keep torchtext fields, nested in several ways; the
tokens are in the attribute `itos` (index to string) of an object in them.
"""

from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.description import checked_tokens
from onmt_lite.checkpoints.pickled import Record
from onmt_lite.errors import CheckpointError
from onmt_lite.text.vocab import Vocab

PAD, BOS, EOS, UNK = "<blank>", "<s>", "</s>", "<unk>"
SPECIAL = dict(pad=PAD, bos=BOS, eos=EOS, unk=UNK)
# The tables with a row for each token, in models of every kind
EMBEDDINGS = {side: f"{side}.embeddings.make_embedding" for side in ("encoder", "decoder")}
SRC, TGT = (f"{name}.emb_luts.0.weight" for name in EMBEDDINGS.values())


def read_vocabularies(stored: Any, path: Path) -> tuple[Vocab, Vocab, int]:
    """Read the source and target vocabulary, and the id that starts the decoder."""
    if isinstance(stored, list):  # 0.x: pairs of name and vocabulary
        stored = {p[0]: p[1] for p in stored if _is_pair(p) and isinstance(p[0], str)}
    if not isinstance(stored, dict) or not {"src", "tgt"} <= set(stored):
        raise CheckpointError(f"{path}: it holds no vocabularies 'src' and 'tgt'")
    if stored.get("src_feats"):
        raise CheckpointError(f"{path}: OpenNMT-py: a model with word features, which is not read")
    src, tgt = (
        Vocab.named(checked_tokens(_find_tokens(stored[side], path), path), **SPECIAL)
        for side in ("src", "tgt")
    )
    start = stored.get("decoder_start_token", BOS)
    if not isinstance(start, str) or start not in tgt.ids:
        raise CheckpointError(f"{path}: its target vocabulary lacks the start token")
    if tgt.eos_id is None:
        raise CheckpointError(f"{path}: its target vocabulary lacks the end token {EOS}")
    return src, tgt, tgt.ids[start]


def _find_tokens(stored: Any, path: Path) -> list[str]:
    """Find the list of tokens in a list, a Vocab, a Field, a TextMultiField or a list of pairs."""
    for _ in range(8):  # deeper than any version holds it
        if isinstance(stored, list) and stored and isinstance(stored[0], str):
            return stored
        if isinstance(stored, list):
            if len(stored) != 1 and all(map(_is_pair, stored)):
                raise CheckpointError(
                    f"{path}: OpenNMT-py: a model with word features, which is not read"
                )
            stored = stored[0][1] if stored and _is_pair(stored[0]) else None
        elif isinstance(stored, Record):
            names = ("itos", "vocab", "fields")
            stored = next((stored.get(n) for n in names if stored.get(n) is not None), None)
    raise CheckpointError(f"{path}: a vocabulary is stored in a way that is not known")


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2
