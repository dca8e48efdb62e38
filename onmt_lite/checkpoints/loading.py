"""Finds out what kind of model a path holds, and loads it, or an ensemble of several."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onmt_lite.checkpoints import fairseq, native
from onmt_lite.checkpoints import marian as marian_npz
from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair, Languages
from onmt_lite.checkpoints.config_reader import identify_by_magic, identify_by_name
from onmt_lite.checkpoints.ctranslate2 import reader as ctranslate2
from onmt_lite.checkpoints.hub import download_model
from onmt_lite.checkpoints.huggingface import reader as huggingface
from onmt_lite.checkpoints.huggingface.directory import LanguageCheck
from onmt_lite.checkpoints.opennmt import reader as opennmt
from onmt_lite.checkpoints.shipped import describe_missing_path, find_model
from onmt_lite.errors import CheckpointError, MemoryExhausted, Message, explain_os_error
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.models.threads import cpu_threads
from onmt_lite.search.spec import TokenRules
from onmt_lite.text.vocab import Vocab

ACCEPTED_PATHS = Message.of(
    "-{model} takes a model directory (ours, Marian, Hugging Face, CTranslate2, fairseq), a "
    ".pt file of OpenNMT-py or fairseq, a table model's .json file or TEAM/NAME of the Hugging "
    "Face hub",
    model="",
)
READERS = (native, ctranslate2, huggingface, marian_npz, fairseq, opennmt)


def accept_languages(languages: Languages | None) -> None:
    """Whatever the languages are, the weights are read."""


def load_checkpoints(
    paths: Sequence[str | Path],
    weights: Sequence[float] = (),
    avg_raw_probs: bool = False,
    check: LanguageCheck = accept_languages,
) -> Checkpoint:
    """The model, or the ensemble of several; see `combine`.

    Raises CheckpointError, and what `check` raises when it sees the languages of a directory whose
    weights have not been read yet.
    """
    found = [load_checkpoint(path, check) for path in paths]
    if len(found) == 1:
        return found[0]
    return combine(found, list(map(str, paths)), weights, avg_raw_probs)


@cpu_threads()
def load_checkpoint(path: str | Path, check: LanguageCheck = accept_languages) -> Checkpoint:
    """Load a model of any kind that is read.

    Args:
        path: str or Path of a directory or file; where nothing is at a str, the name of a shipped
            model or TEAM/NAME of the hub.
        check: called with the languages of a directory before its weights are read, None if it
            has none; what it raises is passed on.  By default it accepts all.

    Returns:
        The Checkpoint: a model with its vocabularies and tokenizers.

    Raises:
        CheckpointError: for a model that is missing, damaged or of no kind that is read.
        MemoryExhausted: if it does not fit into memory.
    """
    path = find_model(download_model(path) if isinstance(path, str) else path)
    try:
        for reader in READERS:
            if reader.can_load(path):
                given = (check,) if getattr(reader, "CHECKS_LANGUAGES", False) else ()
                return _checked(reader.load(path, *given), path)
        found = _describe(path)
        remedy = "" if ";" in found else Message.of("; {0}", ACCEPTED_PATHS)
        raise CheckpointError(Message.of("no model at {0}: {1}{2}", str(path), found, remedy))
    except CheckpointError as error:
        if "; " in str(error):
            raise
        remedy = "download or export the model again, or give another one"
        raise CheckpointError(f"{error}; {remedy}") from None
    except (OSError, ValueError) as error:  # a path that is no path: unreadable, too long, with NUL
        problem = f"cannot read the model at {str(path)[:200]!r}"
        raise CheckpointError(f"{problem}: {explain_os_error(error)}") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise MemoryExhausted(
            f"out of memory while the model at {path} is read; close other programs or take a "
            "smaller model"
        ) from None


def _checked(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Raise CheckpointError unless the vocabularies have the sizes of the model's tables."""
    cfg = getattr(checkpoint.model, "cfg", None)  # a table model has none
    for side, vocab in (("src", checkpoint.src_vocab), ("tgt", checkpoint.tgt_vocab)):
        size = getattr(cfg, f"{side}_vocab_size", len(vocab))
        if len(vocab) != size:
            raise CheckpointError(
                f"{path}: the {side} vocabulary has {len(vocab)} tokens, but the model has {size}"
            )
    return checkpoint


def _describe(path: Path) -> str:
    if not path.exists():
        return describe_missing_path(path) + _as_ensemble(str(path))
    if path.is_dir():
        if other := identify_by_name(path):
            return f"the directory holds {other}"
        models = [each.name for each in sorted(path.iterdir()) if looks_like_model(each)]
        inside = f" (did you mean {path / models[0]}?)" if models else ""
        return f"the directory has no model.json, no config.json and no dict.*.txt{inside}"
    if not path.is_file():  # a pipe might never say anything
        return "it is neither a file nor a directory"
    with open(path, "rb") as f:
        start = f.read(64)
    if not start:
        return "the file is empty"
    kind = identify_by_name(path) or identify_by_magic(start)
    if not kind and path.suffix == ".safetensors":
        kind = "a file of weights alone; give the model directory, or the .pt file"
    return f"it is {kind}" if kind else "it is a file of unknown kind"


