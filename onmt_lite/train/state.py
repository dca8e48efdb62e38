"""The state of a run in its directory, from which -resume goes on.

Weights, optimizers, random numbers and counters go on as if the run had not been stopped.  Options
and pairs of which that could not be true must be the same as before.
"""

import dataclasses
import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from onmt_lite.errors import DataError, OptionError
from onmt_lite.text.whole import replace_files
from onmt_lite.train.data import Pair, Text
from onmt_lite.train.folder import CONFIG, STATE
from onmt_lite.train.options import ModelOptions, TrainOptions, as_table

# Options that -resume may not change
SETTLED = (
    *(f.name for f in dataclasses.fields(ModelOptions) if f.name != "dropout"),
    *("reverse", "vocab_size", "all_characters", "init_from"),
)


def settled_values(
    options: TrainOptions, text: Text, held_out: list[list[Pair]]
) -> dict[str, object]:
    """Return all values that a resumed run must have in common with its state."""
    values = as_table(options)
    return {
        **{name: values[name] for name in SETTLED},
        "text": type(text).__name__,
        "train": digest(text.pairs),
        "valid": " ".join(map(digest, held_out)),
    }


def digest(pairs: list[Pair]) -> str:
    """SHA-256 of the pairs in their order."""
    return hashlib.sha256("\n".join(map("\t".join, pairs)).encode("utf-8")).hexdigest()


def write_state(out: Path, state: dict[str, Any]) -> None:
    """Replace the state in a directory.  Raises FileError; the older state is then unchanged."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    replace_files(out, {STATE: buffer.getvalue()})


def read_state(out: Path, settled: dict[str, object]) -> dict[str, Any]:
    """Read the state in a directory.

    Raises DataError if it is damaged, OptionError if its settled values are not those given.
    """
    try:
        state = torch.load(out / STATE, map_location="cpu", weights_only=True)
        # States of older versions lack some values
        before = {**settled, **state.get("settled", {})}
    except Exception as error:  # pickled data fail in many ways
        raise cannot_resume(out, error) from None
    changed = [
        f"{name} (other pairs)"
        if name in ("train", "valid")
        else f"{name} ({before[name]} before, {now} now)"
        for name, now in settled.items()
        if before[name] != now
    ]
    if changed:
        raise OptionError(
            f"resume: not the settings of the run in {out}: {', '.join(changed)}; "
            f"-config {out / CONFIG} has them"
        )
    return state


def cannot_resume(out: Path, error: Exception) -> DataError:
    reason = (str(error) or repr(error)).split("\n")[0]
    return DataError(f"cannot resume from {out / STATE}: {reason}")
