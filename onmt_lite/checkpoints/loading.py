"""Loads a model in any supported format, or an ensemble of several models."""

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
    "-{model} takes a model directory (onmt_lite, Marian, Hugging Face, CTranslate2, fairseq), an "
    "OpenNMT-py or fairseq .pt file, a table model (.json) or a Hugging Face hub name (TEAM/NAME)",
    model="",
)
READERS = (native, ctranslate2, huggingface, marian_npz, fairseq, opennmt)


def accept_languages(languages: Languages | None) -> None:
    """Default language check: accept any languages."""


def load_checkpoints(
    paths: Sequence[str | Path],
    weights: Sequence[float] = (),
    avg_raw_probs: bool = False,
    check: LanguageCheck = accept_languages,
) -> Checkpoint:
    """Load a model, or an ensemble if there are several paths.

    Args:
        paths: one path per model, see `load_checkpoint`.
        weights: ensemble weights, one per model; equal weights by default.
        avg_raw_probs: average probabilities instead of log-probabilities.
        check: language check, see `load_checkpoint`.

    Returns:
        The checkpoint; the model of an ensemble is an `Ensemble`.

    Raises:
        CheckpointError: if a model cannot be loaded, or if the models cannot form an ensemble.
    """
    checkpoints = [load_checkpoint(path, check) for path in paths]
    if len(checkpoints) == 1:
        return checkpoints[0]
    return combine(checkpoints, list(map(str, paths)), weights, avg_raw_probs)


@cpu_threads()
def load_checkpoint(path: str | Path, check: LanguageCheck = accept_languages) -> Checkpoint:
    """Load a model in any supported format.

    Args:
        path: a file or directory; a str that does not exist may name a shipped model or a model on
            the Hugging Face hub (TEAM/NAME).
        check: called with the languages of the model (None for a bilingual model) before the
            weights are read, so that wrong languages fail early; its exceptions propagate.

    Returns:
        The model with its vocabularies and tokenizers.

    Raises:
        CheckpointError: if the model is missing, damaged or not supported.
        MemoryExhausted: if the model does not fit into memory.
    """
    path = find_model(download_model(path) if isinstance(path, str) else path)
    try:
        for reader in READERS:
            if reader.can_load(path):
                arguments = (check,) if getattr(reader, "CHECKS_LANGUAGES", False) else ()
                return _check_vocab_sizes(reader.load(path, *arguments), path)
        problem = _describe_unsupported(path)
        remedy = "" if ";" in problem else Message.of("; {0}", ACCEPTED_PATHS)
        raise CheckpointError(Message.of("no model at {0}: {1}{2}", str(path), problem, remedy))
    except CheckpointError as error:
        if "; " in str(error):
            raise
        remedy = "download or export the model again, or use another model"
        raise CheckpointError(f"{error}; {remedy}") from None
    except (OSError, ValueError) as error:  # unreadable, or an invalid path (too long, NUL)
        problem = f"cannot read the model at {str(path)[:200]!r}"
        raise CheckpointError(f"{problem}: {explain_os_error(error)}") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise MemoryExhausted(
            f"out of memory while loading the model at {path}; close other programs or use a "
            "smaller model"
        ) from None


