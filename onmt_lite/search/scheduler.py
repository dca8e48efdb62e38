"""Scheduler: encodes waiting sentences and decides which of them enter the running batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.models.selection import Selection, sent
from onmt_lite.search.beam import Beam
from onmt_lite.search.beam2018 import Beam2018
from onmt_lite.search.plan import NO_TOKEN, Plan, Sentence

# Sources are as wide as a multiple of this.  On a GPU few shapes of steps are recorded; on a CPU a
# sum over a sentence's tokens adds them up in the same order, to the last bit, in every batch
WIDTHS = {"cpu": 16, "cuda": 32}
REFILL = 8  # waiting sentences join when one slot in so many is free


@dataclass
class Slot:
    """A running sentence on the host.

    number   index among the sentences of the search
    started  steps of the batch before the sentence's first own one
    last     step of the batch that reaches the sentence's limit
    read     steps of the batch that its Beam has read
    """

    number: int
    beam: Beam
    started: int = 0
    last: int = 0
    read: int = 0

    def start(self, n_steps: int) -> None:
        """Make `n_steps` the number of steps before the first own one."""
        self.started = self.read = n_steps
        self.last = n_steps + self.beam.limits.max_steps


@dataclass
class SlotTable:
    """The running sentences on the device, one line per slot.

    tokens, scores (B, K)             of the newest rows; score -inf: the row is not expanded
    parents (B, K)                    the row of the batch before that each of them continues
    started (B, 1)                    see `Slot`
    max_steps, min_end, seed (B, 1)   see `Limits`
    src_length, n_prefix (B, 1)       in tokens
    given (B, G)                      start tokens and prefix, filled up with NO_TOKEN
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor
    started: Tensor
    max_steps: Tensor
    min_end: Tensor
    seed: Tensor
    src_length: Tensor
    n_prefix: Tensor
    given: Tensor

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

    def start(self, n_steps: int) -> None:
        """Make `n_steps` the number of steps before the first own one of all sentences."""
        self.table.started = torch.full_like(self.table.started, n_steps)  # (B, 1)


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
        table = self._table(chosen)
        ids, width = None, None
        if chosen[0].copy_ids is not None:
            copied = padded([s.copy_ids or [] for s in chosen], longest)
            ids, width = sent(copied, device), self.n_words  # (B, S)
        with self.plan.clock.phase("encode"):
            memory = self.model.encode(src, table.src_length[:, 0], ids, width)
        slots = [Slot(i, self._beam(s)) for i, s in zip(numbers, chosen)]
        return Encoded(slots, self.model.init_state(memory), table)

    def _table(self, chosen: Sequence[Sentence]) -> SlotTable:
        """The table of sentences that join, in one transfer."""
        given = [[*(s.limits.start or (self.plan.bos_id,)), *s.limits.prefix] for s in chosen]
        width = max(map(len, given))
        facts = [[0, *facts_of(sentence)] for sentence in chosen]
        both = torch.cat([torch.tensor(facts), padded(given, width, NO_TOKEN)], 1)  # (B, 6 + G)
        columns = torch.split(sent(both, self.model.device), [1] * 6 + [width], 1)
        tokens = columns[-1][:, :1].repeat(1, self.plan.beam_size)  # (B, K)
        scores = self.first_scores.repeat(len(chosen), 1)  # (B, K)
        return SlotTable(tokens, scores, torch.zeros_like(tokens), *columns)

    def _beam(self, sentence: Sentence) -> Beam:
        if self.plan.policy.as_2018:
            return Beam2018(self.plan, sentence.limits, self.open_2018)
        return Beam(self.plan, sentence.limits)


def facts_of(sentence: Sentence) -> list[int]:
    """The numbers of a `SlotTable` from `max_steps` to `n_prefix`."""
    own = sentence.limits
    return [own.max_steps, own.min_end, own.seed, len(sentence.src), len(own.prefix)]


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
