"""Finds out what kind of model a path holds, and loads it."""

from collections.abc import Sequence
from pathlib import Path

from onmt_lite.checkpoints import native, others, table
from onmt_lite.checkpoints.ctranslate2 import reader as ctranslate2
from onmt_lite.checkpoints.ensemble import combine
from onmt_lite.checkpoints.fairseq import reader as fairseq
from onmt_lite.checkpoints.huggingface import reader as huggingface
from onmt_lite.checkpoints.huggingface.directory import LanguageCheck
from onmt_lite.checkpoints.marian import reader as marian_npz
from onmt_lite.checkpoints.opennmt import reader as opennmt
from onmt_lite.checkpoints.record import Checkpoint, Languages
from onmt_lite.checkpoints.shipped import find_model, model_names
from onmt_lite.errors import CheckpointError, MemoryExhausted

READERS = (native, ctranslate2, huggingface, marian_npz, fairseq, opennmt, table)


def accept(languages: Languages | None) -> None:
    """Whatever the languages are, the weights are read."""


def load_checkpoints(
    paths: Sequence[str | Path],
    weights: Sequence[float] = (),
    of_probs: bool = False,
    check: LanguageCheck = accept,
) -> Checkpoint:
    """The model, or the ensemble of several; see `combine`.

    Raises CheckpointError, and what `check` raises when it sees the languages of a directory whose
    weights have not been read yet.
    """
    found = [load_checkpoint(path, check) for path in paths]
    return found[0] if len(found) == 1 else combine(found, list(map(str, paths)), weights, of_probs)


def load_checkpoint(path: str | Path, check: LanguageCheck = accept) -> Checkpoint:
    """The model at a path, or the shipped one of that name where no such path exists.

    Raises CheckpointError where there is no model of a kind that is read; for `check`, see above.
    """
    path = find_model(path)
    try:
        for reader in READERS:
            if reader.recognises(path):
                if reader in (huggingface, ctranslate2):
                    return reader.load(path, check)
                return reader.load(path)
        raise CheckpointError(
            f"no model at {path}: {_describe(path)}; -model takes a model directory (ours, Marian, "
            "Hugging Face, CTranslate2, fairseq), a .pt file of OpenNMT-py "
            "or a table model's .json file"
        )
    except (OSError, ValueError) as error:  # a path that is no path: unreadable, too long, with NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"cannot read the model at {str(path)[:200]!r}: {reason}") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise MemoryExhausted(
            f"out of memory while the model at {path} is read; close other programs or take a "
            "smaller model"
        ) from None


def _describe(path: Path) -> str:
    if not path.exists():
        return (
            f"there is no such file or directory (shipped are {', '.join(model_names()) or 'none'})"
        )
    if path.is_dir():
        if other := others.by_name(path):
            return f"the directory holds {other}, which is not read"
        return "the directory has no model.json, no config.json and no dict.*.txt"
    if not path.is_file():  # a pipe might never say anything
        return "it is neither a file nor a directory"
    with open(path, "rb") as f:
        start = f.read(64)
    if not start:
        return "the file is empty"
    kinds = [kind for magic, kind in others.STARTS.items() if start.startswith(magic)]
    kind = kinds[0] if kinds else others.by_name(path)
    return f"it is {kind}" if kind else "a file of unknown kind"
