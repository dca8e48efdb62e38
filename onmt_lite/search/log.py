"""What the steps of a search tell the host."""

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan
from onmt_lite.search.ranking import Ranked
from onmt_lite.search.records import Candidates, Event

FIRST_CAPACITY = 64  # steps


class Log:
    """A line of numbers per step and slot, (steps, slots, M) on the host.

    Columns: score, parent row, token and log_prob of the K new rows; the old rows' coverage
    penalties and source places, where the plan has them; the lowest score of a candidate, -inf
    where one has ended; and the same four of the N candidates, where the new rows are not simply
    the first ones.  In float32, which holds integers up to 2^24.
    """

    def __init__(self, plan: Plan, n_slots: int):
        self.plan, self.n_slots, k = plan, n_slots, plan.beam_size
        self.costs = slice(4 * k, 5 * k)
        self.n_rows = (4 + plan.has_costs + plan.aligns) * k  # columns about rows
        self.no_costs = [0.0] * k
        self.lines = torch.empty(0)
        self.n_steps = 0

    def pack(
        self,
        rows: Ranked,
        cost: Tensor | None,
        place: Tensor | None,
        lowest: Tensor,
        candidates: Ranked | None,
    ) -> Tensor:
        """The lines of a step (B, M), on the device."""
        parts = [rows.score, rows.row.float(), rows.token.float(), rows.log_prob]
        parts += [part.view_as(rows.score).float() for part in (cost, place) if part is not None]
        parts.append(lowest)
        if candidates is not None:
            ids = candidates.row.float(), candidates.token.float()
            parts += [candidates.score, *ids, candidates.log_prob]
        return torch.cat(parts, 1)

    def append(self, packed: Tensor) -> Tensor:
        """Keep the lines of a step: the only transfer from the device.  Returns them (B, M)."""
        if self.n_steps == len(self.lines):
            capacity = max(FIRST_CAPACITY, 2 * self.n_steps)
            grown = torch.empty(capacity, self.n_slots, packed.size(1))
            grown[: self.n_steps] = self.lines.view(self.n_steps, *grown.shape[1:])
            self.lines = grown
        lines = self.lines[self.n_steps, : len(packed)]
        lines.copy_(packed)
        self.n_steps += 1
        return lines

    def lowest(self, lines: Tensor) -> list[float]:
        """The lowest score of a candidate in each slot, -inf where one has ended; NaN is lower."""
        return lines[:, self.n_rows].tolist()

    def event(self, line: Tensor, step: int) -> Event:
        """A line as an event; `step` counts the sentence's own steps."""
        numbers = line.tolist()
        rows = candidates = as_columns(numbers[: 4 * self.plan.beam_size])
        if len(numbers) > self.n_rows + 1:
            candidates = as_columns(numbers[self.n_rows + 1 :])
        costs = numbers[self.costs] if self.plan.has_costs else self.no_costs
        return Event(step, candidates, rows, costs)

    def read(self, slot: int, start: int) -> Tensor:
        """The lines about the rows of a slot from step `start` on, (T, M')."""
        return self.lines[start : self.n_steps, slot, : self.n_rows]


def as_columns(numbers: list[float]) -> Candidates:
    """Four columns, one after the other."""
    n = len(numbers) // 4
    return Candidates(numbers[:n], numbers[n : 2 * n], numbers[2 * n : 3 * n], numbers[3 * n :])
