"""Output directory of a training run: checks, lock, metrics table, state, shell commands."""

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
SCRIPT = Path("translate.py")  # only exists in a source checkout
USER_FILES = (LOG_FILE, TABLE, PLOT, HELD_OUT)  # listed at the end of a run
ALL_FILES = (STATE, CONFIG, *USER_FILES, native.MANIFEST, native.WEIGHTS, native.SENTENCEPIECE)


def check_files(options: TrainOptions) -> None:
    """Check the files of a run before any work.

    Raises:
        OptionError: the output directory has a run (without -resume) or none (with -resume), or a
            file is used twice
        FileError: a file does not exist or cannot be written
        CheckpointError: init_from does not exist
    """
    data, log_file, out = options.data, options.learning.log_file, Path(options.data.output)
    inputs = [*(("train", path) for path in data.train), *(("valid", path) for path in data.valid)]
    check_inputs(inputs)
    resume = options.learning.resume
    if not resume and data.init_from and not Path(data.init_from).exists():
        raise CheckpointError(
            f"init_from: {data.init_from} does not exist: "
            f"{describe_missing_path(data.init_from)}; use a model directory written by the trainer"
        )
    if data.init_from:
        files = [Path(data.init_from), *list_model_files(Path(data.init_from))]
        inputs += [("init_from", str(file)) for file in files]
    outputs = [("output", data.output), *(("output", str(out / name)) for name in ALL_FILES)]
    check_distinct(inputs, [*outputs, *([("log_file", log_file)] if log_file else [])])

    has_state = (out / STATE).exists()
    if has_state and not resume:
        raise OptionError(f"output: {out} already contains a run; continue it with -resume")
    if not has_state and resume:
        raise OptionError(f"resume: {out / STATE} does not exist; omit -resume to start a run")
    if not has_state and native.can_load(out):
        raise OptionError(f"output: {out} already contains a model; choose another directory")

    parents = (out.absolute(), *out.absolute().parents)
    with wrap_os_errors(f"write {out}"):
        os.rmdir(tempfile.mkdtemp(dir=next(path for path in parents if path.exists())))
    if log_file and Path(log_file).absolute().parent != out.absolute():
        check_writable(log_file)


