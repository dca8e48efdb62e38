"""The table of a run's steps and the plot of its losses, in the directory of the model."""

import contextlib
import csv
import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path

from onmt_lite.errors import refused
from onmt_lite.text.whole import replace_files
from onmt_lite.train.chart import line_chart
from onmt_lite.train.folder import PLOT, TABLE


@dataclass(frozen=True)
class Row:
    """A line of the table; values of a validation are None in other rows.

    tokens_per_second  target tokens, over the steps since the row before
    train_loss         nats per target token over the same steps, with label smoothing and dropout
    valid_loss         nats per target token, the mean over the held-out files
    """

    step: int
    epoch: int
    minutes: float
    target_tokens: int
    tokens_per_second: float
    learning_rate: float
    train_loss: float
    valid_loss: float | None = None
    perplexity: float | None = None
    bleu: float | None = None

    def line(self) -> str:
        values = (
            "" if value is None else f"{value:.6g}" for value in dataclasses.astuple(self)[4:]
        )
        return (
            f"{self.step},{self.epoch},{self.minutes:.3f},{self.target_tokens},{','.join(values)}\n"
        )


WHOLE = ("step", "epoch", "target_tokens")  # numbers
COLUMNS = tuple(f.name for f in dataclasses.fields(Row))


class Journal:
    """Rows of a run, kept in memory and in the file TABLE."""

    def __init__(self, out: Path, n_steps: int):
        """Begin the table, or go on after `n_steps`; rows of later steps are dropped."""
        self.out = out
        kept = _read(out / TABLE) if n_steps else []
        self.rows = [row for row in kept if row.step <= n_steps]
        head = ",".join(COLUMNS) + "\n"
        replace_files(out, {TABLE: (head + "".join(row.line() for row in self.rows)).encode()})

    def add(self, row: Row) -> None:
        """Append a row, in one write, so that a killed process leaves whole lines."""
        self.rows.append(row)
        with refused(f"write {self.out / TABLE}"):
            with open(self.out / TABLE, "ab", buffering=0) as table:
                table.write(row.line().encode())

    def draw(self, title: str) -> None:
        """Plot losses over minutes, and BLEU in a second panel if there are scores."""
        rows = self.rows
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {
            "loss, nats per token": {
                "training": [(r.minutes, r.train_loss) for r in rows],
                "held out": [(r.minutes, r.valid_loss) for r in rows if r.valid_loss is not None],
            }
        }
        if scores := [(r.minutes, r.bleu) for r in rows if r.bleu is not None]:
            panels["BLEU"] = {"BLEU": scores}
        replace_files(self.out, {PLOT: line_chart(title, "minutes", panels).encode("utf-8")})


def _read(path: Path) -> list[Row]:
    """Read the rows of a table, without a last line that is cut off."""
    if not path.exists():
        return []
    with refused(f"read {path}"):
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    rows = []
    for values in csv.DictReader(io.StringIO(whole)):
        with contextlib.suppress(TypeError, ValueError):  # a line of another program
            given = {
                name: int(value) if name in WHOLE else float(value)
                for name, value in values.items()
                if value
            }
            rows.append(Row(**given))  # type: ignore[arg-type]
    return rows
