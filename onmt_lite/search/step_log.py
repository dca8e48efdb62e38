"""Host copy of the search: one packed row of numbers per slot and step."""

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
    """Scores and masks of a step, kept only for the observer (-dump_beam)."""

    model_scores: TokenScores  # before all logits processors
    token_scores: TokenScores  # after all logits processors
    scores: Tensor  # (B, K) scores of the old rows
    attn: Tensor  # (R, S) attention of the old rows
    # Reason of each mask, and the tokens (R, V) that are masked after it
    forbidden: list[tuple[str, Tensor]]


@dataclass(frozen=True)
class ChosenRows:
    """The result of a step, on the device."""

    rows: Candidates  # (B, K) the new rows; score -inf: no such row
    candidates: Candidates  # (B, N) all ranked candidates; may be the same object as `rows`
    open_scores: Tensor  # (B, K) scores of the rows for the next step; -inf: not expanded
    penalties: Tensor | None = None  # (B, K) coverage penalties of the old rows
    attended: Tensor | None = None  # (B, K) source token that each old row attends to most
    trace: TraceInputs | None = None


class StepLog:
    """All steps of a batch on the host; copying them is the only transfer from the device.

    A step is one float32 tensor (B, M); float32 is exact for integers up to 2^24.  `columns` maps
    names to slices of the M numbers.  Parents are rows of the batch inside the log, and rows of the
    sentence (0 to K-1) in all return values.

    Args:
        spec: the search spec.
        n_slots: maximum number of sentences that run at once.
        device: the model's device.
    """

    def __init__(self, spec: SearchSpec, n_slots: int, device: torch.device):
        self.spec, self.n_slots, self.device = spec, n_slots, device
        self.wait = record_copy(device)
        self.columns: dict[str, slice] = {}
        self.steps = torch.empty(0)  # (T, slots, M)
        self.newest = torch.empty(0)  # (B, M), the last step
        self.n_steps = 0

    def send(self, chosen: ChosenRows) -> None:
        """Start the asynchronous copy of a step to the host."""
        parts = {f"row_{name}": column for name, column in vars(chosen.rows).items()}
        if chosen.penalties is not None:
            parts["penalty"] = chosen.penalties
        if chosen.attended is not None:
            parts["attended"] = chosen.attended
        if chosen.candidates is not chosen.rows:
            parts |= {f"candidate_{n}": column for n, column in vars(chosen.candidates).items()}
        packed = torch.cat([*parts.values()], 1)  # (B, M) float32
        if self.n_steps == len(self.steps):
            self._grow(parts)
        self.newest = self.steps[self.n_steps, : len(packed)]
        self.newest.copy_(packed, non_blocking=True)
        self.wait = record_copy(self.device)
        self.n_steps += 1

    def _grow(self, parts: dict[str, Tensor]) -> None:
        """Double the capacity of the host buffer."""
        end = 0
        for name, part in parts.items():
            self.columns[name] = slice(end, end + part.size(1))
            end += part.size(1)
        shape = max(INITIAL_CAPACITY, 2 * self.n_steps), self.n_slots, end
        grown = torch.empty(shape, pin_memory=self.device.type == "cuda")  # (T, slots, M)
        grown[: self.n_steps] = self.steps.view(self.n_steps, *shape[1:])
        self.steps = grown

    def wait_for_events(self) -> list[bool]:
        """Wait for the newest step and return which slots have an event.

        Returns:
            One value per slot: True if a candidate took EOS, if no candidate is left, or at NaN.
        """
        self.wait()
        group = "candidate" if "candidate_score" in self.columns else "row"
        ended = self.newest[:, self.columns[f"{group}_ended"]].amax(1)  # (B,)
        best = self.newest[:, self.columns[f"{group}_score"]].amax(1)  # (B,), NaN if any is NaN
        return [
            end > 0 or not score > -torch.inf for end, score in zip(ended.tolist(), best.tolist())
        ]

    def read_event(self, slot: int, step: int) -> StepEvent:
        """Return the newest step of a slot; `step` is the step number of its sentence."""
        packed_row, columns = self.newest[slot].tolist(), self.columns
        rows = candidates = self._read_candidates(packed_row, "row", slot)
        if "candidate_score" in columns:
            candidates = self._read_candidates(packed_row, "candidate", slot)
        none = [0.0] * self.spec.beam_size
        penalties = packed_row[columns["penalty"]] if "penalty" in columns else none
        return StepEvent(step, candidates, rows, penalties)

    def _read_candidates(self, packed_row: list[float], group: str, slot: int) -> CandidateList:
        """Unpack the candidates or the rows of a slot.

        Args:
            packed_row: M numbers of a slot.
            group: "candidate" or "row", the prefix of the column names.
            slot: the slot.
        """
        columns = self.columns
        score, parent, token, log_prob, ended = (
            packed_row[columns[f"{group}_{name}"]] for name in CandidateList._fields
        )
        first = slot * self.spec.beam_size
        return CandidateList(score, [row - first for row in parent], token, log_prob, ended)

    def read_history(self, slot: int, start: int) -> RowHistory:
        """Return the rows of a slot from step `start` of the batch (from 0) to the newest."""
        steps = self.steps[start : self.n_steps, slot].tolist()  # (T, M)
        first = slot * self.spec.beam_size

        def get_column(name: str) -> list[list[float]]:  # (T, K)
            column = self.columns[name]
            return [step[column] for step in steps]

        has_attended = "attended" in self.columns
        return RowHistory(
            get_column("row_score"),
            [[int(parent) - first for parent in step] for step in get_column("row_parent")],
            [[int(token) for token in step] for step in get_column("row_token")],
            get_column("row_log_prob"),
            [[ended > 0 for ended in step] for step in get_column("row_ended")],
            [[int(s) for s in step] for step in get_column("attended")] if has_attended else [],
        )

    def read_newest_rows(self) -> list[CandidateList]:
        """Return the newest rows of each slot."""
        packed_rows = self.newest.tolist()
        return [self._read_candidates(row, "row", slot) for slot, row in enumerate(packed_rows)]


def record_copy(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until the copies queued so far have finished."""
    if device.type != "cuda":
        return lambda: None
    event: torch.Event = torch.cuda.current_stream(device).record_event()
    return event.synchronize