def _as_ensemble(path: str) -> str:
    """Return the remedy for the paths of an ensemble in one word, as fairseq writes them."""
    for separator in ":,":
        parts = path.split(separator)
        known = all(map(os.path.exists, parts)) or separator == ":"
        if len(parts) > 1 and all(parts) and known and not re.match(r"[A-Za-z]:[\\/]", path):
            return f"; for an ensemble, separate the paths with spaces: -model {shlex.join(parts)}"
    return ""


def looks_like_model(path: Path) -> bool:
    """Return True if a path looks like a model."""
    names = ("model.json", "config.json", "model.bin")
    return path.suffix in (".pt", ".npz") or any((path / name).is_file() for name in names)


# -- Ensembles -------------------------------------------------------------------------------------

SPECIAL = ("eos_id", "bos_id", "pad_id", "unk_id")


def combine(
    checkpoints: Sequence[Checkpoint],
    names: Sequence[str],
    weights: Sequence[float] = (),
    avg_raw_probs: bool = False,
) -> Checkpoint:
    """Make one checkpoint whose model is the ensemble; `onmt_lite.models.ensemble` has the options.

    All members read each decoded token, so they need the same target vocabulary and start token.
    Their source vocabularies may differ where tokens are the words of the line; a word that a
    member lacks is its unknown token.  Tokenizers and the preparation of lines are those of the
    first member.  An id that one member must not produce is banned for all.

    Raises CheckpointError, with the names of two models, where their vocabularies differ.
    """
    first = checkpoints[0]
    for checkpoint, name in zip(checkpoints[1:], names[1:]):
        if difference := _difference(first, checkpoint):
            raise CheckpointError(
                f"ensemble: {names[0]!r} and {name!r} {difference}; the models of an ensemble "
                "share their vocabularies"
            )
    vocabs = [checkpoint.src_vocab for checkpoint in checkpoints]
    words = (t for vocab in vocabs for i, t in enumerate(vocab.tokens) if not vocab.is_special(i))
    others = [token for token in dict.fromkeys(words) if token not in vocabs[0].ids]
    src_vocab = replace(vocabs[0], tokens=[*vocabs[0].tokens, *others])
    src_ids = [_ids_in(vocab, src_vocab) for vocab in vocabs]
    models = [checkpoint.model for checkpoint in checkpoints]
    pairs = {checkpoint.language_pair for checkpoint in checkpoints}
    return replace(
        first,
        model=Ensemble(models, weights, avg_raw_probs, src_ids),
        src_vocab=src_vocab,
        banned_ids=tuple(sorted({i for c in checkpoints for i in c.banned_ids})),
        rules={version: _merged(checkpoints, version) for version in first.rules},
        needs_log_softmax=avg_raw_probs,
        confidence=None,  # fitted to the scores of one model
        language_pair=pairs.pop() if len(pairs) == 1 else LanguagePair(),
    )


def _merged(checkpoints: Sequence[Checkpoint], version: str) -> TokenRules:
    rules = [checkpoint.get_token_rules(version) for checkpoint in checkpoints]
    return replace(rules[0], banned=tuple(sorted({word for r in rules for word in r.banned})))


def _difference(a: Checkpoint, b: Checkpoint) -> str:
    """Say why two models cannot be of one ensemble; "" if they can."""
    targets = _different_vocab("target", a.tgt_vocab, b.tgt_vocab)
    sources = _different_vocab("source", a.src_vocab, b.src_vocab)
    words = {*a.tokenizers, *b.tokenizers} == {"space"} and a.src_end == b.src_end
    if words and None not in (a.src_vocab.unk_id, b.src_vocab.unk_id):
        sources = ""  # either has tokens for the words of the line
    if targets or sources:
        return targets or sources
    if a.start_id != b.start_id:
        return f"start with different tokens: id {a.start_id} or {b.start_id}"
    if a.languages != b.languages:
        return "have other languages, or other tokens or defaults for them"
    if a.src_end != b.src_end:
        return f"end the source differently: with ids {list(a.src_end)} or {list(b.src_end)}"
    return ""


def _different_vocab(side: str, a: Vocab, b: Vocab) -> str:
    """Describe the first difference of two vocabularies; "" if they are equal."""
    for i, (token, other) in enumerate(zip(a.tokens, b.tokens)):
        if token != other:
            return (
                f"differ in their {side} vocabularies: id {i} is {token[:50]!r} or {other[:50]!r}"
            )
    if len(a) != len(b):
        return f"differ in their {side} vocabularies: {len(a)} or {len(b)} tokens"
    for name in SPECIAL:
        one, two = getattr(a, name), getattr(b, name)
        if one != two:
            return f"differ in the {name} of their {side} vocabularies: {one} or {two}"
    return ""


def _ids_in(vocab: Vocab, union: Vocab) -> list[int] | None:
    """The id in `vocab` for each id of the union; None where all ids are equal."""
    if vocab.tokens == union.tokens:
        return None
    ids = [vocab.ids.get(token, vocab.unk_id) for token in union.tokens]
    for name in SPECIAL:
        here, there = getattr(union, name), getattr(vocab, name)
        if here is not None:
            ids[here] = vocab.unk_id if there is None else there
    return [i for i in ids if i is not None]