def _check_vocab_sizes(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Raise CheckpointError unless the vocabularies are as large as the embedding tables."""
    cfg = getattr(checkpoint.model, "cfg", None)  # a table model has no configuration
    for side, vocab in (("src", checkpoint.src_vocab), ("tgt", checkpoint.tgt_vocab)):
        size = getattr(cfg, f"{side}_vocab_size", len(vocab))
        if len(vocab) != size:
            raise CheckpointError(
                f"{path}: the {side} vocabulary has {len(vocab)} tokens, but the model has {size}"
            )
    return checkpoint


def _describe_unsupported(path: Path) -> str:
    """Describe a path at which no reader finds a model, for an error message."""
    if not path.exists():
        return describe_missing_path(path) + _suggest_ensemble(str(path))
    if path.is_dir():
        if model_format := identify_by_name(path):
            return f"the directory contains {model_format}"
        models = [entry.name for entry in sorted(path.iterdir()) if looks_like_model(entry)]
        hint = f" (did you mean {path / models[0]}?)" if models else ""
        return f"the directory has no model.json, no config.json and no dict.*.txt{hint}"
    if not path.is_file():  # reading a pipe might block forever
        return "it is neither a file nor a directory"
    with open(path, "rb") as f:
        start = f.read(64)
    if not start:
        return "the file is empty"
    model_format = identify_by_name(path) or identify_by_magic(start)
    if not model_format and path.suffix == ".safetensors":
        model_format = "a weights file only; pass the model directory or the .pt file"
    return f"it is {model_format}" if model_format else "its file format is unknown"


def _suggest_ensemble(path: str) -> str:
    """Return a remedy if the path looks like several paths joined as in fairseq."""
    for separator in ":,":
        parts = path.split(separator)
        is_list = all(map(os.path.exists, parts)) or separator == ":"
        if len(parts) > 1 and all(parts) and is_list and not re.match(r"[A-Za-z]:[\\/]", path):
            return f"; for an ensemble, separate the paths with spaces: -model {shlex.join(parts)}"
    return ""


def looks_like_model(path: Path) -> bool:
    """Return True if a path looks like a model."""
    names = ("model.json", "config.json", "model.bin")
    return path.suffix in (".pt", ".npz") or any((path / name).is_file() for name in names)


# -- Ensembles -------------------------------------------------------------------------------------

SPECIAL_IDS = ("eos_id", "bos_id", "pad_id", "unk_id")


def combine(
    checkpoints: Sequence[Checkpoint],
    names: Sequence[str],
    weights: Sequence[float] = (),
    avg_raw_probs: bool = False,
) -> Checkpoint:
    """Combine several checkpoints into the checkpoint of an ensemble.

    The members must have the same target vocabulary and start token.  For space-separated tokens,
    the source vocabularies may differ: a word that is missing from a member's vocabulary becomes
    its unknown token.  Tokenizers and preprocessing are those of the first model.  A token that is
    banned for one member is banned for all.

    Args:
        checkpoints: the members.
        names: paths of the members, for error messages.
        weights: ensemble weights, see `onmt_lite.models.ensemble.Ensemble`.
        avg_raw_probs: average probabilities instead of log-probabilities.

    Raises:
        CheckpointError: if two models differ in their vocabularies or special tokens.
    """
    first = checkpoints[0]
    for checkpoint, name in zip(checkpoints[1:], names[1:]):
        if difference := _find_difference(first, checkpoint):
            raise CheckpointError(
                f"ensemble: {names[0]!r} and {name!r} {difference}; use models with the same "
                "vocabularies"
            )
    vocabs = [checkpoint.src_vocab for checkpoint in checkpoints]
    words = (t for vocab in vocabs for i, t in enumerate(vocab.tokens) if not vocab.is_special(i))
    added = [token for token in dict.fromkeys(words) if token not in vocabs[0].ids]
    src_vocab = replace(vocabs[0], tokens=[*vocabs[0].tokens, *added])
    src_ids = [_map_ids(src_vocab, vocab) for vocab in vocabs]
    models = [checkpoint.model for checkpoint in checkpoints]
    pairs = {checkpoint.language_pair for checkpoint in checkpoints}
    return replace(
        first,
        model=Ensemble(models, weights, avg_raw_probs, src_ids),
        src_vocab=src_vocab,
        banned_ids=tuple(sorted({i for c in checkpoints for i in c.banned_ids})),
        rules={version: _merge_token_rules(checkpoints, version) for version in first.rules},
        needs_log_softmax=avg_raw_probs,
        confidence=None,  # fitted to the scores of a single model
        language_pair=pairs.pop() if len(pairs) == 1 else LanguagePair(),
    )


def _merge_token_rules(checkpoints: Sequence[Checkpoint], version: str) -> TokenRules:
    """Return the token rules of the first model, with the banned words of all models."""
    rules = [checkpoint.get_token_rules(version) for checkpoint in checkpoints]
    return replace(rules[0], banned=tuple(sorted({word for r in rules for word in r.banned})))


def _find_difference(a: Checkpoint, b: Checkpoint) -> str:
    """Describe why two models cannot form an ensemble; "" if they can."""
    targets = _compare_vocabs("target", a.tgt_vocab, b.tgt_vocab)
    sources = _compare_vocabs("source", a.src_vocab, b.src_vocab)
    splits_at_spaces = {*a.tokenizers, *b.tokenizers} == {"space"} and a.src_end == b.src_end
    if splits_at_spaces and None not in (a.src_vocab.unk_id, b.src_vocab.unk_id):
        sources = ""  # each model looks up the words in its own vocabulary
    if targets or sources:
        return targets or sources
    if a.start_id != b.start_id:
        return f"have different start tokens: ID {a.start_id} and {b.start_id}"
    if a.languages != b.languages:
        return "have different languages, language tokens or default languages"
    if a.src_end != b.src_end:
        return f"have different source EOS tokens: IDs {list(a.src_end)} and {list(b.src_end)}"
    return ""


def _compare_vocabs(side: str, a: Vocab, b: Vocab) -> str:
    """Describe the first difference between two vocabularies; "" if they are equal.

    Args:
        side: "source" or "target", for the description.
        a, b: the vocabularies.
    """
    for i, (token_a, token_b) in enumerate(zip(a.tokens, b.tokens)):
        if token_a != token_b:
            tokens = f"{token_a[:50]!r} and {token_b[:50]!r}"
            return f"differ in their {side} vocabularies: ID {i} is {tokens}"
    if len(a) != len(b):
        return f"differ in their {side} vocabularies: {len(a)} and {len(b)} tokens"
    for name in SPECIAL_IDS:
        id_a, id_b = getattr(a, name), getattr(b, name)
        if id_a != id_b:
            return f"differ in the {name} of their {side} vocabularies: {id_a} and {id_b}"
    return ""


def _map_ids(union: Vocab, vocab: Vocab) -> list[int] | None:
    """Map the IDs of a union of vocabularies to a member's vocabulary.

    Returns:
        The ID in `vocab` for each ID of the union; None if the vocabularies are equal.
    """
    if vocab.tokens == union.tokens:
        return None
    ids = [vocab.ids.get(token, vocab.unk_id) for token in union.tokens]
    for name in SPECIAL_IDS:
        union_id, vocab_id = getattr(union, name), getattr(vocab, name)
        if union_id is not None:
            ids[union_id] = vocab.unk_id if vocab_id is None else vocab_id
    return [i for i in ids if i is not None]