@contextlib.contextmanager
def lock_directory(out: Path) -> Iterator[None]:
    """Lock a run's directory inside the block.  Raises OptionError if another run holds it."""
    directory = os.open(out, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # the file system may not support locks
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OptionError(
                    f"output: another run writes to {out}; choose another directory"
                ) from None
        yield
    finally:
        os.close(directory)


# -- metrics ---------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the metrics table; only validations set the last three values.

    tokens_per_second  target tokens, over the steps since the previous row
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

    def to_csv(self) -> str:
        """Return the row as a line of CSV."""
        formats = (".0f", ".0f", ".3f", ".0f", *[".6g"] * 6)
        values = ("" if v is None else format(v, form) for v, form in zip(self, formats))
        return ",".join(values) + "\n"


class MetricsTable:
    """The metrics of a run, in memory and in the file TABLE."""

    def __init__(self, out: Path, n_steps: int):
        """Start the file, or continue it after `n_steps` and drop rows of later steps."""
        self.out = out
        rows = read_metrics(out / TABLE) if n_steps else []
        self.rows = [row for row in rows if row.step <= n_steps]
        lines = [",".join(Row._fields) + "\n", *(row.to_csv() for row in self.rows)]
        replace_files(out, {TABLE: "".join(lines).encode()})

    def add(self, row: Row) -> None:
        """Append a row in a single write, so that a killed process leaves complete lines."""
        self.rows.append(row)
        with wrap_os_errors(f"write {self.out / TABLE}"):
            with open(self.out / TABLE, "ab", buffering=0) as table:
                table.write(row.to_csv().encode())


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics table, except for an incomplete last line."""
    if not path.exists():
        return []
    with wrap_os_errors(f"read {path}"):
        _, *lines = path.read_text(encoding="utf-8").split("\n")[:-1] or [""]
        values = [[float(v) if v else None for v in line.split(",")] for line in lines]
        named = [dict(zip(Row._fields, row, strict=True)) for row in values]
    return [Row(**row) for row in named]  # type: ignore[arg-type]


# -- state -----------------------------------------------------------------------------------------

# Options that -resume may not change
FIXED_OPTIONS = (
    *(f.name for f in dataclasses.fields(ModelOptions) if f.name != "dropout"),
    *("reverse", "vocab_size", "all_characters", "init_from"),
)


def collect_fixed_values(
    options: TrainOptions, text: Text, held_out: list[list[Pair]]
) -> dict[str, object]:
    """Return the values that must not change when a run is resumed.

    Args:
        options: the options of the run
        text: its training text
        held_out: the pairs of each held-out file

    Returns:
        Option values, the class of the text and digests of the pairs, by name.
    """
    values = to_config(options)
    return {
        **{name: values[name] for name in FIXED_OPTIONS},
        "text": type(text).__name__,
        "train": hash_pairs(text.pairs),
        "valid": " ".join(map(hash_pairs, held_out)),
    }


def format_pairs(pairs: list[Pair]) -> bytes:
    """Return pairs as `source<TAB>target` lines in UTF-8."""
    return "".join(f"{src}\t{tgt}\n" for src, tgt in pairs).encode("utf-8")


def hash_pairs(pairs: list[Pair]) -> str:
    """Return the SHA-256 of the pairs, in order, as hexadecimal digits."""
    return hashlib.sha256("\n".join(map("\t".join, pairs)).encode("utf-8")).hexdigest()


def read_state(out: Path, fixed_values: dict[str, object]) -> dict[str, Any]:
    """Read the saved state of a run.

    Args:
        out: the run's directory
        fixed_values: the result of `collect_fixed_values` now

    Raises:
        DataError: the state is damaged
        OptionError: a fixed value has changed
    """
    try:
        state = torch.load(out / STATE, map_location="cpu", weights_only=True)
        # Older versions did not save all values
        before = {**fixed_values, **state.get("settled", {})}
    except Exception as error:  # damaged pickles raise many types
        raise make_resume_error(out, error) from None
    changed = [
        f"{name} (different pairs)"
        if name in ("train", "valid")
        else f"{name} ({before[name]} before, {now} now)"
        for name, now in fixed_values.items()
        if before[name] != now
    ]
    if changed:
        raise OptionError(
            f"resume: options changed since the run in {out} started: {', '.join(changed)}; "
            f"use -config {out / CONFIG}"
        )
    return state


def make_resume_error(out: Path, error: Exception) -> DataError:
    """Build the error for a state that cannot be restored."""
    reason = (str(error) or repr(error)).split("\n")[0]
    return DataError(
        f"resume: cannot read {out / STATE}: {reason}; start a new run in another directory"
    )


# -- shell commands --------------------------------------------------------------------------------


def format_resume_hint(out: Path, advice: str = "continue with") -> str:
    """Return advice with the command that resumes a run, to append to a message.

    Returns "" if no state has been saved yet.
    """
    resume = f"{get_command_name()} {shlex.join(['-config', str(out / CONFIG), '-resume'])}"
    return f"; {advice}: {resume}" if (out / STATE).exists() else ""


def format_translate_command(out: Path) -> str:
    """Return the shell command that translates with the model."""
    script = "python translate.py" if SCRIPT.exists() else "python -m onmt_lite"
    program = "onmt_lite" if get_command_name() == "onmt_lite_train" else script
    return f"{program} {shlex.join(['-model', str(out), '-src', 'FILE'])}"


def format_calibrate_command(out: Path) -> str:
    """Return the shell command that calibrates the model."""
    words = shlex.join(["-model", str(out), "-valid", str(out / HELD_OUT)])
    return f"python -m onmt_lite.train.calibrate {words}"
