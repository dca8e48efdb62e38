"""Transfer: what each step tells the host, in one copy."""

from collections.abc import Callable

import torch
from torch import Tensor

from onmt_lite.search.events import Candidates, Event
from onmt_lite.search.plan import Plan
from onmt_lite.search.ranking import Ranked

FIRST_CAPACITY = 64  # steps


class Transfer:
    """Copies a line of numbers per step and slot, and keeps them: (steps, slots, M) on the host.

    Columns: score, parent row, token and log_prob of the K new rows; the old rows' coverage
    penalties and source places, if the plan has them; the scores of the N candidates, -inf if they
    ended; and score, row, token and log_prob of the candidates, unless the new rows are the first
    ones.  In float32, which holds integers up to 2^24.  Rows are those of the batch.
    """

    def __init__(self, plan: Plan, n_slots: int, device: torch.device):
        self.plan, self.n_slots, k = plan, n_slots, plan.beam_size
        self.device, self.wait = device, arrival(device)
        self.costs = slice(4 * k, 5 * k)
        self.n_rows = (4 + plan.has_costs + plan.aligns) * k  # columns about rows
        self.no_costs = [0.0] * k
        self.lines = self.newest = torch.empty(0)  # `newest` (B, M): of the last step
        self.n_steps = self.n_candidates = 0

    def pack(
        self,
        rows: Ranked,
        cost: Tensor | None,
        place: Tensor | None,
        open_scores: Tensor,
        candidates: Ranked | None,
    ) -> Tensor:
        """The lines of a step (B, M), on the device."""
        parts = [*vars(rows).values()]
        parts += [part.view_as(rows.score) for part in (cost, place) if part is not None]
        parts.append(open_scores)
        if candidates is not None:
            parts += vars(candidates).values()
        self.n_candidates = open_scores.size(1)
        return torch.cat(parts, 1)  # (B, M); integers become numbers of float32

    def begin(self, packed: Tensor) -> None:
        """Begin to copy the lines of a step (B, M): the only transfer from the device."""
        if self.n_steps == len(self.lines):
            shape = max(FIRST_CAPACITY, 2 * self.n_steps), self.n_slots, packed.size(1)
            grown = torch.empty(shape, pin_memory=self.device.type == "cuda")  # (T, slots, M)
            grown[: self.n_steps] = self.lines.view(self.n_steps, *shape[1:])
            self.lines = grown
        self.newest = self.lines[self.n_steps, : len(packed)]  # (B, M)
        self.newest.copy_(packed, non_blocking=True)
        self.wait = arrival(self.device)
        self.n_steps += 1

    def lowest(self) -> list[float]:
        """The lowest score of a candidate of the newest step in each slot; -inf if one ended, and
        NaN is lower.  Waits until they have arrived."""
        self.wait()
        scores = self.newest[:, self.n_rows : self.n_rows + self.n_candidates]  # (B, N)
        return scores.amin(1).tolist()

    def event(self, slot: int, step: int) -> Event:
        """The newest step of a slot as an event; `step` counts the sentence's own steps."""
        numbers, k = self.newest[slot].tolist(), self.plan.beam_size
        rows = candidates = as_columns(numbers[: 4 * k], slot * k)
        if len(numbers) > self.n_rows + self.n_candidates:
            candidates = as_columns(numbers[self.n_rows + self.n_candidates :], slot * k)
        costs = numbers[self.costs] if self.plan.has_costs else self.no_costs
        return Event(step, candidates, rows, costs)

    def read(self, slot: int, start: int) -> Tensor:
        """The lines about the rows of a slot from step `start` on (T, M'), with parents as rows of
        the sentence."""
        k = self.plan.beam_size
        lines = self.lines[start : self.n_steps, slot, : self.n_rows].clone()  # (T, M')
        lines[:, k : 2 * k] -= slot * k
        return lines


def arrival(device: torch.device) -> Callable[[], object]:
    """A function that waits for the copies that have begun."""
    if device.type != "cuda":
        return lambda: None
    event: torch.Event = torch.cuda.current_stream(device).record_event()
    return event.synchronize


def as_columns(numbers: list[float], first_row: int) -> Candidates:
    """Four columns, one after the other; rows from `first_row` on are those of the sentence."""
    n = len(numbers) // 4
    row = [row - first_row for row in numbers[n : 2 * n]]
    return Candidates(numbers[:n], row, numbers[2 * n : 3 * n], numbers[3 * n :])
