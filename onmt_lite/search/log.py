"""What the steps of a search tell the host."""

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan
from onmt_lite.search.ranking import Ranked
from onmt_lite.search.records import Candidates, Event

FIRST_CAPACITY = 64  # steps


class Log:
    """One line of numbers per step and slot: (steps, slots, M).

    Columns: score, parent row, token and log_prob of the K new rows; their parents' coverage
    penalties and source places, where the plan has them; the same four of the N candidates, where
    the new rows are not simply the first ones.  In float32, which holds integers up to 2^24.
    """

    def __init__(self, plan: Plan, n_slots: int):
        self.plan, self.n_slots = plan, n_slots
        self.n_steps = 0
        self.steps = torch.empty(0)
        k = plan.beam_size
        self.n_rows = (4 + plan.has_costs + plan.aligns) * k
        self.places = slice(self.n_rows - k, self.n_rows)
        self.no_costs = [0.0] * k

    def pack(
        self, rows: Ranked, cost: Tensor | None, place: Tensor | None, candidates: Ranked | None
    ) -> Tensor:
        """The line of each slot (B, M), on the device."""
        parts = [rows.score, rows.row.float(), rows.token.float(), rows.log_prob]
        parts += [part.view_as(rows.score).float() for part in (cost, place) if part is not None]
        if candidates is not None:
            ids = candidates.row.float(), candidates.token.float()
            parts += [candidates.score, *ids, candidates.log_prob]
        return torch.cat(parts, 1)

    def append(self, packed: Tensor) -> Tensor:
        """Keep the lines of a step: the only transfer from the device.  Returns them, (B, M)."""
        if self.n_steps == len(self.steps):
            shape = (max(FIRST_CAPACITY, 2 * self.n_steps), self.n_slots, packed.size(1))
            grown = torch.empty(shape)
            grown[: self.n_steps] = self.steps.view(-1, *shape[1:])
            self.steps = grown
        lines = self.steps[self.n_steps, : len(packed)]
        lines.copy_(packed)
        self.n_steps += 1
        return lines

    def happened(self, lines: Tensor) -> list[bool]:
        """Slots in which a candidate ended, or in which there is none, or one is NaN."""
        k = self.plan.beam_size
        first = self.n_rows if lines.size(1) > self.n_rows else 0
        n = (lines.size(1) - first) // 4 if first else k
        tokens = lines[:, first + 2 * n : first + 3 * n]
        best = lines[:, first : first + n].amax(1)
        return ((tokens == self.plan.eos_id).any(1) | ~(best > -torch.inf)).tolist()

    def event(self, lines: Tensor, slot: int, step: int) -> Event:
        """A slot's line as numbers; `step` counts its sentence's own."""
        k, numbers = self.plan.beam_size, lines[slot].tolist()
        rows = as_columns(numbers[: 4 * k])
        candidates = as_columns(numbers[self.n_rows :]) if len(numbers) > self.n_rows else rows
        costs = numbers[4 * k : 5 * k] if self.plan.has_costs else self.no_costs
        return Event(step, candidates, rows, costs)

    def read(self, slot: int, start: int) -> tuple[list[Candidates], list[list[int]]]:
        """The rows of a slot, and their places if there are any, from step `start` on."""
        k, lines = self.plan.beam_size, self.steps[start : self.n_steps, slot]
        score, log_prob = lines[:, :k].tolist(), lines[:, 3 * k : 4 * k].tolist()
        row = lines[:, k : 2 * k].long().tolist()
        token = lines[:, 2 * k : 3 * k].long().tolist()
        places = lines[:, self.places].long().tolist() if self.plan.aligns else []
        return list(map(Candidates, score, row, token, log_prob)), places


def as_columns(numbers: list[float]) -> Candidates:
    """Four columns, one after the other."""
    n = len(numbers) // 4
    row, token = list(map(int, numbers[n : 2 * n])), list(map(int, numbers[2 * n : 3 * n]))
    return Candidates(numbers[:n], row, token, numbers[3 * n :])
