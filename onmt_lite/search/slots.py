"""What the batch receives and returns: waiting sentences enter, each step's numbers leave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel, Selection, sent
from onmt_lite.search.beam import Beam, Beam2018, Candidates, Event
from onmt_lite.search.spec import NO_TOKEN, Plan, Sentence
from onmt_lite.search.topk import Ranked

# Sources are as wide as a multiple of this.  On a GPU few shapes of steps are recorded; on a CPU a
# sum over a sentence's tokens that torch makes has the same order, to the last bit, in every batch
WIDTHS = {"cpu": 16, "cuda": 32}
REFILL = 8  # waiting sentences join when one slot in so many is free
FIRST_CAPACITY = 64  # steps


@dataclass
class Slot:
    """A running sentence on the host."""

    number: int  # index among the sentences of the search
    beam: Beam
    started: int = 0  # steps of the batch before the sentence's first own one
    last: int = 0  # step of the batch that reaches the sentence's limit
    read: int = 0  # steps of the batch that its Beam has read


@dataclass
class SlotTable:
    """The running sentences on the device, one line per slot."""

    tokens: Tensor  # (B, K): of the newest rows
    scores: Tensor  # (B, K): of the newest rows; -inf: the row is not expanded
    parents: Tensor  # (B, K): the row of the batch before that each of them continues
    started: Tensor  # (B, 1): see `Slot`
    max_steps: Tensor  # (B, 1): see `Limits`
    min_end: Tensor  # (B, 1)
    seed: Tensor  # (B, 1)
    src_length: Tensor  # (B, 1): in tokens
    n_prefix: Tensor  # (B, 1)
    given: Tensor  # (B, G): start tokens and prefix, filled up with NO_TOKEN

    def select(self, selection: Selection, fresh: "SlotTable | None" = None) -> "SlotTable":
        """Follow sentences that leave, move and join."""
        others = [None] * len(vars(self)) if fresh is None else vars(fresh).values()
        parts = zip(vars(self).values(), others)
        return SlotTable(*(selection.of_sentences(*part, fill=NO_TOKEN) for part in parts))


@dataclass
class Encoded:
    """Sentences that are encoded, with one row each; the first `joined` of them already run."""

    slots: list[Slot]
    state: Any
    table: SlotTable
    joined: int = 0

    @property
    def n_waiting(self) -> int:
        return len(self.slots) - self.joined


class Scheduler:
    """The sentences that wait: encodes them in groups, in the order given.

    n_words    V + X; X: the most words of its own that a sentence has
    encoded    those that join next
    open_2018  beams of a search of 2018 whose stop rule has not held yet
    """

    def __init__(self, model: AnyModel, plan: Plan, sentences: Sequence[Sentence], n_slots: int):
        self.model, self.plan, self.sentences, self.n_slots = model, plan, sentences, n_slots
        words = [max(s.copy_ids) + 1 for s in sentences if s.copy_ids]
        self.n_words = max([model.vocab_size, *words])  # V + X
        self.first_scores = sent(torch.tensor([plan.first_scores()]), model.device)  # (1, K)
        self.encoded: Encoded | None = None
        self.n_encoded = 0
        self.open_2018: set[Beam2018] = set()

    def ready(self, n_free: int) -> int:
        """Return how many sentences join now, with `n_free` free slots; encode those that will."""
        n_waiting = len(self.sentences) - self.n_encoded
        if n_free < self.n_slots and n_free < self.n_slots / REFILL:
            return 0
        if n_waiting and (self.encoded is None or not self.encoded.n_waiting):
            n = min(n_waiting, max(n_free, self.n_slots // 4))
            self.encoded = self._encode(range(self.n_encoded, self.n_encoded + n))
            self.n_encoded += n
        return min(n_free, self.encoded.n_waiting) if self.encoded else 0

    def _encode(self, numbers: range) -> Encoded:
        chosen, device = [self.sentences[i] for i in numbers], self.model.device
        longest = max(len(s.src) for s in chosen)
        multiple = WIDTHS["cpu" if device.type == "cpu" else "cuda"]
        longest = max(longest, min(-longest % multiple + longest, self.model.max_positions))
        src = sent(padded([s.src for s in chosen], longest, self.plan.src_pad_id), device)  # (B, S)
        table, ids, width = self._table(chosen), None, None
        if chosen[0].copy_ids is not None:
            copied = padded([s.copy_ids or [] for s in chosen], longest)
            ids, width = sent(copied, device), self.n_words  # (B, S)
        with self.plan.clock.phase("encode"):
            memory = self.model.encode(src, table.src_length[:, 0], ids, width)
        beams: Sequence[Beam]
        if self.plan.policy.as_2018:
            beams = [Beam2018(self.plan, s.limits, self.open_2018) for s in chosen]
        else:
            beams = [Beam(self.plan, s.limits) for s in chosen]
        slots = [Slot(number, beam) for number, beam in zip(numbers, beams)]
        return Encoded(slots, self.model.init_state(memory), table)

    def _table(self, chosen: Sequence[Sentence]) -> SlotTable:
        """The table of sentences that join, in one transfer."""
        given = [[*(s.limits.start or (self.plan.bos_id,)), *s.limits.prefix] for s in chosen]
        width = max(map(len, given))
        facts = [
            (0, own.max_steps, own.min_end, own.seed, len(s.src), len(own.prefix))
            for s, own in ((s, s.limits) for s in chosen)
        ]
        both = torch.cat([torch.tensor(facts), padded(given, width, NO_TOKEN)], 1)  # (B, 6 + G)
        # The columns of a `SlotTable` from `started` on
        columns = torch.split(sent(both, self.model.device), [1] * 6 + [width], 1)
        tokens = columns[-1][:, :1].repeat(1, self.plan.beam_size)  # (B, K)
        scores = self.first_scores.repeat(len(chosen), 1)  # (B, K)
        return SlotTable(tokens, scores, torch.zeros_like(tokens), *columns)


def fill_holes(kept: list[int], joining: Sequence[int]) -> list[int]:
    """Return the sentence in each slot: as many as possible of `kept` stay where they are, and
    those that join and then the last ones fill the holes.

    kept [0, 2, 3], joining [] -> [0, 3, 2].
    """
    n = len(kept) + len(joining)
    stay, movers = {b for b in kept if b < n}, [*joining, *(b for b in kept if b >= n)]
    others = iter(movers)
    return [b if b in stay else next(others) for b in range(n)]


def padded(lists: Sequence[Sequence[int]], n: int, fill: int = 0) -> Tensor:
    """(B, n) from lists of up to n numbers."""
    return torch.tensor([[*numbers, *[fill] * (n - len(numbers))] for numbers in lists])


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

    def begin(
        self,
        rows: Ranked,
        cost: Tensor | None,
        place: Tensor | None,
        open_scores: Tensor,
        candidates: Ranked | None,
    ) -> None:
        """Begin to copy the lines of a step: the only transfer from the device."""
        parts = [*vars(rows).values()]
        parts += [part.view_as(rows.score) for part in (cost, place) if part is not None]
        parts.append(open_scores)
        if candidates is not None:
            parts += vars(candidates).values()
        self.n_candidates = open_scores.size(1)
        packed = torch.cat(parts, 1)  # (B, M); integers become numbers of float32
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

    def read(self, slot: int, start: int) -> list[list[float]]:
        """The lines about the rows of a slot from step `start` on, with parents as rows of the
        sentence."""
        k = self.plan.beam_size
        lines = self.lines[start : self.n_steps, slot, : self.n_rows].clone()  # (T, M')
        lines[:, k : 2 * k] -= slot * k
        return lines.tolist()


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
