"""What reaches the host: one packed row of numbers per slot and step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_lite.search.beam import CandidateList, RowHistory, StepEvent
from onmt_lite.search.spec import SearchSpec
from onmt_lite.search.topk import Candidates, TokenScores

INITIAL_CAPACITY = 64  # steps


@dataclass(frozen=True)
class TraceInputs:
    """What a step chose from, kept only for an observer of the loop."""

    model: TokenScores  # of the model itself, before any rule
    ranked: TokenScores  # after all rules
    scores: Tensor  # (B, K): of the rows that were continued
    attn: Tensor  # (R, S): of these rows
    forbidden: list[tuple[str, Tensor]]  # reason of each rule, and tokens (R, V) forbidden after it


@dataclass(frozen=True)
class ChosenRows:
    """The result of a step, on the device."""

    rows: Candidates  # (B, K): the new rows; a score of -inf: there is no such row
    candidates: Candidates  # (B, N): all that were ranked; the rows themselves if N = K
    open_scores: Tensor  # (B, K): of the rows, -inf if they ended: where the next step starts
    penalties: Tensor | None = None  # (B, K): coverage penalty of each old row
    attended: Tensor | None = None  # (B, K): source token that each old row attends to most
    trace: TraceInputs | None = None


class StepLog:
    """Copies each step to the host, the only transfer from the device, and keeps it there.

    A step is one tensor (B, M) in float32, which holds integers up to 2^24; `columns` has the name
    of each group of its M numbers.  Rows are those of the batch in here, and those of the sentence
    in what is returned.

    Args:
        spec: SearchSpec.
        n_slots: int, the most sentences that run at once.
    """

    def __init__(self, spec: SearchSpec, n_slots: int, device: torch.device):
        self.spec, self.n_slots, self.device = spec, n_slots, device
        self.wait = record_copy(device)
        self.columns: dict[str, slice] = {}
        self.steps = torch.empty(0)  # (T, slots, M)
        self.newest = torch.empty(0)  # (B, M): the last step
        self.n_steps = 0

    def send(self, chosen: ChosenRows) -> None:
        """Start the copy of a step to the host."""
        parts = {f"row_{name}": column for name, column in vars(chosen.rows).items()}
        if chosen.penalties is not None:
            parts["penalty"] = chosen.penalties
        if chosen.attended is not None:
            parts["attended"] = chosen.attended
        if chosen.candidates is not chosen.rows:
            parts |= {f"candidate_{n}": column for n, column in vars(chosen.candidates).items()}
        packed = torch.cat([*parts.values()], 1)  # (B, M); all become numbers of float32
        if self.n_steps == len(self.steps):
            self._grow(parts)
        self.newest = self.steps[self.n_steps, : len(packed)]
        self.newest.copy_(packed, non_blocking=True)
        self.wait = record_copy(self.device)
        self.n_steps += 1

    def _grow(self, parts: dict[str, Tensor]) -> None:
        """Make room for twice the steps, on the host."""
        end = 0
        for name, part in parts.items():
            self.columns[name] = slice(end, end + part.size(1))
            end += part.size(1)
        shape = max(INITIAL_CAPACITY, 2 * self.n_steps), self.n_slots, end
        grown = torch.empty(shape, pin_memory=self.device.type == "cuda")  # (T, slots, M)
        grown[: self.n_steps] = self.steps.view(self.n_steps, *shape[1:])
        self.steps = grown

    def wait_for_events(self) -> list[bool]:
        """Wait until the newest step has arrived; return for each slot whether a candidate ended in
        it, none is left, or the model returned NaN."""
        self.wait()
        side = "candidate" if "candidate_score" in self.columns else "row"
        ended = self.newest[:, self.columns[f"{side}_ended"]].amax(1)  # (B,)
        best = self.newest[:, self.columns[f"{side}_score"]].amax(1)  # (B,); NaN wins
        return [
            end > 0 or not score > -torch.inf for end, score in zip(ended.tolist(), best.tolist())
        ]

    def read_event(self, slot: int, step: int) -> StepEvent:
        """Return the newest step of a slot; `step` counts the sentence's own steps."""
        numbers, columns = self.newest[slot].tolist(), self.columns
        rows = candidates = self._list(numbers, "row", slot)
        if "candidate_score" in columns:
            candidates = self._list(numbers, "candidate", slot)
        none = [0.0] * self.spec.beam_size
        penalties = numbers[columns["penalty"]] if "penalty" in columns else none
        return StepEvent(step, candidates, rows, penalties)

    def _list(self, numbers: list[float], side: str, slot: int) -> CandidateList:
        columns = self.columns
        score, parent, token, log_prob, ended = (
            numbers[columns[f"{side}_{name}"]] for name in CandidateList._fields
        )
        first = slot * self.spec.beam_size
        return CandidateList(score, [row - first for row in parent], token, log_prob, ended)

    def read_history(self, slot: int, start: int) -> RowHistory:
        """Return the rows that a slot has made from step `start` of the batch on."""
        steps = self.steps[start : self.n_steps, slot]  # (T, M)

        def column(name: str) -> Tensor:
            return steps[:, self.columns[name]]

        attended = column("attended").long().tolist() if "attended" in self.columns else []
        return RowHistory(
            column("row_score").tolist(),
            (column("row_parent") - slot * self.spec.beam_size).long().tolist(),
            column("row_token").long().tolist(),
            column("row_log_prob").tolist(),
            column("row_ended").bool().tolist(),
            attended,
        )

    def read_newest_rows(self) -> list[CandidateList]:
        """Return the newest rows of each slot."""
        return [self._list(row, "row", slot) for slot, row in enumerate(self.newest.tolist())]


def record_copy(device: torch.device) -> Callable[[], object]:
    """Return a function that waits for the copies that have begun."""
    if device.type != "cuda":
        return lambda: None
    event: torch.Event = torch.cuda.current_stream(device).record_event()
    return event.synchronize
