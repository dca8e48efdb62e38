"""The directory of a run: checks before it is written, its lock, table and saved state, and
commands with its name."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.shipped import describe_missing_path, list_model_files
from onmt_lite.config.cli import get_command_name
from onmt_lite.config.files import check_distinct, check_inputs, check_writable
from onmt_lite.errors import CheckpointError, DataError, OptionError, wrap_os_errors
from onmt_lite.system.atomic_files import replace_files
from onmt_lite.train.data import Pair, Text
from onmt_lite.train.options import ModelOptions, TrainOptions, to_config

STATE, LOG_FILE, CONFIG = "train_state.pt", "train.log", "train.yaml"
TABLE, PLOT, HELD_OUT = "train.csv", "train.svg", "valid.tsv"
SCRIPT = Path("translate.py")  # in a checkout
USER_FILES = (LOG_FILE, TABLE, PLOT, HELD_OUT)  # the model, for its user
ALL_FILES = (STATE, CONFIG, *USER_FILES, native.MANIFEST, native.WEIGHTS, native.SENTENCEPIECE)


def check_files(options: TrainOptions) -> None:
    """Raise OptionError or FileError if files are missing, in the way or cannot be written."""
    data, log_file, out = options.data, options.learning.log_file, Path(options.data.output)
    read = [*(("train", path) for path in data.train), *(("valid", path) for path in data.valid)]
    check_inputs(read)
    begins = not options.learning.resume
    if begins and data.init_from and not Path(data.init_from).exists():
        takes = "init_from takes the directory of a model that the trainer has written"
        raise CheckpointError(
            f"no model at {data.init_from}: {describe_missing_path(data.init_from)}; {takes}"
        )
    if data.init_from:
        files = [Path(data.init_from), *list_model_files(Path(data.init_from))]
        read += [("init_from", str(file)) for file in files]
    own = [("output", data.output), *(("output", str(out / name)) for name in ALL_FILES)]
    check_distinct(read, [*own, *([("log_file", log_file)] if log_file else [])])

    begun, resume = (out / STATE).exists(), options.learning.resume
    if begun and not resume:
        raise OptionError(f"output: {out} holds a run already; continue it with -resume")
    if not begun and resume:
        raise OptionError(f"resume: {out} holds no {STATE}; leave -resume out to begin there")
    if not begun and native.can_load(out):
        raise OptionError(f"output: {out} holds a model already; choose another directory")

    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    with wrap_os_errors(f"write {out}"):
        os.rmdir(tempfile.mkdtemp(dir=there))
    if log_file and Path(log_file).absolute().parent != out.absolute():
        check_writable(log_file)


@contextlib.contextmanager
def lock_directory(out: Path) -> Iterator[None]:
    """Lock the directory of a run inside the block.  Raises OptionError if another run has it."""
    folder = os.open(out, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OptionError(
                    f"output: another run writes to {out}; choose another path"
                ) from None
        yield
    finally:
        os.close(folder)


# -- the table ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the table; only rows of validations have the last three values.

    tokens_per_second  target tokens, over the steps since the row before
    train_loss         nats per target token over the same steps, with label smoothing and dropout
    valid_loss         nats per target token, the mean over the held-out files
    """

    step: float
    epoch: float
    minutes: float
    target_tokens: float
    tokens_per_second: float
    learning_rate: float
    train_loss: float
    valid_loss: float | None = None
    perplexity: float | None = None
    bleu: float | None = None

    def line(self) -> str:
        formats = (".0f", ".0f", ".3f", ".0f", *[".6g"] * 6)
        values = ("" if v is None else format(v, form) for v, form in zip(self, formats))
        return ",".join(values) + "\n"


class MetricsTable:
    """Rows of a run, kept in memory and in the file TABLE."""

    def __init__(self, out: Path, n_steps: int):
        """Begin the table, or continue it after `n_steps`; rows of later steps are dropped."""
        self.out = out
        kept = read_metrics(out / TABLE) if n_steps else []
        self.rows = [row for row in kept if row.step <= n_steps]
        lines = [",".join(Row._fields) + "\n", *(row.line() for row in self.rows)]
        replace_files(out, {TABLE: "".join(lines).encode()})

    def add(self, row: Row) -> None:
        """Append a row, in one write, so that a killed process leaves whole lines."""
        self.rows.append(row)
        with wrap_os_errors(f"write {self.out / TABLE}"):
            with open(self.out / TABLE, "ab", buffering=0) as table:
                table.write(row.line().encode())


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a table, without a last line that was cut off."""
    if not path.exists():
        return []
    with wrap_os_errors(f"read {path}"):
        _, *lines = path.read_text(encoding="utf-8").split("\n")[:-1] or [""]
        values = [[float(v) if v else None for v in line.split(",")] for line in lines]
        named = [dict(zip(Row._fields, row, strict=True)) for row in values]
    return [Row(**row) for row in named]  # type: ignore[arg-type]


# -- the state ------------------------------------------------------------------------------------

# Options that -resume may not change
FIXED_OPTIONS = (
    *(f.name for f in dataclasses.fields(ModelOptions) if f.name != "dropout"),
    *("reverse", "vocab_size", "all_characters", "init_from"),
)


def collect_fixed_values(
    options: TrainOptions, text: Text, held_out: list[list[Pair]]
) -> dict[str, object]:
    """Return what a resumed run must have in common with the run that it continues."""
    values = to_config(options)
    return {
        **{name: values[name] for name in FIXED_OPTIONS},
        "text": type(text).__name__,
        "train": digest(text.pairs),
        "valid": " ".join(map(digest, held_out)),
    }


def format_pairs(pairs: list[Pair]) -> bytes:
    """Return pairs as the lines of a file, the source first."""
    return "".join(f"{src}\t{tgt}\n" for src, tgt in pairs).encode("utf-8")


def digest(pairs: list[Pair]) -> str:
    """Return the SHA-256 of the pairs in their order."""
    return hashlib.sha256("\n".join(map("\t".join, pairs)).encode("utf-8")).hexdigest()


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
            f"resume: these differ from the run in {out}: {', '.join(changed)}; "
            f"-config {out / CONFIG} has its options"
        )
    return state


def cannot_resume(out: Path, error: Exception) -> DataError:
    reason = (str(error) or repr(error)).split("\n")[0]
    return DataError(f"cannot resume from {out / STATE}: {reason}")


# -- commands to paste ----------------------------------------------------------------------------


def format_resume_hint(out: Path, how: str = "go on") -> str:
    """Return the end of a message with the command to paste; "" if there is no state yet."""
    again = f"{get_command_name()} {shlex.join(['-config', str(out / CONFIG), '-resume'])}"
    return f"; {how}: {again}" if (out / STATE).exists() else ""


def format_translate_command(out: Path) -> str:
    """Return the command to paste that translates with the model."""
    script = "python translate.py" if SCRIPT.exists() else "python -m onmt_lite"
    program = "onmt_lite" if get_command_name() == "onmt_lite_train" else script
    return f"{program} {shlex.join(['-model', str(out), '-src', 'FILE'])}"


def format_calibrate_command(out: Path) -> str:
    """Return the command to paste that calibrates the model."""
    words = shlex.join(["-model", str(out), "-valid", str(out / HELD_OUT)])
    return f"python -m onmt_lite.train.calibrate {words}"
